"""`reshard` of lesson 08: a sharded model's weights on another number of ranks, bit by bit.

Each case is held against the pieces that the library's plan makes, and wrong ones against the ideas
that they come from.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.lesson_08 import reshard_trial
from course_lib.classroom.checks.looking import THREE, fresh_seed
from course_lib.classroom.checks.words import Page

CASES = [
    *(("GPT-2", 1, 4), ("GPT-2", 4, 2), ("GPT-2", 2, 1)),
    *(("Llama", 1, 4), ("Llama", 4, 2), ("Llama", 2, 1)),
    *(("GPT-2", 2, 3), ("Llama", 3, 2), ("Llama", 2, 2), ("GPT-2", 1, 1)),
]
SAYS = Page("lesson_08/reshard")


def judge_reshard(answer: Answer, judge: Judge) -> None:
    """Each case by itself, on every rank."""
    judge.take(answer, reshard_trial.__name__)
    seed = fresh_seed()
    for case in CASES:
        family, m, n = case
        where = f"{family}, from {m} rank{'s' * (m > 1)} to {n}"
        reports = judge.trial(
            answer, reshard_trial.compare, *case, seed, members=THREE, when=f"({where})"
        )
        for report in reports:
            _refuse(report, where)


def _refuse(report: dict, where: str) -> None:
    """A Finding where a rank has reported one: of all that came back, or of one parameter."""
    if report["entry"]:
        name, text = SAYS.of(report["entry"], where=where, **report["about"])
        of = f"{report['of']} ({where}): " if report["of"] else ""
        others = f" ({report['more']} more are not right either.)" if report["more"] else ""
        raise Finding(name, f"{of}{text}{others}")


RESHARD = Exercise(judge=judge_reshard, **SAYS.about)
