"""One measured step of a run: held bytes, peak, and sent bytes of this rank, next to the formulas.

Held and sent bytes equal `estimate` exactly, the peak within 10 % (without dropout, whose masks are
not estimated). The meter uses the first update after an earlier update, which has created the
optimizer states and learned the order of the units. Lesson 12.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from course_lib import estimate
from course_lib.estimate.backward import Cut
from course_lib.estimate.traffic import FAST, LEAN
from course_lib.gpt import GPT
from course_lib.layout import heads as evenly
from course_lib.ledger import Book, ledger
from course_lib.ledger.forms import Bytes
from course_lib.memory import budget, peak
from course_lib.train.checks import offload_of, units_of
from course_lib.train.options import Options
from course_lib.zero import Engine, holdings
from course_lib.zero.holdings import holdings_by_kind

APART = ("scalars", "buffers")  # labels of messages about a step, which carry no data of it


class VerbCounts(NamedTuple):
    """The calls of one verb over one axis with one label ("" for the step's own data), and their
    bytes on this rank: the payload, and the minimum that it must send."""

    axis: str
    verb: str
    label: str
    calls: int
    payload: Bytes
    must: Bytes


def by_verb(book: Book, mesh: DeviceMesh) -> list[VerbCounts]:
    """Sum a book's records by axis, verb and label."""
    totals: dict[tuple[str, str, str], list] = {}
    for name, op, label in sorted({(r.axis, r.op, r.label) for r in book.records}):
        of = {"op": op, "axis": name, "label": label}
        sums = totals.setdefault((axis_of(name, mesh), op, label), [0, 0, 0])
        sums[0] += book.count(**of)
        sums[1] += book.bytes(column="payload", **of)
        sums[2] += book.bytes(column="must", **of)
    return [VerbCounts(*key, *totals[key]) for key in sorted(totals)]


def axis_of(name: str, mesh: DeviceMesh) -> str:
    """Map a group's name in a ledger to its axis. A subset of an axis's ranks ("ranks 0,1"), such
    as those that share key/value heads, belongs to that axis."""
    kind, _, members = name.partition(" ")
    if kind == "ranks":
        for axis in mesh.mesh_dim_names:
            if set(map(int, members.split(","))) <= set(
                dist.get_process_group_ranks(mesh.get_group(axis))
            ):
                return axis
    return name


class Meter:
    """A meter for one step of this rank; `report` is None until the step was measured."""

    def __init__(self, options: Options, mesh: DeviceMesh, model: GPT, folder: Path):
        self.options, self.mesh, self.folder = options, mesh, folder
        self.outline = estimate.sketch(model)  # before an engine shards it over dp
        self.report: dict | None = None
        self._updates = 0

    @contextmanager
    def step(self, engine: Engine) -> Iterator[None]:
        """Run a step, and measure it if it is the first after an update."""
        skipped = engine.skipped
        if self.report is not None or not self._updates:
            yield
            self._updates += engine.skipped == skipped
            return
        held, kinds = holdings(engine), holdings_by_kind(engine)
        device = next(engine.parameters()).device
        shapes = "meta" if device.type == "meta" else None  # a dry run's, which represent memory
        watch = peak() if device.type == "cuda" else budget(computes_on=shapes)
        tiers = () if device.type == "cuda" else ("device", "host")
        with ledger(self.mesh) as book, watch:
            before = {tier: watch.in_use(tier) for tier in tiers}
            yield
            most = {tier: held[tier] + watch.most(tier) - before[tier] for tier in tiers}
        most = most or {"device": held["device"] + watch.bytes}
        sent, small = Counter(), 0
        for record in book.records:
            if record.label in APART:
                small += record.must
            elif record.must:
                sent[axis_of(record.axis, self.mesh)] += record.must
        if engine.skipped > skipped:  # an overflow without an update; try the next step
            return
        self.report = {
            "rank": dist.get_rank(),
            "held": sum(held.values()), "held_by_tier": held, "held_by_kind": kinds,
            "peak": most["device"], "host_peak": most.get("host"),
            "verbs": [row._asdict() for row in by_verb(book, self.mesh)],
            "sent": sum(sent.values()), "sent_by_axis": dict(sent), "sent_beside": small,
            "estimate": self._expected(held),
        }  # fmt: skip

    def of_all_ranks(self) -> list[dict]:
        """Gather every rank's report on every rank; empty if no step was measured."""
        reports: list = [None] * dist.get_world_size()
        dist.all_gather_object(reports, self.report)
        return [report for report in reports if report is not None]

    def _expected(self, held: dict[str, int]) -> dict:
        """Compute the closed forms for this rank."""
        options, config = self.options, self.outline.config
        dp, tp = (self.mesh.get_group(axis) for axis in ("dp", "tp"))
        zero = {
            "stage": options.stage,
            "n": dp.size(),
            "rank": dp.rank(),
            "precision": options.precision,
            "offload": offload_of(options, self.folder),
        }
        units = {"units": units_of(self.outline, options.units)}
        keep = FAST if options.fast else LEAN
        states = estimate.states(self.outline, **zero, **units)
        sent = {}
        if dp.size() > 1:
            by_verb = estimate.must_bytes(
                self.outline, stage=options.stage, n=dp.size(), accumulate=options.accumulate,
                precision=options.precision, keep=keep, **units,
            )  # fmt: skip
            sent["dp"] = sum(by_verb.values())
        rows = evenly(options.micro_rows, dp.size())[dp.rank()]
        shape = {"rank": tp.rank(), "sequence": options.sequence, "fused": options.fused_loss}
        width = getattr(torch, options.precision).itemsize
        if tp.size() > 1:
            sent["tp"] = options.accumulate * estimate.tensor_parallel_bytes(
                config, rows, options.length, tp.size(), width=width, **shape
            )
        expected = {"held": states.total(), "held_by_tier": states.by_tier()}
        expected["held_by_kind"] = states.by_kind()
        expected |= {"sent": sum(sent.values()), "sent_by_axis": sent}
        if not config.attention_dropout:
            top = estimate.step_peak(
                self.outline, rows, options.length, keep=keep, accumulate=options.accumulate,
                cut=Cut(tp.size(), tp.rank(), options.sequence, options.fused_loss),
                **zero, **units,
            )  # fmt: skip
            expected["peak"] = top.total
        return expected
