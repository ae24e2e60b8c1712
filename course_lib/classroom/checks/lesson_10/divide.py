"""`where_to_divide` of lesson 10: sums and means in fp16, and the loss scale between its two ends.

The right numbers follow from fp16's largest and smallest one; each wrong idea has its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from course_lib.classroom.checks.thought import Mistake, Thought, compare
from course_lib.classroom.checks.words import Words

END = torch.finfo(torch.float16).max  # 65,504; what rounds to more is inf
LEAST = 2.0**-24  # half of it rounds to 0
BIG, SMALL, LARGEST = 2048.0, 2.0**-20, 0.5  # gradients in the question
MANY, RANKS, MICRO = 64, 8, 4
SCALE, OVERFLOWS = 2.0**16, 5
POWERS = "abcefgi"
SAYS = Words("""
no power of two: Nearly right: {off}. Asked for is a power of two, and fp16 holds it exactly.
the last that fits: That many ranks still fit. Asked is for the first power of two with which the
  sum is inf.
just above the end #1: With half that number of ranks, is the sum really at most 65,504?
just above the end #2: All 64 ranks' 0.5, times that scale, are added up: is that really at most
  65,504?
just above the end #3: Take the largest gradient itself, times that scale: is it really at most
  65,504?
less than fits #1: With a scale twice as large the sum of all 64 is still below 65,504.
less than fits #2: With a scale twice as large the largest gradient is still below 65,504.
a rank's part #1: That is what one rank hands over. The sum adds up the parts of all.
a rank's part #2: Each rank's gradient fits by itself then; the sum of all of them does not.
a rank's part #3: So large may each divided part be. Before that, the gradient itself has to be
  held.
not divided: Each rank has divided before it was summed.
a tie goes to the even one: Half of the smallest value is as near to 0 as to that value. A tie is
  rounded to the even one of the two, and that is 0.
one step further would do: With twice as many ranks the part is the smallest value itself, held
  exactly.
more than is needed #1: With half that scale each part is the smallest value itself, which is held
  exactly.
more than is needed #2: Less would do: it has to come out as the smallest value or more, and it
  starts some powers of two above it.
the smallest normal number: Between 2⁻¹⁴ and 0 there are more values, the subnormal ones, down to
  2⁻²⁴: they have fewer digits, and a power of two needs one.
lost before it is summed #1: Each rank's part is rounded before it is sent. What is 0 on every rank
  stays 0, however many there are.
lost before it is summed #2: Below half of the smallest value nothing is left: what is rounded
  becomes 0.
the divided sum: Divided first, no part and no sum of parts is larger than the largest gradient.
an exponent: That is the exponent; the number itself is asked for.
a value for a part: Asked is which part of the mean: 1 is all.
added: N ranks with k micro-batches each are N times k backwards.
k upside down: Both numbers make the sum larger: divide by both.
k forgotten: The micro-batches' gradients add up too.
N forgotten: The ranks' gradients add up too.
upside down: That many parts are added; each has to be made smaller.
the first is forgiven #1: The overflows of steps 2 to 5 halve, each of the four.
the first is forgiven #2: Every overflow was counted. The first one is forgiven, the others halve.
the first is forgiven #3: Only the first overflow is forgiven; after it, every one halves.
the first is forgiven #4: That is as if every second overflow were forgiven. Patience used up is
  used up.
the first is forgiven #5: Only one overflow was counted. The first is forgiven, each later one
  halves.
""")
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
    "a tie goes to the even one": {"c": 32, "e": 2},
    "one step further would do": {"c": 8},
    "more than is needed #1": {"e": 8},
    "more than is needed #2": {"e": 64},
    "the smallest normal number": {"c": 2.0**-6, "e": 4096},
    "lost before it is summed #1": {"d": 1},
    "lost before it is summed #2": {"d": 0.25},
    "the divided sum": {"g": 1024},
    "an exponent": {"a": 5, "c": 4, "f": 10, "g": 16},
    "a value for a part": {"d": 2**-26},
    "added": {"h": 1 / (RANKS + MICRO)},
    "k upside down": {"h": MICRO / RANKS},
    "k forgotten": {"h": 1 / RANKS},
    "N forgotten": {"h": 1 / MICRO},
    "upside down": {"h": RANKS * MICRO},
    "the first is forgiven #1": {"i": SCALE / 2 ** (OVERFLOWS - 2)},
    "the first is forgiven #2": {"i": SCALE / 2**OVERFLOWS},
    "the first is forgiven #3": {"i": SCALE},
    "the first is forgiven #4": {"i": SCALE / 4},
    "the first is forgiven #5": {"i": SCALE / 2},
}
MISTAKES = tuple(Mistake(*SAYS.of(entry), values) for entry, values in IDEAS.items())


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
    compare(given, right, MISTAKES, apart=True, units=False)
    off = [k for k in POWERS if not math.isclose(given[k], right[k], rel_tol=1e-9)]
    if off:
        raise SAYS("no power of two", off=" and ".join(map(repr, off)))


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
