"""What a rank holds for training, in bytes a parameter: a bar for each rank of each stage.

A part that every rank has a copy of is grey, one that only this rank has is in the rank's colour; a
band along a bar's upper edge says of which kind it is.
Lesson 09 draws stages 0 and 1, lessons 10 and 11 those that shard more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from course_lib.figures.colours import CARD, INK, QUIET, Picture, draw, ink_on, method, of_rank

WIDE, ROW, GAP = 7.2, 0.34, 0.45  # inches: of the picture, of a bar with its space, above a stage
COPY = "#ebebeb"
MOST, HEIGHT = 5, 0.78  # kinds; of a row
BAND = 0.2  # of a bar's height


def states(
    stages: Mapping[str, Sequence[Mapping[str, float]]],
    *,
    cut: Mapping[str, Collection[str]],
    title: str = "",
    own: str = "its own piece",
) -> Picture:
    """Draw `stages[stage][rank][kind]`, in bytes a parameter, kind beside kind.

    `cut[stage]` are the kinds of which each rank holds a piece of its own. Every rank of every
    stage has the same kinds, in one order. `own` says in words what such a piece is.
    """
    if not stages or not all(stages.values()):
        raise ValueError("there is no rank to draw: give {stage: [{kind: bytes a parameter}, …]}")
    kinds = list(next(iter(stages.values()))[0])
    for name, ranks in stages.items():
        for rank, row in enumerate(ranks):
            if list(row) != kinds:
                raise ValueError(
                    f"rank {rank} of {name} holds {', '.join(row)}, and the first one "
                    f"{', '.join(kinds)}: bars can be compared kind by kind or not at all"
                )
        unknown = sorted(set(cut.get(name, ())) - set(kinds))
        if unknown:
            raise ValueError(f"{name} cuts {', '.join(unknown)}, and no rank holds that")
    if len(kinds) > MOST:
        raise ValueError(f"{len(kinds)} kinds; {MOST} can be told apart at a glance")
    rows = sum(len(ranks) for ranks in stages.values())
    high = ROW * rows + GAP * len(stages) + (1.25 if title else 0.95)
    size = (max(WIDE, 0.085 * len(title) + 0.3), high)
    alt = _in_words(stages, cut, title, own)
    return draw(size, alt, lambda figure: _paint(figure, stages, cut, kinds, title))


def _paint(figure, stages, cut, kinds: list[str], title: str) -> None:
    from matplotlib.patches import Patch

    axis = figure.subplots()
    if title:
        figure.suptitle(title, fontsize=10, color=INK)
    most = max(sum(row.values()) for ranks in stages.values() for row in ranks)
    y, ticks, names = 0.0, [], []
    for stage, ranks in stages.items():
        axis.text(0, y, stage, fontsize=9, fontweight="bold", color=INK, va="center")
        y += GAP / ROW * 0.62
        for rank, row in enumerate(ranks):
            _bar(axis, y, rank, row, cut.get(stage, ()), most)
            ticks.append(y)
            names.append(f"rank {rank}")
            y += 1
        y += GAP / ROW * 0.38
    axis.set_xlim(0, 1.12 * most)
    axis.set_ylim(y - 0.5, -0.6)
    axis.set_yticks(ticks, names, color=INK)
    axis.set_xlabel("bytes a parameter")
    axis.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    marks = [Patch(facecolor=method(i), edgecolor=CARD, label=kind) for i, kind in enumerate(kinds)]
    marks.append(Patch(facecolor=COPY, edgecolor=QUIET, label="grey: a copy on every rank"))
    figure.legend(handles=marks, loc="outside lower center", ncols=3, frameon=False, fontsize=8)


def _bar(axis, y: float, rank: int, row, cut: Collection[str], most: float) -> None:
    left = 0.0
    for i, (kind, wide) in enumerate(row.items()):
        shade = of_rank(rank) if kind in cut else COPY
        axis.barh(y, wide, left=left, height=HEIGHT, color=shade, edgecolor=CARD, linewidth=1.0)
        top = y - HEIGHT / 2 + BAND * HEIGHT / 2  # the axis runs downwards
        axis.barh(top, wide, left=left, height=BAND * HEIGHT, color=method(i), edgecolor=CARD,
                  linewidth=0.6)  # fmt: skip
        if wide > 0.05 * most:  # else there is no room for a number
            axis.text(
                left + wide / 2, y + 0.09, shown(wide), ha="center", va="center", fontsize=8,
                color=ink_on(shade), fontweight="bold",
                bbox={"facecolor": shade, "edgecolor": "none", "pad": 0.8},
            )  # fmt: skip
        left += wide
    axis.text(left + 0.012 * most, y, shown(left), va="center", fontsize=9, color=INK)


def shown(value: float) -> str:
    """To two decimals, without zeros at the end."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _in_words(stages, cut, title: str, own: str) -> str:
    told = []
    for stage, ranks in stages.items():
        lines = []
        for rank, row in enumerate(ranks):
            parts = [
                f"{kind} {shown(wide)}{f', {own}' if kind in cut.get(stage, ()) else ''}"
                for kind, wide in row.items()
                if wide
            ]
            lines.append(f"rank {rank} {shown(sum(row.values()))}: {'; '.join(parts)}")
        told.append(f"{stage}: {'. '.join(lines)}.")
    return f"{title + '. ' if title else ''}Bytes a parameter by rank. {' '.join(told)}"
