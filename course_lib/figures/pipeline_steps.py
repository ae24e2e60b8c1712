"""The steps of pipeline schedules against time: a lane for each stage, idle time left empty.

Forwards are light and backwards dark, each with the number of its micro-batch. Appendix E4 draws
what its ranks have walked, in units of work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from course_lib.figures.colours import (
    INK,
    QUIET,
    Picture,
    draw,
    hatch_of_rank,
    ink_on,
    of_rank,
)

if TYPE_CHECKING:
    from course_lib.axes.schedule import Timed

HIGH, HEAD, NAME = 0.3, 0.34, 0.75  # a lane, a schedule's title, a stage's name; in inches
LIGHT = "#dedede"
Walks = Sequence[Sequence["Timed"]]  # of each stage


def pipeline_steps(schedules: Mapping[str, Walks], *, title: str = "") -> Picture:
    """Draw `schedules[name][stage]`, steps with their beginning and end."""
    if not schedules or not all(walks and all(walks) for walks in schedules.values()):
        raise ValueError("the picture needs a schedule or more, each with steps on every stage")
    ends = [step.end for walks in schedules.values() for steps in walks for step in steps]
    unit = min(0.24, 6.2 / max(ends))  # inches
    width = max(NAME + unit * max(ends) + 0.2, 0.085 * len(title) + 0.3)
    tops, low = {}, 0.0
    for name, walks in schedules.items():
        tops[name] = low
        low += HEAD + len(walks) * (HIGH + 0.05) + 0.1

    def paint(figure) -> None:
        axis = figure.subplots()
        axis.set_xlim(0, width)
        axis.set_ylim(low, -0.02)
        axis.axis("off")
        if title:
            figure.suptitle(title, fontsize=10, color=INK)
        for name, walks in schedules.items():
            top = tops[name]
            axis.text(0.02, top + 0.16, name, fontsize=9, color=INK, va="center")
            end = max(step.end for steps in walks for step in steps)
            for stage, steps in enumerate(walks):
                _lane(axis, top + HEAD + stage * (HIGH + 0.05), stage, steps, unit, end)

    size = (width + 0.1, low + (0.5 if title else 0.25))
    return draw(size, _in_words(schedules, title), paint)


def _lane(axis, low: float, stage: int, steps: Sequence[Timed], unit: float, end: int) -> None:
    from matplotlib.patches import Rectangle

    look = {"facecolor": of_rank(stage), "hatch": hatch_of_rank(stage), "edgecolor": "#ffffff"}
    axis.add_patch(Rectangle((0.02, low), NAME - 0.1, HIGH, linewidth=0, **look))
    label = {"facecolor": of_rank(stage), "edgecolor": "none", "pad": 0.8}
    axis.text(
        (NAME - 0.06) / 2, low + HIGH / 2, f"stage {stage}", fontsize=8, ha="center", va="center",
        color=ink_on(of_rank(stage)), bbox=label,
    )  # fmt: skip
    middle = low + HIGH / 2
    axis.plot([NAME, NAME + unit * end], [middle, middle], color=QUIET, lw=0.6, ls=":", zorder=0)
    for step, start, end in steps:
        forward = step.kind == "F"
        fill = LIGHT if forward else INK
        at, wide = (NAME + unit * start, low), unit * (end - start)
        axis.add_patch(
            Rectangle(at, wide, HIGH, facecolor=fill, edgecolor="#ffffff", linewidth=0.9)
        )
        axis.text(
            at[0] + wide / 2, middle, str(step.micro), fontsize=7.5, ha="center", va="center",
            color=INK if forward else "#ffffff",
        )  # fmt: skip


def _in_words(schedules: Mapping[str, Walks], title: str) -> str:
    told = []
    for name, walks in schedules.items():
        end = max(step.end for steps in walks for step in steps)
        lanes = []
        for stage, steps in enumerate(walks):
            idle = end - sum(step.end - step.start for step in steps)
            order = " ".join(f"{step.kind}{step.micro}" for step, *_ in steps)
            lanes.append(f"stage {stage} takes {order} and is idle for {idle} units")
        told.append(f"{name}, {end} units: {'; '.join(lanes)}.")
    head = f"{title}. " if title else ""
    return f"{head}Forwards F and backwards B of micro-batches by stage. {' '.join(told)}"
