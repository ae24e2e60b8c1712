"""`streamed_speed` of lesson 14: the time of a token step with streamed weights.

Cases are drawn for each check; a wrong idea about a key is recognised by its values in all cases.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil, floor
from random import Random

from course_classroom.judge.by_cases import Case, Cases, Idea, judge_cases
from course_classroom.judge.frame import Exercise
from course_classroom.judge.words import Page

SAYS = Page(__file__, "streamed_speed")
COUNT = 10


def make(r: Random, k: int) -> Case:
    """Draw the k-th case: small batches are limited by memory, larger batches by the link, and the
    largest batches by arithmetic. The last two cases are special."""
    while True:
        hidden, layers = 128 * r.randint(24, 64), r.randint(24, 64)
        case = {"hidden": hidden, "layers": layers, "prompt": r.randint(150, 900), "batch": 1}
        case["parameters"] = 12 * layers * hidden**2 + r.randint(30, 250) * 1000 * hidden
        case |= {"item": r.choice((2, 4)), "ranks": r.choice((3, 4, 6, 8))}
        case |= {"link": r.randint(11, 60) * 1e9, "memory": r.randint(900, 3300) * 1e9}
        case |= {"flops": r.randint(60, 400) * 1e12}
        exact, n = Counts(case).even, case["ranks"]
        # Break-even counts are far enough from integers that rounding does not decide.
        if exact > 40 and all(0.02 < x * exact % 1 < 0.98 for x in (1, 2, 1 / 3, n / (n - 1))):
            break
    if k == COUNT - 2:  # powers of two: a batch breaks even exactly, in any order of operations
        case |= {"item": 2, "ranks": r.choice((4, 8)), "parameters": 2 ** r.randint(34, 36)}
        case |= {"link": 2.0 ** r.randint(34, 36), "flops": 2.0 ** r.randint(46, 48)}
    even = ceil(Counts(case).even)
    case["batch"] = r.randint(*((2, 8), (even // 4, even // 2), (9 * even, 14 * even))[k % 3])
    if k == COUNT - 1:  # its own memory is slower than the link, and also decides at stage 3
        case["memory"] = case["link"] / r.randint(2, 4)
    return case


class Counts:
    """The intermediate results of a case, from which right numbers and wrong ideas are computed."""

    def __init__(self, case: Case):
        self.n, self.b = n, b = case["ranks"], case["batch"]
        self.item, self.prompt, self.layers = case["item"], case["prompt"], case["layers"]
        self.weights = case["item"] * case["parameters"]  # bytes of all weights, and missing ones
        self.received = self.weights * (n - 1) / n
        # Seconds: the gathers, sending and reading all weights, the operations of a token.
        self.transfer, self.sent = self.received / case["link"], self.weights / case["link"]
        self.reads = self.weights / case["memory"]
        self.work = 2 * case["parameters"] / case["flops"]
        # For a token step: the operations, then a rank with all weights and with streamed weights.
        # For the prompts. For a tp rank's step on all ranks' prompts, and its two sums per layer.
        self.works, self.dense = b * self.work, self.computed(b)
        self.step, self.filled = max(self.transfer, self.dense), self.computed(b * self.prompt)
        self.cut, activations = self.computed(n * b) / n, case["item"] * n * b * case["hidden"]
        self.sums = 2 * case["layers"] * 2 * (n - 1) / n * activations / case["link"]
        self.even = self.transfer / self.work  # tokens whose operations take as long as the gathers

    def computed(self, tokens: float) -> float:
        """Return the seconds of a forward pass that reads the rank's memory while computing."""
        return max(self.reads, tokens * self.work)


def right(case: Case) -> dict[str, float]:
    """Return the right value of each key."""
    c = Counts(case)
    return {
        "bytes": c.received,
        "stage 3": c.step,
        "tokens/s": c.n * c.b / c.step,
        "dense": c.dense,
        "tp": c.cut + c.sums,
        "break-even": ceil(c.even),
        "prefill": max(c.transfer, c.filled),
    }


