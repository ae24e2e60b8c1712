"""`where_to_divide` of lesson 10: sums and means in fp16, and the loss scale between its limits."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from course_classroom.judge.thought import Thought, compare, named
from course_classroom.judge.words import Page

END = torch.finfo(torch.float16).max  # 65,504; larger values that round up become inf
LEAST = 2.0**-24  # half of it rounds to 0
BIG, SMALL, LARGEST = 2048.0, 2.0**-20, 0.5  # gradients in the question
MANY, RANKS, MICRO = 64, 8, 4
SCALE, OVERFLOWS = 2.0**16, 5
POWERS = "abcefgi"
SAYS = Page(__file__, "where_to_divide")
IDEAS = {
    "the last that fits": {"a": 16},
    "just above the end #1": {"a": 64},
    "just above the end #2": {"f": 2048},
    "just above the end #3": {"g": 2**17},
    "less than fits #1": {"f": 512},
    "less than fits #2": {"g": 2**15},
    "a rank's part #1": {"b": 2},
    "a rank's part #2": {"f": 2**16},
    "a rank's part #3": {"g": 2**22},
    "not divided": {"b": 2048 * 1024},
    "tie rounds to even": {"c": 32, "e": 2},
    "one step further would do": {"c": 8},
    "the smallest normal number": {"c": 2.0**-6, "e": 4096},
    "the divided sum": {"g": 1024},
    "an exponent": {"a": 5, "c": 4, "f": 10, "g": 16},
    "value instead of fraction": {"d": 2**-26},
    "added": {"h": 1 / (RANKS + MICRO)},
    "k upside down": {"h": MICRO / RANKS},
    "k forgotten": {"h": 1 / RANKS},
    "N forgotten": {"h": 1 / MICRO},
    "inverted factor": {"h": RANKS * MICRO},
}
MORE = (
    *(("more than is needed", {"e": scale}) for scale in (8, 64)),
    *(("lost before it is summed", {"d": part}) for part in (1, 0.25)),
    *(
        ("only the first is forgiven", {"i": SCALE / 2**k})
        for k in (0, 1, 2, OVERFLOWS - 2, OVERFLOWS)
    ),
)
MISTAKES = named(SAYS, (*IDEAS.items(), *MORE))


def _below(limit: float) -> float:
    """Return the largest power of two that does not exceed a limit."""
    return 2.0 ** math.floor(math.log2(limit))


RIGHT = {
    "a": 2 * _below(END / BIG),
    "b": BIG,
    "c": SMALL / LEAST,
    "d": 0.0,
    "e": LEAST * MANY / SMALL,
    "f": _below(END / (LARGEST * MANY)),
    "g": _below(END / LARGEST),
    "h": 1 / (RANKS * MICRO),
    "i": SCALE / 2 ** (OVERFLOWS - 1),
}


def judge_divide(given: Mapping) -> None:
    compare(given, RIGHT, MISTAKES, apart=True, units=False)
    off = [k for k in POWERS if not math.isclose(given[k], RIGHT[k], rel_tol=1e-9)]
    SAYS.refuse({"no power of two": off}, off=" and ".join(map(repr, off)))


DIVIDE = Thought(fields=tuple(RIGHT), judge=judge_divide, **SAYS.about)
