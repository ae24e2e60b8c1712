"""A book of collectives with one record per call, and queries by count, bytes, origin and time.

Lesson 01 reads the first book. Every later lesson asserts that its closed form equals `count` and
`bytes`.
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
    """One collective on this rank. Bytes are for this rank; times are seconds of perf_counter."""

    op: str
    axis: str
    ranks: int  # size of the group
    phase: str
    elements: int  # of the payload
    dtype: str
    payload: int  # bytes of the tensor passed to the call
    must: Bytes  # bytes that this rank must send, by the closed form
    site: str
    issued_by: str
    start: float
    moved: int | None = None  # bytes its sockets sent meanwhile; None if they are not counted
    end: float | None = None  # time of completion; None while it is in progress
    asynchronous: bool = True  # whether the caller continued before completion
    waits: list[tuple[float, float]] = field(default_factory=list)  # when its caller was blocked
    label: str = ""  # from `collectives.labelled`


class Span(NamedTuple):
    """A record as drawn on a timeline."""

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
        self.open = True  # while True, queries do not wait for a GPU
        self.marked_phase: str | None = None
        self._axes = axes
        self._flow = flow
        self._refresh = refresh  # updates the records; True also waits for GPUs

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Book all calls in the body under this phase. The innermost `phase` applies."""
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
        """Count the collectives of this rank; label "" selects calls without a label."""
        return len(self._select(op, axis, phase, label))

    def bytes(
        self,
        op: str | None = None,
        axis: str | None = None,
        phase: str | None = None,
        column: str = "must",
        label: str | None = None,
    ) -> Bytes | None:
        """Sum a column. If op, axis, phase and label are None, `moved` is all bytes that gloo sent.

        `moved` is None if it is unknown, that is, not on Linux or not on gloo.
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
        """Return the start and end of each collective, ordered by start."""
        self._refresh(not self.open)
        return [
            Span(*(getattr(record, name) for name in Span._fields[:-1]), tuple(record.waits))
            for record in sorted(self.records, key=lambda record: record.start)
        ]

    def table(self, *, moved: bool = True) -> Table:
        """Group the records by op, axis, phase and line, and return them as a table.

        `moved=False` leaves out the measured column, so that the table is the same in every run.
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
        """Return the name of a group: its axis if it has one, otherwise its ranks."""
        for name, known in self._axes.items():
            if known is group or known.group_name == group.group_name:
                return name
        members = dist.get_process_group_ranks(group)
        # A layer may have created a separate group along the axis.
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
            "a book belongs to its process and cannot be sent to another process; "
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
        raise ValueError(f"{what}={name!r} is not in a ledger; choose from {', '.join(valid)}")


def _sum(records: Iterable[Record], column: str) -> Bytes:
    """Sum a column exactly, although its fractions of bytes were rounded to floats."""
    parts = (Fraction(round(getattr(r, column) * r.ranks), r.ranks) for r in records)
    total = sum(parts, Fraction(0))
    return total.numerator if total.denominator == 1 else float(total)
