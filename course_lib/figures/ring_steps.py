"""A ring all-reduce step by step: who sends which chunk to whom, and whose parts a chunk sums.

What is drawn is a ring that was run: 2(n-1) steps, first the reduce-scatter, then the all-gather.
Lesson 01; its slider is in `course_lib.classroom.sliders`.
"""

from __future__ import annotations

from typing import NamedTuple

from course_lib.figures.colours import CARD, INK, QUIET, Picture, draw
from course_lib.figures.shapes import arrow, box
from course_lib.figures.who_holds import tile

MOST = 8  # ranks; more cannot be read
BESIDE, ABOVE = 0.34, 0.62  # inches
WIDEST = 9.0


class Send(NamedTuple):
    """One message of a step."""

    sender: int
    receiver: int
    chunk: int


class Frame(NamedTuple):
    """The ring after a step: `held[rank][chunk]` are the ranks whose parts that chunk sums."""

    name: str
    sends: tuple[Send, ...]  # what has just arrived
    held: tuple[tuple[tuple[int, ...], ...], ...]


def ring_frames(n: int) -> list[Frame]:
    """Run a ring of n ranks: its beginning, and the ring after each of its 2(n-1) steps.

    Rank r begins with 10^r in each chunk, so that the digits of a sum say how often each rank's
    part is in it.
    """
    if not 2 <= n <= MOST:
        raise ValueError(f"n={n}: a ring that can be drawn has 2 to {MOST} ranks")
    held = [[10**rank] * n for rank in range(n)]
    frames = [Frame("before", (), _owners(held))]
    for step in range(2 * (n - 1)):
        adds = step < n - 1
        sends = [Send(r, (r + 1) % n, (r - step) % n) for r in range(n)]
        leaving = [held[send.sender][send.chunk] for send in sends]  # all send at once
        for send, value in zip(sends, leaving, strict=True):
            row = held[send.receiver]
            row[send.chunk] = row[send.chunk] + value if adds else value
        name = f"reduce-scatter {step + 1}" if adds else f"all-gather {step + 2 - n}"
        frames.append(Frame(name, tuple(sends), _owners(held)))
    return frames


def _owners(held: list[list[int]]) -> tuple:
    found = []
    for row in held:
        digits = [str(value)[::-1] for value in row]
        if any(set(text) - {"0", "1"} for text in digits):
            raise ValueError(f"a rank's part was added twice: {row}")
        found.append(tuple(tuple(r for r, d in enumerate(text) if d == "1") for text in digits))
    return tuple(found)


def ring_steps(n: int = 3, *, step: int | None = None, title: str | None = None) -> Picture:
    """Draw every step of a ring of n ranks as a strip of frames, or one step alone.

    A row is a rank, a column a chunk. An arrow is a message; its chunk is framed where it arrived.
    """
    frames = ring_frames(n)
    if step is not None and not 0 <= step < len(frames):
        raise ValueError(f"step={step}: the ring of {n} has the steps 0 to {len(frames) - 1}")
    if title is None:
        title = f"A ring all-reduce on {n} ranks: {2 * (n - 1)} steps of one chunk a rank"
    lines = _lines(frames) if step is None else [[frames[step]]]
    size = _tile(n) * (1.0 if step is None else 1.5)
    wide = max(0.6 + len(line) * (n * size + BESIDE) for line in lines)
    high = ((n + 0.6) * size + ABOVE) * len(lines) + 0.3
    words = _in_words([frame for line in lines for frame in line])
    return draw((wide, high), words, lambda figure: _paint(figure, lines, n), title)


def _tile(n: int) -> float:
    """Inches; smaller where there are many."""
    return 0.42 if n < 4 else 0.32


def _lines(frames: list[Frame]) -> list[list[Frame]]:
    """One line where it is short enough; else the all-gather has a line of its own."""
    n = len(frames[0].held)
    if 0.6 + len(frames) * (n * _tile(n) + BESIDE) <= WIDEST:
        return [frames]
    return [frames[:n], frames[n:]]


def _paint(figure, lines: list[list[Frame]], n: int) -> None:
    columns = max(map(len, lines))
    axes = figure.subplots(len(lines), columns, squeeze=False)
    told = "chunk; an arrow is a message, and a frame is round what it made"
    figure.supxlabel(told, fontsize=8, color=QUIET)
    for line, row in zip(lines, axes, strict=True):
        for i, axis in enumerate(row):
            axis.axis("off") if i >= len(line) else _frame(axis, line[i], n, names=i == 0)


def _frame(axis, frame: Frame, n: int, *, names: bool) -> None:
    for rank, row in enumerate(frame.held):
        for chunk, owners in enumerate(row):
            tile(axis, chunk, rank, owners, hatched=False)  # numbers tell them
    for send in frame.sends:
        look = {"facecolor": "none", "edgecolor": INK, "linewidth": 1.8, "zorder": 5}
        box(axis, send.chunk + 0.03, send.receiver + 0.03, 0.94, 0.94, **look)
        _arrow(axis, send, n)
    axis.set_xlim(-0.1, n + 0.1)
    axis.set_ylim(n + 0.42, -0.42)
    axis.set_aspect("equal")
    axis.set_title(frame.name, fontsize=8.5)
    axis.set_xticks([c + 0.5 for c in range(n)], range(n), fontsize=7.5)
    axis.set_yticks(
        [r + 0.5 for r in range(n)], [f"rank {r}" for r in range(n)] if names else [""] * n,
        fontsize=8.5,
    )  # fmt: skip
    axis.tick_params(length=0, labelcolor=QUIET)
    axis.spines[:].set_visible(False)


def _arrow(axis, send: Send, n: int) -> None:
    """Down to the next rank; from the last one out at the bottom, and in again at the top."""
    from matplotlib.patheffects import withStroke

    look = {"arrowstyle": "-|>,head_width=0.22,head_length=0.4", "linewidth": 1.6, "zorder": 6}
    look["path_effects"] = [withStroke(linewidth=3.4, foreground=CARD)]
    x, out = send.chunk + 0.5, (send.sender + 0.74, send.sender + 1.26)
    ways = [out] if send.receiver > send.sender else [(n - 0.26, n + 0.4), (-0.4, 0.26)]
    for start, stop in ways:
        arrow(axis, (x, start), (x, stop), **look)


def _in_words(frames: list[Frame]) -> str:
    told = []
    for frame in frames:
        rows = "; ".join(
            f"rank {r} holds {', '.join('+'.join(map(str, owners)) for owners in row)}"
            for r, row in enumerate(frame.held)
        )
        sent = "; ".join(f"{s.sender} sends chunk {s.chunk} to {s.receiver}" for s in frame.sends)
        told.append(f"{frame.name}: {sent + '. Then ' if sent else ''}{rows}.")
    return f"Whose parts each chunk sums. {' '.join(told)}"
