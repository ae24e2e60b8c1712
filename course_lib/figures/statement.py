"""A statement of the notation as a picture: blocks, the ranks that hold them, the collective.

`statement("X[b, h@tp] W[h@tp, f] -> Y[b, f]{tp}", tp=2)` needs no tensors and no ranks: it is the
picture before the derivation. Lessons 02 to 11 begin with one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course_lib.figures.colours import (
    CARD,
    EDGE,
    QUIET,
    REPLICATED,
    Picture,
    draw,
    of_rank,
    rank_look,
    smaller,
)
from course_lib.figures.needed import Move
from course_lib.figures.shapes import arrow, box, chip, in_inches, label
from course_lib.figures.statement_rows import (
    LOCAL,
    NONE,
    Cell,
    Sheets,
    Step,
    axis_sizes,
    caption,
    in_words,
    place,
    sheets,
    steps,
)

LENGTHS = {"b": 0.62, "f": 1.25, "v": 1.3, "d": 0.5}  # inches; other dims have the next
LENGTH, THIN, FOLDED = 0.82, 0.27, 0.92  # of a dim, of a row vector, of two folded dims
SHEET, GAP, MOVE, LINE = 0.1, 0.06, 1.2, 0.16  # between sheets, between sequences; an arrow; text
MONO = "DejaVu Sans Mono"
SHOWN = 8  # ranks in the legend


def statement(
    texts: str | Sequence[str],
    *,
    title: str = "",
    lengths: Mapping[str, float] | None = None,
    **axes: int,
) -> Picture:
    """Draw statements, a row each: which rank holds which block, and the collective they need.

    `axes` gives the size of each axis, `tp=2` or `dp=2, tp=2`; without any, tp=2. Arrows may follow
    one another: "X[b, h@tp] W[h@tp, f] -> Y[b, f]{tp} -> Y[b, f]". A partial sum that no later
    statement completes is drawn with the all-reduce that it still needs; a tensor whose layout
    changes from one statement to the next, with its collective. `lengths`: inches of a dim.
    """
    rows = steps([texts] if isinstance(texts, str) else list(texts))
    sizes = axis_sizes([s.layout for row in rows for s in row if s.layout], axes)
    boards = [[sheets(s.layout, sizes) if s.layout else None for s in row] for row in rows]
    every = [board for row in boards for board in row if board]
    inches = _inches(every, {**LENGTHS, **(lengths or {})})
    widths = [
        [_wide(step, board, inches, sizes) for step, board in zip(row, own, strict=True)]
        for row, own in zip(rows, boards, strict=True)
    ]
    highs = [max(_box(b, inches)[1] + _spread(b) for b in row if b) for row in boards]
    lines = [max(len(caption(s.layout, sizes)) for s in row if s.layout) for row in rows]
    heights = [high + 0.58 + LINE * n for high, n in zip(highs, lines, strict=True)]
    across = max(4.6, *map(sum, widths)) + 0.3
    legend = _lines(_entries(every, sizes), across - 0.2)
    down = sum(heights) + 0.2 + 0.22 * len(legend)

    def paint(figure) -> None:
        axis, top = in_inches(figure), 0.08
        for i, row in enumerate(rows):
            left, middle = 0.15, top + 0.22 + highs[i] / 2
            for step, board, wide in zip(row, boards[i], widths[i], strict=True):
                if board:
                    words = caption(board.layout, sizes)
                    _tensor(axis, board, left + wide / 2, middle, highs[i], inches, words)
                else:
                    between(axis, step.moves, step.sign, left, left + wide, middle)
                left += wide
            top += heights[i]
        for i, entries in enumerate(legend):
            _legend(axis, entries, top + 0.14 + 0.22 * i)

    return smaller(draw((across, down), in_words(rows, sizes), paint, title))


def between(
    axis, moves: Sequence[Move], sign: str, left: float, right: float, middle: float
) -> None:
    """A sign, or an arrow that carries its collectives: dark where a message is sent."""
    centre = (left + right) / 2
    if sign == NONE:
        text = NONE.replace(" ", "\n")
        label(axis, centre, middle, text, color=QUIET, style="italic")
        return
    if not moves and sign != "→":
        label(axis, centre, middle, sign, fontsize=13)
        return
    arrow(axis, (left + 0.02, middle), (right - 0.08, middle))
    sends = any(move.sends for move in moves)
    text = "\n".join(
        f"{m.op}\nover {m.axis}" if m.sends else f"{m.op} over {m.axis}\n(no message)"
        for m in moves
    )
    words = text or f"{LOCAL}\n(no message)"
    chip(axis, centre - 0.03, middle - 0.12, words, sends, va="bottom")


def _inches(boards: Sequence[Sheets], lengths: Mapping[str, float]) -> dict[str, float]:
    """How long each dim, and each pair of folded dims, is drawn: the same in all tensors, with
    room for the label of every block."""
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


def _box(board: Sheets, inches: Mapping[str, float]) -> tuple[float, float]:
    *rows, last = (dim.name for dim in board.layout.dims)
    return inches[last], inches["·".join(rows)] if rows else THIN


def _spread(board: Sheets) -> float:
    return SHEET * (len(board.cells) - 1)


def _wide(step: Step, board: Sheets | None, inches, sizes) -> float:
    if board is None:
        return MOVE if step.moves or step.sign == "→" else 0.9 if step.sign == NONE else 0.3
    words = caption(step.layout, sizes)
    text = max(0.087 * len(str(step.layout)), *(0.07 * len(line) for line in words))
    return max(_box(board, inches)[0] + _spread(board) + 0.42, text + 0.12)


def _tensor(axis, board: Sheets, centre, middle, high, inches, lines) -> None:
    size, spread = _box(board, inches), _spread(board)
    left, top = centre - (size[0] + spread) / 2, middle - (size[1] + spread) / 2
    for i in reversed(range(len(board.cells))):  # the first rank's sheet in front
        for cell in board.cells[i]:
            at = _place(board, cell, (left + SHEET * i, top + spread - SHEET * i), size)
            _block(axis, cell.ranks, at, board.replicated)
    corner = (left, top + spread)
    for cell, words in zip(board.cells[0], labels_of(board), strict=True):
        x, y, w, h = _place(board, cell, corner, size)
        several = board.replicated or len(cell.ranks) > 1
        paper = REPLICATED if board.replicated else CARD if several else of_rank(cell.ranks[0])
        label(axis, x + w / 2, y + h / 2, words, on=paper, fontweight="bold")
    names = [dim.name for dim in board.layout.dims]
    look = {"color": QUIET, "style": "italic"}
    label(axis, left + size[0] / 2 + spread, top - 0.1, names[-1], **look)
    if len(names) > 1:
        beside = top + spread + size[1] / 2
        label(axis, left - 0.1, beside, "·".join(names[:-1]), rotation=90, **look)
    below = middle + high / 2 + 0.14
    label(axis, centre, below, str(board.layout), fontsize=9, family=MONO)
    for i, line in enumerate(lines):
        label(axis, centre, below + 0.18 + LINE * i, line, color=QUIET)


def labels_of(board: Sheets) -> list[str]:
    """What is printed on each block: its ranks, for a partial sum those of every summand."""
    if board.replicated:
        return ["all"] * len(board.cells[0])
    found = []
    for cells in zip(*board.cells, strict=True):
        parts = [", ".join(map(str, cell.ranks)) for cell in cells]
        several = len(parts) > 1 and any("," in part for part in parts)
        found.append(" + ".join(f"({part})" if several else part for part in parts))
    return found


def _place(board: Sheets, cell: Cell, corner, size) -> tuple[float, float, float, float]:
    """Left, top, width and height of a block; between sequences there is a gap."""
    sequences = board.rows // board.every
    gap = GAP if len(board.layout.dims) > 2 else 0.0
    high = (size[1] - gap * (sequences - 1)) / board.rows
    wide = size[0] / board.columns
    y = corner[1] + cell.row * high + (cell.row // board.every) * gap
    return corner[0] + cell.column * wide, y, wide, high


def _block(axis, ranks: Sequence[int], at, replicated: bool) -> None:
    """One block: grey, a rank's colour, or a slanted band for each rank that holds a copy."""
    from matplotlib.patches import Polygon, Rectangle

    x, y, w, h = at
    if replicated:
        box(axis, *at, facecolor=REPLICATED, edgecolor=EDGE, linewidth=0.6)
        return
    n = len(ranks)
    for i, rank in enumerate(ranks):
        start, stop = 2 * i / n * w, 2 * (i + 1) / n * w
        corners = [(x + start, y), (x + stop, y), (x + stop - w, y + h), (x + start - w, y + h)]
        if n == 1:
            corners = [(x, y), (x + w, y), (x + w, y + h), (x, y + h)]
        band = Polygon(corners, **rank_look(rank))
        axis.add_patch(band)
        band.set_clip_path(Rectangle((x, y), w, h, transform=axis.transData))
    box(axis, *at, facecolor="none", edgecolor=CARD, linewidth=1.2)


