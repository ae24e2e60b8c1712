"""`where_to_divide` of lesson 10: sums and means in fp16, and the loss scale between its two ends.

The right numbers follow from fp16's largest and smallest one; each wrong idea has its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.thought import Mistake, Thought, compare

END = torch.finfo(torch.float16).max  # 65,504; what rounds to more is inf
LEAST = 2.0**-24  # half of it rounds to 0
BIG, SMALL, LARGEST = 2048.0, 2.0**-20, 0.5  # gradients in the question
MANY, RANKS, MICRO = 64, 8, 4
SCALE, OVERFLOWS = 2.0**16, 5
POWERS = "abcefgi"


def _below(limit: float) -> float:
    """The largest power of two that is not above a limit."""
    return 2.0 ** math.floor(math.log2(limit))


def judge_divide(given: Mapping) -> None:
    """Hold the numbers against what fp16 can hold, and misreadings by name."""
    right = {
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
    compare(given, right, MISTAKES, apart=True)
    off = [k for k in POWERS if not math.isclose(given[k], right[k], rel_tol=1e-9)]
    if off:
        raise Finding(
            "no power of two",
            f"Nearly right: {' and '.join(map(repr, off))}. Asked for is a power of two, and fp16 "
            "holds it exactly.",
        )


MISTAKES = (
    Mistake(
        "the last that fits",
        "That many ranks still fit. Asked is for the first power of two with which the sum is inf.",
        {"a": 16},
    ),
    Mistake(
        "just above the end",
        "Look at the number of ranks half as large: is its sum really at most 65,504?",
        {"a": 64},
    ),
    Mistake(
        "just above the end",
        "All 64 ranks' 0.5, times that scale, are added up: is the sum really at most 65,504?",
        {"f": 2048},
    ),
    Mistake(
        "just above the end",
        "Take the largest gradient itself, times that scale: is it really at most 65,504?",
        {"g": 2**17},
    ),
    Mistake(
        "less than fits",
        "With a scale twice as large the sum of all 64 is still below 65,504.",
        {"f": 512},
    ),
    Mistake(
        "less than fits",
        "With a scale twice as large the largest gradient is still below 65,504.",
        {"g": 2**15},
    ),
    Mistake(
        "a rank's part",
        "That is what one rank hands over. The sum adds up the parts of all.",
        {"b": 2},
    ),
    Mistake(
        "not divided",
        "Each rank has divided before it was summed.",
        {"b": 2048 * 1024},
    ),
    Mistake(
        "a tie goes to the even one",
        "Half of the smallest value is as near to 0 as to that value. A tie is rounded to the "
        "even one of the two, and that is 0.",
        {"c": 32, "e": 2},
    ),
    Mistake(
        "one step further would do",
        "With twice as many ranks the part is the smallest value itself, which is held exactly.",
        {"c": 8},
    ),
    Mistake(
        "more than is needed",
        "Half that scale would do: each part is then the smallest value itself, which is held "
        "exactly.",
        {"e": 8},
    ),
    Mistake(
        "the smallest normal number",
        "Between 2⁻¹⁴ and 0 there are more values, the subnormal ones, down to 2⁻²⁴: they have "
        "fewer digits, and a power of two needs one.",
        {"c": 2.0**-6, "e": 4096},
    ),
    Mistake(
        "lost before it is summed",
        "Each rank's part is rounded before it is sent. What is 0 on every rank stays 0, however "
        "many there are.",
        {"d": 1},
    ),
    Mistake(
        "lost before it is summed",
        "Below half of the smallest value there is no part of it: what is rounded becomes 0.",
        {"d": 0.25},
    ),
    Mistake(
        "more than is needed",
        "That keeps it, and less would do: it has to come out as the smallest value or more, and "
        "it starts some powers of two above it.",
        {"e": 64},
    ),
    Mistake(
        "a rank's part",
        "Each rank's gradient fits by itself then; the sum of all of them does not.",
        {"f": 2**16},
    ),
    Mistake(
        "the divided sum",
        "Divided first, no part and no sum of parts is larger than the largest gradient.",
        {"g": 1024},
    ),
    Mistake(
        "a rank's part",
        "So large may each divided part be. Before that, the gradient itself has to be held.",
        {"g": 2**22},
    ),
    Mistake("an exponent", "That is the exponent; the number itself is asked for.", {"a": 5}),
    Mistake("an exponent", "That is the exponent; the number itself is asked for.", {"c": 4}),
    Mistake("an exponent", "That is the exponent; the number itself is asked for.", {"f": 10}),
    Mistake("an exponent", "That is the exponent; the number itself is asked for.", {"g": 16}),
    Mistake("a value for a part", "Asked is which part of the mean: 1 is all.", {"d": 2**-26}),
    Mistake("added", "N ranks with k micro-batches each are N times k backwards.", {"h": 1 / 12}),
    Mistake("k upside down", "Both numbers make the sum larger: divide by both.", {"h": 1 / 2}),
    Mistake(
        "the first is forgiven",
        "The overflows of steps 2 to 5 halve, each of the four.",
        {"i": SCALE / 2 ** (OVERFLOWS - 2)},
    ),
    Mistake("k forgotten", "The micro-batches' gradients add up too.", {"h": 1 / RANKS}),
    Mistake("N forgotten", "The ranks' gradients add up too.", {"h": 1 / MICRO}),
    Mistake("upside down", "That many parts are added; each has to be made smaller.", {"h": 32}),
    Mistake(
        "the first is forgiven",
        "Every overflow was counted. The first one is forgiven, the others halve.",
        {"i": SCALE / 2**OVERFLOWS},
    ),
    Mistake(
        "the first is forgiven",
        "Only the first overflow is forgiven; after it, every one halves.",
        {"i": SCALE},
    ),
    Mistake(
        "the first is forgiven",
        "That is as if every second overflow were forgiven. Once the patience is used up, it is "
        "used up.",
        {"i": SCALE / 4},
    ),
)

DIVIDE = Thought(
    name="where_to_divide",
    title="Sum, mean, and where to divide",
    points=3,
    fields=tuple("abcdefghi"),
    judge=judge_divide,
    when_right=(
        "Summed first, the large end is in the way; divided first, the small end. A loss scale "
        "moves everything up by the same factor, and divided first it has far more room above: "
        "that is why the engine divides by N·k before the backward, and scales."
    ),
    hints=(
        "A power of two times a power of two only moves the exponent: nothing is rounded until one "
        "of the two ends is met.",
        "For each question write down the largest or smallest value that occurs anywhere: in a "
        "rank's part, or in the sum. Which of the two ends is it held against?",
        "Python can be asked: `torch.tensor(x).half()` rounds as a rank would.",
        "A mean over N·k backwards is their sum, each made smaller by one and the same factor.",
    ),
)
