"""`mfu_of_log` of lesson 15: utilization from the lines that a training run leaves.

Logs are made anew for every check: a first iteration that is slow, but in one log, one iteration
that was held up, recomputation or none.
"""

from __future__ import annotations

import re
import statistics
from random import Random

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.by_cases import Case, Cases, Idea, judge_cases
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.words import Page

SECONDS, TOKENS, MFU, HFU = KEYS = ("seconds", "tokens/s", "mfu", "hfu")
QUICK = 4  # the case whose first iteration is no slower than the others
LINE = re.compile(r"elapsed time per iteration \(ms\): ([\d.]+) \| global batch size: +(\d+)")


def make(r: Random, k: int) -> Case:
    hidden, layers = 128 * r.randint(8, 48), r.randint(12, 72)
    gpus, rows = 8 * r.randint(1, 64), 64 * r.randint(2, 16)
    case = {
        "hidden": hidden, "layers": layers, "length": 256 * r.randint(4, 16),
        "vocabulary": 1000 * r.randint(30, 130), "gpus": gpus, "peak": r.randint(100, 990) * 1e12,
        "recompute": k % 2,
    }  # fmt: skip
    usual = 1e3 * flops(case, rows) / (gpus * case["peak"] * r.uniform(0.25, 0.5))
    return {**case, "log": _log(r, usual, rows, k)}


def _log(r: Random, usual: float, rows: int, k: int) -> str:
    """An odd number of iterations or an even one without the first; a training that went on begins
    with another number. In one log the first iteration is the fastest: all was loaded before."""
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


# ---- the one count
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
    """Of a step: `times` a forward, all layers and the head."""
    h, s, tokens = case["hidden"], case["length"], rows * case["length"]
    layer = 24 * h * h + (4 * s * h if attention else 0)
    return times * tokens * (case["layers"] * layer + (2 * h * case["vocabulary"] if head else 0))