def _entries(boards: Sequence[Sheets], sizes: Mapping[str, int]) -> list[tuple[tuple, str]]:
    """(ranks, words) of the legend; no ranks: what is replicated."""
    world = boards[0].world
    found: list[tuple[tuple, str]] = []
    for rank in range(min(world, SHOWN)):
        where = ", ".join(f"{axis} {at}" for axis, at in place(rank, sizes))
        found.append(((rank,), f"rank {rank} ({where})" if len(sizes) > 1 else f"rank {rank}"))
    cells = [cell for board in boards for sheet in board.cells for cell in sheet]
    shared = next((c.ranks for c in cells if 1 < len(c.ranks) < world), None)
    if shared:
        found.append((shared, "a copy on each"))
    if any(board.replicated for board in boards):
        found.append(((), "all: replicated"))
    return found


def _long(entry: tuple[tuple, str]) -> float:
    return 0.46 + 0.064 * len(entry[1])


def _lines(entries: list[tuple[tuple, str]], across: float) -> list[list[tuple[tuple, str]]]:
    """The legend, broken where a line is full."""
    lines: list[list[tuple[tuple, str]]] = [[]]
    for entry in entries:
        if lines[-1] and sum(map(_long, [*lines[-1], entry])) > across:
            lines.append([])
        lines[-1].append(entry)
    return lines


def _legend(axis, entries: Sequence[tuple[tuple, str]], y: float) -> None:
    left = 0.2
    for entry in entries:
        ranks, text = entry
        _block(axis, ranks, (left, y - 0.08, 0.24, 0.16), not ranks)
        axis.text(left + 0.3, y, text, va="center", fontsize=7.5)
        left += _long(entry)
