"""A picture of f before and g after a column-parallel and a row-parallel layer.

A bar across the ranks is an operation of the tensor-parallel group. The chip above the bar names
its forward operation, and the chip below the bar its backward operation. Lesson 03 derives both.
"""

from __future__ import annotations

from typing import NamedTuple

from course_classroom.figures.colours import (
    CARD,
    EDGE,
    INK,
    PAPER,
    QUIET,
    REPLICATED,
    Picture,
    draw,
)
from course_classroom.figures.shapes import (
    arrow,
    box,
    chip,
    in_inches,
    label,
    rank_box,
    rounded,
    stripe,
)

IDENTITY, ALL_REDUCE = "identity", "all-reduce"
# (forward pass, backward pass): each is the other's transpose
DOES = {"f": (IDENTITY, ALL_REDUCE), "g": (ALL_REDUCE, IDENTITY)}
LANE, HIGH, TOP = 0.86, 0.46, 0.68  # a rank's lane, a box in it, the first lane's top: inches
WIDTH = 8.85
BARS = {"f": 1.98, "g": 7.19}  # left edges
BAR = 0.34


class Part(NamedTuple):
    """A box in a rank's lane: its place and its content."""

    name: str
    left: float
    wide: float
    kind: str  # "replicated", "columns", "rows", "local"

    @property
    def right(self) -> float:
        return self.left + self.wide


def f_and_g(n: int = 2, *, between: str = "GELU", out: str = "Z", title: str = "") -> Picture:
    """Draw the two conjugate operations around two layers, A sharded by columns and B by rows, on
    `n` tp ranks. `between` runs on each rank's own columns; `out` is the output."""
    if not 2 <= n <= 4:
        raise ValueError(f"n={n}: the picture needs 2 to 4 ranks (on one, f and g do nothing)")
    parts = (
        Part("X", 0.98, 0.5, "replicated"),
        Part("A", 3.04, 0.95, "columns"),
        Part(between, 4.31, 0.78, "local"),
        Part("B", 5.41, 0.95, "rows"),
        Part(out, 8.2, 0.5, "replicated"),
    )
    said = ", ".join(
        f"{name} is {does[0]} in the forward pass and {does[1]} in the backward pass"
        for name, does in DOES.items()
    )
    words = (
        f"{n} ranks next to each other. Forward pass, left to right: X is replicated and goes "
        f"through f. Each rank multiplies by its columns of A, applies {between} to its own part "
        f"and multiplies by its rows of B, which gives a partial sum of {out}. Then g completes "
        f"it, so {out} is replicated. Backward pass, right to left: the gradient d{out} is "
        "replicated and goes through g. Each rank computes a partial sum of dX, and f completes "
        f"it. So {said}; an identity sends no message."
    )
    title = title or f"f before, g after: one all-reduce in each direction, {n} ranks"
    size = (WIDTH, TOP + n * LANE + 0.98)
    return draw(size, words, lambda figure: _paint(figure, n, parts), title, few_colours=256)


def _paint(figure, n: int, parts: tuple[Part, ...]) -> None:
    axis = in_inches(figure)
    bottom = TOP + n * LANE
    for y, words in ((TOP - 0.3, "forward →"), (bottom + 0.3, "← backward")):
        axis.text(0.12, y, words, va="center", fontsize=9)
    for rank in range(n):
        _lane(axis, rank, n, parts, TOP + rank * LANE + LANE / 2)
    for name, left in BARS.items():
        look = {"facecolor": INK, "edgecolor": INK}
        rounded(axis, left, TOP + 0.04, BAR, n * LANE - 0.08, **look)
        middle = left + BAR / 2
        look = {"fontsize": 15, "fontweight": "bold", "style": "italic", "color": CARD}
        label(axis, middle, (TOP + bottom) / 2, name, **look)
        forward, backward = DOES[name]
        _chip(axis, middle, TOP - 0.3, forward, "→")
        _chip(axis, middle, bottom + 0.3, backward, "←")
    words = (
        "solid arrows = activations, forward,   dashed arrows = gradients, backward,   grey = "
        "replicated,   colour = that rank's part"
    )
    axis.text(WIDTH / 2, bottom + 0.82, words, ha="center", fontsize=7.5, color=QUIET)


def _lane(axis, rank: int, n: int, parts: tuple[Part, ...], y: float) -> None:
    """Draw one rank: its label, its boxes, and the arrows between them in both directions."""
    rank_box(axis, (0.12, y - HIGH / 2, 0.62, HIGH), rank, f"rank {rank}", fontweight="bold")
    for part in parts:
        _box(axis, part, rank, n, y)
    sub = f"$_{rank}$"
    x, columns, local, rows, z = parts
    f, g = BARS.values()
    hops = (
        (x.right, f, "", "dX"),
        (f + BAR, columns.left, "X", f"dX{sub}"),
        (columns.right, local.left, "", ""),
        (local.right, rows.left, "", ""),
        (rows.right, g, f"{z.name}{sub}", f"d{z.name}"),
        (g + BAR, z.left, "", f"d{z.name}"),
    )
    for start, stop, ahead, back in hops:
        _arrows(axis, start + 0.04, stop - 0.04, y, ahead, back)
    note = {"fontsize": 7, "color": QUIET, "style": "italic"}
    label(axis, (f + BAR + columns.left) / 2, y + 0.36, "partial sum", **note)
    label(axis, (rows.right + g) / 2, y - 0.36, "partial sum", **note)


def _box(axis, part: Part, rank: int, n: int, y: float) -> None:
    """Draw a replicated tensor, a rank's local operation, or a layer with its shard."""
    fill = REPLICATED if part.kind == "replicated" else PAPER
    look = {"facecolor": fill, "edgecolor": EDGE if fill == REPLICATED else QUIET}
    box(axis, part.left, y - HIGH / 2, part.wide, HIGH, linewidth=0.8, **look)
    text, middle = part.name, part.left + part.wide / 2
    if part.kind in ("columns", "rows"):
        side = HIGH - 0.14
        at = (part.left + 0.07, y - side / 2)
        box(axis, *at, side, side, facecolor=CARD, edgecolor=QUIET, linewidth=0.7)
        stripe(axis, *at, side, part.kind, rank, n)
        text, middle = f"× {part.name}$_{rank}$", at[0] + side + (part.wide - side - 0.07) / 2
    label(axis, middle, y, text, fontsize=9)


def _arrows(axis, start: float, stop: float, y: float, ahead: str, back: str) -> None:
    """Draw an arrow to the right for activations and, below it, one to the left for gradients."""
    arrow(axis, (start, y - 0.1), (stop, y - 0.1), mutation_scale=9)
    dashed = {"linewidth": 1.1, "linestyle": (0, (3, 2)), "mutation_scale": 9}
    arrow(axis, (stop, y + 0.1), (start, y + 0.1), **dashed)
    look = {"ha": "center", "fontsize": 8, "color": INK}
    axis.text((start + stop) / 2, y - 0.14, ahead, va="bottom", **look)
    axis.text((start + stop) / 2, y + 0.14, back, va="top", **look)


def _chip(axis, x: float, y: float, op: str, sign: str) -> None:
    sends, text = op != IDENTITY, f"{sign} {op}" if sign == "→" else f"{op} {sign}"
    chip(axis, x, y, text if sends else f"{text}\n(no message)", sends, fontsize=8)
