"""`who_hangs` of lesson 01: three ranks stand still, and one of them holds the others up.

What the ranks showed stands in the notebook; tests hold it against three real ranks that run the
same cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.thought import Thought
from course_lib.classroom.checks.words import Words

SAYS = Words("""
counted from one: You have numbered the ranks from 1. The first of them is rank 0.
no such rank: In {name!r}: there are ranks 0 to 2.
the first that is listed: You have named the rank in the first line, three times. Ranks are listed
  by number, or as their output arrived; neither says who began.
the one that waits #1: It waits in a call that it was right to make, and would go on at once if the
  others came: it is held up itself. Look for the rank that does not come.
the one that waits #2: It waits for a message, and the rank that has to send it has not come to its
  send. What is that one doing?
ahead, so it skipped one: It is further than the others, and has left out nothing: what stands
  before its line is done, by the condition that holds for it. Being ahead holds no rank up. Which
  ranks have not come to that line yet, and what does each of them wait for?
the loudest error: Its error says that it gave up waiting. Look at the times: something had happened
  on another rank long before, and this is what followed from it.
""")


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


WHO_HANGS = Thought(
    name="who_hangs",
    title="Which rank holds the others up?",
    points=3,
    fields=tuple(CASES),
    judge=judge_who_hangs,
    when_right=(
        "In A the culprit left a call out and waits in the next one, where the others cannot come. "
        "In B it waits for no other rank: it is busy. In C it had failed long before the others "
        "gave up. A rank that waits where all should be is not the cause. `%%ranks` says so for "
        "you where it can; on a cluster you read the stacks."
    ),
    hints=(
        "For each rank ask two questions: what does it wait for, and which rank would have to "
        "come so that it goes on? Draw the arrows.",
        "Follow the arrows from rank to rank until you come to one that waits for none, or for "
        "something that cannot happen any more. Where the arrows form a circle, look for the one "
        "in it that stands in another call than the rest.",
        "In A: all ranks go through the loop the same number of times. How many all_reduce calls "
        "has each made when it comes to the last line, and what if one made fewer?",
        "In B: who has not sent yet, and what is it doing instead? In C: sort the lines by time.",
    ),
)
