"""Rows of a batch that each rank of a (dp, tp) mesh has seen: a strip for each rank.

The picture uses the row numbers given to the ranks. Strips are equal along tp and complement each
other along dp. Lesson 08 draws every mesh that its ranks can form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_classroom.figures.colours import INK, PAPER, QUIET, Picture, draw
from course_classroom.figures.shapes import box, in_inches, label, rank_box

TILE, NAME, HIGH, GAP, HEAD = 0.13, 0.62, 0.36, 0.28, 0.52  # inches
Shape = tuple[int, int]  # (dp, tp)


def mesh_rows(seen: Mapping[Shape, Sequence[Sequence[int]]], *, title: str = "") -> Picture:
    """Draw, for each mesh (dp, tp), the rows that each of its ranks has seen in one step.

    `seen[shape][rank]` lists row numbers; a strip has a place for each row that any rank has seen.
    """
    for (dp, tp), ranks in seen.items():
        if dp * tp != len(ranks):
            raise ValueError(
                f"a mesh of dp={dp} and tp={tp} has {dp * tp} ranks, but there are rows of "
                f"{len(ranks)} ranks"
            )
    # Every row that a rank has seen, in the order in which the ranks list them.
    orders = {
        shape: list(dict.fromkeys(row for rows in ranks for row in rows))
        for shape, ranks in seen.items()
    }
    box = NAME + TILE * max(map(len, orders.values())) + 0.16
    width = max(tp for _, tp in seen) * (box + GAP) + 0.9
    heights = {(dp, tp): HEAD + dp * (HIGH + 0.16) for dp, tp in seen}

    def paint(figure) -> None:
        axis = in_inches(figure)
        top = 0.05
        for shape, ranks in seen.items():
            _mesh(axis, shape, ranks, orders[shape], top, box)
            top += heights[shape]

    size = (width, sum(heights.values()) + 0.3)
    return draw(size, _in_words(seen, orders), paint, title)


def _mesh(axis, shape: Shape, ranks, order: list[int], top: float, box: float) -> None:
    dp, tp = shape
    axis.text(0.05, top + 0.16, f"dp = {dp}, tp = {tp}", fontsize=9, fontweight="bold")
    lefts = [0.8 + t * (box + GAP) for t in range(tp)]
    for t, left in enumerate(lefts):
        axis.text(left + box / 2, top + 0.38, f"tp {t}", fontsize=8, color=QUIET, ha="center")
    for d in range(dp):
        low = top + HEAD + d * (HIGH + 0.16)
        label(axis, 0.35, low + HIGH / 2, f"dp {d}", color=QUIET)
        for rank, left in enumerate(lefts, d * tp):
            _rank(axis, left, low, rank, ranks[rank], order)


def _rank(axis, left: float, low: float, rank: int, own, order: list[int]) -> None:
    rank_box(axis, (left, low, NAME - 0.08, HIGH), rank, f"rank {rank}")
    for k, row in enumerate(order):
        fill = INK if row in own else PAPER
        look = {"facecolor": fill, "edgecolor": QUIET, "linewidth": 0.5}
        box(axis, left + NAME + k * TILE, low + 0.05, TILE - 0.02, HIGH - 0.1, **look)


def _in_words(seen: Mapping, orders: Mapping) -> str:
    told = []
    for (dp, tp), ranks in seen.items():
        order, said = orders[dp, tp], []
        for rank, rows in enumerate(ranks):
            places = sorted(order.index(row) + 1 for row in set(rows))
            said.append(f"rank {rank} at dp {rank // tp}, tp {rank % tp} sees {_spans(places)}")
        told.append(f"dp = {dp}, tp = {tp}, a step of {len(order)} rows: {'; '.join(said)}.")
    return " ".join(told)


def _spans(places: Sequence[int]) -> str:
    """[1, 2, 3, 7] -> "1 to 3 and 7"."""
    spans: list[list[int]] = []
    for place in places:
        if spans and spans[-1][1] == place - 1:
            spans[-1][1] = place
        else:
            spans.append([place, place])
    return " and ".join(f"{a} to {b}" if a < b else f"{a}" for a, b in spans) or "none"
