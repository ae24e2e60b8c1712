"""`who_hangs` of lesson 01: three ranks hang, and one of them blocks the others.

The notebook has the ranks' reports, and tests compare them with three real ranks.
"""

from __future__ import annotations

from collections.abc import Mapping

from course_classroom.judge.finding import Finding
from course_classroom.judge.thought import Thought
from course_classroom.judge.words import Page

SAYS = Page(__file__, "who_hangs")
CULPRITS, LISTED_FIRST = {"A": 2, "B": 1, "C": 0}, {"A": 0, "B": 0, "C": 2}
MISREADINGS = {  # by the case and the named rank
    **dict.fromkeys((("A", 0), ("A", 1), ("B", 2)), "a waiting rank"),
    ("B", 0): "ahead, so it skipped one",
    **dict.fromkeys((("C", 1), ("C", 2)), "the loudest error"),
}


def judge_who_hangs(given: Mapping) -> None:
    """Compare the named ranks with the right ranks, and with five tempting misreadings."""
    SAYS.refuse({"counted from one": all(given[c] == r + 1 for c, r in CULPRITS.items())})
    for case, rank in given.items():
        SAYS.refuse({"no such rank": rank not in (0, 1, 2)}, name=case)
    wrong = [case for case, rank in CULPRITS.items() if given[case] != rank]
    if not wrong:
        return
    SAYS.refuse({"the first that is listed": dict(given) == LISTED_FIRST})
    read = {case: SAYS.of(MISREADINGS[case, given[case]]) for case in wrong}
    told = [f"Case {case}, rank {given[case]:g}: {text}" for case, (_, text) in read.items()]
    right = [repr(case) for case in CULPRITS if case not in wrong]
    rest = f" Right so far: {' and '.join(right)}." if right else ""
    names = {name for name, _ in read.values()}
    raise Finding(names.pop() if len(names) == 1 else "several ideas", "\n".join(told) + rest)


WHO_HANGS = Thought(fields=tuple(CULPRITS), judge=judge_who_hangs, **SAYS.about)
