"""The training program, top to bottom: mesh, model, optimizer, engine, loop.

Every rank runs it. Records, displays and resuming are in journal.py. Lesson 08 explains the step,
lessons 09 to 11 explain the stages, and lesson 12 explains the offload.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib import ranks, zero
from course_lib.collectives.agreement import all_or_none
from course_lib.collectives.call import computes_on
from course_lib.meta import numbers
from course_lib.step import NotFinite, StepResult
from course_lib.step import groups as parameter_groups
from course_lib.step.losses import loss_sum
from course_lib.step.pieces import axes
from course_lib.step.step import check_losses, tally
from course_lib.tensor_parallel.randomness import mix, seed_all
from course_lib.train.checks import check_precision, make_folder, offload_of, units_of
from course_lib.train.host_agreement import check_alike
from course_lib.train.journal import Journal
from course_lib.train.lock import locked_folder
from course_lib.train.model import Fill, make_model
from course_lib.train.options import Options, Refused
from course_lib.train.record import REMEDY, Failed
from course_lib.train.report import Show
from course_lib.train.step_meter import FAST, LEAN, Meter
from course_lib.train.stop import Stop
from course_lib.train.text import Text

BETAS = (0.9, 0.95)


def train(options: Options, me: ranks.Me, stop: Stop, show: Show) -> dict:
    """Run to the last step, or until a stop is requested; return the outcome."""
    with all_or_none([dist.group.WORLD], "--precision", error=Refused):
        check_precision(options.precision, me.device)
    check_alike(me, options)
    with locked_folder(options, me) as out, Journal(options, me, out, stop, show) as journal:
        mesh = ranks.mesh(me, dp=me.world // options.tp, tp=options.tp)
        model, fill = make_model(options, me, mesh)
        text = Text(options, me, mesh, out, model)
        meter = Meter(options, mesh, model, out)
        optimizer = make_optimizer(options, model)
        with make_engine(options, mesh, model, fill, optimizer, out) as engine:
            done = journal.begin(engine, mesh, text, meter)
            while done < options.steps and not journal.stopped:
                rate = options.rate(done)
                for group in optimizer.param_groups:
                    group["lr"] = rate
                # Dropout masks follow from seed and step, so no random state has to be kept.
                seed_all(mix(options.seed, done), replica=mesh.get_group("dp").rank())
                try:
                    with meter.step(engine):
                        result = one_step(options, engine, text, mesh, stop)
                except (FloatingPointError, NotFinite) as error:
                    raise Failed(f"step {done + 1}: {error}. {REMEDY}") from error
                done += 1
                journal.after(done, result, rate)
            return journal.outcome()


def make_optimizer(
    options: Options, model: nn.Module, *, fused: bool = True
) -> torch.optim.Optimizer:
    """Create AdamW with one group of parameters that decay and one of parameters that do not.

    The fused version passes once over a parameter and its states, and counts steps on the device.
    """
    groups = parameter_groups(model, options.decay)
    return torch.optim.AdamW(groups, lr=options.lr, betas=BETAS, fused=fused)


def make_engine(
    options: Options,
    mesh: DeviceMesh,
    model: nn.Module,
    fill: Fill | None,
    optimizer: torch.optim.Optimizer,
    out: Path,
) -> zero.Engine:
    """Create the engine, which shards as --stage states and offloads as --offload states."""
    offload, dp = offload_of(options, out), mesh.get_group("dp")
    if options.offload == "nvme" and computes_on(dp).type != "meta":
        make_folder(offload["folder"])
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
    finally:
        if fill is not None:
            fill.close()


def one_step(
    options: Options, engine: zero.Engine, text: Text, mesh: DeviceMesh, stop: Stop
) -> StepResult:
    """Run lesson 08's step; the engine sums over dp, divides and clips. Every micro-batch runs
    forward and backward, and then comes one update, equal to the update of a single process."""
    total, count = 0.0, 0
    # float16 could not hold the gradients of a sum over tokens. So the sum and the number of
    # tokens, by which the engine divides, are both scaled by a power of two, which is exact.
    divisor = 1 << (options.micro_rows * options.length).bit_length()
    for micro in range(options.accumulate):
        batch = text.next_batch()
        loss = loss_sum(engine.module, batch.ids, batch.targets, fused=options.fused_loss)
        total, count = total + numbers(loss, 0.0), count + batch.count
        engine.backward(loss / divisor, tokens=batch.count / divisor)
        if micro + 1 < options.accumulate:
            engine.step()  # does nothing before the last micro-batch
    sums = tally(total, count, stop.asked, axes(mesh))  # over all ranks
    check_losses(sums, total, axes(mesh))
    updated, scale = engine.step(), engine.precision.scale  # no update if float16 overflowed
    if not updated and scale.value <= scale.least:
        raise NotFinite("a gradient is infinite even at the smallest loss scale")
    return StepResult(sums.loss / max(1, sums.tokens), sums.tokens, engine.norm, sums.stops > 0)
