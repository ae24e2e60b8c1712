"""`recompute_dropout` of lesson 05: a block run again in the backward, with the masks of the first.

An answer takes two training steps with two blocks, beside the same steps with everything stored:
outputs, masks, gradients and both random streams have to be equal bit by bit. In the first step the
blocks follow each other, in the second they stand side by side: their backwards come in either
order.
"""

from __future__ import annotations

from course_lib.classroom.checks import general
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on
from course_lib.classroom.checks.lesson_05 import recompute_trial as trial
from course_lib.classroom.checks.looking import THREE, TWO, fresh_seed
from course_lib.classroom.checks.words import Page

SHARED, PRIVATE = "torch's own generator", "`private`"
SAYS = Page("lesson_05/recompute_dropout")


def judge_recompute(answer: Answer, judge: Judge) -> None:
    """Train on three ranks and on two, and compare with the stored run."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    for members, shape, dtype in ((THREE, (2, 5), "float64"), (TWO, (6,), "float32")):
        given, when = (seed, shape, dtype), on(members)
        reports = judge.trial(answer, trial.compare, *given, members=members, when=when)
        for rank, report in enumerate(reports):
            where = f"{when}, rank {rank}"
            _look_at_result(report["problem"], where)
            first, second = report["steps"]
            _look_at_step(first, where)
            try:
                _look_at_step(second, f"{where}, in step 2, with the two blocks side by side")
            except Finding as finding:
                if finding.name not in ("other gradients", "another forward"):
                    raise
                raise SAYS("second step", text=finding.text) from None


def _look_at_result(problem: str, where: str) -> None:
    if problem == "NoneType":
        raise SAYS("nothing returned", where=where)
    if problem == "no history":
        raise SAYS("no history", where=where)
    if problem:
        raise SAYS("wrong shape", where=where, kind=problem)


def _look_at_step(step: dict, where: str) -> None:
    """Hold a step against the stored one; what comes later means nothing where it is not so."""
    first, second = step["first masks"]
    moved = [a and b for a, b in zip(second, step["after forward"][::-1], strict=True)]
    heads, end = (all(each) for each in zip(*step["masks again"], strict=True))
    theirs, others = step["another block's"]
    shared, private = step["after backward"]
    holds = {
        "another mask in the forward": not all(first),
        "moved in the forward": not all(moved),
        "another forward": not step["forward"],
        "nothing recomputed": step["runs"][-1] < 2,
        "x cut off": "x" in step["missing"],
        "kept all the same": step["alive"],
        "run too often": max(step["runs"]) > 2,
        "one state for two blocks": theirs and (others or all(step["masks again"][1])),
        "state taken too late": theirs,
        "new masks": not (heads or end),
        "private stream forgotten": not heads,
        "shared stream forgotten": not end,
        "weights left out": step["missing"],
        "rounded on the way": step["times"] == general.ROUNDED,
        "counted twice": step["times"] in (2.0, 3.0),
        "other gradients": step["times"] != 1.0,
        "private stream rewound": shared and not private,
        "shared stream rewound": not shared,
    }
    heads, end = moved if all(first) else first
    which = {(True, False): SHARED, (False, True): PRIVATE}.get((heads, end), "both streams")
    for entry, so in holds.items():
        if so:
            raise SAYS(entry, where=where, which=which, times=step["times"], runs=step["runs"])


RECOMPUTE = Exercise(judge=judge_recompute, **SAYS.about)