_IDEAS: dict[str, tuple[tuple[str, Callable[[Counts], float]], ...]] = {
    "bytes": (
        ("its own piece too", lambda c: c.weights),
        ("only its own piece", lambda c: c.weights / c.n),
        ("of all ranks", lambda c: c.n * c.received),
        ("gigabytes", lambda c: c.received / 1e9),
        ("the batch counted", lambda c: c.received * c.b),
        ("a backward counted #1", lambda c: 2 * c.received),
        ("a backward counted #2", lambda c: 3 * c.received),
        ("parameters, not bytes", lambda c: c.received / c.item),
    ),
    "stage 3": (
        ("one after the other #1", lambda c: c.transfer + c.dense),
        ("only the link", lambda c: c.transfer),
        ("weights for every prompt #1", lambda c: max(c.b * c.transfer, c.dense)),
        ("a backward counted #3", lambda c: max(c.transfer, 3 * c.works)),
        ("one operation", lambda c: max(c.transfer, c.works / 2)),
        ("a backward counted #3", lambda c: max(c.transfer, c.reads, 3 * c.works)),
        ("one operation", lambda c: max(c.transfer, c.reads, c.works / 2)),
        ("one after the other #2", lambda c: max(c.transfer, c.reads + c.works)),
        ("weights for every prompt #2", lambda c: max(c.transfer, c.b * c.reads, c.works)),
        ("milliseconds", lambda c: 1e3 * c.step),
        ("its share of the arithmetic", lambda c: max(c.transfer, c.dense / c.n)),
        ("prompts of all ranks #1", lambda c: max(c.transfer, c.computed(c.n * c.b))),
        ("only operations #1", lambda c: max(c.transfer, c.works)),
    ),
    "tokens/s": (
        ("token steps", lambda c: 1 / c.step),
        ("one rank's prompts", lambda c: c.b / c.step),
        ("one prompt a rank", lambda c: c.n / c.step),
        ("seconds per token", lambda c: c.step / (c.n * c.b)),
        ("tokens of the prompt", lambda c: c.n * c.b * c.prompt / c.step),
    ),
    "dense": (
        ("only operations #2", lambda c: c.works),
        ("only memory", lambda c: c.reads),
        ("one after the other #2", lambda c: c.reads + c.works),
        ("the link in it", lambda c: c.step),
    ),
    "tp": (
        ("only its own prompts", lambda c: (c.dense + c.sums) / c.n),
        ("no all-reduce", lambda c: c.cut),
        ("half of the sums", lambda c: c.cut + c.sums / 2),
        ("the sums overlapped", lambda c: max(c.cut, c.sums)),
        ("own prompts in the sums", lambda c: c.cut + c.sums / c.n),
        ("own prompts computed", lambda c: c.dense / c.n + c.sums),
        ("one layer", lambda c: c.cut + c.sums / c.layers),
        ("elements, not bytes", lambda c: c.cut + c.sums / c.item),
        ("no ring", lambda c: c.cut + c.sums * c.n / (2 * (c.n - 1))),
        ("memory not sharded", lambda c: c.dense + c.sums),
        ("only operations #3", lambda c: c.works + c.sums),
        ("four all-reduces", lambda c: c.cut + 2 * c.sums),
        ("weights not sharded", lambda c: c.computed(c.n * c.b) + c.sums),
    ),
    "break-even": (
        ("all weights sent", lambda c: ceil(c.sent / c.work)),
        ("prompts of all ranks #2", lambda c: c.n * ceil(c.even)),
        ("rounded down", lambda c: floor(c.even)),
        ("one more", lambda c: floor(c.even) + 1),
        ("rounded to the nearest", lambda c: round(c.even)),
        ("not a whole number", lambda c: c.even),
        ("prompts of all ranks #3", lambda c: ceil(c.even / c.n)),
        ("prompts of all ranks #2", lambda c: ceil(c.n * c.even)),
        ("the memory in it #1", lambda c: ceil(max(c.transfer, c.reads) / c.work)),
        ("the memory in it #2", lambda c: ceil(c.reads / c.work)),
        ("one operation", lambda c: ceil(2 * c.even)),
        ("a backward counted #3", lambda c: ceil(c.even / 3)),
        ("the batch of the case", lambda c: c.b),
    ),
    "prefill": (
        ("weights for every token", lambda c: c.prompt * c.step),
        ("weights for every token", lambda c: max(c.prompt * c.transfer, c.filled)),
        ("one prompt", lambda c: max(c.transfer, c.computed(c.prompt))),
        ("a token step", lambda c: c.step),
        ("prompts of all ranks #1", lambda c: max(c.transfer, c.computed(c.n * c.b * c.prompt))),
        ("no gather", lambda c: c.filled),
        ("one after the other #3", lambda c: c.transfer + c.filled),
    ),
}
IDEAS = tuple(
    Idea(key, *SAYS.of(entry), lambda case, gives=gives: gives(Counts(case)))
    for key, entries in _IDEAS.items()
    for entry, gives in entries
)
KEYS = tuple(_IDEAS)
CASES = Cases(KEYS, COUNT, make, right, IDEAS)
STREAMED_SPEED = Exercise(judge=partial(judge_cases, cases=CASES, module=__name__), **SAYS.about)
