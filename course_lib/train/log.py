"""MFU from the log of a training run: the lines that `course train` prints, read again.

A line's speed is that of the steps since the line before it, so a run's is their harmonic mean: all
tokens over all seconds. Lesson 15.
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
    """So many steps, up to and with `step`, at that many tokens per second of all ranks."""

    step: int
    steps: int
    tokens_per_second: float


def stretches(lines: Iterable[str]) -> list[Stretch]:
    """What each line of a log says of the steps since the one before; other text is passed over.

    A run that was resumed says so, and its first stretch begins there.
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
                    f"step {step} comes after step {done}: two runs are in this log; take one"
                )
            records.append(Stretch(step, step - done, speed))
            done = step
    return records


def mfu(tokens_per_second: float, config: Config, length: int, peak: float) -> float:
    """Model flops per second over `peak`, that of all ranks together, in flops per second."""
    if not peak > 0:
        raise ValueError(f"peak={peak}: the flops per second of all ranks are above 0")
    return step_flops(config, 1, length) / length * tokens_per_second / peak


def mfu_of_log(
    lines: Iterable[str], config: Config, length: int, peak: float, *, skip: int = 1
) -> float:
    """MFU of a run of sequences of `length` tokens, from its log.

    `skip` leaves out the first lines, of steps that load libraries and fill buffers.
    """
    found = stretches(lines)
    counted = [stretch for stretch in found[skip:] if stretch.tokens_per_second > 0]
    if not counted:
        raise ValueError(
            f"the log has {len(found)} line(s) with a step and its tokens/s, and skip={skip} of "
            "them are left out: hand over what `course train` prints, with --log-every as small "
            "as the run is short"
        )
    steps = sum(stretch.steps for stretch in counted)
    # For a token a step.
    seconds = sum(stretch.steps / stretch.tokens_per_second for stretch in counted)
    return mfu(steps / seconds, config, length, peak)
