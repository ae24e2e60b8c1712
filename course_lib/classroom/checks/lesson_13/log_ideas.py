"""The wrong ideas of `read_log`: for each key of the answer, what each idea makes of a log.

An idea is recognised by its value in every drawn log. Lesson 13.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
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
from course_lib.deepspeed_config.overflow_log import DIVERGED, LOOKING, NOT_FOUND, SETTLED

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


def _right(log: Log) -> str:
    return happened(log)[VERDICT]


IDEAS = (
    Idea(SKIPPED, "the hysteresis passed over", "A step that the hysteresis lets pass without a "
         "reduction is skipped as well: its gradients were inf or NaN all the same.",
         lambda log: len(_reduced(log))),
    Idea(SKIPPED, "every mention counted", "Not every line about the hysteresis is an overflow: "
         "it is restored after a step that was made.", _with_word),
    Idea(SKIPPED, "DeepSpeed's count believed", "`skipped=` counts from the start of the "
         "training, also what came before this log, and it is printed at some steps only.",
         _deepspeeds_count),
    Idea(SKIPPED, "the last error counted", "The step that ended the run has no line of its own, "
         "and the question does not count it.", lambda log: len(log.skips) + log.ended),
    Idea(SCHEDULER, "it moved at every step", "The scheduler does not move at a step that was "
         "skipped. A warm-up of 100 updates takes more than 100 steps where some were skipped.",
         lambda log: len(log.steps)),
    Idea(SCHEDULER, "each rank's lines counted", "All ranks make a step together: four lines of "
         "one step are one step.", lambda log: _printed(log) - len(log.skips)),
    Idea(SCHEDULER, "the last number taken", "A log may begin in the middle of a training: the "
         "number of the last step counts more steps than the log has.",
         lambda log: log.first + len(log.steps) - 1 - len(log.skips)),
    Idea(SCALE, "the scale that was tried", "That is the scale which overflowed. The line goes "
         "on and says what it became.", _tried),
    Idea(SCALE, "the hysteresis taken for a scale", "The last number of a line is not always a "
         "scale: where the hysteresis was reduced, the scale was not.", _number_in_the_end),
    Idea(SCALE, "the hysteresis passed over", "A line about the hysteresis has a scale, too, and "
         "that may be higher than the one before.", _last_reduced),
    Idea(DOUBLED, "growth not seen", "No line tells of a doubling, and yet scales are tried that "
         "are higher than what the line before had left.", lambda log: 0),
    Idea(DOUBLED, "jumps counted", "From 64 to 512 is one jump and more than one doubling.",
         _jumps),
    Idea(DOUBLED, "compared with what was tried", "A scale that was halved and has doubled again "
         "is the one that was tried before. Compare with what the line before has left.",
         _from_tried),
    Idea(DOUBLED, "the ends compared", "Between the first line and the last one the scale went "
         "down as well.", _first_to_last),
    Idea(VERDICT, "a late overflow is lost", "A scale that grows meets an overflow once in a "
         "while, late in a run as well: a step or two are skipped, and the next one is made.",
         _late_is_lost),
    Idea(VERDICT, "any overflow is trouble", "A few overflows are how a scale is found. What "
         "counts is whether the last step was made.", _any_is_trouble),
    Idea(VERDICT, "one at the least scale", "The scale was at its least and overflowed, and "
         "steps were made after it: see how the log ends.", _least_is_lost),
    Idea(VERDICT, "two ends taken for one", "A run that never made a step has another fault than "
         "one that made steps and then no more: a model that float16 cannot hold, or a loss that "
         "became NaN.", lambda log: NOT_FOUND if _right(log) == DIVERGED else _right(log)),
    Idea(VERDICT, "two ends taken for one", "A run that never made a step did not leave a good "
         "state. It had none.", lambda log: DIVERGED if _right(log) == NOT_FOUND else _right(log)),
    Idea(VERDICT, "one at the least scale", "The scale was at its least and overflowed, and has "
         "doubled since: it can go lower again.", _least_seen),
    Idea(VERDICT, "an endless row not seen", "Not every program stops at the least scale. One "
         "that goes on prints the same scale twice in a line, for ever.", _ends_alone),
    Idea(VERDICT, "ranks mixed up", "A line of another rank after an overflow is of the same "
         "step. Lines are in order within a rank, and the overflow is rank 0's.", _any_rank),
)  # fmt: skip
