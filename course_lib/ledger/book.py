"""A book of collectives: one record per call, and the questions that one asks of them.

How many, how many bytes, by whom, and when. Lesson 01 reads its first book; every later lesson
asserts its closed form against `count` and `bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import torch.distributed as dist

from course_lib.ledger.forms import OPS, Bytes
from course_lib.ledger.origin import PHASES
from course_lib.ledger.table import Table
from course_lib.ledger.wire import Flow

COLUMNS = ("payload", "must", "moved")


@dataclass(eq=False)
class Record:
    """One collective on this rank. Bytes are this rank's own; times are seconds of perf_counter."""

    op: str
    axis: str
    ranks: int  # how many are in the group
    phase: str
    elements: int  # handed over
    dtype: str
    payload: int  # bytes handed over
    must: Bytes  # bytes this rank has to send, by the closed form
    site: str
    issued_by: str
    start: float
    moved: int | None = None  # bytes its sockets sent meanwhile; None where nobody counts them
    end: float | None = None  # when it was complete; None while it is under way
    asynchronous: bool = True  # whether the caller went on before it was complete
    waits: list[tuple[float, float]] = field(default_factory=list)  # when the caller stood still
    label: str = ""  # what `collectives.labelled` called it


class Span(NamedTuple):
    """A record as a timeline draws it."""

    op: str
    axis: str
    phase: str
    start: float
    end: float | None
    asynchronous: bool
    issued_by: str
    payload: int
    waits: tuple[tuple[float, float], ...]


class Book:
    """The records of one `with ledger() as book:`, readable while it is open and afterwards."""

    def __init__(
        self, axes: dict[str, dist.ProcessGroup], flow: Flow, refresh: Callable[[bool], None]
    ) -> None:
        self.records: list[Record] = []
        self.open = True  # while it is, no GPU is waited for
        self.marked_phase: str | None = None
        self._axes = axes
        self._flow = flow
        self._refresh = refresh  # books what has become known; True waits for GPUs as well

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Book what happens inside under this phase, whatever it looks like. The inner one wins."""
        _check("phase", name, PHASES)
        outer, self.marked_phase = self.marked_phase, name
        try:
            yield
        finally:
            self.marked_phase = outer

    def count(
        self,
        op: str | None = None,
        axis: str | None = None,
        phase: str | None = None,
        label: str | None = None,
    ) -> int:
        """How many collectives this rank took part in; with label "", those that bear none."""
        return len(self._select(op, axis, phase, label))

    def bytes(
        self,
        op: str | None = None,
        axis: str | None = None,
        phase: str | None = None,
        column: str = "must",
        label: str | None = None,
    ) -> Bytes | None:
        """A column's sum. Without a choice of op, axis or phase, `moved` is all that gloo sent.

        `moved` is None where it cannot be known: off Linux, or on another backend than gloo.
        """
        _check("column", column, COLUMNS)
        records = self._select(op, axis, phase, label)
        if column == "moved":
            self._refresh(False)
            total = self._flow.total()
            if op is axis is phase is label is None:
                return total
            known = [r.moved for r in records if r.moved is not None]
            return sum(known) if known or not records else None
        return _sum(records, column)

    def spans(self) -> list[Span]:
        """When each collective began and was complete, in order of their beginnings."""
        self._refresh(not self.open)
        return [
            Span(*(getattr(record, name) for name in Span._fields[:-1]), tuple(record.waits))
            for record in sorted(self.records, key=lambda record: record.start)
        ]

    def table(self, *, moved: bool = True) -> Table:
        """The records grouped by op, axis, phase and line, as text.

        `moved=False` leaves out the measured column: then the table is the same in every run.
        """
        self._refresh(False)
        groups: dict[tuple[str, str, str, str], list[Record]] = {}
        for r in self.records:
            groups.setdefault((r.op, r.axis, r.phase, r.site), []).append(r)
        rows = []
        for (*what, site), same in groups.items():
            sent = [r.moved for r in same if r.moved is not None]
            sums = _sum(same, "payload"), _sum(same, "must"), sum(sent) if sent else None
            rows.append((*what, len(same), *sums, site))
        total = (len(self.records), *(self.bytes(column=column) for column in COLUMNS))
        return Table(rows, total, moved)

    def axis_of(self, group: dist.ProcessGroup) -> str:
        """The name of a group: the axis it lies along, or its ranks."""
        for name, known in self._axes.items():
            if known is group or known.group_name == group.group_name:
                return name
        members = dist.get_process_group_ranks(group)
        # A layer may have made a group of its own along the axis.
        alike = [n for n, g in self._axes.items() if dist.get_process_group_ranks(g) == members]
        if len(alike) == 1:
            return alike[0]
        if len(members) == dist.get_world_size():
            return "world"
        return "ranks " + ",".join(map(str, members))

    def __repr__(self) -> str:
        return str(self.table())

    def __getstate__(self) -> dict:
        raise TypeError(
            "a book belongs to its process and cannot be sent to another; "
            "send book.records, book.spans() or book.table()"
        )

    def _select(
        self, op: str | None, axis: str | None, phase: str | None, label: str | None
    ) -> list[Record]:
        _check("op", op, OPS)
        _check("phase", phase, PHASES)
        seen = {record.axis for record in self.records}
        if axis is not None and not axis.startswith("ranks "):
            _check("axis", axis, sorted({*self._axes, *seen, "world"}))
        return [
            record
            for record in self.records
            if op in (None, record.op)
            and axis in (None, record.axis)
            and phase in (None, record.phase)
            and label in (None, record.label)
        ]


def _check(what: str, name: str | None, valid: Sequence[str] | Iterable[str]) -> None:
    if name is not None and name not in valid:
        raise ValueError(f"{what}={name!r} is not in a ledger; choose one of {', '.join(valid)}")


def _sum(records: Iterable[Record], column: str) -> Bytes:
    """The exact sum of a column, in which a third of a byte has been rounded to a float."""
    parts = (Fraction(round(getattr(r, column) * r.ranks), r.ranks) for r in records)
    total = sum(parts, Fraction(0))
    return total.numerator if total.denominator == 1 else float(total)
