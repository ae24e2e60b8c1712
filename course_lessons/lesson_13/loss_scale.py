"""fp16's loss scale by step, with a cross at each step lost to an overflow.

The scale is drawn in powers of two, so a halving or a doubling is one grid line. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Sequence

from course_classroom.figures.colours import Picture, draw, method
from course_classroom.figures.shapes import runs

SCALE, SKIPPED = method(0), method(1)


def loss_scale(scales: Sequence[float], skipped: Sequence[bool], *, title: str = "") -> Picture:
    """Draw the scale that each step used, from step 1, and the skipped steps."""
    words = _in_words(scales, skipped)
    return draw((6.4, 3.2), words, lambda figure: _paint(figure, scales, skipped), title)


def _paint(figure, scales, skipped) -> None:
    axis = figure.subplots()
    steps = range(1, len(scales) + 1)
    axis.step(steps, scales, where="mid", color=SCALE, linewidth=1.8, label="loss scale")
    cost = [(step, scale) for step, scale, skip in zip(steps, scales, skipped, strict=True) if skip]
    if cost:
        axis.plot(*zip(*cost, strict=True), color=SKIPPED, marker="x", markersize=6,
                  markeredgewidth=1.8, linestyle="", label="skipped: overflow")  # fmt: skip
    axis.set_yscale("log", base=2)
    if min(scales) == max(scales):
        axis.set_ylim(min(scales) / 2, max(scales) * 2)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set(xlabel="step", ylabel="loss scale")
    axis.grid()
    axis.legend()


def _in_words(scales, skipped) -> str:
    """Describe the skipped steps as ranges, which are clearer than single numbers."""
    lost = [(start + 1, stop) for skip, start, stop in runs(skipped) if skip]
    told = ", ".join(f"{a} to {z}" if z > a else f"{a}" for a, z in lost)
    cost = f"Steps skipped by an overflow: {told}" if lost else "No step was skipped"
    return (
        f"Loss scale by step: {scales[0]:g} at step 1, "
        f"{scales[-1]:g} at step {len(scales)}, between {min(scales):g} and "
        f"{max(scales):g}. {cost}."
    )
