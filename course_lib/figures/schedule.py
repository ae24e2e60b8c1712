"""The schedule of a block: its parts in the order in which they ran, each collective where it fell.

`follow` notes on a rank which part of a model is at work whenever the ledger books a call, forward
and backward; `schedule` draws that. Lesson 05 draws a block, lesson 06 the same one rewritten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from course_lib.figures.colours import INK, QUIET, Picture, draw

if TYPE_CHECKING:
    from torch import nn

    from course_lib.ledger.book import Book

FORWARD, BACKWARD = "forward", "backward"
WIDE, HIGH, GAP = 0.86, 0.4, 0.1  # a part's box and the space beside it, in inches
FLAG = 0.36  # a collective's flag below it
PAPER = "#f2f2f2"


class Call(NamedTuple):
    """A collective, as the ledger booked it."""

    op: str
    axis: str
    elements: int


class Visit(NamedTuple):
    """A part at work, forward or backward, and the collectives that fell into it."""

    part: str
    phase: str
    calls: tuple[Call, ...]


@contextmanager
def follow(parts: Mapping[str, nn.Module], book: Book) -> Iterator[list[Visit]]:
    """Note every run of these modules, forward and backward, beside the records of `book`.

    A module that runs twice is visited twice. A collective that falls between the parts is refused
    at the end: a schedule without it would say that it was not there.
    """
    visits: list[Visit] = []
    open_visit: list[tuple[str, str, int]] = []
    start = len(book.records)

    def enter(part: str, phase: str) -> None:
        if open_visit:
            raise ValueError(
                f"{part} begins its {phase} while {open_visit[0][0]} is in its {open_visit[0][1]}: "
                "follow parts that come one after the other, none inside another"
            )
        open_visit.append((part, phase, len(book.records)))

    def leave() -> None:
        part, phase, first = open_visit.pop()
        calls = tuple(Call(r.op, r.axis, r.elements) for r in book.records[first:])
        visits.append(Visit(part, phase, calls))

    hooks = []
    for name, module in parts.items():
        hooks += [
            module.register_forward_pre_hook(lambda *_, name=name: enter(name, FORWARD)),
            module.register_forward_hook(lambda *_: leave()),
            module.register_full_backward_pre_hook(lambda *_, name=name: enter(name, BACKWARD)),
            module.register_full_backward_hook(lambda *_: leave()),
        ]
    try:
        yield visits
    finally:
        for hook in hooks:
            hook.remove()
    booked, seen = len(book.records) - start, sum(len(visit.calls) for visit in visits)
    if booked != seen:
        raise ValueError(
            f"{booked} collectives were booked and {seen} of them fell into the parts that were "
            f"followed ({', '.join(parts)}): which module makes the others?"
        )


def schedule(visits_by_rank: Sequence[Sequence[Visit]], *, title: str = "") -> Picture:
    """Draw a step that every rank took alike: forward from left to right, backward below it.

    Parts named like `attention.out` are drawn together, under `attention`.
    """
    first = list(visits_by_rank[0]) if visits_by_rank else []
    for rank, visits in enumerate(visits_by_rank):
        if list(visits) != first:
            raise ValueError(f"rank {rank} took another step than rank 0: there is no one schedule")
    lanes = {phase: [v for v in first if v.phase == phase] for phase in (FORWARD, BACKWARD)}
    names = [visit.part for visit in lanes[FORWARD]]
    lanes[BACKWARD].reverse()  # drawn in the columns of the forward
    if not names or (lanes[BACKWARD] and [visit.part for visit in lanes[BACKWARD]] != names):
        raise ValueError("a schedule needs a forward, and a backward that takes its parts in turn")
    lanes = {phase: visits for phase, visits in lanes.items() if visits}
    width = max(len(names) * (WIDE + GAP) + 1.1, 0.085 * len(title) + 0.3)  # for its title too
    height = 0.55 + sum(map(_height, lanes.values())) + (0.25 if title else 0.0)
    alt = _in_words(lanes, title)
    return draw((width, height), alt, lambda figure: _paint(figure, lanes, names, title))


def _paint(figure, lanes: dict[str, list[Visit]], names: list[str], title: str) -> None:
    axis = figure.subplots()
    axis.set_xlim(-1.0, len(names) * (WIDE + GAP))
    axis.set_ylim(0.25 - sum(map(_height, lanes.values())), 0.65)
    axis.axis("off")
    if title:
        figure.suptitle(title, fontsize=10, color=INK)
    for group, start, stop in _groups(names):
        left, right = start * (WIDE + GAP), stop * (WIDE + GAP) - GAP
        axis.plot([left, right], [0.36, 0.36], color=QUIET, linewidth=1.0)
        middle = (left + right) / 2
        axis.text(middle, 0.42, group, ha="center", va="bottom", fontsize=9, color=INK)
    y = 0.0
    for phase, visits in lanes.items():
        axis.text(-0.1, y, f"{phase}\n{'→' if phase == FORWARD else '←'}", ha="right", va="center",
                  fontsize=9, color=INK)  # fmt: skip
        for column, visit in enumerate(visits):
            _part(axis, column * (WIDE + GAP), y, visit)
        y -= _height(visits)


def _height(visits: list[Visit]) -> float:
    """Of a lane, in inches: the boxes, and the flags below the one that has most."""
    return HIGH + 0.3 + FLAG * max(len(visit.calls) for visit in visits)


def _part(axis, left: float, y: float, visit: Visit) -> None:
    """A part's box, and below it a dark flag for each of its collectives."""
    from matplotlib.patches import FancyBboxPatch

    shape = "round,pad=0,rounding_size=0.06"
    axis.add_patch(
        FancyBboxPatch(
            (left, y - HIGH / 2), WIDE, HIGH, boxstyle=shape, facecolor=PAPER, edgecolor=QUIET,
            linewidth=0.8,
        )
    )  # fmt: skip
    name = visit.part.rpartition(".")[2]
    axis.text(left + WIDE / 2, y, name, ha="center", va="center", fontsize=8, color=INK)
    for i, call in enumerate(visit.calls):
        below = y - HIGH / 2 - 0.22 - FLAG * i
        axis.text(
            left + WIDE / 2, below, f"{call.op}\n{call.elements:,}", ha="center", va="center",
            fontsize=7, color="#ffffff", fontweight="bold", linespacing=1.1,
            bbox={"facecolor": INK, "edgecolor": INK, "boxstyle": "round,pad=0.25"},
        )  # fmt: skip


def _groups(names: list[str]) -> list[tuple[str, int, int]]:
    """Runs of neighbours with the same prefix: its name, and its first and last column plus one."""
    found: list[tuple[str, int, int]] = []
    for column, name in enumerate(names):
        prefix = name.rpartition(".")[0]
        if prefix and found and found[-1][0] == prefix and found[-1][2] == column:
            found[-1] = (prefix, found[-1][1], column + 1)
        elif prefix:
            found.append((prefix, column, column + 1))
    return found


def _in_words(lanes: dict[str, list[Visit]], title: str) -> str:
    told = []
    for phase, visits in lanes.items():
        order = visits if phase == FORWARD else visits[::-1]
        told.append(f"{phase.capitalize()}: {', '.join(map(_visit, order))}.")
    head = f"{title}. " if title else ""
    return f"{head}The parts of a block in the order in which they ran. {' '.join(told)}"


def _visit(visit: Visit) -> str:
    calls = " and ".join(f"{c.op} of {c.elements:,} over {c.axis}" for c in visit.calls)
    return f"{visit.part} with {calls}" if calls else visit.part
