"""The training program, top to bottom: mesh, model, optimizer, engine, loop.

Every rank runs it. What a run leaves, shows and goes on from is in journal.py; each call here is
the subject of a lesson: the step of 08, the stages of 09 to 11, the offload of 12.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib import ranks, zero
from course_lib.collectives.agreement import all_or_none
from course_lib.step import NotFinite, StepResult, groups
from course_lib.step.losses import loss_sum
from course_lib.step.pieces import axes
from course_lib.step.step import check_losses, tally
from course_lib.tensor_parallel.randomness import mix, seed_all
from course_lib.train.checks import check_precision, offload_of, units_of
from course_lib.train.journal import Journal
from course_lib.train.lock import held
from course_lib.train.measured import FAST, LEAN, Meter
from course_lib.train.model import Start, make_model
from course_lib.train.options import Options, Refused
from course_lib.train.record import Failed
from course_lib.train.report import Show
from course_lib.train.stop import Stop
from course_lib.train.text import Text

BETAS = (0.9, 0.95)
REMEDY = "Go on from the last checkpoint with a smaller --lr, a longer --warmup or a tighter --clip"


def train(options: Options, me: ranks.Me, stop: Stop, show: Show) -> dict:
    """Run to the last step, or until somebody asks to stop; what came of it."""
    with all_or_none([dist.group.WORLD], "--precision", error=Refused):
        check_precision(options.precision, me.device)
    with held(options, me) as out, Journal(options, me, out, stop, show) as journal:
        mesh = ranks.mesh(me, dp=me.world // options.tp, tp=options.tp)
        model, fill = make_model(options, me, mesh)
        text = Text(options, me, mesh, out, model)
        meter = Meter(options, mesh, model, out)
        optimizer = torch.optim.AdamW(groups(model, options.decay), lr=options.lr, betas=BETAS)
        with make_engine(options, mesh, model, fill, optimizer, out) as engine:
            done = journal.begin(engine, mesh, text, meter)
            while done < options.steps and not journal.stopped:
                rate = options.rate(done)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                # Dropout masks follow from seed and step: nothing of the past has to be kept.
                seed_all(mix(options.seed, done), replica=mesh.get_group("dp").rank())
                try:
                    with meter.step(engine):
                        result = one_step(options, engine, text, mesh, stop)
                except (FloatingPointError, NotFinite) as error:
                    raise Failed(f"step {done + 1}: {error}. {REMEDY}") from error
                done += 1
                journal.after(done, result, rate)
            return journal.outcome()


def make_engine(
    options: Options,
    mesh: DeviceMesh,
    model: nn.Module,
    fill: Start | None,
    optimizer: torch.optim.Optimizer,
    out: Path,
) -> zero.Engine:
    """Shard what --stage says over dp, and move what --offload says."""
    offload = offload_of(options, out)
    if options.offload == "nvme":
        with suppress(OSError):  # what is wrong with it the engine says, on all ranks
            offload["folder"].mkdir(parents=True, exist_ok=True)
    of_stage_3 = {}
    if options.stage == 3:
        units, keep = units_of(model, options.units), FAST if options.fast else LEAN
        of_stage_3 = {"units": units, "keep": keep, "fill": fill}
    try:
        return zero.engine(
            model, optimizer, stage=options.stage, mesh=mesh, precision=options.precision,
            accumulate=options.accumulate, clip=options.clip or None, offload=offload, **of_stage_3,
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise Failed(f"--stage {options.stage} --offload {options.offload}: {error}") from error


def one_step(
    options: Options, engine: zero.Engine, text: Text, mesh: DeviceMesh, stop: Stop
) -> StepResult:
    """Forward and backward of each micro-batch, then one update: the same as one process would make
    of all the rows."""
    total, count = 0.0, 0
    # About the tokens of a micro-batch: float16 has to hold the gradients. A power of two rounds
    # nothing, and the engine divides by the sum of all `tokens=`.
    unit = 1 << (options.micro_rows * options.length).bit_length()
    for micro in range(options.accumulate):
        batch = text.next_batch()
        loss = loss_sum(engine.module, batch.ids, batch.targets, fused=options.fused_loss)
        total, count = total + loss.item(), count + batch.count
        engine.backward(loss / unit, tokens=batch.count / unit)
        if micro + 1 < options.accumulate:
            engine.step()  # does nothing before the last micro-batch
    every = tally(total, count, stop.asked, axes(mesh))  # what all ranks have to know
    check_losses(every, total, axes(mesh))
    if not engine.step() and engine.precision.scale.value <= engine.precision.scale.least:
        raise NotFinite("a gradient is infinite at the smallest loss scale too")
    return StepResult(every.loss / max(1, every.tokens), every.tokens, engine.norm, every.stops > 0)
