"""A ring all-reduce step by step: the chunks sent, their senders and receivers, and their sums.

The frames come from an executed ring of 2(n-1) steps, first the reduce-scatter, then the
all-gather. Lesson 01; its slider is in `course_classroom.notebook.sliders`.
"""

from __future__ import annotations

from typing import NamedTuple

from course_classroom.figures.colours import CARD, INK, QUIET, Picture, draw
from course_classroom.figures.shapes import arrow, box, tiled
from course_classroom.figures.who_holds import tile

MOST = 8  # ranks; more would be unreadable
BESIDE, ABOVE = 0.34, 0.62  # inches
WIDEST = 9.0


class Send(NamedTuple):
    """One message of a step."""

    sender: int
    receiver: int
    chunk: int


class Frame(NamedTuple):
    """The ring after a step: chunk `c` of rank `r` is the sum over the ranks `held[r][c]`."""

    name: str
    sends: tuple[Send, ...]  # messages that have just arrived
    held: tuple[tuple[tuple[int, ...], ...], ...]


def ring_frames(n: int) -> list[Frame]:
    """Run a ring of n ranks; return its state at the start and after each of its 2(n-1) steps."""
    if not 2 <= n <= MOST:
        raise ValueError(f"n={n}: the picture can show rings of 2 to {MOST} ranks")
    held = [[(rank,)] * n for rank in range(n)]
    frames = [Frame("before", (), tuple(map(tuple, held)))]
    for step in range(2 * (n - 1)):
        adds = step < n - 1
        sends = [Send(r, (r + 1) % n, (r - step) % n) for r in range(n)]
        leaving = [held[send.sender][send.chunk] for send in sends]  # all send at once
        for send, owners in zip(sends, leaving, strict=True):
            row = held[send.receiver]
            row[send.chunk] = tuple(sorted(row[send.chunk] + owners)) if adds else owners
        name = f"reduce-scatter {step + 1}" if adds else f"all-gather {step + 2 - n}"
        frames.append(Frame(name, tuple(sends), tuple(map(tuple, held))))
    return frames


def ring_steps(n: int = 3, *, step: int | None = None, title: str | None = None) -> Picture:
    """Draw every step of a ring of n ranks as a strip of frames, or only one step.

    Each row is a rank and each column a chunk. Arrows are messages; received chunks are framed.
    """
    frames = ring_frames(n)
    if step is not None and not 0 <= step < len(frames):
        raise ValueError(f"step={step}: the ring of {n} ranks has the steps 0 to {len(frames) - 1}")
    if title is None:
        title = f"A ring all-reduce on {n} ranks: {2 * (n - 1)} steps, one chunk per rank in each"
    size = 0.42 if n < 4 else 0.32  # inches of a tile
    lines = [frames]
    if step is not None:
        lines, size = [[frames[step]]], 1.5 * size
    elif 0.6 + len(frames) * (n * size + BESIDE) > WIDEST:
        lines = [frames[:n], frames[n:]]  # the all-gather has a separate line
    wide = max(0.6 + len(line) * (n * size + BESIDE) for line in lines)
    high = ((n + 0.6) * size + ABOVE) * len(lines) + 0.3
    words = _in_words([frame for line in lines for frame in line])
    return draw((wide, high), words, lambda figure: _paint(figure, lines, n), title)


def _paint(figure, lines: list[list[Frame]], n: int) -> None:
    columns = max(map(len, lines))
    axes = figure.subplots(len(lines), columns, squeeze=False)
    told = "chunk; an arrow is a message, and a frame marks its result"
    figure.supxlabel(told, fontsize=8, color=QUIET)
    for line, row in zip(lines, axes, strict=True):
        for i, axis in enumerate(row):
            axis.axis("off") if i >= len(line) else _frame(axis, line[i], n, names=i == 0)


def _frame(axis, frame: Frame, n: int, *, names: bool) -> None:
    from matplotlib.patheffects import withStroke

    for rank, row in enumerate(frame.held):
        for chunk, owners in enumerate(row):
            tile(axis, chunk, rank, owners, hatched=False)  # numbers distinguish them
    look = {"arrowstyle": "-|>,head_width=0.22,head_length=0.4", "linewidth": 1.6, "zorder": 6}
    look["path_effects"] = [withStroke(linewidth=3.4, foreground=CARD)]
    framed = {"facecolor": "none", "edgecolor": INK, "linewidth": 1.8, "zorder": 5}
    for sender, receiver, chunk in frame.sends:
        box(axis, chunk + 0.03, receiver + 0.03, 0.94, 0.94, **framed)
        ways = [(sender + 0.74, sender + 1.26)]
        if receiver < sender:  # leaves the last rank at the bottom and enters the first at the top
            ways = [(n - 0.26, n + 0.4), (-0.4, 0.26)]
        for start, stop in ways:
            arrow(axis, (chunk + 0.5, start), (chunk + 0.5, stop), **look)
    tiled(axis, n, n, range(n), [f"rank {r}" if names else "" for r in range(n)])
    axis.set_ylim(n + 0.42, -0.42)  # room for arrows
    axis.set_title(frame.name, fontsize=8.5)
    axis.tick_params(labelsize=8, labelcolor=QUIET)


def _in_words(frames: list[Frame]) -> str:
    told = []
    for frame in frames:
        rows = "; ".join(
            f"rank {r} holds {', '.join('+'.join(map(str, owners)) for owners in row)}"
            for r, row in enumerate(frame.held)
        )
        sent = "; ".join(f"{s.sender} sends chunk {s.chunk} to {s.receiver}" for s in frame.sends)
        told.append(f"{frame.name}: {sent + '. Then ' if sent else ''}{rows}.")
    return f"Each chunk with the ranks whose values it sums. {' '.join(told)}"
