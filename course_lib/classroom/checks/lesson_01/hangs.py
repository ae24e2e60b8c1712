"""`who_hangs` of lesson 01: three ranks stand still, and one of them holds the others up.

What the ranks showed stands in the notebook; tests hold it against three real ranks that run the
same cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.thought import Thought
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_01/who_hangs")


class Case(NamedTuple):
    """One hang: who holds the others up, who is listed first, what to say to the other readings."""

    culprit: int
    listed_first: int
    misreadings: Mapping[int, str]  # by the rank that was named, the entry


CASES = {
    "A": Case(2, 0, dict.fromkeys((0, 1), "the one that waits #1")),
    "B": Case(1, 0, {0: "ahead, so it skipped one", 2: "the one that waits #2"}),
    "C": Case(0, 2, dict.fromkeys((1, 2), "the loudest error")),
}


def judge_who_hangs(given: Mapping) -> None:
    """Hold the ranks named against the culprits, and against five tempting readings."""
    if all(given[name] == case.culprit + 1 for name, case in CASES.items()):
        raise SAYS("counted from one")
    for name, rank in given.items():
        if rank not in (0, 1, 2):
            raise SAYS("no such rank", name=name)
    wrong = [name for name, case in CASES.items() if given[name] != case.culprit]
    if not wrong:
        return
    if all(given[name] == case.listed_first for name, case in CASES.items()):
        raise SAYS("the first that is listed")
    read = {case: SAYS.of(CASES[case].misreadings[int(given[case])]) for case in wrong}
    told = [f"Case {case}, rank {given[case]:g}: {text}" for case, (_, text) in read.items()]
    right = [repr(case) for case in CASES if case not in wrong]
    rest = f" Right so far: {' and '.join(right)}." if right else ""
    names = {name for name, _ in read.values()}
    name = names.pop() if len(names) == 1 else "several ideas"
    raise Finding(name, "\n".join(told) + rest)


WHO_HANGS = Thought(fields=tuple(CASES), judge=judge_who_hangs, **SAYS.about)
