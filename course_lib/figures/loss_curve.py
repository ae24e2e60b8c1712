"""The loss by step, of one run or of several that should agree.

Where runs lie on each other, the later one is drawn thinner and dashed, so that both are seen.
Lesson 08.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.figures.colours import INK, QUIET, Picture, dashes_of_method, draw, method


def loss_curve(runs: Mapping[str, Sequence[tuple[int, float]]], *, title: str = "") -> Picture:
    """Draw (step, loss) of each run by its name."""
    if not runs or not all(runs.values()):
        raise ValueError("a loss curve needs a step or more of each run, as (step, loss)")
    alt = _in_words(runs, title)

    def paint(figure) -> None:
        axis = figure.subplots()
        for i, (name, points) in enumerate(runs.items()):
            steps, losses = zip(*points, strict=True)
            mark = "o" if len(points) == 1 else None  # a line of one point is not seen
            width = 1.8 if i == 0 else 1.1
            axis.plot(steps, losses, label=name, color=method(i), linewidth=width, marker=mark,
                      linestyle=dashes_of_method(i))  # fmt: skip
        axis.set_xlabel("step")
        axis.set_ylabel("loss, mean over the tokens")
        axis.grid(color=QUIET, alpha=0.25, linewidth=0.5)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        if len(runs) > 1:
            axis.legend(frameon=False, fontsize=8)
        if title:
            figure.suptitle(title, fontsize=10, color=INK)

    return draw((6.4, 3.2), alt, paint)


def _in_words(runs: Mapping[str, Sequence[tuple[int, float]]], title: str) -> str:
    told = [
        f"{name} goes from {points[0][1]:.3f} at step {points[0][0]} to {points[-1][1]:.3f} at "
        f"step {points[-1][0]}, and is lowest with {min(loss for _, loss in points):.3f}"
        for name, points in runs.items()
    ]
    return f"{title + '. ' if title else ''}Loss by step: {'; '.join(told)}."
