"""The wrong ideas of `read_log`: for each key of the answer, what each idea makes of a log.

An idea is recognised by its value in every drawn log. Lesson 13.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from course_lib.classroom.checks.lesson_13.logs import (
    DOUBLED,
    SCALE,
    SCHEDULER,
    SKIPPED,
    VERDICT,
    Log,
    happened,
)
from course_lib.classroom.checks.words import Page
from course_lib.deepspeed_config.overflow_log import DIVERGED, LOOKING, NOT_FOUND, SETTLED

SAYS = Page("lesson_13/read_log")

Value = int | float | str | None


class Idea(NamedTuple):
    """What a wrong reading of one key is called, what is said of it, and what it makes of a log."""

    key: str
    name: str
    text: str
    gives: Callable[[Log], Value]


def _reduced(log: Log) -> list:
    return [step for step in log.skips if not step.kept]


def _with_word(log: Log) -> int:
    return sum("hysteresis" in line or "OVERFLOW" in line for line in log.lines)


def _deepspeeds_count(log: Log) -> int:
    counts = re.findall(r", skipped=(\d+)", "\n".join(log.lines))
    return int(counts[-1]) if counts else 0


def _deepspeeds_or_lines(log: Log) -> int:
    return (
        _deepspeeds_count(log)
        if any(", skipped=" in line for line in log.lines)
        else len(log.skips)
    )


def _deepspeeds_difference(log: Log) -> int:
    counts = [int(count) for count in re.findall(r", skipped=(\d+)", "\n".join(log.lines))]
    return counts[-1] - counts[0] if counts else 0


def _ends_in_zero(log: Log) -> int:
    """Steps of ranks whose number ends in 0, without those that were skipped."""
    return sum("0] step " in line for line in log.lines) - len(log.skips)


def _printed(log: Log) -> int:
    return sum(" | loss " in line for line in log.lines)


def _number_in_the_end(log: Log) -> int | None:
    """The number after the last "to" of the last line of an overflow."""
    told = [line for line in log.lines if "OVERFLOW" in line]
    return int(told[-1].rsplit(" ", 1)[1]) if told else None


def _tried(log: Log) -> float | None:
    return log.skips[-1].tried if log.skips else None


def _last_reduced(log: Log) -> float | None:
    reduced = _reduced(log)
    return reduced[-1].after if reduced else None


def _jumps(log: Log) -> int:
    return sum(b.tried > a.after for a, b in pairwise(log.skips))


def _from_tried(log: Log) -> int:
    return round(sum(max(0.0, math.log2(b.tried / a.tried)) for a, b in pairwise(log.skips)))


def _first_to_last(log: Log) -> int:
    skips = log.skips
    return round(max(0.0, math.log2(skips[-1].tried / skips[0].tried))) if skips else 0


def _late_is_lost(log: Log) -> str:
    """An overflow after a step that was made is taken for divergence."""
    made = [n for n, step in enumerate(log.steps) if not step.skipped]
    late = made and any(step.skipped for step in log.steps[made[0] :])
    return DIVERGED if late else _right(log)


def _any_is_trouble(log: Log) -> str:
    return LOOKING if log.skips and _right(log) == SETTLED else _right(log)


def _least_is_lost(log: Log) -> str:
    """Any overflow at the least scale is the end, whatever comes after it."""
    if any(step.tried == step.after and not step.kept for step in log.skips):
        return DIVERGED if any(not step.skipped for step in log.steps) else NOT_FOUND
    return _right(log)


def _least_seen(log: Log) -> str:
    """An overflow at the least scale is held against the last one, whatever the scale is then."""
    last = log.ended or log.steps[-1].skipped
    return _least_is_lost(log) if last else _right(log)


def _ends_alone(log: Log) -> str:
    """Only the exception is seen, and a row that goes on at the least scale is not."""
    if log.ended or not log.steps[-1].skipped:
        return _right(log)
    return LOOKING


def _any_rank(log: Log) -> str:
    """After an overflow the next line of any rank's step is taken for the skipped one."""
    pending = skipping = False
    for line in log.lines:
        if "OVERFLOW" in line:
            pending = True
        elif " | loss " in line:
            pending, skipping = False, pending
    return _right(log) if skipping or log.ended else SETTLED


def _least_is_one(log: Log) -> str:
    """A row at a least scale that is not 1 is taken for one that can go lower."""
    stuck = log.steps[-1].tried == log.steps[-1].after > 1 and not log.ended
    return LOOKING if stuck and log.steps[-1].skipped else _right(log)


def _down_is_lost(log: Log, least: Sequence[float] = (1.0, 2.0, 4.0)) -> str:
    """The last overflow halves the scale to the least: taken for one at the least."""
    last = log.steps[-1]
    if last.skipped and last.after in least and not last.kept:
        return DIVERGED if any(not step.skipped for step in log.steps) else NOT_FOUND
    return _right(log)


def _down_to_one_is_lost(log: Log) -> str:
    return _down_is_lost(log, (1.0,))


