"""A program above its transpose: what stands in it comes from the spans, and is said in words."""

from __future__ import annotations

import io
from collections import namedtuple

import pytest

from course_lib.figures.transpose import Step, transpose

Span = namedtuple("Span", "op payload")
SUM, PIECES = Span("all_reduce", 1240), Span("all_gather", 48)


def program() -> list[Step]:
    return [
        Step("f", [], [SUM], "X[b, h]", "dX[b, h]{tp}"),
        Step("tanh", [], [], "Z[b, f@tp]", "dZ[b, f@tp]"),
        Step("g", [PIECES, SUM], [], "Y[b, o]", "dY[b, o]"),
    ]


def test_what_was_sent_is_said_in_reading_order_of_both_rows():
    words = transpose(program(), start=("X[b, h]", "dX[b, h]"), title="A net").alt
    assert words == (
        "A net. A program and its transpose, step by step. Forward, from left to right: f sends "
        "nothing; tanh sends nothing; g sends all_gather of 48 bytes and all_reduce of 1,240 "
        "bytes. Backward, from right to left: g sends nothing; tanh sends nothing; f sends "
        "all_reduce of 1,240 bytes."
    )


def dark(picture) -> float:
    """The share of pixels that are dark, as a box that sends is."""
    from PIL import Image

    page = Image.open(io.BytesIO(picture.png)).convert("L")
    counts = page.histogram()
    return sum(counts[:64]) / sum(counts)


def test_a_step_that_sends_is_drawn_dark():
    silent = [step._replace(there=[], back=[]) for step in program()]
    assert dark(transpose(program())) > dark(transpose(silent)) + 0.02


def test_a_picture_is_small_and_the_same_each_time():
    one, other = (transpose(program(), title="A net") for _ in range(2))
    assert one.png == other.png
    assert len(one.png) < 100_000


def test_a_program_without_a_step_is_refused():
    with pytest.raises(ValueError, match="without a step"):
        transpose([])
