"""The steps of pipeline schedules against time: a lane for each stage, idle time left empty.

Forwards are light and backwards dark, each with the number of its micro-batch. Appendix E4 draws
what its ranks have walked, in units of work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from course_lib.figures.colours import CARD, INK, QUIET, Picture, draw, ink_on, of_rank, rank_look
from course_lib.figures.shapes import box, in_inches, label

if TYPE_CHECKING:
    from course_lib.axes.schedule import Timed

HIGH, HEAD, NAME = 0.3, 0.34, 0.75  # a lane, a schedule's title, a stage's name; in inches
LIGHT = "#dedede"
Walks = Sequence[Sequence["Timed"]]  # of each stage


def pipeline_steps(schedules: Mapping[str, Walks], *, title: str = "") -> Picture:
    """Draw `schedules[name][stage]`, steps with their beginning and end."""
    ends = [step.end for walks in schedules.values() for steps in walks for step in steps]
    unit = min(0.24, 6.2 / max(ends))  # inches
    width = NAME + unit * max(ends) + 0.2
    tops, low = {}, 0.0
    for name, walks in schedules.items():
        tops[name] = low
        low += HEAD + len(walks) * (HIGH + 0.05) + 0.1

    def paint(figure) -> None:
        axis = in_inches(figure)
        for name, walks in schedules.items():
            top = tops[name]
            axis.text(0.02, top + 0.16, name, fontsize=9, color=INK, va="center")
            end = max(step.end for steps in walks for step in steps)
            for stage, steps in enumerate(walks):
                _lane(axis, top + HEAD + stage * (HIGH + 0.05), stage, steps, unit, end)

    size = (width + 0.1, low + 0.25)
    return draw(size, _in_words(schedules), paint, title)


def _lane(axis, low: float, stage: int, steps: Sequence[Timed], unit: float, end: int) -> None:
    middle = low + HIGH / 2
    box(axis, 0.02, low, NAME - 0.1, HIGH, **rank_look(stage))
    label(axis, (NAME - 0.06) / 2, middle, f"stage {stage}", on=of_rank(stage))
    axis.plot([NAME, NAME + unit * end], [middle, middle], color=QUIET, lw=0.6, ls=":", zorder=0)
    for step, start, end in steps:
        fill, left = LIGHT if step.kind == "F" else INK, NAME + unit * start
        wide = unit * (end - start)
        box(axis, left, low, wide, HIGH, facecolor=fill, edgecolor=CARD, linewidth=0.9)
        label(axis, left + wide / 2, middle, str(step.micro), color=ink_on(fill), fontsize=7.5)


def _in_words(schedules: Mapping[str, Walks]) -> str:
    told = []
    for name, walks in schedules.items():
        end = max(step.end for steps in walks for step in steps)
        lanes = []
        for stage, steps in enumerate(walks):
            idle = end - sum(step.end - step.start for step in steps)
            order = " ".join(f"{step.kind}{step.micro}" for step, *_ in steps)
            lanes.append(f"stage {stage} takes {order} and is idle for {idle} units")
        told.append(f"{name}, {end} units: {'; '.join(lanes)}.")
    return f"Forwards F and backwards B of micro-batches by stage. {' '.join(told)}"
