"""fp16's loss scale by step, with a cross at each step that an overflow has cost.

The scale is drawn in powers of two: a halving and a doubling are one line of the grid each.
Lesson 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from course_lib.figures.colours import Picture, draw, method

SCALE, SKIPPED = method(0), method(1)


def loss_scale(
    scales: Sequence[float], skipped: Sequence[bool], *, title: str = "", first: int = 1
) -> Picture:
    """Draw the scale that each step was tried with, and which were skipped; steps from `first`."""
    words = _in_words(scales, skipped, first)
    return draw((6.4, 3.2), words, lambda figure: _paint(figure, scales, skipped, first), title)


def _paint(figure, scales, skipped, first: int) -> None:
    axis = figure.subplots()
    steps = range(first, first + len(scales))
    axis.step(steps, scales, where="mid", color=SCALE, linewidth=1.8, label="loss scale")
    cost = [(step, scale) for step, scale, skip in zip(steps, scales, skipped, strict=True) if skip]
    if cost:
        axis.plot(*zip(*cost, strict=True), color=SKIPPED, marker="x", markersize=6,
                  markeredgewidth=1.8, linestyle="", label="skipped: overflow")  # fmt: skip
    axis.set_yscale("log", base=2)
    if min(scales) == max(scales):
        axis.set_ylim(min(scales) / 2, max(scales) * 2)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlabel("step")
    axis.set_ylabel("loss scale")
    axis.grid()
    axis.legend()


def _in_words(scales, skipped, first: int) -> str:
    """Skipped steps as runs: a row of them says more than its numbers."""
    runs, at = [], first
    for skip, group in groupby(skipped):
        length = len(list(group))
        if skip:
            runs.append(f"{at} to {at + length - 1}" if length > 1 else f"{at}")
        at += length
    cost = f"Steps skipped by an overflow: {', '.join(runs)}" if runs else "No step was skipped"
    return (
        f"Loss scale by step: {scales[0]:g} at step {first}, "
        f"{scales[-1]:g} at step {first + len(scales) - 1}, between {min(scales):g} and "
        f"{max(scales):g}. {cost}."
    )