def again(case: Case, rows: int) -> float:
    """What is computed a second time: the blocks' forward."""
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
    "The first iteration is left out, whether it is slow or not, and no other: a median takes "
    "care of those that were held up."
)
IDEAS = (
    Idea(SECONDS, "the first iteration counted", "The first iteration loads libraries and makes "
         "buffers: leave it out, also of a median.",
         lambda c: statistics.median(milliseconds(c)) / 1e3),
    Idea(SECONDS, "the first iteration counted", "That is the mean of all iterations, of which "
         "the first loads libraries.", lambda c: statistics.mean(milliseconds(c)) / 1e3),
    Idea(SECONDS, "iteration 1 left out", "A log may begin in the middle of a training. Its "
         "first iteration is the first of the program that was started again, whatever its "
         "number.", _but_number_one),
    Idea(SECONDS, "not the middle", "With an even number of iterations the median is between the "
         "two in the middle.", lambda c: statistics.median_low(milliseconds(c)[1:]) / 1e3),
    Idea(SECONDS, "not the middle", "With an even number of iterations the median is between the "
         "two in the middle.", lambda c: statistics.median_high(milliseconds(c)[1:]) / 1e3),
    Idea(SECONDS, "one iteration", "That is the second iteration. A step is what is usual, not "
         "what happened once.", lambda c: milliseconds(c)[1] / 1e3),
    Idea(SECONDS, "not sorted", "A median is the middle of the sorted times.",
         lambda c: milliseconds(c)[1 + (len(milliseconds(c)) - 1) // 2] / 1e3),
    Idea(SECONDS, "more left out", "Only the first iteration is left out.",
         lambda c: statistics.median(milliseconds(c)[2:]) / 1e3),
    Idea(SECONDS, "more left out", "Only the first iteration is left out, not the last.",
         lambda c: statistics.median(milliseconds(c)[1:-1]) / 1e3),
    Idea(SECONDS, "the slowest left out", "The first iteration is left out, whether it is slow or "
         "not, and no other: where all was loaded before, the slowest is another one.",
         lambda c: statistics.median(sorted(milliseconds(c))[:-1]) / 1e3),
    Idea(SECONDS, "outliers left out", OUTLIERS, lambda c: _but_outliers(c, 10)),
    Idea(SECONDS, "outliers left out", OUTLIERS, lambda c: _but_outliers(c, 2)),
    Idea(SECONDS, "a mean", "One iteration was held up by a checkpoint. A mean takes it for the "
         "step; a median does not.", lambda c: statistics.mean(milliseconds(c)[1:]) / 1e3),
    Idea(SECONDS, "the best one", "That is the fastest iteration. A step is what is usual, not "
         "what happened once.", lambda c: min(milliseconds(c)) / 1e3),
    Idea(SECONDS, "the best one", "That is the fastest iteration. A step is what is usual, not "
         "what happened once.", lambda c: min(milliseconds(c)[1:]) / 1e3),
    Idea(SECONDS, "milliseconds", "The log has milliseconds.", lambda c: 1e3 * seconds(c)),
    Idea(TOKENS, "of all GPUs", "Those are the tokens of all GPUs. Asked is for one.",
         lambda c: rows_of(c) * c["length"] / seconds(c)),
    Idea(TOKENS, "a batch for each GPU", "The log's batch is global: the rows of all replicas "
         "together.", lambda c: rows_of(c) * c["length"] / seconds(c) * c["gpus"]),
    Idea(TOKENS, "sequences", "Those are sequences; each has `length` tokens.",
         lambda c: rows_of(c) / seconds(c) / c["gpus"]),
    Idea(MFU, "recomputation counted", "What is computed a second time the mathematics does not "
         "need: MFU leaves it out.",
         lambda c: of_peak(c, flops(c, rows_of(c)) + again(c, rows_of(c)))),
    Idea(TOKENS, "one sequence", "A step has as many sequences as the log's global batch.",
         lambda c: c["length"] / seconds(c) / c["gpus"]),
    Idea(TOKENS, "by the mean", "The rate follows from the median, as the seconds do.",
         lambda c: 1e3 * rows_of(c) * c["length"] / statistics.mean(milliseconds(c)[1:]) /
             c["gpus"]),
    Idea(MFU, "the pairs halved", "All pairs of tokens are counted here, and not the half that a "
         "causal mask keeps.", lambda c: (_needed(c) + _needed(c, attention=False)) / 2),
    Idea(MFU, "a head in each layer", "The head is there once, behind the last layer.",
         lambda c: _needed(c) + (c["layers"] - 1) * (_needed(c) - _needed(c, head=False))),
    Idea(MFU, "two forwards", "A backward has twice as many as the forward: a step has three "
         "times the forward's.", lambda c: _needed(c, times=2)),
    Idea(MFU, "no attention", "The products of the scores, and of the values with them, are "
         "missing: 4·s·h for each token and layer.", lambda c: _needed(c, attention=False)),
    Idea(MFU, "no head", "The logits are a product too: 2·h·v for each token.",
         lambda c: _needed(c, head=False)),
    Idea(MFU, "layers' weights alone", "Those are the products with the layers' weights; "
         "attention's own and the head's come on top.",
         lambda c: _needed(c, attention=False, head=False)),
    Idea(MFU, "the forward alone", "That is the forward. A backward has two products for each of "
         "the forward's.", lambda c: _needed(c, times=1)),
    Idea(MFU, "one GPU's peak", "All GPUs have computed: the denominator is the peak of all of "
         "them.", lambda c: of_peak(c, flops(c, rows_of(c)), gpus=1)),
    Idea(MFU, "in percent", "That is in percent. Asked is for a fraction.",
         lambda c: 100 * _needed(c)),
    Idea(HFU, "recomputation forgotten", "HFU counts what the hardware did: with recomputation "
         "each block's forward twice.", lambda c: _needed(c)),
    Idea(HFU, "attention not again", "Each layer's forward is run again, and attention's "
         "products with it.",
         lambda c: _needed(c) + c["recompute"] * _needed(c, attention=False, head=False, times=1)),
    Idea(HFU, "attention alone again", "Each layer's forward is run again, all of it and not "
         "attention alone.",
         lambda c: _needed(c) + c["recompute"] * (_needed(c, head=False, times=1) - _needed(c,
             attention=False, head=False, times=1))),
    Idea(HFU, "the head again", "Blocks are computed a second time; the head is not.",
         lambda c: _needed(c, times=3 + c["recompute"])),
    Idea(HFU, "recomputed in every run", "Where nothing is recomputed, HFU and MFU are one.",
         lambda c: of_peak(c, flops(c, rows_of(c)) + flops(c, rows_of(c), head=False, times=1))),
)  # fmt: skip
CASES = Cases(KEYS, 6, make, right, IDEAS)


def judge_mfu(answer: Answer, judge: Judge) -> None:
    judge_cases(answer, judge, CASES, __name__)


MFU_OF_LOG = Exercise(judge=judge_mfu, **Page("lesson_15/mfu_of_log").about)
