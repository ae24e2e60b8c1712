"""`mfu_of_log` of lesson 15: utilization from the lines of a training log.

Logs are drawn for every check: the first iteration is slow in all logs but one, one iteration is
delayed, and some runs use recomputation.
"""

from __future__ import annotations

import re
import statistics
from random import Random

from course_classroom.judge.answer import Answer
from course_classroom.judge.by_cases import Case, Cases, Idea, judge_cases
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge
from course_classroom.judge.words import Page

SAYS = Page(__file__, "mfu_of_log")

SECONDS, TOKENS, MFU, HFU = KEYS = ("seconds", "tokens/s", "mfu", "hfu")
QUICK = 4  # the case whose first iteration is not slower than the others
LINE = re.compile(r"elapsed time per iteration \(ms\): ([\d.]+) \| global batch size: +(\d+)")


def make(r: Random, k: int) -> Case:
    hidden, layers = 128 * r.randint(8, 48), r.randint(12, 72)
    gpus, rows = 8 * r.randint(1, 64), 64 * r.randint(2, 16)
    case = {"hidden": hidden, "layers": layers, "length": 256 * r.randint(4, 16)}
    case |= {"vocabulary": 1000 * r.randint(30, 130), "gpus": gpus}
    case |= {"peak": r.randint(100, 990) * 1e12, "recompute": k % 2}
    usual = 1e3 * flops(case, rows) / (gpus * case["peak"] * r.uniform(0.25, 0.5))
    return {**case, "log": _log(r, usual, rows, k)}


def _log(r: Random, usual: float, rows: int, k: int) -> str:
    """Make a log with an odd or even number of iterations after the first; a resumed training
    begins with a higher number. In one log, the first iteration is the fastest."""
    count, begin = 8 + k // 2 % 2, 1 if k < 3 else r.randint(2, 40)
    held_up = begin + r.randint(3, 5)
    starts = 0.95 if k == QUICK else 12.0
    lines = []
    for i in range(begin, begin + count):
        slower = {begin: starts, held_up: 2.5}.get(i, 1.0)
        ms = usual * slower * r.uniform(0.98, 1.02)
        lines.append(
            f" iteration {i:>8}/{5000:>8} | elapsed time per iteration (ms): {ms:.1f} | "
            f"global batch size: {rows:>5} | lm loss: {r.uniform(2, 9):.4E} |"
        )
        if i == held_up - 1:
            lines.append(f"saving checkpoint at iteration {i:>7}")
    return "\n".join(lines) + "\n"


# ---- the only count
def milliseconds(case: Case) -> list[float]:
    return [float(ms) for ms, _ in LINE.findall(case["log"])]


def rows_of(case: Case) -> int:
    return int(LINE.findall(case["log"])[0][1])


def _but_number_one(case: Case) -> float:
    kept = milliseconds(case)
    return statistics.median(kept[1:] if " 1/" in case["log"] else kept) / 1e3


def seconds(case: Case) -> float:
    return statistics.median(milliseconds(case)[1:]) / 1e3


def flops(
    case: Case, rows: int, *, attention: bool = True, head: bool = True, times: float = 3
) -> float:
    """Return the FLOPs of a step: `times` the forward pass of all layers and the head."""
    h, s, tokens = case["hidden"], case["length"], rows * case["length"]
    layer = 24 * h * h + (4 * s * h if attention else 0)
    return times * tokens * (case["layers"] * layer + (2 * h * case["vocabulary"] if head else 0))


def again(case: Case, rows: int) -> float:
    """Return the FLOPs of the recomputation, which is a forward pass of the blocks."""
    return flops(case, rows, head=False, times=1) if case["recompute"] else 0.0


def of_peak(case: Case, done: float, *, gpus: int = 0, took: float = 0.0) -> float:
    return done / ((took or seconds(case)) * (gpus or case["gpus"]) * case["peak"])


def right(case: Case) -> dict[str, object]:
    rows = rows_of(case)
    needed = flops(case, rows)
    return {
        SECONDS: seconds(case),
        TOKENS: rows * case["length"] / seconds(case) / case["gpus"],
        MFU: of_peak(case, needed),
        HFU: of_peak(case, needed + again(case, rows)),
    }


def _needed(case: Case, **how: object) -> float:
    return of_peak(case, flops(case, rows_of(case), **how))


def _but_outliers(case: Case, times: float) -> float:
    took = milliseconds(case)
    return statistics.median(t for t in took if t < times * statistics.median(took)) / 1e3


