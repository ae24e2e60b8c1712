"""`streamed_speed` of lesson 14: what streamed weights make of a token step.

Cases are drawn anew for each check; a wrong idea is recognised, key by key, by what it makes of all
of them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor
from random import Random

from course_classroom.judge.answer import Answer
from course_classroom.judge.by_cases import Case, Cases, Idea, judge_cases
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge
from course_classroom.judge.words import Page

SAYS = Page(__file__, "streamed_speed")
COUNT = 10


def make(r: Random, k: int) -> Case:
    """Batches so small that a rank waits for its memory, larger ones for which it waits for the
    link, and such that the arithmetic takes longest; at last two that are unlike the others."""
    if k == COUNT - 2:  # powers of two: a batch breaks even exactly, in any order of the counting
        case = {"item": 2, "ranks": r.choice((4, 8)), "layers": 32}
        case |= {"hidden": 2 ** r.randint(12, 13), "parameters": 2 ** r.randint(34, 36)}
        case |= {"link": 2.0 ** r.randint(34, 36), "memory": 2.0**41}
        case |= {"flops": 2.0 ** r.randint(46, 48), "prompt": 2 ** r.randint(8, 9)}
        return {**case, "batch": 2 ** r.randint(4, 7)}
    case = _machine(r)
    while not _rounds_alike(case):
        case = _machine(r)
    even = ceil(Counts(case).even)
    case["batch"] = r.randint(*((2, 8), (even // 4, even // 2), (9 * even, 14 * even))[k % 3])
    if k == COUNT - 1:  # its own memory is slower than the link, and decides at stage 3 too
        case["memory"] = case["link"] / r.randint(2, 4)
    return case


def _machine(r: Random) -> dict[str, float]:
    hidden, layers = 128 * r.randint(24, 64), r.randint(24, 64)
    ranks, item = r.choice((3, 4, 6, 8)), r.choice((2, 4))
    link, flops = r.randint(11, 60) * 1e9, r.randint(60, 400) * 1e12
    return {
        "parameters": 12 * layers * hidden**2 + r.randint(30, 250) * 1000 * hidden,
        "item": item,
        "ranks": ranks,
        "layers": layers,
        "hidden": hidden,
        "link": link,
        "memory": r.randint(900, 3300) * 1e9,
        "flops": flops,
        "prompt": r.randint(150, 900),
        "batch": 1,
    }


def _rounds_alike(case: Case) -> bool:
    """Whether no count of the break-even lies so near a whole number that digits decide."""
    exact = Counts(case).even
    others = (1, 2, 1 / 3, case["ranks"] / (case["ranks"] - 1))
    return exact > 40 and all(0.02 < factor * exact % 1 < 0.98 for factor in others)


class Counts:
    """What a case comes to, by short names, of which the right numbers and the ideas are made."""

    def __init__(self, case: Case):
        self.case, self.n, self.b = case, case["ranks"], case["batch"]
        self.item, self.prompt, self.layers = case["item"], case["prompt"], case["layers"]
        # Bytes: all weights, and those that a rank lacks.
        self.weights = case["item"] * case["parameters"]
        self.received = self.weights * (self.n - 1) / self.n
        # Seconds: the gathers, reading all weights, a token step's operations; a tp rank's forward
        # and its sums, for the prompts of all ranks and for its own.
        self.transfer, self.reads = self.received / case["link"], self.weights / case["memory"]
        self.works, self.step = self.operations(self.b), self.streamed(self.b)
        every, share = self.n * self.b, 1 / self.n
        self.cut, self.cut_own = self.computed(every, share), self.computed(self.b, share)
        self.sums, self.sums_own = self.summed(every), self.summed(self.b)
        # Tokens whose operations take as long as the gathers, as sending or reading all weights.
        self.even = case["item"] * (self.n - 1) / self.n * case["flops"] / (2 * case["link"])
        self.even_if_sent = case["item"] * case["flops"] / (2 * case["link"])
        self.even_if_read = case["item"] * case["flops"] / (2 * case["memory"])

    def operations(self, tokens: float, share: float = 1.0) -> float:
        return 2 * share * self.case["parameters"] * tokens / self.case["flops"]

    def computed(self, tokens: float, share: float = 1.0) -> float:
        """Seconds for a forward of `tokens` tokens with a `share` of the weights: they are read
        from the rank's own memory while it computes."""
        return max(share * self.reads, self.operations(tokens, share))

    def streamed(self, tokens: float) -> float:
        return max(self.transfer, self.computed(tokens))

    def summed(self, tokens: float) -> float:
        """Seconds of the two all-reduces in each layer of a forward that is cut over tp."""
        activations = self.item * tokens * self.case["hidden"]
        return 2 * self.layers * 2 * (self.n - 1) / self.n * activations / self.case["link"]


def right(case: Case) -> dict[str, float]:
    """What each key comes to."""
    c = Counts(case)
    return {
        "bytes": c.received,
        "stage 3": c.step,
        "tokens/s": c.n * c.b / c.step,
        "dense": c.computed(c.b),
        "tp": c.cut + c.sums,
        "break-even": ceil(c.even),
        "prefill": c.streamed(c.b * c.prompt),
    }


