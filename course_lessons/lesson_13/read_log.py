"""`read_log` of lesson 13: the skipped steps of an fp16 run, its scale and its verdict, in logs of
all kinds. A wrong idea is recognised for each key by its values in all logs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from itertools import pairwise

from course_classroom.judge import frame, words
from course_classroom.judge.by_cases import AnyOf, Cases, Idea, judge_cases
from course_classroom.judge.finding import Finding
from course_lessons.lesson_13 import logs
from course_lessons.lesson_13.logs import DIVERGED, LOOKING, NOT_FOUND, SETTLED, Log

SAYS = words.Page(__file__, "read_log")
LOST = "lost"  # the word for an end of either kind
LAST = r"OVERFLOW.* (\d+)$"  # number in a line: of a scale, or of the hysteresis


def _numbers(log: Log, pattern: str) -> list[int]:
    """Return the numbers that a pattern finds in a log, in order."""
    return [int(found) for found in re.findall(pattern, log.text, re.MULTILINE)]


def _deepspeeds_count(log: Log) -> AnyOf:
    """Return the last count and its excess over the first, or 0 and the right number."""
    counts = _numbers(log, r", skipped=(\d+)")
    return AnyOf([counts[-1], counts[-1] - counts[0]] if counts else [0, log.skipped])


def _doublings(*scales: float) -> float:
    return sum(max(0.0, math.log2(after / before)) for before, after in pairwise(scales))


def _of_any_rank(log: Log) -> bool:
    """Return True if the last step seems made when loss lines of all ranks count."""
    return not log.ended and log.text.rpartition("OVERFLOW")[2].count("| loss ") > 1


def _down_to(*least: float) -> Callable[[Log], bool]:
    """Return a test that is True if the last overflow halved the scale to one of these values."""
    return lambda log: log.last.skipped and log.last.after in least and not log.last.kept


AT_ONE = _down_to(1.0)
# A key, an entry of the page, and the idea's value for a log.
_NUMBERS: tuple[tuple[str, str, Callable[[Log], object]], ...] = (
    ("skipped", "hysteresis ignored #1", lambda log: len(log.reduced)),
    ("skipped", "every mention counted", lambda log: len(re.findall("OVERFLOW|Restor", log.text))),
    ("skipped", "DeepSpeed's count believed", _deepspeeds_count),
    ("skipped", "the last error counted", lambda log: log.skipped + log.ended),
    ("scheduler", "it moved at every step", lambda log: len(log.steps)),
    ("scheduler", "rank 10 is not rank 0", lambda log: log.text.count("0] step ") - log.skipped),
    ("scheduler", "each rank's lines counted", lambda log: log.text.count("| loss") - log.skipped),
    ("scheduler", "the last number taken", lambda log: log.first - 1 + log.made),
    ("scale", "the scale that was tried", lambda log: [None, *log.tried][-1]),
    ("scale", "the hysteresis taken for a scale", lambda log: [None, *_numbers(log, LAST)][-1]),
    ("scale", "hysteresis ignored #2", lambda log: [None, *log.reduced][-1]),
    ("doubled", "growth not seen", lambda log: 0),
    ("doubled", "jumps counted", lambda log: sum(factor > 1 for factor in log.grown)),
    ("doubled", "compared with what was tried", lambda log: _doublings(*log.tried)),
    ("doubled", "the ends compared", lambda log: _doublings(*log.tried[:1], *log.tried[-1:])),
)
# An entry, the wrong verdict, and the logs concerned.
_WORDS: tuple[tuple[str, str, Callable[[Log], object]], ...] = (
    ("late overflow taken as final", DIVERGED, lambda log: log.late),
    ("any overflow is trouble", LOOKING, lambda log: log.skipped and log.verdict == SETTLED),
    ("one at the least scale #1", LOST, lambda log: log.met_least),
    ("verdicts confused #1", NOT_FOUND, lambda log: log.verdict == DIVERGED),
    ("verdicts confused #2", DIVERGED, lambda log: log.verdict == NOT_FOUND),
    ("one at the least scale #2", LOST, lambda log: log.verdict != SETTLED and log.met_least),
    ("an endless row not seen", LOOKING, lambda log: log.goes_on),
    ("ranks mixed up", SETTLED, _of_any_rank),
    ("minimum assumed to be 1", LOOKING, lambda log: log.goes_on and log.last.after > 1),
    ("minimum not tried yet", LOST, _down_to(1.0, 2.0, 4.0)),
    ("minimum not tried yet", LOST, AT_ONE),
    ("still searching", NOT_FOUND, lambda log: log.verdict == LOOKING and not log.made),
    ("searching again", DIVERGED, lambda log: log.verdict == LOOKING and log.made),
    ("steps before the log", DIVERGED, lambda log: log.verdict == NOT_FOUND and log.first > 1),
    *(("long row taken as final", LOST, lambda log, n=n: log.row >= n) for n in range(2, 17)),
    ("hysteresis ignored #3", SETTLED, lambda log: log.last.kept and not log.ended),
)


def _but(word: str, so: Callable[[Log], object]) -> Callable[[Log], str]:
    """Return a reading with the right verdict, except `word` for logs where `so` holds."""
    return lambda log: (log.lost if word == LOST else word) if so(log) else log.verdict


IDEAS = (
    *(Idea(key, *SAYS.of(entry), gives) for key, entry, gives in _NUMBERS),
    *(Idea("verdict", *SAYS.of(entry), _but(word, so)) for entry, word, so in _WORDS),
    Idea("verdict", *SAYS.of("minimum assumed to be 1"), lambda log: log.stands(AT_ONE(log))),
)
ENDS = ("the end misread #1", "the end misread #2", "the end misread #3", "the end misread #4")


def about(log: Log) -> str:
    """Describe a log: its length, and its end."""
    shown = "\n".join(log.lines[-4:])
    odd = "" if log.skipped else "without any overflow, "
    return f"a log of {len(log.lines)} lines, {odd}that ends\n{shown}\n"


def _misread(key: str, log: Log, wanted: object, head: str, tail: str) -> Finding:
    ends = dict(zip(logs.VERDICTS, ENDS, strict=True)) | {None: "a scale from nowhere"}
    if wanted in ends:
        return SAYS(ends[wanted], head=head, tail=tail)
    return Finding(f"{key} misread", head + tail)


CASES = Cases(
    logs.KEYS,
    3 * len(logs.KINDS),
    logs.make,
    logs.happened,
    IDEAS,
    texts={"verdict": logs.VERDICTS},
    arguments=lambda log: (log.lines,),
    about=about,
    unnamed=_misread,
)
READ_LOG = frame.Exercise(
    judge=lambda answer, judge: judge_cases(answer, judge, CASES, __name__), **SAYS.about
)
