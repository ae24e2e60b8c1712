"""`streamed_speed` of lesson 14: what streamed weights make of a token step.

Cases are drawn anew for each check; a wrong idea is recognised, key by key, by what it makes of all
of them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.by_cases import Cases, Idea, judge_cases
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.lesson_14 import speed_cases as count
from course_lib.classroom.checks.lesson_14.speed_cases import (
    BYTES,
    DENSE,
    EVEN,
    KEYS,
    PREFILL,
    RATE,
    STREAMED,
    TP,
    Case,
)
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_14/streamed_speed")


class Counts:
    """A case's counts by short names, of which the ideas are made."""

    def __init__(self, case: Case):
        self.case, self.n, self.b = case, case["ranks"], case["batch"]
        self.item, self.prompt, self.layers = case["item"], case["prompt"], case["layers"]
        self.weights = case["item"] * case["parameters"]  # bytes of all of them
        self.received, self.transfer = count.received(case), count.transfer(case)
        self.reads = self.weights / case["memory"]  # seconds for a rank to read all weights
        self.works = count.operations(case, self.b)
        self.tp_works = count.operations(case, self.n * self.b, 1 / self.n)
        self.even = count.travels(case)
        self.even_at_memory = case["item"] * case["flops"] / (2 * case["memory"])
        self.sums, self.sums_of_own = self.summed(self.n * self.b), self.summed(self.b)

    def computed(self, tokens: float, share: float = 1.0) -> float:
        return count.computed(self.case, tokens, share)

    def streamed(self, tokens: float) -> float:
        return count.streamed(self.case, tokens)

    def summed(self, tokens: float, each: float = 2.0) -> float:
        return count.sums(self.case, tokens, each)

    @property
    def step(self) -> float:
        return self.streamed(self.b)

    @property
    def cut(self) -> float:
        """Seconds of a tp rank without its messages."""
        return self.computed(self.n * self.b, 1 / self.n)


_IDEAS: dict[str, tuple[tuple[str, Callable[[Counts], float]], ...]] = {
    BYTES: (
        ("its own piece too", lambda c: c.weights),
        ("its own piece alone", lambda c: c.weights / c.n),
        ("of all ranks", lambda c: c.n * c.received),
        ("gigabytes", lambda c: c.received / 1e9),
        ("the batch counted", lambda c: c.received * c.b),
        ("a backward counted #1", lambda c: 2 * c.received),
        ("a backward counted #2", lambda c: 3 * c.received),
        ("parameters, not bytes", lambda c: c.received / c.item),
    ),
    STREAMED: (
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
        ("its share of the arithmetic", lambda c: max(c.transfer, c.computed(c.b, 1 / c.n))),
        ("prompts of all ranks #1", lambda c: c.streamed(c.n * c.b)),
        ("operations alone #1", lambda c: max(c.transfer, c.works)),
    ),
    RATE: (
        ("token steps", lambda c: 1 / c.step),
        ("one rank's prompts", lambda c: c.b / c.step),
        ("one prompt a rank", lambda c: c.n / c.step),
        ("seconds per token", lambda c: c.step / (c.n * c.b)),
        ("tokens of the prompt", lambda c: c.n * c.b * c.prompt / c.step),
    ),
    DENSE: (
        ("operations alone #2", lambda c: c.works),
        ("memory alone", lambda c: c.reads),
        ("one after the other #2", lambda c: c.reads + c.works),
        ("the link in it", lambda c: c.step),
    ),
    TP: (
        ("its own prompts alone", lambda c: c.computed(c.b, 1 / c.n) + c.sums_of_own),
        ("no all-reduce", lambda c: c.cut),
        ("half of the sums", lambda c: c.cut + c.summed(c.n * c.b, each=1)),
        ("the sums overlapped", lambda c: max(c.cut, c.sums)),
        ("own prompts in the sums", lambda c: c.cut + c.sums_of_own),
        ("own prompts computed", lambda c: c.computed(c.b, 1 / c.n) + c.sums),
        ("one layer", lambda c: c.cut + c.sums / c.layers),
        ("elements, not bytes", lambda c: c.cut + c.sums / c.item),
        ("no ring", lambda c: c.cut + c.sums * c.n / (2 * (c.n - 1))),
        ("memory not cut", lambda c: max(c.tp_works, c.reads) + c.sums),
        ("operations alone #3", lambda c: c.tp_works + c.sums),
        ("four all-reduces", lambda c: c.cut + c.summed(c.n * c.b, each=4)),
        ("weights not cut", lambda c: c.computed(c.n * c.b) + c.sums),
    ),
    EVEN: (
        ("all weights sent", lambda c: ceil(c.item * c.case["flops"] / (2 * c.case["link"]))),
        ("prompts of all ranks #2", lambda c: c.n * ceil(c.even)),
        ("rounded down", lambda c: floor(c.even)),
        ("one more", lambda c: floor(c.even) + 1),
        ("rounded to the nearest", lambda c: round(c.even)),
        ("not a whole number", lambda c: c.even),
        ("prompts of all ranks #3", lambda c: ceil(c.even / c.n)),
        ("prompts of all ranks #2", lambda c: ceil(c.n * c.even)),
        ("the memory in it #1", lambda c: ceil(max(c.even, c.even_at_memory))),
        ("the memory in it #2", lambda c: ceil(c.even_at_memory)),
        ("one operation", lambda c: ceil(2 * c.even)),
        ("a backward counted #3", lambda c: ceil(c.even / 3)),
        ("the batch of the case", lambda c: c.b),
    ),
    PREFILL: (
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
CASES = Cases(KEYS, count.COUNT, count.make, count.right, IDEAS)


def judge_speed(answer: Answer, judge: Judge) -> None:
    judge_cases(answer, judge, CASES, __name__)


STREAMED_SPEED = Exercise(judge=judge_speed, **SAYS.about)
