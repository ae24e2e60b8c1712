"""`read_log` of lesson 13: what an fp16 run has skipped, where its scale is, and how it stands.

Logs are drawn from runs of every kind; a wrong idea is recognised, key by key, by what it makes of
all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.by_cases import Cases, Idea, judge_cases
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.lesson_13 import logs
from course_lib.classroom.checks.lesson_13.logs import (
    DOUBLED,
    KEYS,
    SCALE,
    SCHEDULER,
    SKIPPED,
    VERDICT,
    VERDICTS,
    Log,
    happened,
)
from course_lib.classroom.checks.words import Page
from course_lib.deepspeed_config.overflow_log import DIVERGED, LOOKING, NOT_FOUND, SETTLED

SAYS = Page("lesson_13/read_log")
SHOWN = 4  # lines of a log in a message
LOST = "lost"  # the word for an end of either kind


def _counts(log: Log) -> list[int]:
    """DeepSpeed's own count of skipped steps, wherever it is printed."""
    return [int(count) for count in re.findall(r", skipped=(\d+)", "\n".join(log.lines))]


def _lines_with(log: Log, *words: str) -> list[str]:
    return [line for line in log.lines if any(word in line for word in words)]


def _last_number(log: Log) -> int | None:
    """The number after the last "to" of the last line of an overflow."""
    told = _lines_with(log, "OVERFLOW")
    return int(told[-1].rsplit(" ", 1)[1]) if told else None


def _last_reduced(log: Log) -> float | None:
    reduced = [step.after for step in log.skips if not step.kept]
    return reduced[-1] if reduced else None


def _doublings(before: float, after: float) -> float:
    return max(0.0, math.log2(after / before))


_NUMBERS: tuple[tuple[str, str, Callable[[Log], float | None]], ...] = (
    (
        SKIPPED,
        "the hysteresis passed over #1",
        lambda log: sum(not step.kept for step in log.skips),
    ),
    (
        SKIPPED,
        "every mention counted",
        lambda log: len(_lines_with(log, "hysteresis", "OVERFLOW")),
    ),
    (SKIPPED, "DeepSpeed's count believed", lambda log: ([0] + _counts(log))[-1]),
    (SKIPPED, "DeepSpeed's count believed", lambda log: ([len(log.skips)] + _counts(log))[-1]),
    (
        SKIPPED,
        "DeepSpeed's count believed",
        lambda log: _counts(log)[-1] - _counts(log)[0] if _counts(log) else 0,
    ),
    (SKIPPED, "the last error counted", lambda log: len(log.skips) + log.ended),
    (SCHEDULER, "it moved at every step", lambda log: len(log.steps)),
    (
        SCHEDULER,
        "rank 10 is not rank 0",
        lambda log: len(_lines_with(log, "0] step ")) - len(log.skips),
    ),
    (
        SCHEDULER,
        "each rank's lines counted",
        lambda log: len(_lines_with(log, " | loss ")) - len(log.skips),
    ),
    (SCHEDULER, "the last number taken", lambda log: log.first - 1 + log.made),
    (SCALE, "the scale that was tried", lambda log: log.skips[-1].tried if log.skips else None),
    (SCALE, "the hysteresis taken for a scale", _last_number),
    (SCALE, "the hysteresis passed over #2", _last_reduced),
    (DOUBLED, "growth not seen", lambda log: 0),
    (DOUBLED, "jumps counted", lambda log: sum(b.tried > a.after for a, b in pairwise(log.skips))),
    (
        DOUBLED,
        "compared with what was tried",
        lambda log: sum(_doublings(a.tried, b.tried) for a, b in pairwise(log.skips)),
    ),
    (
        DOUBLED,
        "the ends compared",
        lambda log: _doublings(log.skips[0].tried, log.skips[-1].tried) if log.skips else 0,
    ),
)


def _least_was_met(log: Log) -> bool:
    """Whether any overflow was at the least scale."""
    return any(step.tried == step.after and not step.kept for step in log.skips)


def _down_to(*least: float) -> Callable[[Log], bool]:
    """Whether the last overflow halved the scale to one of these."""
    return lambda log: log.last.skipped and log.last.after in least and not log.last.kept


def _goes_on(log: Log) -> bool:
    """Whether the log ends in a skipped step and no exception."""
    return log.last.skipped and not log.ended


