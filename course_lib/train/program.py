"""The program: steps until they are done or somebody asks it to stop, and nothing is lost then.

Every rank runs it. The curve grows a line a step, checkpoints are whole or not there, and all ranks
agree after which step they stop. Lesson 08 runs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from course_lib import ranks
from course_lib.pretrained.together import together
from course_lib.step.step import NotFinite, step
from course_lib.train import setup
from course_lib.train.curve import Curve, Point
from course_lib.train.curve import read as read_curve
from course_lib.train.lock import held
from course_lib.train.report import Report, changed
from course_lib.train.setup import Failed, Run
from course_lib.train.stop import Stop

CURVE = "loss.csv"


def train(told: Mapping, me: ranks.Me, stop: Stop) -> dict:
    """Run as told and say what came of it; every rank of `me`'s world calls it."""
    with held(Path(told["out"]) if told.get("out") else None, me) as out:
        # Not before nobody else writes there: which checkpoint is the last.
        options, found = setup.settled(told, me.world)
        mesh = ranks.mesh(me, dp=me.world // options.tp, tp=options.tp)
        run = setup.make(options, me, mesh, found, out)
        report = Report(run)
        curve = _curve(run, found)
        if found is not None:
            _say_from_where(report, found[0], curve)
        try:
            stopped, saved = _steps(run, report, curve, stop)
        finally:
            if curve is not None:
                curve.close()
        return _outcome(run, report, stopped, saved or (found[0] if found else None))


def _curve(run: Run, found: tuple[Path, dict] | None) -> Curve | None:
    """The curve on rank 0; what is wrong with it is known to all ranks."""
    curve, path = None, run.out / CURVE
    digest = found[1].get("curve") if found else None
    try:
        with together([dist.group.WORLD], f"reading {path}"):
            if run.me.rank == 0:
                curve = Curve(path, run.done, digest)
    except (OSError, ValueError) as error:
        raise Failed(f"the loss curve: {error}") from error
    return curve


def _say_from_where(report: Report, path: Path, curve: Curve | None) -> None:
    run = report.run
    if run.done >= run.options.steps:
        report.say(
            f"the run in {run.out} is finished: it stands at step {run.done} of "
            f"{run.options.steps}; to go on, take --steps above {run.done}"
        )
    else:
        report.say(f"going on after step {run.done}, from {path}")
    if not run.summed:
        report.say(f"{path} was written without checksums: its bytes are taken as they are")
    if curve is not None and not curve.whole:
        report.say(f"{curve.path} holds no line up to step {run.done}: the curve begins after it")


def _outcome(run: Run, report: Report, stopped: str | None, saved: Path | None) -> dict:
    """What is said at the end, and what --json prints."""
    path = run.out / CURVE
    points = read_curve(path) if run.me.rank == 0 else []
    if stopped:
        report.say(
            f"stopped after step {run.done} by {stopped}; go on with --resume --out {run.out}"
        )
    report.say(
        f"{len(points)} step(s), {changed([p.loss for p in points])}; curve in {path}, "
        f"checkpoint in {saved}"
    )
    return {
        "steps": run.done,
        "stopped": stopped,
        "losses": [point.loss for point in points],
        **report.summary(),
        "curve": str(path),
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
            saved = run.save(None if curve is None else curve.digest())
            report.pause()
        if result.stop:
            return _who_stopped(stop), saved
    return None, saved


def _who_stopped(stop: Stop) -> str:
    """The signal's name, on whichever rank it came."""
    told: list = [None] * dist.get_world_size()
    dist.all_gather_object(told, stop.signal.name if stop.signal else None)
    return " and ".join(sorted({name for name in told if name}))
