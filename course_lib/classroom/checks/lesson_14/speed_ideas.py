"""The wrong ideas of `streamed_speed`: for each key of the answer, what each makes of a case.

An idea is recognised by its value in every drawn case. Lesson 14.
"""

from __future__ import annotations

import math

from course_lib.classroom.checks.by_cases import Idea
from course_lib.classroom.checks.lesson_14.speed_cases import (
    BYTES,
    DENSE,
    EVEN,
    PREFILL,
    RATE,
    STREAMED,
    TP,
    Case,
    break_even,
    computed,
    operations,
    received,
    streamed,
    sums,
    transfer,
    travels,
)
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_14/streamed_speed")


def _all(case: Case) -> float:
    """The prompts of all ranks."""
    return case["ranks"] * case["batch"]


def _reads(case: Case) -> float:
    """Seconds in which a rank reads all weights from its own memory."""
    return case["item"] * case["parameters"] / case["memory"]


def _of_tp(case: Case) -> float:
    """Seconds of a tp rank without its messages."""
    return computed(case, _all(case), 1 / case["ranks"])


IDEAS: tuple[Idea, ...] = (
    Idea(BYTES, *SAYS.of("its own piece too"), lambda c: c["item"] * c["parameters"]),
    Idea(
        BYTES, *SAYS.of("its own piece alone"), lambda c: c["item"] * c["parameters"] / c["ranks"]
    ),
    Idea(BYTES, *SAYS.of("of all ranks"), lambda c: c["ranks"] * received(c)),
    Idea(BYTES, *SAYS.of("gigabytes"), lambda c: received(c) / 1e9),
    Idea(BYTES, *SAYS.of("the batch counted"), lambda c: received(c) * c["batch"]),
    Idea(BYTES, *SAYS.of("a backward counted #1"), lambda c: 2 * received(c)),
    Idea(BYTES, *SAYS.of("a backward counted #2"), lambda c: 3 * received(c)),
    Idea(BYTES, *SAYS.of("parameters, not bytes"), lambda c: received(c) / c["item"]),
    Idea(
        STREAMED,
        *SAYS.of("one after the other #1"),
        lambda c: transfer(c) + computed(c, c["batch"]),
    ),
    Idea(STREAMED, *SAYS.of("the link alone"), transfer),
    Idea(
        STREAMED,
        *SAYS.of("weights for every prompt #1"),
        lambda c: max(c["batch"] * transfer(c), computed(c, c["batch"])),
    ),
    Idea(
        STREAMED,
        *SAYS.of("a backward counted #3"),
        lambda c: max(transfer(c), 3 * operations(c, c["batch"])),
    ),
    Idea(
        STREAMED,
        *SAYS.of("one operation"),
        lambda c: max(transfer(c), operations(c, c["batch"]) / 2),
    ),
    Idea(
        STREAMED,
        *SAYS.of("a backward counted #3"),
        lambda c: max(transfer(c), _reads(c), 3 * operations(c, c["batch"])),
    ),
    Idea(
        STREAMED,
        *SAYS.of("one operation"),
        lambda c: max(transfer(c), _reads(c), operations(c, c["batch"]) / 2),
    ),
    Idea(
        STREAMED,
        *SAYS.of("one after the other #2"),
        lambda c: max(transfer(c), _reads(c) + operations(c, c["batch"])),
    ),
    Idea(
        STREAMED,
        *SAYS.of("weights for every prompt #2"),
        lambda c: max(transfer(c), c["batch"] * _reads(c), operations(c, c["batch"])),
    ),
    Idea(STREAMED, *SAYS.of("milliseconds"), lambda c: 1e3 * streamed(c, c["batch"])),
    Idea(
        STREAMED,
        *SAYS.of("its share of the arithmetic"),
        lambda c: max(transfer(c), computed(c, c["batch"], 1 / c["ranks"])),
    ),
    Idea(
        STREAMED,
        *SAYS.of("prompts of all ranks #1"),
        lambda c: streamed(c, c["ranks"] * c["batch"]),
    ),
    Idea(
        STREAMED,
        *SAYS.of("operations alone #1"),
        lambda c: max(transfer(c), operations(c, c["batch"])),
    ),
    Idea(RATE, *SAYS.of("token steps"), lambda c: 1 / streamed(c, c["batch"])),
    Idea(RATE, *SAYS.of("one rank's prompts"), lambda c: c["batch"] / streamed(c, c["batch"])),
    Idea(RATE, *SAYS.of("one prompt a rank"), lambda c: c["ranks"] / streamed(c, c["batch"])),
    Idea(
        RATE,
        *SAYS.of("seconds per token"),
        lambda c: streamed(c, c["batch"]) / (c["ranks"] * c["batch"]),
    ),
    Idea(
        RATE,
        *SAYS.of("tokens of the prompt"),
        lambda c: c["ranks"] * c["batch"] * c["prompt"] / streamed(c, c["batch"]),
    ),
    Idea(DENSE, *SAYS.of("operations alone #2"), lambda c: operations(c, c["batch"])),
    Idea(DENSE, *SAYS.of("memory alone"), lambda c: _reads(c)),
    Idea(
        DENSE, *SAYS.of("one after the other #2"), lambda c: _reads(c) + operations(c, c["batch"])
    ),
    Idea(DENSE, *SAYS.of("the link in it"), lambda c: streamed(c, c["batch"])),
    Idea(
        TP,
        *SAYS.of("its own prompts alone"),
        lambda c: computed(c, c["batch"], 1 / c["ranks"]) + sums(c, c["batch"]),
    ),
    Idea(
        TP,
        *SAYS.of("no all-reduce"),
        lambda c: computed(c, c["ranks"] * c["batch"], 1 / c["ranks"]),
    ),
    Idea(
        TP,
        *SAYS.of("half of the sums"),
        lambda c: (
            computed(c, c["ranks"] * c["batch"], 1 / c["ranks"])
            + sums(c, c["ranks"] * c["batch"], each=1)
        ),
    ),
    Idea(TP, *SAYS.of("the sums overlapped"), lambda c: max(_of_tp(c), sums(c, _all(c)))),
    Idea(TP, *SAYS.of("own prompts in the sums"), lambda c: _of_tp(c) + sums(c, c["batch"])),
    Idea(
        TP,
        *SAYS.of("own prompts computed"),
        lambda c: computed(c, c["batch"], 1 / c["ranks"]) + sums(c, _all(c)),
    ),
    Idea(TP, *SAYS.of("one layer"), lambda c: _of_tp(c) + sums(c, _all(c)) / c["layers"]),
    Idea(TP, *SAYS.of("elements, not bytes"), lambda c: _of_tp(c) + sums(c, _all(c)) / c["item"]),
    Idea(
        TP,
        *SAYS.of("no ring"),
        lambda c: _of_tp(c) + sums(c, _all(c)) * c["ranks"] / (2 * (c["ranks"] - 1)),
    ),
    Idea(
        TP,
        *SAYS.of("memory not cut"),
        lambda c: (
            max(operations(c, _all(c), 1 / c["ranks"]), c["item"] * c["parameters"] / c["memory"])
            + sums(c, _all(c))
        ),
    ),
    Idea(
        TP,
        *SAYS.of("operations alone #3"),
        lambda c: operations(c, _all(c), 1 / c["ranks"]) + sums(c, _all(c)),
    ),
    Idea(
        TP,
        *SAYS.of("four all-reduces"),
        lambda c: (
            computed(c, c["ranks"] * c["batch"], 1 / c["ranks"])
            + sums(c, c["ranks"] * c["batch"], each=4)
        ),
    ),
    Idea(
        TP,
        *SAYS.of("weights not cut"),
        lambda c: computed(c, c["ranks"] * c["batch"]) + sums(c, c["ranks"] * c["batch"]),
    ),
    Idea(
        EVEN,
        *SAYS.of("all weights sent"),
        lambda c: math.ceil(c["item"] * c["flops"] / (2 * c["link"])),
    ),
    Idea(EVEN, *SAYS.of("prompts of all ranks #2"), lambda c: c["ranks"] * break_even(c)),
    Idea(EVEN, *SAYS.of("rounded down"), lambda c: math.floor(travels(c))),
    Idea(EVEN, *SAYS.of("one more"), lambda c: math.floor(travels(c)) + 1),
    Idea(EVEN, *SAYS.of("rounded to the nearest"), lambda c: round(travels(c))),
    Idea(EVEN, *SAYS.of("not a whole number"), travels),
    Idea(EVEN, *SAYS.of("prompts of all ranks #3"), lambda c: math.ceil(travels(c) / c["ranks"])),
    Idea(EVEN, *SAYS.of("prompts of all ranks #2"), lambda c: math.ceil(c["ranks"] * travels(c))),
    Idea(
        EVEN,
        *SAYS.of("the memory in it #1"),
        lambda c: math.ceil(max(travels(c), c["item"] * c["flops"] / (2 * c["memory"]))),
    ),
    Idea(
        EVEN,
        *SAYS.of("the memory in it #2"),
        lambda c: math.ceil(c["item"] * c["flops"] / (2 * c["memory"])),
    ),
    Idea(EVEN, *SAYS.of("one operation"), lambda c: math.ceil(2 * travels(c))),
    Idea(EVEN, *SAYS.of("a backward counted #3"), lambda c: math.ceil(travels(c) / 3)),
    Idea(EVEN, *SAYS.of("the batch of the case"), lambda c: c["batch"]),
    Idea(
        PREFILL,
        *SAYS.of("weights for every token"),
        lambda c: c["prompt"] * streamed(c, c["batch"]),
    ),
    Idea(
        PREFILL,
        *SAYS.of("weights for every token"),
        lambda c: max(c["prompt"] * transfer(c), computed(c, c["batch"] * c["prompt"])),
    ),
    Idea(PREFILL, *SAYS.of("one prompt"), lambda c: streamed(c, c["prompt"])),
    Idea(PREFILL, *SAYS.of("a token step"), lambda c: streamed(c, c["batch"])),
    Idea(
        PREFILL, *SAYS.of("prompts of all ranks #1"), lambda c: streamed(c, _all(c) * c["prompt"])
    ),
    Idea(PREFILL, *SAYS.of("no gather"), lambda c: computed(c, c["batch"] * c["prompt"])),
    Idea(
        PREFILL,
        *SAYS.of("one after the other #3"),
        lambda c: transfer(c) + computed(c, c["batch"] * c["prompt"]),
    ),
)