def _of_any_rank(log: Log) -> bool:
    """Whether the last step was made, if the next line of any rank's step is the skipped one."""
    pending = skipping = False
    for line in _lines_with(log, "OVERFLOW", " | loss "):
        pending, skipping = ("OVERFLOW" in line, skipping if "OVERFLOW" in line else pending)
    return not (skipping or log.ended)


def _row(log: Log) -> int:
    """How many steps in a row were skipped in the end; none where the program stopped."""
    made = [n for n, step in enumerate(log.steps) if not step.skipped]
    return 0 if log.ended else len(log.steps) - 1 - (made[-1] if made else -1)


# What is said instead of the right verdict, and of which logs.
_WORDS: tuple[tuple[str, str, Callable[[Log], object]], ...] = (
    (
        "a late overflow is lost",
        DIVERGED,
        lambda log: any(b.skipped and not a.skipped for a, b in pairwise(log.steps)),
    ),
    ("any overflow is trouble", LOOKING, lambda log: log.skips and log.verdict == SETTLED),
    ("one at the least scale #1", LOST, _least_was_met),
    ("two ends taken for one #1", NOT_FOUND, lambda log: log.verdict == DIVERGED),
    ("two ends taken for one #2", DIVERGED, lambda log: log.verdict == NOT_FOUND),
    (
        "one at the least scale #2",
        LOST,
        lambda log: (log.ended or log.last.skipped) and _least_was_met(log),
    ),
    ("an endless row not seen", LOOKING, _goes_on),
    ("ranks mixed up", SETTLED, _of_any_rank),
    (
        "the least scale is not 1",
        LOOKING,
        lambda log: _goes_on(log) and log.last.tried == log.last.after > 1,
    ),
    ("down to the least", LOST, _down_to(1.0, 2.0, 4.0)),
    ("down to the least", LOST, _down_to(1.0)),
    ("none yet", NOT_FOUND, lambda log: log.verdict == LOOKING and not log.made),
    ("on the way down again", DIVERGED, lambda log: log.verdict == LOOKING and log.made),
    ("steps before the log", DIVERGED, lambda log: log.verdict == NOT_FOUND and log.first > 1),
    *(("a long row is lost", LOST, lambda log, n=n: _row(log) >= n) for n in range(2, 17)),
    ("the hysteresis passed over #3", SETTLED, lambda log: log.last.kept and not log.ended),
)


def _but(word: str, so: Callable[[Log], object]) -> Callable[[Log], str]:
    """The right verdict, and another word for logs that are so."""
    return lambda log: (log.lost if word == LOST else word) if so(log) else log.verdict


def _lost_at_one_alone(log: Log) -> str:
    return _but(*((LOST, _down_to(1.0)) if log.last.after == 1.0 else (LOOKING, _goes_on)))(log)


IDEAS = (
    *(Idea(key, *SAYS.of(entry), gives) for key, entry, gives in _NUMBERS),
    *(Idea(VERDICT, *SAYS.of(entry), _but(word, so)) for entry, word, so in _WORDS),
    Idea(VERDICT, *SAYS.of("the least scale is not 1"), _lost_at_one_alone),
)
_ENDS = {
    SETTLED: "the end misread #1",
    LOOKING: "the end misread #2",
    NOT_FOUND: "the end misread #3",
    DIVERGED: "the end misread #4",
}


def about(log: Log) -> str:
    """A log in words: how long it is, and how it ends."""
    shown = "\n".join(log.lines[-SHOWN:])
    odd = "" if log.skips else "without any overflow, "
    return f"a log of {len(log.lines)} lines, {odd}that ends\n{shown}\n"


def _misread(key: str, log: Log, wanted: object, head: str, tail: str) -> Finding:
    if key == VERDICT:
        return SAYS(_ENDS[wanted], head=head, tail=tail)
    if wanted is None:
        return SAYS("a scale from nowhere", head=head, tail=tail)
    return Finding(f"{key} misread", head + tail)


CASES = Cases(
    KEYS,
    len(logs.KINDS) * logs.EACH,
    logs.make,
    happened,
    IDEAS,
    texts={VERDICT: VERDICTS},
    arguments=lambda log: (log.lines,),
    about=about,
    unnamed=_misread,
)


def judge_log(answer: Answer, judge: Judge) -> None:
    judge_cases(answer, judge, CASES, __name__)


READ_LOG = Exercise(judge=judge_log, **SAYS.about)
