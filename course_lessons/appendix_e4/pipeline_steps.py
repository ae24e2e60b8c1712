"""The steps of pipeline schedules over time: a lane for each stage, empty while the stage is idle.

Forward steps are light and backward steps dark, each with its micro-batch number. Appendix E4 draws
the steps that its ranks have run, in units of work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from course_classroom.figures.colours import CARD, INK, QUIET, Picture, draw, in_words, ink_on
from course_classroom.figures.shapes import box, in_inches, label, rank_box

if TYPE_CHECKING:
    from course_lib.extras.axes.schedule import Timed

HIGH, HEAD, NAME = 0.3, 0.34, 0.75  # a lane, a schedule's title, a stage's name; in inches
LIGHT = "#dedede"
Walks = Sequence[Sequence["Timed"]]  # of each stage


def pipeline_steps(schedules: Mapping[str, Walks], *, title: str = "") -> Picture:
    """Draw the steps in `schedules[name][stage]`, each with its start and end."""
    ends = [step.end for walks in schedules.values() for steps in walks for step in steps]
    unit = min(0.24, 6.2 / max(ends))  # inches
    highs = [HEAD + len(walks) * (HIGH + 0.05) + 0.1 for walks in schedules.values()]

    def paint(figure) -> None:
        axis, top = in_inches(figure), 0.0
        for (name, walks), high in zip(schedules.items(), highs, strict=True):
            axis.text(0.02, top + 0.16, name, fontsize=9, color=INK, va="center")
            for stage, steps in enumerate(walks):
                low = top + HEAD + stage * (HIGH + 0.05)
                _lane(axis, low, stage, steps, unit, _end(walks))
            top += high

    words = {f"{name}, {_end(walks)} units": _lanes(walks) for name, walks in schedules.items()}
    alt = in_words("Forwards F and backwards B of micro-batches by stage", words, between="; ")
    return draw((NAME + unit * max(ends) + 0.3, sum(highs) + 0.25), alt, paint, title)


def _end(walks: Walks) -> int:
    return max(step.end for steps in walks for step in steps)


def _lanes(walks: Walks) -> list[str]:
    """Describe each stage in words: its steps in order, and its idle time."""
    told = []
    for stage, steps in enumerate(walks):
        idle = _end(walks) - sum(step.end - step.start for step in steps)
        order = " ".join(f"{step.kind}{step.micro}" for step, *_ in steps)
        told.append(f"stage {stage} takes {order} and is idle for {idle} units")
    return told


def _lane(axis, low: float, stage: int, steps: Sequence[Timed], unit: float, end: int) -> None:
    middle = low + HIGH / 2
    rank_box(axis, (0.02, low, NAME - 0.1, HIGH), stage, f"stage {stage}")
    axis.plot([NAME, NAME + unit * end], [middle, middle], color=QUIET, lw=0.6, ls=":", zorder=0)
    for step, start, end in steps:
        fill, left = LIGHT if step.kind == "F" else INK, NAME + unit * start
        wide = unit * (end - start)
        box(axis, left, low, wide, HIGH, facecolor=fill, edgecolor=CARD, linewidth=0.9)
        label(axis, left + wide / 2, middle, str(step.micro), color=ink_on(fill), fontsize=7.5)
