"""The visible report of a run: ranks, speed, loss, memory, and the time left.

Rank 0 prints it through a `Show`: lines here, or a bar on a terminal. Anything else that a rank
prints is an error. Lesson 08.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist

from course_lib import collectives, ranks
from course_lib.gpt import Config
from course_lib.train.curve import CurvePoint
from course_lib.train.flops import measured_peak, step_flops
from course_lib.train.options import Options


class Progress(NamedTuple):
    """The state of a run after a step."""

    point: CurvePoint
    steps: int
    validation: float | None  # the last one
    tokens_per_second: float
    mfu: float
    memory: int | None  # the highest peak of a rank, in bytes, once it was measured
    left: float  # seconds

    def __str__(self) -> str:
        point, validation, memory = self.point, self.validation, self.memory
        words = [f"loss {point.loss:.4f}"]
        words += [] if validation is None else [f"validation {validation:.4f}"]
        words += [f"norm {point.norm:.3f}", f"lr {point.lr:.2e}"]
        words += [f"{self.tokens_per_second:,.0f} tokens/s", f"MFU {100 * self.mfu:.1f} %"]
        words += [] if memory is None else [f"{memory / 1e6:,.1f} MB"]
        return "  ".join(words)


class Show(Protocol):
    """The display of a run on rank 0."""

    def say(self, text: str) -> None: ...

    def step(self, progress: Progress, *, due: bool) -> None: ...

    def close(self) -> None: ...


class Unbroken:
    """A stream that discards its output after its reader has gone, because a pipe's other end
    (EPIPE) or a terminal (EIO) was closed. So a run does not end when its reader leaves."""

    def __init__(self, stream):
        self._stream = stream

    def write(self, text: str) -> int:
        with self._or_nowhere():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._or_nowhere():
            self._stream.flush()

    def __getattr__(self, name: str):
        return getattr(self._stream, name)

    @contextmanager
    def _or_nowhere(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not (error.errno == errno.EPIPE or (error.errno == errno.EIO and self._device())):
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())  # Python's final flush goes there too
            os.close(nowhere)

    def _device(self) -> bool:
        """Return True for a terminal, even if closed; for a file, EIO means a damaged disk."""
        return stat.S_ISCHR(os.fstat(self._stream.fileno()).st_mode)


class Lines:
    """A line every few steps, for a file or a pipe."""

    def __init__(self, stream=None):
        self.stream = Unbroken(stream or sys.stdout)

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def step(self, progress: Progress, *, due: bool) -> None:
        if due:
            at = f"step {progress.point.step}/{progress.steps}"
            self.say(f"{at}  {progress}  {clock(progress.left)} left")

    def close(self) -> None:
        """Do nothing, because nothing is open."""


class RunReport:
    """The counts of time and tokens, which rank 0 shows."""

    def __init__(self, options: Options, me: ranks.Me, config: Config, show: Show):
        self.options, self.me, self.show = options, me, show
        self.peak = self._peak()  # flops per second of all ranks; every rank takes part
        self.flops = step_flops(config, options.rows, options.length)
        self.since, self.steps, self.tokens = time.perf_counter(), 0, 0
        self.stretches: list[tuple[float, int, int]] = []  # seconds, steps, tokens
        self.memory: int | None = None
        self.validation: float | None = None

    def step(self, point: CurvePoint) -> None:
        """Show a completed step."""
        self.steps, self.tokens = self.steps + 1, self.tokens + point.tokens
        options = self.options
        due = not point.step % options.log_every or point.step in (1, options.steps)
        seconds = max(time.perf_counter() - self.since, 1e-9)
        progress = Progress(
            point, options.steps, self.validation, self.tokens / seconds,
            self.flops * self.steps / seconds / self.peak, self.memory,
            (options.steps - point.step) * seconds / self.steps,
        )  # fmt: skip
        if self.me.rank == 0:
            self.show.step(progress, due=due)
        if due:
            self._add_up()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Exclude the time of the body, because a save or a validation is not training."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.since += time.perf_counter() - began

    def _add_up(self) -> None:
        """Start a new measurement."""
        now = time.perf_counter()
        if self.steps:
            self.stretches.append((now - self.since, self.steps, self.tokens))
        self.since, self.steps, self.tokens = now, 0, 0

    def summary(self) -> dict:
        """Return the speed and MFU of the run, and the number of steps counted.

        The first stretch loads libraries and fills buffers, so it is omitted if others follow.
        """
        self._add_up()
        counted = self.stretches[1:] or self.stretches
        if not counted:
            return {"tokens_per_second": None, "mfu": None, "steps_counted": 0}
        seconds, steps, tokens = map(sum, zip(*counted, strict=True))
        mfu = self.flops * steps / seconds / self.peak
        return {"tokens_per_second": tokens / seconds, "mfu": mfu, "steps_counted": steps}

    def say(self, text: str) -> None:
        if self.me.rank == 0:
            self.show.say(text)

    def _peak(self) -> float:
        options, me = self.options, self.me
        if options.peak_tflops:
            return options.peak_tflops * 1e12 * me.world
        collectives.barrier(dist.group.WORLD)  # all at once, as in training
        here = measured_peak(me.device, getattr(torch, options.precision))
        both = torch.tensor([here], dtype=torch.float64, device=me.device)
        return collectives.all_reduce(both, dist.group.WORLD).item()

    def say_who(self, parameters: int) -> None:
        """Print the ranks, the layout and the peak, before the first step."""
        me, options = self.me, self.options
        layout = f"dp {me.world // options.tp} × tp {options.tp}, ZeRO stage {options.stage}"
        layout += f", offload {options.offload}" if options.offload != "none" else ""
        self.say(
            f"{me.world} rank(s), {layout}, {options.precision}, {me.backend} on "
            f"{me.device.type}; {parameters:,} parameters on rank 0. {me.why}"
        )
        how = "as given" if options.peak_tflops else f"measured by a {options.precision} product"
        self.say(
            f"{self.flops / 1e9:,.2f} GFLOP per step by formula; MFU is a percentage of "
            f"{self.peak / 1e12:.3f} TFLOP/s, the peak of all ranks together, {how}"
        )


def clock(seconds: float) -> str:
    """Format seconds as 12 s, 4:05 or 3:04:05."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def changed(losses: Sequence[float]) -> str:
    return f"loss {losses[0]:.4f} to {losses[-1]:.4f}" if losses else "no step"
