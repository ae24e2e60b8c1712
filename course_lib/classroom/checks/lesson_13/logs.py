"""Logs of runs in fp16, drawn anew for every check of `read_log`, and what happened in each run.

A loss scale like DeepSpeed's goes through a run whose gradients fit up to a scale that is drawn;
the log has its words, and what a training loop and its other ranks print between them. Lesson 13.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from random import Random
from typing import NamedTuple

from course_lib.deepspeed_config.overflow_log import (
    DIVERGED,
    LOOKING,
    NOT_FOUND,
    SETTLED,
    lines_of,
)
from course_lib.zero.precision import LossScale

SKIPPED, SCHEDULER, SCALE, DOUBLED, VERDICT = KEYS = (
    "skipped",
    "scheduler",
    "scale",
    "doubled",
    "verdict",
)
VERDICTS = (SETTLED, LOOKING, NOT_FOUND, DIVERGED)
EACH = 3  # logs of a kind
STAMP = "[2026-03-04 11:{:02}:{:02},{:03}] [INFO] "  # as DeepSpeed's logger begins a line
_BARE = re.compile(r"^\[2026-\S+ \S+\] \[INFO\] \[\S+\] ")
SCALER, PROGRESS = "[loss_scaler.py:266:update_scale] ", "[logging.py:123:log_dist] [Rank 0] "
ENDED = (
    "Traceback (most recent call last):",
    '  File "train.py", line 61, in <module>',
    "Exception: Current loss scale already at minimum - cannot decrease scale anymore. "
    "Exiting run.",
)


class Step(NamedTuple):
    """A step of a run: the scale that it was tried with and left, and whether it was skipped."""

    tried: float
    after: float
    skipped: bool
    kept: bool  # skipped, and the scale stayed, because the hysteresis was not used up


class Log(NamedTuple):
    """A log and the run behind it; `first` is the number of its first step."""

    lines: list[str]
    steps: list[Step]
    first: int
    ended: bool

    @property
    def skips(self) -> list[Step]:
        return [step for step in self.steps if step.skipped]

    @property
    def made(self) -> int:
        return len(self.steps) - len(self.skips)

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def lost(self) -> str:
        """The word for a run that has ended, whichever way."""
        return DIVERGED if self.made else NOT_FOUND

    @property
    def verdict(self) -> str:
        if not (self.ended or self.last.skipped):
            return SETTLED
        at_least = self.last.tried == self.last.after and not self.last.kept
        return self.lost if self.ended or at_least else LOOKING


def happened(log: Log) -> dict:
    """The right answer, from the run and not from its lines."""
    grown = [math.log2(b.tried / a.after) for a, b in pairwise(log.skips)]
    return {
        SKIPPED: len(log.skips),
        SCHEDULER: log.made,
        SCALE: log.skips[-1].after if log.skips else None,
        DOUBLED: round(sum(grown)),
        VERDICT: log.verdict,
    }


def make(r: Random, k: int) -> Log:
    """The k-th log: of each kind the first is without time stamps and places, so that lines that
    are alike are the same."""
    log = KINDS[k % len(KINDS)](r)
    return log if k >= len(KINDS) else log._replace(lines=[_BARE.sub("", x) for x in log.lines])


def _starts(r: Random) -> Log:
    """A scale that is looked for and found; each window tries a higher one. Lines tell of the
    hysteresis where nothing has overflowed."""
    most = 2.0 ** r.randint(6, 11)
    scale = _scale(r, consecutive=True)
    return _log(r, scale, lambda n, value: value > most, r.randint(45, 60))


def _now_and_then(r: Random) -> Log:
    """Down at first; then room for any scale, and a bad batch at times: the scale doubles more than
    once between two of them."""
    scale = _scale(r, window=r.randint(2, 3))
    bad = {*range(scale.patience + 2), *r.sample(range(16, 58), 4)}
    return _log(r, scale, lambda n, value: n in bad, 60)


def _none(r: Random) -> Log:
    return _log(r, _scale(r), lambda n, value: False, r.randint(6, 20))


def _kept(r: Random, last: bool = False) -> Log:
    """The scale has grown, and the last overflow of the log passes by the hysteresis; it may be the
    last step."""
    scale = LossScale(2.0 ** r.randint(9, 12), window=r.randint(2, 4), patience=r.randint(2, 3))
    bad = {*range(scale.patience), 30}
    return _log(r, scale, lambda n, value: n in bad, 31 if last else r.randint(33, 40))


def _never(r: Random, stops: bool = False) -> Log:
    """No scale is small enough: NaN from the first step on. A log that goes on is the later part of
    a training, and its least scale is not 1; one that stops has the training from its start."""
    more = {} if stops else {"least": r.choice((2.0, 4.0))}
    first = 1 if stops else r.randint(200, 900)
    return _log(r, _scale(r, stops=stops, **more), lambda n, value: True, 40, first=first)


def _diverges(r: Random, stops: bool = False) -> Log:
    """Steps are made, and then none. A log that goes on does so at a scale of 1."""
    bad = r.choice((1, 2, r.randint(8, 20)))
    more = {} if stops else {"least": 1.0}
    scale = _scale(r, power=0 if bad > 2 else 9, stops=stops, **more)
    return _log(r, scale, lambda n, value: n >= bad or value > 2.0**10, bad + 30)


def _cut_off(r: Random, early: bool = False) -> Log:
    """The log ends in a row of overflows, and the scale can still be lower."""
    bad = 0 if early else r.randint(5, 15)
    scale = _scale(r, power=12, least=1.0)
    return _log(r, scale, lambda n, value: n >= bad, bad + r.randint(3, 6), ranks=r.choice((2, 4)))


def _at_least(r: Random) -> Log:
    """Down to the least scale, an overflow there, and then steps are made."""
    scale = _scale(r, power=5)
    down = scale.patience + round(math.log2(scale.value / scale.least))
    good = r.randint(3, 30)
    return _log(r, scale, lambda n, value: n < down, down + good)


def _back_up(r: Random) -> Log:
    """An overflow at the least scale; then it doubles, and the last overflow halves it again."""
    scale = _scale(r, power=5, window=3, consecutive=False)
    down = scale.patience + round(math.log2(scale.value / scale.least))
    good = down + r.randint(11, 16)
    return _log(r, scale, lambda n, value: not down <= n < good, good + scale.patience)


def _just_down(r: Random) -> Log:
    """The last overflow halves the scale to the least, which has not been tried."""
    scale = _scale(r, power=6, least=1.0, consecutive=False)
    count = scale.patience - 1 + round(math.log2(scale.value / scale.least))
    return _log(r, scale, lambda n, value: True, count)


def _long_way_down(r: Random) -> Log:
    """Steps, a long row of overflows, and the scale can still be lower. Many ranks."""
    scale = _scale(r, power=r.randint(18, 20), least=1.0)
    bad = r.randint(4, 8)
    return _log(r, scale, lambda n, value: n >= bad, bad + r.randint(16, 17), ranks=11)


KINDS: tuple[Callable[[Random], Log], ...] = (
    _starts,
    _now_and_then,
    _none,
    _kept,
    partial(_kept, last=True),
    _never,
    partial(_never, stops=True),
    _diverges,
    partial(_diverges, stops=True),
    _cut_off,
    partial(_cut_off, early=True),
    _at_least,
    _back_up,
    _just_down,
    _long_way_down,
)


def _scale(r: Random, power: int = 0, least: float = 0.0, **more) -> LossScale:
    drawn = {"window": r.randint(3, 8), "consecutive": r.random() < 0.3, **more}
    return LossScale(
        2.0 ** (power or r.randint(9, 16)),
        patience=r.randint(1, 3),
        least=least or r.choice((1.0, 1.0, 4.0)),
        **drawn,
    )


def _log(
    r: Random,
    scale: LossScale,
    overflows: Callable[[int, float], bool],
    count: int,
    *,
    ranks: int = 0,
    first: int = 0,
    every: int = 0,
) -> Log:
    """Run `count` steps, or fewer where the scale ends it; where nothing is said it is drawn."""
    ranks, every = ranks or r.choice((1, 1, 2, 4)), every or r.choice((4, 7, 10))
    first = first or r.choice((1, 1, r.randint(200, 900)))
    skipped = 0 if first == 1 else r.randint(3, 9)  # before the log begins
    lines, steps, ended, loss = [], [], False, r.uniform(2.0, 4.0)
    for n in range(count):
        overflow, tried = overflows(n, scale.value), scale.value
        mine = [_stamped(r, n, SCALER + line) for line in lines_of(scale, overflow)]
        kept = overflow and scale.left > 1
        try:
            scale.after(overflow)
        except FloatingPointError:
            lines += ENDED
            ended = True
            break
        steps.append(Step(tried, scale.value, overflow, kept))
        skipped += overflow
        if (first + n) % every == 0:
            lr = f"lr=[{r.randint(1, 9)}e-05], mom=[[0.9, 0.999]]"
            mine.append(_stamped(r, n, f"{PROGRESS}step={first + n}, skipped={skipped}, {lr}"))
        loss *= r.uniform(0.96, 1.02)
        told = [f"[rank {rank}] step {first + n} | loss {loss:.4f}" for rank in range(ranks)]
        lines += _mixed(r, [*mine, told[0]], told[1:])
    return Log(lines, steps, first, ended)


def _stamped(r: Random, n: int, text: str) -> str:
    return STAMP.format(*divmod(3 * n, 60), r.randint(0, 999)) + text


def _mixed(r: Random, mine: list[str], others: list[str]) -> list[str]:
    """Rank 0's lines in their order, and those of the other ranks anywhere between them."""
    mixed = list(mine)
    for line in others:
        mixed.insert(r.randint(0, len(mixed)), line)
    return mixed
