"""`tree_or_ring` of lesson 01: costs of two all-reduces, in α and tensors, and their break-even.

A wrong idea uses different counts in the same formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from course_classroom.judge.thought import Thought, counted, held_against, named
from course_classroom.judge.words import Page

RANKS, STEPS, LEVELS = 64, 2 * 63, 2 * 6  # steps of both rounds, levels up and down
MEET = "they meet at"
FIELDS = ("ring 1 kB", "tree 1 kB", "ring 100 MB", "tree 100 MB", MEET)

SAYS = Page(__file__, "tree_or_ring")


@dataclass(frozen=True)
class Costs:
    """The cost model T = messages · α + tensors · B · β, for the ring and for the tree."""

    ring: tuple[float, float] = (STEPS, STEPS / RANKS)  # messages, tensors
    tree: tuple[float, float] = (LEVELS, LEVELS)
    small: float = 1e3  # bytes
    large: float = 100e6
    alpha: float = 30e-6
    rate: float = 10e9  # bytes per second

    def answers(self) -> dict[str, float]:
        """Return times in ms, and the size in kB at which ring and tree cost the same."""
        times = [
            1e3 * (messages * self.alpha + tensors * size / self.rate)
            for size in (self.small, self.large)
            for messages, tensors in (self.ring, self.tree)
        ]
        alphas, tensors = (a - b for a, b in zip(self.ring, self.tree, strict=True))
        return dict(zip(FIELDS, (*times, self.size(alphas, -tensors or math.nan)), strict=True))

    def size(self, messages: float, tensors: float) -> float:
        """Return the size in kB at which `messages` times α takes as long as sending `tensors`."""
        return messages * self.alpha * self.rate / tensors / 1e3


RIGHT = Costs()
SENT, TIMES = STEPS / RANKS, RIGHT.answers()
MEETING = TIMES.pop(MEET)
SECONDS = {name: value / 1e3 for name, value in TIMES.items()}
HALF = {"ring": (STEPS / 2, SENT / 2), "tree": (LEVELS / 2, LEVELS / 2)}
COUNTS = (  # of messages and of tensors, or other units
    ("full tensors around the ring", {"ring": (STEPS, STEPS)}),
    ("chunks up the tree", {"tree": (LEVELS, LEVELS / RANKS)}),
    ("one α for all", {"ring": (1, SENT), "tree": (1, LEVELS)}),
    ("one α for all", {"tree": (1, LEVELS)}),
    ("one α for all", {"tree": (2, LEVELS)}),
    ("only one round", HALF),
    *(("only one round", {way: HALF[way]}) for way in HALF),
    ("only one round", {"ring": (RANKS, 1)}),
    ("a message to each", {"tree": (STEPS, STEPS)}),
    ("one step too many", {"ring": (STEPS + 2, 2)}),
    ("halved at each level", {"tree": (LEVELS, SENT)}),
    ("a level too many", {"tree": (LEVELS + 2, LEVELS + 2)}),
    *(
        ("wrong logarithm", {"tree": (2 * height, 2 * height)})
        for log in (math.log(RANKS), math.log10(RANKS))
        for height in (log, math.ceil(log))
    ),
    ("latency left out", {"alpha": 0}),
    ("ring and tree swapped", {"ring": RIGHT.tree, "tree": RIGHT.ring}),
    ("sizes swapped", {"small": RIGHT.large, "large": RIGHT.small}),
    ("unit", {"large": RIGHT.large / 1e3}),
    ("unit", {"alpha": 1e3 * RIGHT.alpha}),
    ("bits", {"rate": RIGHT.rate / 8}),
    ("powers of two", {"small": 1024, "large": 100 * 1024**2}),
    ("powers of two", {"rate": 10 * 1024**3}),
)
NUMBERS = (
    ("seconds", SECONDS),
    ("unit", {**SECONDS, MEET: 1e3 * MEETING}),
    ("powers of two", {MEET: MEETING / 1.024}),
    ("α over β", {MEET: RIGHT.size(1, 1)}),
    *(
        ("half of the equation", {MEET: RIGHT.size(messages, tensors)})
        for messages, tensors in (
            (STEPS, LEVELS),
            (STEPS - LEVELS, LEVELS),
            (STEPS, LEVELS - SENT),
            (STEPS - LEVELS, LEVELS + SENT),
            (STEPS + LEVELS, LEVELS - SENT),
        )
    ),
)
MISTAKES = (
    *(found for entry, other in COUNTS for found in counted(SAYS, RIGHT, {entry: other})),
    *named(SAYS, NUMBERS),
)
TREE_OR_RING = Thought(fields=FIELDS, judge=held_against(RIGHT, MISTAKES, apart=True), **SAYS.about)
