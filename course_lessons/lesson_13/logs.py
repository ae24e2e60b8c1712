"""Logs of fp16 runs, drawn for every check of `read_log`. A loss scale like DeepSpeed's goes
through a run whose gradients fit up to some scale. The log has the scale's messages and, between
them, the prints of a training loop and of other ranks. Lesson 13."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import NamedTuple

from course_lib.peers.deepspeed_config import overflow_log
from course_lib.peers.deepspeed_config.overflow_log import DIVERGED, LOOKING, NOT_FOUND, SETTLED
from course_lib.zero.precision import LossScale

KEYS = ("skipped", "scheduler", "scale", "doubled", "verdict")
VERDICTS = (SETTLED, LOOKING, NOT_FOUND, DIVERGED)
STAMP = "[2026-03-04 11:{:02}:{:02},{:03}] [INFO] "  # as DeepSpeed's logger begins a line
SCALER, PROGRESS = "[loss_scaler.py:266:update_scale] ", "[logging.py:123:log_dist] [Rank 0] "
ENDED = "Exception: Current loss scale already at minimum - cannot decrease scale anymore."


class Step(NamedTuple):
    """A step of a run: the scale before and after it, and if it was skipped."""

    tried: float
    after: float
    skipped: bool
    kept: bool  # skipped without lowering the scale, because of the hysteresis


class Log:
    """A log and the run behind it; `first` is the number of its first step."""

    def __init__(self, lines: list[str], steps: list[Step], first: int, ended: bool):
        self.lines, self.steps, self.first, self.ended = lines, steps, first, ended
        skips, self.last = [step for step in steps if step.skipped], steps[-1]
        reduced = [step for step in skips if not step.kept]
        at_least = [step for step in reduced if step.tried == step.after]
        made = [n for n, step in enumerate(steps, 1) if not step.skipped]
        self.made, self.skipped = len(made), len(skips)
        self.tried, self.reduced = [x.tried for x in skips], [x.after for x in reduced]
        self.scale = skips[-1].after if skips else None
        self.grown = [b.tried / a.after for a, b in pairwise(skips)]  # between overflows
        self.late = any(b.skipped and not a.skipped for a, b in pairwise(steps))
        self.met_least, self.goes_on = bool(at_least), self.last.skipped and not ended
        self.row = 0 if ended else len(steps) - [0, *made][-1]  # skipped steps at the end
        self.lost = DIVERGED if made else NOT_FOUND  # the verdict if it has ended
        self.verdict = self.stands(self.last in at_least[-1:])

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def stands(self, at_least: bool) -> str:
        """Return the verdict; `at_least` states that the scale is at its minimum."""
        goes_on = LOOKING if self.last.skipped else SETTLED
        return self.lost if self.ended or at_least else goes_on


def happened(log: Log) -> dict:
    """Return the right answer, computed from the run and not from the log's lines."""
    doubled = round(sum(map(math.log2, log.grown)))
    return dict(zip(KEYS, (log.skipped, log.made, log.scale, doubled, log.verdict), strict=True))


def make(r: Random, k: int) -> Log:
    """Return the k-th log; the first log of each kind has no time stamps and places, so that equal
    messages have identical lines."""
    log = KINDS[k % len(KINDS)](r)
    if k < len(KINDS):
        log.lines = [re.sub(r"^\[2026-\S+ \S+\] \[INFO\] \[\S+\] ", "", line) for line in log.lines]
    return log


