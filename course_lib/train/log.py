"""MFU from the log of a training run, computed from the lines that `course train` prints.

A line's speed covers the steps since the previous line. A run's speed is the harmonic mean of these
speeds, weighted by steps, which is all tokens over all seconds. Lesson 15.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from course_lib.gpt import Config
from course_lib.train.flops import step_flops

LINE = re.compile(r"step (\d+)/\d+ .*?\s([\d,]+) tokens/s\b")
GOING_ON = re.compile(r"going on after step (\d+)\b")


class Stretch(NamedTuple):
    """Some steps up to and including `step`, with their tokens per second over all ranks."""

    step: int
    steps: int
    tokens_per_second: float


def stretches(lines: Iterable[str]) -> list[Stretch]:
    """Return each log line's stretch since the previous line; other text is ignored.

    A resumed run prints the step after which it continues, and its first stretch starts there.
    """
    records: list[Stretch] = []
    done = 0
    for line in lines:
        if resumed := GOING_ON.search(line):
            done = int(resumed[1])
        elif told := LINE.search(line):
            step, speed = int(told[1]), float(told[2].replace(",", ""))
            if step <= done:
                raise ValueError(
                    f"step {step} follows step {done}, so this log has two runs; use one run"
                )
            records.append(Stretch(step, step - done, speed))
            done = step
    return records


def mfu(tokens_per_second: float, config: Config, length: int, peak: float) -> float:
    """Compute model flops per second over `peak`, the flops per second of all ranks together."""
    if not peak > 0:
        raise ValueError(f"peak={peak} must be the flops per second of all ranks, above 0")
    return step_flops(config, 1, length) / length * tokens_per_second / peak


def mfu_of_log(
    lines: Iterable[str], config: Config, length: int, peak: float, *, skip: int = 1
) -> float:
    """Compute the MFU of a run with sequences of `length` tokens from its log.

    `skip` omits the first lines, whose steps load libraries and fill buffers.
    """
    found = stretches(lines)
    counted = [stretch for stretch in found[skip:] if stretch.tokens_per_second > 0]
    if not counted:
        raise ValueError(
            f"the log has {len(found)} line(s) with a step and its tokens/s, but skip={skip} of "
            "them are omitted. Pass the output of `course train`, with a small --log-every for a "
            "short run"
        )
    steps = sum(stretch.steps for stretch in counted)
    # for one token per step
    seconds = sum(stretch.steps / stretch.tokens_per_second for stretch in counted)
    return mfu(steps / seconds, config, length, peak)