_IDEAS: dict[str, tuple[tuple[str, Callable[[Counts], float]], ...]] = {
    "bytes": (
        ("its own piece too", lambda c: c.weights),
        ("its own piece alone", lambda c: c.weights / c.n),
        ("of all ranks", lambda c: c.n * c.received),
        ("gigabytes", lambda c: c.received / 1e9),
        ("the batch counted", lambda c: c.received * c.b),
        ("a backward counted #1", lambda c: 2 * c.received),
        ("a backward counted #2", lambda c: 3 * c.received),
        ("parameters, not bytes", lambda c: c.received / c.item),
    ),
    "stage 3": (
        ("one after the other #1", lambda c: c.transfer + c.computed(c.b)),
        ("the link alone", lambda c: c.transfer),
        ("weights for every prompt #1", lambda c: max(c.b * c.transfer, c.computed(c.b))),
        ("a backward counted #3", lambda c: max(c.transfer, 3 * c.works)),
        ("one operation", lambda c: max(c.transfer, c.works / 2)),
        ("a backward counted #3", lambda c: max(c.transfer, c.reads, 3 * c.works)),
        ("one operation", lambda c: max(c.transfer, c.reads, c.works / 2)),
        ("one after the other #2", lambda c: max(c.transfer, c.reads + c.works)),
        ("weights for every prompt #2", lambda c: max(c.transfer, c.b * c.reads, c.works)),
        ("milliseconds", lambda c: 1e3 * c.step),
        ("its share of the arithmetic", lambda c: max(c.transfer, c.cut_own)),
        ("prompts of all ranks #1", lambda c: c.streamed(c.n * c.b)),
        ("operations alone #1", lambda c: max(c.transfer, c.works)),
    ),
    "tokens/s": (
        ("token steps", lambda c: 1 / c.step),
        ("one rank's prompts", lambda c: c.b / c.step),
        ("one prompt a rank", lambda c: c.n / c.step),
        ("seconds per token", lambda c: c.step / (c.n * c.b)),
        ("tokens of the prompt", lambda c: c.n * c.b * c.prompt / c.step),
    ),
    "dense": (
        ("operations alone #2", lambda c: c.works),
        ("memory alone", lambda c: c.reads),
        ("one after the other #2", lambda c: c.reads + c.works),
        ("the link in it", lambda c: c.step),
    ),
    "tp": (
        ("its own prompts alone", lambda c: c.cut_own + c.sums_own),
        ("no all-reduce", lambda c: c.cut),
        ("half of the sums", lambda c: c.cut + c.sums / 2),
        ("the sums overlapped", lambda c: max(c.cut, c.sums)),
        ("own prompts in the sums", lambda c: c.cut + c.sums_own),
        ("own prompts computed", lambda c: c.cut_own + c.sums),
        ("one layer", lambda c: c.cut + c.sums / c.layers),
        ("elements, not bytes", lambda c: c.cut + c.sums / c.item),
        ("no ring", lambda c: c.cut + c.sums * c.n / (2 * (c.n - 1))),
        ("memory not cut", lambda c: max(c.works, c.reads) + c.sums),
        ("operations alone #3", lambda c: c.works + c.sums),
        ("four all-reduces", lambda c: c.cut + 2 * c.sums),
        ("weights not cut", lambda c: c.computed(c.n * c.b) + c.sums),
    ),
    "break-even": (
        ("all weights sent", lambda c: ceil(c.even_if_sent)),
        ("prompts of all ranks #2", lambda c: c.n * ceil(c.even)),
        ("rounded down", lambda c: floor(c.even)),
        ("one more", lambda c: floor(c.even) + 1),
        ("rounded to the nearest", lambda c: round(c.even)),
        ("not a whole number", lambda c: c.even),
        ("prompts of all ranks #3", lambda c: ceil(c.even / c.n)),
        ("prompts of all ranks #2", lambda c: ceil(c.n * c.even)),
        ("the memory in it #1", lambda c: ceil(max(c.even, c.even_if_read))),
        ("the memory in it #2", lambda c: ceil(c.even_if_read)),
        ("one operation", lambda c: ceil(2 * c.even)),
        ("a backward counted #3", lambda c: ceil(c.even / 3)),
        ("the batch of the case", lambda c: c.b),
    ),
    "prefill": (
        ("weights for every token", lambda c: c.prompt * c.step),
        (
            "weights for every token",
            lambda c: max(c.prompt * c.transfer, c.computed(c.b * c.prompt)),
        ),
        ("one prompt", lambda c: c.streamed(c.prompt)),
        ("a token step", lambda c: c.step),
        ("prompts of all ranks #1", lambda c: c.streamed(c.n * c.b * c.prompt)),
        ("no gather", lambda c: c.computed(c.b * c.prompt)),
        ("one after the other #3", lambda c: c.transfer + c.computed(c.b * c.prompt)),
    ),
}
IDEAS = tuple(
    Idea(key, *SAYS.of(entry), lambda case, gives=gives: gives(Counts(case)))
    for key, entries in _IDEAS.items()
    for entry, gives in entries
)
KEYS = tuple(_IDEAS)
CASES = Cases(KEYS, COUNT, make, right, IDEAS)


def judge_speed(answer: Answer, judge: Judge) -> None:
    judge_cases(answer, judge, CASES, __name__)


STREAMED_SPEED = Exercise(judge=judge_speed, **SAYS.about)
