"""A statement of the notation as a picture: blocks, the ranks that hold them, and collectives.

`statement("X[b, h@tp] W[h@tp, f] -> Y[b, f]{tp}", tp=2)` needs no tensors and no ranks, because the
picture precedes the derivation. Lessons 02 to 11 begin with such a picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from course_classroom.figures.colours import (
    CARD,
    EDGE,
    QUIET,
    REPLICATED,
    Picture,
    draw,
    of_rank,
    rank_look,
)
from course_classroom.figures.needed import Move
from course_classroom.figures.shapes import arrow, box, chip, in_inches, label
from course_classroom.figures.statement_rows import (
    NONE,
    Cell,
    Sheets,
    axis_sizes,
    caption,
    in_words,
    place,
    sheets,
    steps,
)
from course_lib.layout import Layout

LENGTHS = {"b": 0.62, "f": 1.25, "v": 1.3, "d": 0.5}  # inches; other dims have the default below
LENGTH, THIN, FOLDED = 0.82, 0.27, 0.92  # of a dim, of a row vector, of two folded dims
SHEET, GAP, MOVE, LINE = 0.1, 0.06, 1.2, 0.16  # between sheets, between sequences, an arrow, text
SHOWN = 8  # ranks in the legend


class Item(NamedTuple):
    """An item in a drawn row: a tensor with its `size` in inches, a sign, or collectives."""

    board: Sheets | None = None
    size: tuple[float, float] = (0.0, 0.0)
    words: Sequence[str] = ()
    sign: str = ""
    moves: Sequence[Move] = ()

    @property
    def spread(self) -> float:
        """Return the distance from the first sheet to the last."""
        return SHEET * (len(self.board.cells) - 1)

    @property
    def wide(self) -> float:
        if self.board is None:
            return MOVE if self.moves or self.sign == "→" else 0.9 if self.sign == NONE else 0.3
        letters = (0.087 * len(str(self.board.layout)), *(0.07 * len(line) for line in self.words))
        return max(self.size[0] + self.spread + 0.42, max(letters) + 0.12)


def statement(
    texts: str | Sequence[str],
    *,
    title: str = "",
    lengths: Mapping[str, float] | None = None,
    **axes: int,
) -> Picture:
    """Draw a row for each statement: blocks, the ranks that hold them, and the collectives.

    `axes` gives the size of each axis, as in `dp=2, tp=2`; the default is tp=2. Arrows can be
    chained: "X[b, h@tp] W[h@tp, f] -> Y[b, f]{tp} -> Y[b, f]". A partial sum that no later
    statement completes is drawn with the missing all-reduce. A tensor whose layout changes between
    statements is drawn with its collective. `lengths` gives dims a length in inches.
    """
    rows = steps([texts] if isinstance(texts, str) else list(texts))
    layouts = [step.layout for row in rows for step in row if step.layout]
    sizes = axis_sizes(layouts, axes)
    boards = {layout: sheets(layout, sizes) for layout in layouts}
    inches = _inches(boards.values(), {**LENGTHS, **(lengths or {})})
    items = [
        [
            Item(boards[s.layout], _size(s.layout, inches), caption(s.layout, sizes))
            if s.layout
            else Item(sign=s.sign, moves=s.moves)
            for s in row
        ]
        for row in rows
    ]
    across, down = size_of(items)
    entries = _entries(list(boards.values()), sizes)
    each = 0.46 + 0.064 * max(len(words) for _, words in entries)  # inches
    fit = max(1, int((max(across, 4.9) - 0.5) / each))
    legend = [entries[i : i + fit] for i in range(0, len(entries), fit)]

    def paint(figure) -> None:
        axis = in_inches(figure)
        paint_rows(axis, items)
        for i, line in enumerate(legend):
            y = down + 0.02 + 0.22 * i
            for k, (ranks, words) in enumerate(line):
                _block(axis, ranks, (0.2 + k * each, y - 0.08, 0.24, 0.16), not ranks)
                axis.text(0.5 + k * each, y, words, va="center", fontsize=7.5)

    size = (max(across, 4.9), down + 0.22 * len(legend))
    return draw(size, in_words(rows, sizes), paint, title, few_colours=256)


def size_of(rows: Sequence[Sequence[Item]]) -> tuple[float, float]:
    """Return the total width and height of the rows, with a margin."""
    across = max(sum(item.wide for item in row) for row in rows)
    return across + 0.3, sum(map(_high, rows)) + 0.2


def _highest(row: Sequence[Item]) -> float:
    return max(item.size[1] + item.spread for item in row if item.board)


def _high(row: Sequence[Item]) -> float:
    return _highest(row) + 0.58 + LINE * max(len(item.words) for item in row)


def paint_rows(axis, rows: Sequence[Sequence[Item]]) -> None:
    top = 0.08
    for row in rows:
        left, middle = 0.15, top + 0.22 + _highest(row) / 2
        for item in row:
            if item.board:
                _tensor(axis, item, left + item.wide / 2, middle, middle + _highest(row) / 2 + 0.14)
            else:
                _between(axis, item.moves, item.sign, left, left + item.wide, middle)
            left += item.wide
        top += _high(row)


def _between(
    axis, moves: Sequence[Move], sign: str, left: float, right: float, middle: float
) -> None:
    """Draw a sign, or an arrow with its collectives, dark if a message is sent."""
    centre = (left + right) / 2
    if sign == NONE:
        text = NONE.replace(" ", "\n")
        label(axis, centre, middle, text, color=QUIET, style="italic")
        return
    if not moves and sign != "→":
        label(axis, centre, middle, sign, fontsize=13)
        return
    arrow(axis, (left + 0.02, middle), (right - 0.08, middle))
    words = [
        f"{m.op}\nover {m.axis}" if m.sends else f"{m.op} over {m.axis}\n(no message)"
        for m in moves
    ] or ["local\n(no message)"]
    sends = any(move.sends for move in moves)
    chip(axis, centre - 0.03, middle - 0.12, "\n".join(words), sends, va="bottom")


def _inches(boards: Iterable[Sheets], lengths: Mapping[str, float]) -> dict[str, float]:
    """Return the drawn length of each dim and each pair of folded dims, which is equal in all
    tensors and leaves room for the labels."""
    found: dict[str, float] = {}
    for board in boards:
        *rows, last = (dim.name for dim in board.layout.dims)
        for name, count, each in ((last, board.columns, 0.32), ("·".join(rows), board.rows, 0.24)):
            plain = name.rstrip("'")
            base = FOLDED if "·" in name else lengths.get(plain, LENGTH)
            if plain.isdigit():
                base = min(1.4, max(0.45, 0.16 * int(plain)))
            found[name] = max(found.get(name, base), count * each)
    return found


def _size(layout: Layout, inches: Mapping[str, float]) -> tuple[float, float]:
    *rows, last = (dim.name for dim in layout.dims)
    return inches[last], inches["·".join(rows)] if rows else THIN


def _tensor(axis, item: Item, centre: float, middle: float, below: float) -> None:
    board, size, spread = item.board, item.size, item.spread
    left, top = centre - (size[0] + spread) / 2, middle - (size[1] + spread) / 2
    for i in reversed(range(len(board.cells))):  # the first rank's sheet is in front
        for cell in board.cells[i]:
            at = _place(board, cell, (left + SHEET * i, top + spread - SHEET * i), size)
            _block(axis, cell.ranks, at, board.replicated)
    for cell, words in zip(board.cells[0], labels_of(board), strict=True):
        x, y, w, h = _place(board, cell, (left, top + spread), size)
        several = board.replicated or len(cell.ranks) > 1
        paper = REPLICATED if board.replicated else CARD if several else of_rank(cell.ranks[0])
        if w and h:
            label(axis, x + w / 2, y + h / 2, words, on=paper, fontweight="bold")
    names = [dim.name for dim in board.layout.dims]
    look = {"color": QUIET, "style": "italic"}
    label(axis, left + size[0] / 2 + spread, top - 0.1, names[-1], **look)
    if len(names) > 1:
        beside = top + spread + size[1] / 2
        label(axis, left - 0.1, beside, "·".join(names[:-1]), rotation=90, **look)
    label(axis, centre, below, str(board.layout), fontsize=9, family="DejaVu Sans Mono")
    for i, line in enumerate(item.words):
        label(axis, centre, below + 0.18 + LINE * i, line, color=QUIET)


def labels_of(board: Sheets) -> list[str]:
    """Return the label of each block: its ranks, or the ranks of every summand of a partial sum."""
    if board.replicated:
        return ["all"] * len(board.cells[0])
    found = []
    for cells in zip(*board.cells, strict=True):
        parts = [", ".join(map(str, cell.ranks)) for cell in cells]
        several = len(parts) > 1 and any("," in part for part in parts)
        found.append(" + ".join(f"({part})" if several else part for part in parts))
    return found


def _place(board: Sheets, cell: Cell, corner, size) -> tuple[float, float, float, float]:
    """Return left, top, width and height of a block, with gaps between sequences."""
    wides, highs = board.wides or (1,) * board.columns, board.highs or (1,) * board.rows
    gap = GAP if len(board.layout.dims) > 2 else 0.0
    one_wide = size[0] / sum(wides)
    one_high = (size[1] - gap * (board.rows // board.every - 1)) / sum(highs)
    x = corner[0] + one_wide * sum(wides[: cell.column])
    y = corner[1] + one_high * sum(highs[: cell.row]) + gap * (cell.row // board.every)
    return x, y, one_wide * wides[cell.column], one_high * highs[cell.row]


def _block(axis, ranks: Sequence[int], at, replicated: bool) -> None:
    """Draw one block: grey, a rank's colour, or a slanted band for each rank with a copy."""
    from matplotlib.patches import Polygon, Rectangle

    x, y, w, h = at
    if replicated:
        box(axis, *at, facecolor=REPLICATED, edgecolor=EDGE, linewidth=0.6)
        return
    n, slant = len(ranks), w if len(ranks) > 1 else 0.0
    for i, rank in enumerate(ranks):
        start, stop = x + i / n * (w + slant), x + (i + 1) / n * (w + slant)
        corners = [(start, y), (stop, y), (stop - slant, y + h), (start - slant, y + h)]
        band = Polygon(corners, **rank_look(rank))
        axis.add_patch(band)
        band.set_clip_path(Rectangle((x, y), w, h, transform=axis.transData))
    box(axis, *at, facecolor="none", edgecolor=CARD, linewidth=1.2)


def _entries(boards: Sequence[Sheets], sizes: Mapping[str, int]) -> list[tuple[tuple, str]]:
    """Return the legend's (ranks, words) entries; the entry for replicated tensors has no ranks."""
    world = boards[0].world
    found: list[tuple[tuple, str]] = []
    for rank in range(min(world, SHOWN)):
        where = f" ({place(rank, sizes)})" if len(sizes) > 1 else ""
        found.append(((rank,), f"rank {rank}{where}"))
    cells = [cell for board in boards for sheet in board.cells for cell in sheet]
    shared = next((c.ranks for c in cells if 1 < len(c.ranks) < world), None)
    if shared:
        found.append((shared, "a copy on each"))
    if any(board.replicated for board in boards):
        found.append(((), "all: replicated"))
    return found
