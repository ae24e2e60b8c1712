"""`tree_or_ring` of lesson 01: two ways to sum, each a count of α and a count of tensors, and where
their times meet.

A wrong idea is another count; what it would give follows from the same formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from course_lib.classroom.checks.thought import Mistake, Thought, counted, held_against
from course_lib.classroom.checks.words import Page

RANKS, STEPS, LEVELS = 64, 2 * 63, 2 * 6  # steps of both rounds, levels up and down
MEET = "they meet at"
FIELDS = ("ring 1 kB", "tree 1 kB", "ring 100 MB", "tree 100 MB", MEET)

SAYS = Page("lesson_01/tree_or_ring")


@dataclass(frozen=True)
class Costs:
    """T = messages · α + tensors · B · β, for the ring and for the tree."""

    ring: tuple[float, float] = (STEPS, STEPS / RANKS)  # messages, tensors
    tree: tuple[float, float] = (LEVELS, LEVELS)
    small: float = 1e3  # bytes
    large: float = 100e6
    alpha: float = 30e-6
    rate: float = 10e9  # bytes in a second

    def answers(self) -> dict[str, float]:
        """Times in ms, and the size in kB at which the two are alike."""
        found = [self._ms(*way, size) for size in (self.small, self.large) for way in self._ways()]
        alphas, tensors = (a - b for a, b in zip(*self._ways(), strict=True))
        return dict(zip(FIELDS, (*found, self.size(alphas, -tensors or math.nan)), strict=True))

    def _ways(self) -> tuple:
        return self.ring, self.tree

    def _ms(self, messages: float, tensors: float, size: float) -> float:
        return 1e3 * (messages * self.alpha + tensors * size / self.rate)

    def size(self, messages: float, tensors: float) -> float:
        """The size, in kB, at which so many α are as long as so many tensors."""
        return messages * self.alpha * self.rate / tensors / 1e3


RIGHT = Costs()


def _mistakes() -> tuple[Mistake, ...]:
    """What each misreading leads to: other counts, another unit, half of the equation."""
    sent, times = STEPS / RANKS, RIGHT.answers()
    meet = times.pop(MEET)
    seconds = {name: value / 1e3 for name, value in times.items()}
    half = {"ring": (STEPS / 2, sent / 2), "tree": (6, 6)}
    logs = (math.log(RANKS), math.log10(RANKS))
    heights = [2 * height for log in logs for height in (log, math.ceil(log))]
    changed: list[tuple[str, dict]] = [
        ("whole tensors round the ring", {"ring": (STEPS, STEPS)}),
        ("chunks up the tree", {"tree": (LEVELS, LEVELS / RANKS)}),
        ("one α for all", {"ring": (1, sent), "tree": (1, LEVELS)}),
        *(("one α for all", {"tree": (alphas, LEVELS)}) for alphas in (1, 2)),
        ("half of the way", half),
        *(("half of the way", {way: half[way]}) for way in half),
        ("half of the way", {"ring": (RANKS, 1)}),
        ("a message to each", {"tree": (STEPS, STEPS)}),
        ("one step too many", {"ring": (STEPS + 2, 2)}),
        ("halved at each level", {"tree": (LEVELS, sent)}),
        ("a level too many", {"tree": (LEVELS + 2, LEVELS + 2)}),
        *(("another logarithm", {"tree": (height, height)}) for height in heights),
        ("latency left out", {"alpha": 0}),
        ("ring and tree swapped", {"ring": RIGHT.tree, "tree": RIGHT.ring}),
        ("sizes swapped", {"small": RIGHT.large, "large": RIGHT.small}),
        ("unit #1", {"large": RIGHT.large / 1e3}),
        ("unit #1", {"alpha": 1e3 * RIGHT.alpha}),
        ("bits", {"rate": RIGHT.rate / 8}),
        ("powers of two", {"small": 1024, "large": 100 * 1024**2}),
        ("powers of two", {"rate": 10 * 1024**3}),
    ]
    meetings = [
        ("α over β", 1, 1),
        ("half of the equation", STEPS, LEVELS),
        ("half of the equation", STEPS - LEVELS, LEVELS),
        ("half of the equation", STEPS, LEVELS - sent),
        ("half of the equation", STEPS - LEVELS, LEVELS + sent),
        ("half of the equation", STEPS + LEVELS, LEVELS - sent),
    ]
    return (
        *(found for entry, counts in changed for found in counted(SAYS, RIGHT, {entry: counts})),
        Mistake(*SAYS.of("seconds"), seconds),
        Mistake(*SAYS.of("unit #2"), {**seconds, MEET: 1e3 * meet}),
        Mistake(*SAYS.of("powers of two"), {MEET: meet / 1.024}),
        *(Mistake(*SAYS.of(entry), {MEET: RIGHT.size(*sides)}) for entry, *sides in meetings),
    )


TREE_OR_RING = Thought(
    fields=FIELDS, judge=held_against(RIGHT, _mistakes(), apart=True), **SAYS.about
)
