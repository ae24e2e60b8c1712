"""`read_log` of lesson 13: what an fp16 run has skipped, where its scale is, and how it stands.

Logs are drawn from runs of every kind; a wrong idea is recognised, key by key, by what it makes of
all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise

from course_classroom.judge.answer import Answer
from course_classroom.judge.by_cases import Cases, Idea, judge_cases
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge
from course_classroom.judge.words import Page
from course_lessons.lesson_13 import logs
from course_lessons.lesson_13.logs import Log
from course_lib.peers.deepspeed_config.overflow_log import DIVERGED, LOOKING, NOT_FOUND, SETTLED

SAYS = Page(__file__, "read_log")
SHOWN = 4  # lines of a log in a message
LOST = "lost"  # the word for an end of either kind


def _counts(log: Log) -> list[int]:
    """DeepSpeed's own count of skipped steps, wherever it is printed."""
    return [int(count) for count in re.findall(r", skipped=(\d+)", "\n".join(log.lines))]


def _with(log: Log, *words: str) -> list[str]:
    return [line for line in log.lines if any(word in line for word in words)]


def _made_by(log: Log, word: str) -> int:
    """Steps that were made, if each line with a word is one of a step."""
    return len(_with(log, word)) - len(log.skips)


def _since_the_first_count(log: Log) -> int:
    counts = _counts(log) or [0]
    return counts[-1] - counts[0]


def _last(scales: list[float]) -> float | None:
    return scales[-1] if scales else None


def _last_numbers(log: Log) -> list[int]:
    """The last number of each line of an overflow: of a scale, or of the hysteresis."""
    return [int(line.rsplit(" ", 1)[1]) for line in _with(log, "OVERFLOW")]


def _doublings(*scales: float) -> float:
    return sum(max(0.0, math.log2(after / before)) for before, after in pairwise(scales))


def _of_any_rank(log: Log) -> bool:
    """Whether the last step was made, if the next line of any rank's step is the skipped one."""
    pending = skipping = False
    for line in _with(log, "OVERFLOW", " | loss "):
        pending, skipping = ("OVERFLOW" in line, skipping if "OVERFLOW" in line else pending)
    return not (skipping or log.ended)


def _down_to(*least: float) -> Callable[[Log], bool]:
    """Whether the last overflow halved the scale to one of these."""
    return lambda log: log.last.skipped and log.last.after in least and not log.last.kept


# A key, an entry of the page, and what the idea makes of a log.
_NUMBERS: tuple[tuple[str, str, Callable[[Log], float | None]], ...] = (
    ("skipped", "the hysteresis passed over #1", lambda log: len(log.reduced)),
    ("skipped", "every mention counted", lambda log: len(_with(log, "hysteresis", "OVERFLOW"))),
    ("skipped", "DeepSpeed's count believed", lambda log: [0, *_counts(log)][-1]),
    ("skipped", "DeepSpeed's count believed", lambda log: [len(log.skips), *_counts(log)][-1]),
    ("skipped", "DeepSpeed's count believed", _since_the_first_count),
    ("skipped", "the last error counted", lambda log: len(log.skips) + log.ended),
    ("scheduler", "it moved at every step", lambda log: len(log.steps)),
    ("scheduler", "rank 10 is not rank 0", lambda log: _made_by(log, "0] step ")),
    ("scheduler", "each rank's lines counted", lambda log: _made_by(log, " | loss ")),
    ("scheduler", "the last number taken", lambda log: log.first - 1 + log.made),
    ("scale", "the scale that was tried", lambda log: _last(log.tried)),
    ("scale", "the hysteresis taken for a scale", lambda log: _last(_last_numbers(log))),
    ("scale", "the hysteresis passed over #2", lambda log: _last([x.after for x in log.reduced])),
    ("doubled", "growth not seen", lambda log: 0),
    ("doubled", "jumps counted", lambda log: sum(factor > 1 for factor in log.grown)),
    ("doubled", "compared with what was tried", lambda log: _doublings(*log.tried)),
    ("doubled", "the ends compared", lambda log: _doublings(*log.tried[:1], *log.tried[-1:])),
)
# An entry, what is said instead of the right verdict, and of which logs.
_WORDS: tuple[tuple[str, str, Callable[[Log], object]], ...] = (
    ("a late overflow is lost", DIVERGED, lambda log: log.late),
    ("any overflow is trouble", LOOKING, lambda log: log.skips and log.verdict == SETTLED),
    ("one at the least scale #1", LOST, lambda log: log.met_least),
    ("two ends taken for one #1", NOT_FOUND, lambda log: log.verdict == DIVERGED),
    ("two ends taken for one #2", DIVERGED, lambda log: log.verdict == NOT_FOUND),
    ("one at the least scale #2", LOST, lambda log: log.verdict != SETTLED and log.met_least),
    ("an endless row not seen", LOOKING, lambda log: log.goes_on),
    ("ranks mixed up", SETTLED, _of_any_rank),
    ("the least scale is not 1", LOOKING, lambda log: log.goes_on and log.last.after > 1),
    ("down to the least", LOST, _down_to(1.0, 2.0, 4.0)),
    ("down to the least", LOST, _down_to(1.0)),
    ("none yet", NOT_FOUND, lambda log: log.verdict == LOOKING and not log.made),
    ("on the way down again", DIVERGED, lambda log: log.verdict == LOOKING and log.made),
    ("steps before the log", DIVERGED, lambda log: log.verdict == NOT_FOUND and log.first > 1),
    *(("a long row is lost", LOST, lambda log, n=n: log.row >= n) for n in range(2, 17)),
    ("the hysteresis passed over #3", SETTLED, lambda log: log.last.kept and not log.ended),
)


def _but(word: str, so: Callable[[Log], object]) -> Callable[[Log], str]:
    """The right verdict, and another word for logs that are so."""
    return lambda log: (log.lost if word == LOST else word) if so(log) else log.verdict


def _lost_at_one_alone(log: Log) -> str:
    return log.stands(at_least=_down_to(1.0)(log))


IDEAS = (
    *(Idea(key, *SAYS.of(entry), gives) for key, entry, gives in _NUMBERS),
    *(Idea("verdict", *SAYS.of(entry), _but(word, so)) for entry, word, so in _WORDS),
    Idea("verdict", *SAYS.of("the least scale is not 1"), _lost_at_one_alone),
)


_ENDS = {
    logs.SETTLED: "the end misread #1",
    logs.LOOKING: "the end misread #2",
    logs.NOT_FOUND: "the end misread #3",
    logs.DIVERGED: "the end misread #4",
}


def about(log: Log) -> str:
    """A log in words: how long it is, and how it ends."""
    shown = "\n".join(log.lines[-SHOWN:])
    odd = "" if log.skips else "without any overflow, "
    return f"a log of {len(log.lines)} lines, {odd}that ends\n{shown}\n"


def _misread(key: str, log: Log, wanted: object, head: str, tail: str) -> Finding:
    if key == "verdict":
        return SAYS(_ENDS[wanted], head=head, tail=tail)
    if wanted is None:
        return SAYS("a scale from nowhere", head=head, tail=tail)
    return Finding(f"{key} misread", head + tail)


CASES = Cases(
    logs.KEYS,
    len(logs.KINDS) * logs.EACH,
    logs.make,
    logs.happened,
    IDEAS,
    texts={"verdict": logs.VERDICTS},
    arguments=lambda log: (log.lines,),
    about=about,
    unnamed=_misread,
)


def judge_log(answer: Answer, judge: Judge) -> None:
    judge_cases(answer, judge, CASES, __name__)


READ_LOG = Exercise(judge=judge_log, **SAYS.about)