def _only_one_is_lost(log: Log) -> str:
    """Lost is who arrives at a scale of 1, and at no other one."""
    if log.ended or not log.steps[-1].skipped:
        return _right(log)
    return _down_is_lost(log, (1.0,)) if log.steps[-1].after == 1.0 else LOOKING


def _none_yet_is_none(log: Log) -> str:
    """No step was made yet, and the scale can still go lower."""
    made = any(not step.skipped for step in log.steps)
    return NOT_FOUND if _right(log) == LOOKING and not made else _right(log)


def _again_is_lost(log: Log) -> str:
    """Steps were made, and the scale is on its way down again."""
    made = any(not step.skipped for step in log.steps)
    return DIVERGED if _right(log) == LOOKING and made else _right(log)


def _before_the_log(log: Log) -> str:
    """A log that begins in the middle of a training is taken to have made steps."""
    return DIVERGED if _right(log) == NOT_FOUND and log.first > 1 else _right(log)


def _row(log: Log) -> int:
    """How many steps in a row were skipped in the end."""
    made = [n for n, step in enumerate(log.steps) if not step.skipped]
    return len(log.steps) - 1 - made[-1] if made else len(log.steps)


def _long_is_lost(least: int) -> Callable[[Log], str]:
    """A row of so many overflows is taken for one without end."""

    def gives(log: Log) -> str:
        if log.ended or _row(log) < least:
            return _right(log)
        return DIVERGED if any(not step.skipped for step in log.steps) else NOT_FOUND

    return gives


def _right(log: Log) -> str:
    return happened(log)[VERDICT]


IDEAS = (
    Idea(SKIPPED, *SAYS.of("the hysteresis passed over #1"), lambda log: len(_reduced(log))),
    Idea(SKIPPED, *SAYS.of("every mention counted"), _with_word),
    *(
        Idea(SKIPPED, *SAYS.of("DeepSpeed's count believed"), count)
        for count in (_deepspeeds_count, _deepspeeds_or_lines, _deepspeeds_difference)
    ),
    Idea(SKIPPED, *SAYS.of("the last error counted"), lambda log: len(log.skips) + log.ended),
    Idea(SCHEDULER, *SAYS.of("it moved at every step"), lambda log: len(log.steps)),
    Idea(SCHEDULER, *SAYS.of("rank 10 is not rank 0"), _ends_in_zero),
    Idea(
        SCHEDULER, *SAYS.of("each rank's lines counted"), lambda log: _printed(log) - len(log.skips)
    ),
    Idea(
        SCHEDULER,
        *SAYS.of("the last number taken"),
        lambda log: log.first + len(log.steps) - 1 - len(log.skips),
    ),
    Idea(SCALE, *SAYS.of("the scale that was tried"), _tried),
    Idea(SCALE, *SAYS.of("the hysteresis taken for a scale"), _number_in_the_end),
    Idea(SCALE, *SAYS.of("the hysteresis passed over #2"), _last_reduced),
    Idea(DOUBLED, *SAYS.of("growth not seen"), lambda log: 0),
    Idea(DOUBLED, *SAYS.of("jumps counted"), _jumps),
    Idea(DOUBLED, *SAYS.of("compared with what was tried"), _from_tried),
    Idea(DOUBLED, *SAYS.of("the ends compared"), _first_to_last),
    Idea(VERDICT, *SAYS.of("a late overflow is lost"), _late_is_lost),
    Idea(VERDICT, *SAYS.of("any overflow is trouble"), _any_is_trouble),
    Idea(VERDICT, *SAYS.of("one at the least scale #1"), _least_is_lost),
    Idea(
        VERDICT,
        *SAYS.of("two ends taken for one #1"),
        lambda log: NOT_FOUND if _right(log) == DIVERGED else _right(log),
    ),
    Idea(
        VERDICT,
        *SAYS.of("two ends taken for one #2"),
        lambda log: DIVERGED if _right(log) == NOT_FOUND else _right(log),
    ),
    Idea(VERDICT, *SAYS.of("one at the least scale #2"), _least_seen),
    Idea(VERDICT, *SAYS.of("an endless row not seen"), _ends_alone),
    Idea(VERDICT, *SAYS.of("ranks mixed up"), _any_rank),
    Idea(VERDICT, *SAYS.of("the least scale is not 1"), _least_is_one),
    Idea(VERDICT, *SAYS.of("the least scale is not 1"), _only_one_is_lost),
    Idea(VERDICT, *SAYS.of("down to the least"), _down_is_lost),
    Idea(VERDICT, *SAYS.of("down to the least"), _down_to_one_is_lost),
    Idea(VERDICT, *SAYS.of("none yet"), _none_yet_is_none),
    Idea(VERDICT, *SAYS.of("on the way down again"), _again_is_lost),
    Idea(VERDICT, *SAYS.of("steps before the log"), _before_the_log),
    *(Idea(VERDICT, *SAYS.of("a long row is lost"), _long_is_lost(n)) for n in range(2, 17)),
    Idea(
        VERDICT,
        *SAYS.of("the hysteresis passed over #3"),
        lambda log: SETTLED if log.steps[-1].kept and not log.ended else _right(log),
    ),
)
