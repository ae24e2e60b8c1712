"""Learning rates by update, with a line for each schedule.

Each line has its own dashes and colour, and later lines are thinner, so that both remain visible if
two coincide. A staircase has vertical steps. Lesson 13 compares the schedules of DeepSpeed,
transformers and torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from course_classroom.figures.colours import Picture, draw, line_look


def schedules(lines: Mapping[str, Sequence[float]], *, title: str = "") -> Picture:
    """Draw `lines[name][n]`, the learning rate of update n."""
    told = []
    for name, rates in lines.items():
        top = max(rates)
        near = top * (1 - 1e-9)  # the maximum, up to rounding
        first = next(n for n, rate in enumerate(rates) if rate >= near)
        told.append(
            f"{name} begins at {rates[0]:.3g}, is highest with {top:.3g} at update "
            f"{first}, and ends at {rates[-1]:.3g}"
        )
    words = f"Learning rate by update: {'; '.join(told)}."
    return draw((6.4, 3.2), words, lambda figure: _paint(figure, lines), title)


def _paint(figure, lines: Mapping[str, Sequence[float]]) -> None:
    axis = figure.subplots()
    for i, (name, rates) in enumerate(lines.items()):
        look = line_look(i, linewidth=1.3 if i else 2.2)
        look["drawstyle"] = "steps-post" if staircase(rates) else "default"
        mark = "o" if len(rates) == 1 else None  # a line of one point is invisible
        axis.plot(range(len(rates)), rates, label=name, marker=mark, **look)
    axis.set_ylim(bottom=0)
    axis.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set(xlabel="update", ylabel="learning rate")
    axis.grid()
    if len(lines) > 1:
        axis.legend()


def staircase(rates: Sequence[float]) -> bool:
    """Return True if the rates stay on at least three levels, with jumps between them."""
    changed = [a != b for a, b in pairwise(rates)]
    return sum(changed) > 1 and not any(a and b for a, b in pairwise(changed))
