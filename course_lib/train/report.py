"""What a person sees of a run: who computes, how fast, how well, in plain lines from one rank.

Everything else that a rank prints is an error. Lesson 08.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from course_lib import collectives
from course_lib.train.curve import Point
from course_lib.train.flops import measured_peak, step_flops
from course_lib.train.setup import Run


class Report:
    """Lines of progress on rank 0, on standard error where that is to hold JSON alone."""

    def __init__(self, run: Run):
        self.run = run
        options, config = run.options, run.model.config
        self.peak = self._peak()  # flops per second of all ranks; every rank takes part
        self.flops = step_flops(config, options.rows, options.length)
        self.since, self.steps, self.tokens = time.perf_counter(), 0, 0
        self.total = [0.0, 0, 0]  # seconds, steps, tokens
        if run.me.rank == 0:
            self._say_who()

    def step(self, point: Point) -> None:
        options = self.run.options
        self.steps, self.tokens = self.steps + 1, self.tokens + point.tokens
        if point.step % options.log_every and point.step not in (1, options.steps):
            return
        seconds = max(time.perf_counter() - self.since, 1e-9)
        mfu = 100 * self.flops * self.steps / seconds / self.peak
        self.say(
            f"step {point.step}/{options.steps}  loss {point.loss:.4f}  norm {point.norm:.3f}  "
            f"lr {point.lr:.2e}  {self.tokens / seconds:,.0f} tokens/s  MFU {mfu:.1f} %"
        )
        self.pause()

    def pause(self) -> None:
        """Begin to measure anew: what lies between, such as a save, is no training."""
        now = time.perf_counter()
        for i, value in enumerate((now - self.since, self.steps, self.tokens)):
            self.total[i] += value
        self.since, self.steps, self.tokens = now, 0, 0

    def summary(self) -> dict:
        self.pause()
        seconds, steps, tokens = self.total
        if not steps:
            return {"tokens_per_second": None, "mfu": None}
        mfu = self.flops * steps / seconds / self.peak
        return {"tokens_per_second": tokens / seconds, "mfu": mfu}

    def say(self, text: str) -> None:
        if self.run.me.rank == 0:
            stream = sys.stderr if self.run.options.json else sys.stdout
            print(text, file=stream, flush=True)

    def _peak(self) -> float:
        options, me = self.run.options, self.run.me
        if options.peak_tflops:
            return options.peak_tflops * 1e12 * me.world
        collectives.barrier(dist.group.WORLD)  # all at once, as in training
        own = measured_peak(me.device, getattr(torch, options.dtype))
        both = torch.tensor([own], dtype=torch.float64, device=me.device)
        return collectives.all_reduce(both, dist.group.WORLD).item()

    def _say_who(self) -> None:
        run, options = self.run, self.run.options
        count = sum(p.numel() for p in run.model.parameters())
        self.say(
            f"{run.me.world} rank(s), dp {run.dp} × tp {options.tp}, {run.me.backend} on "
            f"{run.me.device.type}; {count:,} parameters on rank 0. {run.me.why}"
        )
        how = "as given" if options.peak_tflops else f"as a product in {options.dtype} reached here"
        self.say(
            f"{self.flops / 1e9:,.2f} GFLOP a step by formula; MFU is a percentage of "
            f"{self.peak / 1e12:.3f} TFLOP/s, the peak of all ranks together, {how}"
        )


def changed(losses: Sequence[float]) -> str:
    return f"loss {losses[0]:.4f} to {losses[-1]:.4f}" if losses else "no step"
