"""One optimizer step of `course train`'s own code, as rank r of N, counted by ledger and meter.

The first step creates the optimizer's states and records the order of the units, as in a real run.
The second step is counted. Lesson 15.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

import torch

from course_lib import ranks
from course_lib.dry.alone import alone
from course_lib.dry.as_on_cpu import AsOnCpu, UnderWay
from course_lib.dry.shapes import ShapeBatches, Sized, check, sized
from course_lib.ledger.forms import Bytes
from course_lib.tensor_parallel.randomness import mix, seed_all
from course_lib.train import program
from course_lib.train.model import make_model
from course_lib.train.options import Options
from course_lib.train.step_meter import APART, Meter, VerbCounts

NOWHERE = Path("runs")  # for the names of offload files, which are never written
STEPS = 2


@dataclass(frozen=True)
class DryRun:
    """One rank's traffic in a step, its memory between steps, and its peak memory.

    Bytes are for this rank. `held_by_kind` and `held_by_tier` classify the same bytes in two ways.
    `peak` is for the device and `host_peak` for the host. `verbs` lists all messages. `estimate`
    has the closed forms' values by name. `seconds` is the time of the dry run itself."""

    world: int
    rank: int
    dp: int
    tp: int
    parameters: int  # of this rank's shard over tp
    held: int
    held_by_tier: dict[str, int]
    held_by_kind: dict[str, int]
    peak: int
    host_peak: int
    sent: Bytes
    sent_by_axis: dict[str, Bytes]
    sent_beside: Bytes
    verbs: Sequence[VerbCounts]
    estimate: dict
    seconds: float

    def calls(self, axis: str | None = None, verb: str | None = None) -> int:
        """Count the messages of the step itself, without messages that only report on it."""
        return sum(
            row.calls
            for row in self.verbs
            if row.label not in APART and axis in (None, row.axis) and verb in (None, row.verb)
        )

    def differences(self) -> list[str]:
        """List the counts that differ from the closed form by any byte; normally there are none."""
        return [
            f"{name} {getattr(self, name)}, but by formula {self.estimate[name]}"
            for name in ("held_by_tier", "held_by_kind", "sent_by_axis")
            if getattr(self, name) != self.estimate[name]
        ]

    def as_dict(self) -> dict:
        """Return the fields as plain data for JSON."""
        return {**asdict(self), "verbs": [row._asdict() for row in self.verbs]}


def run(options: Options, world: int, rank: int = 0) -> DryRun:
    """Run a step with these options as rank `rank` of `world`, without memory or network.

    The process must not be in a process group. Memory and message routes are the same as on a CPU
    with gloo. Like `course train`, it raises Refused if such a run is impossible."""
    began = time.perf_counter()
    options = options if isinstance(options, Sized) else sized(options, world)
    check(options, world, rank)
    dp, tp = world // options.tp, options.tp
    with torch.random.fork_rng(devices=()), AsOnCpu(), alone(world, rank) as me, UnderWay():
        mesh = ranks.mesh(me, dp=dp, tp=tp)
        model, fill = make_model(options, me, mesh)
        text, meter = ShapeBatches(options, mesh), Meter(options, mesh, model, NOWHERE)
        optimizer = program.make_optimizer(options, model, fused=False)
        with program.make_engine(options, mesh, model, fill, optimizer, NOWHERE) as engine:
            for done in range(STEPS):
                seed_all(mix(options.seed, done), replica=mesh.get_group("dp").rank())
                with meter.step(engine):
                    program.one_step(options, engine, text, mesh, SimpleNamespace(asked=False))
            parameters = sum(slot.numel for slot in engine.partition.slots())
    report = {**meter.report, "verbs": [VerbCounts(**row) for row in meter.report["verbs"]]}
    seconds = time.perf_counter() - began
    return DryRun(world, dp=dp, tp=tp, parameters=parameters, seconds=seconds, **report)
