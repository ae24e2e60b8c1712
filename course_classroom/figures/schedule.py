"""The schedule of a block: its parts in execution order, with each collective in its place.

`follow` records on a rank which part of a model is active when the ledger books a call, in the
forward and backward pass. `schedule` draws these records. Lesson 05 draws a block, lesson 06 a
block whose tokens are sharded between reduce-scatters and gathers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from course_classroom.figures.colours import CARD, QUIET, REPLICATED, Picture, draw
from course_classroom.figures.shapes import arrow, chip, in_inches, label, rounded, runs

if TYPE_CHECKING:
    from torch import nn

    from course_lib.ledger.book import Book

FORWARD, BACKWARD = "forward", "backward"
GATHER, SCATTER = "all_gather", "reduce_scatter"
LEGEND, LEFT, TOP = 0.3, 1.05, 0.72  # inches: the legend's height, the first part's left and middle
WIDE, HIGH, GAP = 0.8, 0.4, 0.2  # inches: a part's box and the space next to it
FLAG = 0.36  # height of a collective's flag below the box


class Call(NamedTuple):
    """A collective, as the ledger booked it."""

    op: str
    axis: str
    elements: int


class Visit(NamedTuple):
    """One run of a part in the forward or backward pass, with the collectives within it."""

    part: str
    phase: str
    calls: tuple[Call, ...]


@contextmanager
def follow(parts: Mapping[str, nn.Module], book: Book) -> Iterator[list[Visit]]:
    """Record every forward and backward pass of these modules, and the collectives that `book`
    lists.

    A module that runs twice has two visits. A collective between the parts is an error at the end,
    because the schedule would omit it.
    """
    visits: list[Visit] = []
    open_visit: list[tuple[str, str, int]] = []
    start = len(book.records)

    def enter(part: str, phase: str) -> None:
        if open_visit:
            raise ValueError(
                f"{part} begins its {phase} while {open_visit[0][0]} is in its {open_visit[0][1]}: "
                "follow parts that run one after the other, not nested parts"
            )
        open_visit.append((part, phase, len(book.records)))

    def leave() -> None:
        part, phase, first = open_visit.pop()
        calls = tuple(Call(r.op, r.axis, r.elements) for r in book.records[first:])
        visits.append(Visit(part, phase, calls))

    with ExitStack() as hooks:
        for name, module in parts.items():
            for hook in (
                module.register_forward_pre_hook(lambda *_, name=name: enter(name, FORWARD)),
                module.register_forward_hook(lambda *_: leave()),
                module.register_full_backward_pre_hook(lambda *_, name=name: enter(name, BACKWARD)),
                module.register_full_backward_hook(lambda *_: leave()),
            ):
                hooks.callback(hook.remove)
        yield visits
    booked, seen = len(book.records) - start, sum(len(visit.calls) for visit in visits)
    if booked != seen:
        raise ValueError(
            f"{booked} collectives were booked, but only {seen} of them ran inside the followed "
            f"parts ({', '.join(parts)}): which module makes the others?"
        )


def schedule(visits_by_rank: Sequence[Sequence[Visit]], *, title: str = "") -> Picture:
    """Draw a step, equal on all ranks: the forward pass from left to right, the backward below.

    Parts named like `attention.out` are drawn together, under `attention`. If gathers and
    reduce-scatters show that tokens are sharded, the parts that see a shard are striped.
    """
    first = list(visits_by_rank[0]) if visits_by_rank else []
    for rank, visits in enumerate(visits_by_rank):
        if list(visits) != first:
            raise ValueError(f"rank {rank} took different steps than rank 0: no common schedule")
    lanes = {phase: [v for v in first if v.phase == phase] for phase in (FORWARD, BACKWARD)}
    names = [visit.part for visit in lanes[FORWARD]]
    lanes[BACKWARD].reverse()  # drawn in the columns of the forward pass
    if not names or (lanes[BACKWARD] and [visit.part for visit in lanes[BACKWARD]] != names):
        raise ValueError("a schedule needs a forward pass, and a backward pass in reverse order")
    lanes = {phase: visits for phase, visits in lanes.items() if visits}
    striped = token_sharded(lanes[FORWARD])
    width = max(len(names) * (WIDE + GAP) + 1.1, 5.4 * bool(striped))  # room for the legend
    size = (width, 0.55 + sum(map(_height, lanes.values())) + LEGEND * bool(striped))
    alt = _in_words(lanes, striped)
    return draw(size, alt, lambda figure: _paint(figure, lanes, names, striped), title)


def token_sharded(forward: Sequence[Visit]) -> set[int]:
    """Return the indices of the parts that see only their rank's tokens, from a reduce-scatter to
    the next all-gather (if any)."""
    ops = [[call.op for call in visit.calls] for visit in forward]
    moves = [op for own in ops for op in own if op in (GATHER, SCATTER)]
    if SCATTER not in moves:
        return set()
    sharded, found = moves[0] == GATHER, set()
    for place, own in enumerate(ops):
        if sharded and GATHER not in own:
            found.add(place)
        for op in own:
            sharded = op == SCATTER if op in (GATHER, SCATTER) else sharded
    return found


def _paint(figure, lanes, names: list[str], striped: set[int]) -> None:
    axis, y = in_inches(figure), TOP
    lefts = [LEFT + column * (WIDE + GAP) for column in range(len(names))]
    for group, start, stop in runs(name.rpartition(".")[0] for name in names):
        if group:
            left, right = lefts[start], lefts[stop - 1] + WIDE
            axis.plot([left, right], [TOP - 0.36] * 2, color=QUIET, linewidth=1.0)
            label(axis, (left + right) / 2, TOP - 0.42, group, va="bottom", fontsize=9)
    for phase, visits in lanes.items():
        words = f"{phase}\n{'→' if phase == FORWARD else '←'}"
        label(axis, LEFT - 0.1, y, words, ha="right", fontsize=9)
        for column, (left, visit) in enumerate(zip(lefts, visits, strict=True)):
            _part(axis, left, y, visit, column in striped)
            if column:
                ends = [(left - GAP, y), (left, y)]
                look = {"linewidth": 1.1, "mutation_scale": 8}
                arrow(axis, *(ends if phase == FORWARD else ends[::-1]), **look)
        y += _height(visits)
    if striped:
        words = ("all tokens on every rank", "tokens sharded over the ranks")
        for left, its_own in ((LEFT, False), (LEFT + 2.0, True)):
            _box(axis, left, y - 0.2, 0.28, 0.16, its_own)
            axis.text(left + 0.36, y - 0.2, words[its_own], va="center", fontsize=8)


def _height(visits: list[Visit]) -> float:
    """Return the height of a lane in inches: the boxes and the longest column of flags."""
    return HIGH + 0.3 + FLAG * max(len(visit.calls) for visit in visits)


def _box(axis, left: float, y: float, wide: float, high: float, striped: bool) -> None:
    """Draw a box: grey if every rank has all tokens, white with stripes if it has a shard."""
    look = {"facecolor": CARD if striped else REPLICATED, "edgecolor": QUIET, "linewidth": 0.8}
    look["hatch"] = "---" if striped else ""
    rounded(axis, left, y - high / 2, wide, high, min(0.06, high / 4), **look)


def _part(axis, left: float, y: float, visit: Visit, striped: bool) -> None:
    """Draw a part's box, and a dark flag below it for each of its collectives."""
    _box(axis, left, y, WIDE, HIGH, striped)
    name = visit.part.rpartition(".")[2]
    label(axis, left + WIDE / 2, y, name, on=CARD if striped else REPLICATED)
    for i, call in enumerate(visit.calls):
        below = y + HIGH / 2 + 0.22 + FLAG * i
        chip(axis, left + WIDE / 2, below, f"{call.op}\n{call.elements:,}", True, fontsize=7)


def _in_words(lanes: dict[str, list[Visit]], striped: set[int]) -> str:
    told = []
    for phase, visits in lanes.items():
        order = visits if phase == FORWARD else visits[::-1]
        told.append(f"{phase.capitalize()}: {', '.join(map(_visit, order))}.")
    if striped:
        names = [visit.part for place, visit in enumerate(lanes[FORWARD]) if place in striped]
        where = ", ".join(dict.fromkeys(names))
        told.append(f"In {where} a rank has a shard of the tokens, in the other parts all of them.")
    return f"The parts of a block in execution order. {' '.join(told)}"


def _visit(visit: Visit) -> str:
    calls = " and ".join(f"{c.op} of {c.elements:,} over {c.axis}" for c in visit.calls)
    return f"{visit.part} with {calls}" if calls else visit.part
