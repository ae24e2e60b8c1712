"""A run's records and displays: its curve, its checkpoints, its report, and its starting point.

The training loop calls `begin` before its first step and `after` after each step, on all ranks.
Lesson 12.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from course_lib import checkpoint, ranks
from course_lib.checkpoint.folder import sweep
from course_lib.pretrained.header import CheckpointError
from course_lib.pretrained.load import together
from course_lib.step import StepResult
from course_lib.train.checks import NOWHERE
from course_lib.train.curve import Curve, CurvePoint
from course_lib.train.model import going_on
from course_lib.train.options import Options
from course_lib.train.record import FOLDER, REMEDY, Failed, read
from course_lib.train.report import RunReport, Show, changed
from course_lib.train.step_meter import Meter
from course_lib.train.stop import Stop
from course_lib.train.text import Text
from course_lib.zero import Engine

CURVE = "loss.csv"
SETTLE = 5.0  # seconds for an unfinished checkpoint when a run fails


class Journal:
    """A context manager that closes the curve and the display."""

    def __init__(self, options: Options, me: ranks.Me, out: Path, stop: Stop, show: Show):
        self.options, self.me, self.out, self.stop, self.show = options, me, out, stop, show
        self.engine: Engine
        self.mesh: DeviceMesh
        self.text: Text
        self.meter: Meter
        self.report: RunReport
        self.reports: list[dict] = []  # of all ranks, after a step was measured
        self.curve: Curve | None = None
        self.saved: Path | None = Path(options.checkpoint) if options.checkpoint else None
        self.pending: checkpoint.Saving | None = None
        self.copied = False  # for a checkpoint that is written in the background
        self.stopped: str | None = None
        self.final: float | None = None  # a validation loss that is not in the curve
        self.done = 0  # steps

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.pending is not None:  # after an error, let a checkpoint finish
            self.pending.settle(SETTLE)
        with contextlib.suppress(OSError):
            if self.curve is not None:
                self.curve.close()
        with contextlib.suppress(OSError):  # the engine has removed its files, if any
            (self.out / NOWHERE).rmdir()
        self.show.close()

    def begin(self, engine: Engine, mesh: DeviceMesh, text: Text, meter: Meter) -> int:
        """Restore a checkpoint, if any, and open the curve; return the completed steps."""
        options, path = self.options, self.saved
        self.engine, self.mesh, self.text, self.meter = engine, mesh, text, meter
        record: dict = {}
        if path is not None:
            with going_on(path):
                record = read(path)
                checkpoint.load(path, engine, self.mesh, streams=False)
                text.batches.restore(record["data"])
                self.done = record["step"]
        self.report = RunReport(options, self.me, engine.module.config, self.show)
        self._open_curve(record.get("curve"))
        self.report.say_who(sum(slot.numel for slot in engine.partition.slots()))
        if options.validate_every and text.why_no_validation:
            self.report.say(text.why_no_validation)
        if path is not None:
            self._say_from_where(path)
        return self.done

    def after(self, step: int, result: StepResult, rate: float) -> None:
        """Process a completed step: show it, record it, and save if due."""
        self.done, options = step, self.options
        validation = None
        if options.validate_every and step % options.validate_every == 0:
            validation = self._validate()
        elif options.validate_every and step == options.steps:  # a longer run has none here
            self.final = self._validate()
        point = CurvePoint(step, result.loss, result.tokens, result.norm, rate, validation)
        try:
            if self.curve is not None:
                self.curve.add(point)
        except OSError as error:
            why = f"{self.curve.path} could not be written ({error.strerror or error})"
            raise Failed(f"step {step}: {why}. {self._go_on()}") from error
        if self.meter.report is not None and not self.reports:
            self.reports = self.meter.of_all_ranks()
            self.report.memory = max(report["peak"] for report in self.reports)
        self.report.step(point)
        last = result.stop or step == options.steps
        if last or (options.save_every and step % options.save_every == 0):
            self._save(last=last)
        if result.stop:
            self.stopped = _who_stopped(self.stop)

    def outcome(self) -> dict:
        """Print the closing messages, and return the content for --json."""
        path, summary = self.out / CURVE, self.report.summary()
        points = [] if self.curve is None else self.curve.points
        validation = [(p.step, p.validation) for p in points if p.validation is not None]
        if self.final is not None:
            validation.append((self.done, self.final))
        if self.report.validation is not None:
            self.report.say(f"validation loss {self.report.validation:.4f}")
        if self.stopped:
            self.report.say(
                f"stopped after step {self.done} by {self.stopped}; continue with --resume --out "
                f"{self.out}"
            )
        self.report.say(
            f"{len(points)} step(s), {changed([p.loss for p in points])}; curve in {path}, "
            f"checkpoint in {self.saved}"
        )
        return {
            "backend": self.me.backend, "device": self.me.device.type,
            "steps": self.done, "stopped": self.stopped, "skipped": self.engine.skipped,
            "losses": [point.loss for point in points], "validation": validation,
            **summary, "ranks": self.reports,
            "curve": str(path), "checkpoint": str(self.saved), "out": str(self.out),
        }  # fmt: skip

    def _validate(self) -> float | None:
        with self.report.apart():
            loss = self.text.validation_loss(self.engine.module)
        if loss is not None and not math.isfinite(loss):  # equal on all ranks
            raise Failed(
                f"step {self.done}: the validation loss is {loss} after this step, and nothing of "
                f"it is saved. {REMEDY}"
            )
        self.report.validation = loss
        return loss

    def _save(self, *, last: bool) -> None:
        record = {
            "options": self.options.as_dict(),
            "config": self.engine.module.config.as_dict(),
            "data": self.text.batches.state(),
            "torch": torch.__version__,
            "curve": None if self.curve is None else self.curve.digest(),
        }
        files = {"tokenizer.json": self.text.tokenizer_json}
        later = self.options.async_save and not last
        write = checkpoint.save_later if later else checkpoint.save
        try:
            with self.report.apart():
                with together([dist.group.WORLD], f"writing {self.out / CURVE}"):
                    if self.curve is not None:
                        self.curve.to_disk()
                self._land()
                saved = write(
                    self.out / FOLDER, self.done, self.engine, self.mesh,
                    record=record, files=files, keep=self.options.keep, streams=False,
                )  # fmt: skip
        except (OSError, CheckpointError) as error:
            raise Failed(
                f"step {self.done} could not be saved: {error}. {self._go_on()}"
            ) from error
        if not later:
            self.saved = saved
            return
        self.pending = saved
        if not self.copied:
            self.copied = True
            self.report.say(
                "checkpoints are written during the training from a copy of "
                f"{saved.staged_bytes:,} bytes in this rank's host memory"
            )

    def _land(self) -> None:
        """Wait for the unfinished checkpoint, if there is one."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            self.saved = pending.wait()

    def _go_on(self) -> str:
        """Suggest how to continue after freeing disk space."""
        if self.saved is None:
            return "There is no checkpoint yet; free disk space or name a different --out"
        return f"Free disk space, and continue from {self.saved} with --resume"

    def _open_curve(self, digest: str | None) -> None:
        """Open the curve on rank 0; an error is raised on all ranks."""
        what = f"--out {self.out}"
        try:
            with together([dist.group.WORLD], what):
                if self.me.rank == 0:
                    sweep(self.out / FOLDER)
                    what = "the loss curve"
                    self.curve = Curve(self.out / CURVE, self.done, digest)
        except (OSError, ValueError) as error:
            remedy = "; name a writable folder" if isinstance(error, OSError) else ""
            raise Failed(f"{what}: {error}{remedy}") from error

    def _say_from_where(self, path: Path) -> None:
        options, say = self.options, self.report.say
        if self.done >= options.steps:
            say(
                f"the run in {self.out} is finished (it is at step {self.done} of "
                f"{options.steps}); to continue, set --steps above {self.done}"
            )
        else:
            say(f"going on after step {self.done}, from {path}")
        if self.curve is not None and not self.curve.whole:
            say(f"{self.curve.path} has no line up to step {self.done}, so it starts after that")


def _who_stopped(stop: Stop) -> str:
    """Return the names of the signals that arrived, on any rank."""
    names: list = [None] * dist.get_world_size()
    dist.all_gather_object(names, stop.signal.name if stop.signal else None)
    return " and ".join(sorted({name for name in names if name}))