def _log(r: Random, scale: LossScale, *turns: int | Callable, fits: int = 0, **more: int) -> Log:
    """Run `turns` steps, alternately without and with overflows, or fewer if the scale ends the
    run. If `fits` is given, no scale above 2 ** `fits` fits. The number of `ranks`, the `first`
    step and the interval `every` of DeepSpeed's lines are drawn if not given."""
    ranks = more.get("ranks") or r.choice((1, 1, 2, 4))
    every = more.get("every") or r.choice((4, 7, 10))
    first = more.get("first") or r.choice((1, 1, r.randint(200, 900)))
    skipped = 0 if first == 1 else r.randint(3, 9)  # before the log begins
    lines, steps, loss = [], [], r.uniform(2.0, 4.0)

    def stamped(text: str) -> str:
        return STAMP.format(*divmod(3 * len(steps), 60), r.randint(0, 999)) + text

    counts = [turn(scale) if callable(turn) else turn for turn in turns]
    bad = [k % 2 == 1 for k, count in enumerate(counts) for _ in range(count)]
    for n, overflow in enumerate(bad, first):
        overflow |= 0 < fits < math.log2(scale.value)
        tried, kept = scale.value, overflow and scale.left > 1
        said = overflow_log.lines_of(scale, overflow)
        if overflow and not said:
            return Log([*lines, ENDED], steps, first, ended=True)
        mine = [stamped(SCALER + line) for line in said]
        scale.after(overflow)
        steps.append(Step(tried, scale.value, overflow, kept))
        skipped += overflow
        if n % every == 0:
            lr = f"lr=[{r.randint(1, 9)}e-05], mom=[[0.9, 0.999]]"
            mine.append(stamped(f"{PROGRESS}step={n}, skipped={skipped}, {lr}"))
        loss *= r.uniform(0.96, 1.02)
        mine.append(f"[rank 0] step {n} | loss {loss:.4f}")
        for rank in range(1, ranks):  # anywhere between the lines of rank 0
            mine.insert(r.randint(0, len(mine)), f"[rank {rank}] step {n} | loss {loss:.4f}")
        lines += mine
    return Log(lines, steps, first, ended=False)


def _scale(r: Random, power: int = 0, **more) -> LossScale:
    drawn = {"window": r.randint(3, 8), "consecutive": r.random() < 0.3}
    drawn |= {"patience": r.randint(1, 3), "least": r.choice((1.0, 1.0, 4.0)), **more}
    return LossScale(2.0 ** (power or r.randint(9, 16)), **drawn)


def _down(scale: LossScale) -> int:
    """Return the number of consecutive overflows until one occurs at the minimum scale."""
    return scale.patience + round(math.log2(scale.value / scale.least))


def _bad_batches(r: Random) -> list[int]:
    return [n for _ in range(4) for n in (r.randint(5, 15), 1)]


KINDS: tuple[Callable[[Random], Log], ...] = (
    # A scale that is searched and found; each window tries a higher one. Lines report the
    # hysteresis if nothing has overflowed.
    lambda r: _log(r, _scale(r, consecutive=True), r.randint(45, 60), fits=r.randint(6, 11)),
    # Down at first, then room for any scale, with occasional bad batches: the scale doubles more
    # than once between two of them.
    lambda r: _log(r, _scale(r, window=r.randint(2, 3)), 0, 5, *_bad_batches(r), r.randint(2, 9)),
    # No overflow at all.
    lambda r: _log(r, _scale(r), r.randint(6, 20)),
    # The scale has grown, and the hysteresis absorbs the last overflow, perhaps the last step.
    lambda r: _log(r, _scale(r, window=3, patience=r.randint(2, 3)), 0, 3, 27, 1, r.randint(2, 9)),
    lambda r: _log(r, _scale(r, window=3, patience=r.randint(2, 3)), 0, 3, 27, 1),
    # No scale is small enough: NaN from the first step on. A log that goes on is the later part of
    # a training, with a minimum scale other than 1; one that stops starts with the training.
    lambda r: _log(r, _scale(r, least=r.choice((2.0, 4.0))), 0, 40, first=r.randint(200, 900)),
    lambda r: _log(r, _scale(r, stops=True), 0, 40, first=1),
    # Some steps are made, then none. A log that goes on does so at a scale of 1.
    lambda r: _log(r, _scale(r, 9, least=1.0), r.choice((1, 2, r.randint(8, 20))), 30, fits=10),
    lambda r: _log(r, _scale(r, 9, stops=True), r.choice((1, 2, r.randint(8, 20))), 30, fits=10),
    # The log ends in a row of overflows, but the scale can still go down; with many ranks the row
    # is long.
    lambda r: _log(r, _scale(r, 12, least=1.0), r.randint(5, 15), r.randint(3, 6), ranks=2),
    lambda r: _log(r, _scale(r, 12, least=1.0), 0, r.randint(3, 6), ranks=4),
    lambda r: _log(r, _scale(r, 18, least=1.0), r.randint(4, 8), r.randint(16, 17), ranks=11),
    # Down to the minimum scale with an overflow there, then steps are made.
    lambda r: _log(r, _scale(r, 5), 0, _down, r.randint(3, 30)),
    # The same; then the scale doubles, and the last overflow halves it again.
    lambda r: _log(r, _scale(r, 5, window=3, patience=2), 0, _down, r.randint(11, 16), 2),
    # The last overflow halves the scale to the minimum, which has not been tried.
    lambda r: _log(r, _scale(r, 6, least=1.0), 0, lambda scale: _down(scale) - 1),
)