OUTLIERS = (
    "The first iteration is left out, whether it is slow or not, and no others, because a median "
    "tolerates delayed ones."
)
IDEAS = (
    Idea(
        SECONDS,
        *SAYS.of("the first iteration counted #1"),
        lambda c: statistics.median(milliseconds(c)) / 1e3,
    ),
    Idea(
        SECONDS,
        *SAYS.of("the first iteration counted #2"),
        lambda c: statistics.mean(milliseconds(c)) / 1e3,
    ),
    Idea(SECONDS, *SAYS.of("iteration 1 left out"), _but_number_one),
    Idea(
        SECONDS,
        *SAYS.of("not the middle"),
        lambda c: statistics.median_low(milliseconds(c)[1:]) / 1e3,
    ),
    Idea(
        SECONDS,
        *SAYS.of("not the middle"),
        lambda c: statistics.median_high(milliseconds(c)[1:]) / 1e3,
    ),
    Idea(SECONDS, *SAYS.of("one iteration"), lambda c: milliseconds(c)[1] / 1e3),
    Idea(
        SECONDS,
        *SAYS.of("not sorted"),
        lambda c: milliseconds(c)[1 + (len(milliseconds(c)) - 1) // 2] / 1e3,
    ),
    Idea(
        SECONDS,
        *SAYS.of("more left out #1"),
        lambda c: statistics.median(milliseconds(c)[2:]) / 1e3,
    ),
    Idea(
        SECONDS,
        *SAYS.of("more left out #2"),
        lambda c: statistics.median(milliseconds(c)[1:-1]) / 1e3,
    ),
    Idea(
        SECONDS,
        *SAYS.of("the slowest left out"),
        lambda c: statistics.median(sorted(milliseconds(c))[:-1]) / 1e3,
    ),
    Idea(SECONDS, "outliers left out", OUTLIERS, lambda c: _but_outliers(c, 10)),
    Idea(SECONDS, "outliers left out", OUTLIERS, lambda c: _but_outliers(c, 2)),
    Idea(SECONDS, *SAYS.of("a mean"), lambda c: statistics.mean(milliseconds(c)[1:]) / 1e3),
    Idea(SECONDS, *SAYS.of("the best one"), lambda c: min(milliseconds(c)) / 1e3),
    Idea(SECONDS, *SAYS.of("the best one"), lambda c: min(milliseconds(c)[1:]) / 1e3),
    Idea(SECONDS, *SAYS.of("milliseconds"), lambda c: 1e3 * seconds(c)),
    Idea(TOKENS, *SAYS.of("of all GPUs"), lambda c: rows_of(c) * c["length"] / seconds(c)),
    Idea(
        TOKENS,
        *SAYS.of("a batch for each GPU"),
        lambda c: rows_of(c) * c["length"] / seconds(c) * c["gpus"],
    ),
    Idea(TOKENS, *SAYS.of("sequences"), lambda c: rows_of(c) / seconds(c) / c["gpus"]),
    Idea(
        MFU,
        *SAYS.of("recomputation counted"),
        lambda c: of_peak(c, flops(c, rows_of(c)) + again(c, rows_of(c))),
    ),
    Idea(TOKENS, *SAYS.of("one sequence"), lambda c: c["length"] / seconds(c) / c["gpus"]),
    Idea(
        TOKENS,
        *SAYS.of("by the mean"),
        lambda c: 1e3 * rows_of(c) * c["length"] / statistics.mean(milliseconds(c)[1:]) / c["gpus"],
    ),
    Idea(
        MFU, *SAYS.of("the pairs halved"), lambda c: (_needed(c) + _needed(c, attention=False)) / 2
    ),
    Idea(
        MFU,
        *SAYS.of("a head in each layer"),
        lambda c: _needed(c) + (c["layers"] - 1) * (_needed(c) - _needed(c, head=False)),
    ),
    Idea(MFU, *SAYS.of("two forwards"), lambda c: _needed(c, times=2)),
    Idea(MFU, *SAYS.of("no attention"), lambda c: _needed(c, attention=False)),
    Idea(MFU, *SAYS.of("no head"), lambda c: _needed(c, head=False)),
    Idea(
        MFU, *SAYS.of("only the layers' weights"), lambda c: _needed(c, attention=False, head=False)
    ),
    Idea(MFU, *SAYS.of("only the forward pass"), lambda c: _needed(c, times=1)),
    Idea(MFU, *SAYS.of("one GPU's peak"), lambda c: of_peak(c, flops(c, rows_of(c)), gpus=1)),
    Idea(MFU, *SAYS.of("in percent"), lambda c: 100 * _needed(c)),
    Idea(HFU, *SAYS.of("recomputation forgotten"), lambda c: _needed(c)),
    Idea(
        HFU,
        *SAYS.of("attention not again"),
        lambda c: _needed(c) + c["recompute"] * _needed(c, attention=False, head=False, times=1),
    ),
    Idea(
        HFU,
        *SAYS.of("only attention again"),
        lambda c: (
            _needed(c)
            + c["recompute"]
            * (_needed(c, head=False, times=1) - _needed(c, attention=False, head=False, times=1))
        ),
    ),
    Idea(HFU, *SAYS.of("the head again"), lambda c: _needed(c, times=3 + c["recompute"])),
    Idea(
        HFU,
        *SAYS.of("recomputed in every run"),
        lambda c: of_peak(c, flops(c, rows_of(c)) + flops(c, rows_of(c), head=False, times=1)),
    ),
)
CASES = Cases(KEYS, 6, make, right, IDEAS)


def judge_mfu(answer: Answer, judge: Judge) -> None:
    judge_cases(answer, judge, CASES, __name__)


MFU_OF_LOG = Exercise(judge=judge_mfu, **SAYS.about)
