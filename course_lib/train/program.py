"""The program: steps until they are done or somebody asks it to stop, and nothing is lost then.

Every rank runs it. The curve grows a line a step, checkpoints are whole or not there, and all ranks
agree after which step they stop. Lesson 08 runs it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from course_lib import ranks
from course_lib.train import setup
from course_lib.train.curve import Curve, Point
from course_lib.train.curve import read as read_curve
from course_lib.train.report import Report, changed
from course_lib.train.setup import Failed, Run
from course_lib.train.step import NotFinite, step
from course_lib.train.stop import Stop

CURVE = "loss.csv"


def train(told: Mapping, me: ranks.Me, stop: Stop) -> dict:
    """Run as told and say what came of it; every rank of `me`'s world calls it."""
    options, found = setup.settled(told, me.world)
    out = Path(options.out) if options.out else _new_folder(me)
    mesh = ranks.mesh(me, dp=me.world // options.tp, tp=options.tp)
    run = setup.make(options, me, mesh, found, out)
    report = Report(run)
    if found is not None:
        report.say(f"going on after step {run.done}, from {found[0]}")
    curve = Curve(out / CURVE, after=run.done) if me.rank == 0 else None
    try:
        stopped, saved = _steps(run, report, curve, stop)
    finally:
        if curve is not None:
            curve.close()
    points = read_curve(out / CURVE) if me.rank == 0 else []
    if stopped:
        report.say(f"stopped after step {run.done} by {stopped}; go on with --resume --out {out}")
    report.say(
        f"{len(points)} step(s), {changed([p.loss for p in points])}; curve in {out / CURVE}, "
        f"checkpoint in {saved}"
    )
    return {
        "steps": run.done,
        "stopped": stopped,
        "losses": [point.loss for point in points],
        **report.summary(),
        "curve": str(out / CURVE),
        "checkpoint": str(saved),
    }


def _steps(
    run: Run, report: Report, curve: Curve | None, stop: Stop
) -> tuple[str | None, Path | None]:
    """Steps to the end; who asked to stop before it, and the last checkpoint."""
    options, saved = run.options, None
    dtype = torch.bfloat16 if options.dtype == "bfloat16" else None
    while run.done < options.steps:
        rate = run.lr(run.done)
        for group in run.optimizer.param_groups:
            group["lr"] = rate
        run.seed(run.done)
        batches = [next(run.batches) for _ in range(options.accumulate)]
        rows = [(batch.ids, batch.targets) for batch in batches]
        try:
            result = step(
                run.model, run.optimizer, rows, run.mesh, clip=options.clip or None,
                fused=options.fused_loss, dtype=dtype, stop=stop.asked,
            )  # fmt: skip
        except NotFinite as error:
            raise Failed(
                f"step {run.done + 1}: {error}. No weight was changed by it; go on from the last "
                "checkpoint with a smaller --lr, a longer --warmup or a tighter --clip"
            ) from error
        run.done += 1
        point = Point(run.done, result.loss, result.tokens, result.norm, rate)
        if curve is not None:
            curve.add(point)
        report.step(point)
        last = result.stop or run.done == options.steps
        if last or (options.save_every and run.done % options.save_every == 0):
            if curve is not None:
                curve.to_disk()
            saved = run.save()
            report.pause()
        if result.stop:
            return _who_stopped(stop), saved
    return None, saved


def _who_stopped(stop: Stop) -> str:
    """The signal's name, on whichever rank it came."""
    told: list = [None] * dist.get_world_size()
    dist.all_gather_object(told, stop.signal.name if stop.signal else None)
    return " and ".join(sorted({name for name in told if name}))


def _new_folder(me: ranks.Me) -> Path:
    """runs/ and the time, as rank 0's clock has it."""
    named = [time.strftime("runs/%Y%m%d-%H%M%S")]
    dist.broadcast_object_list(named, src=0)
    return Path(named[0])
