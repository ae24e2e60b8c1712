"""Gathers that are alive together, as in any net: for `gather_from` of lesson 03.

Of several dims, dtypes, consumers and groups; all forwards come first, then all backwards.
"""

from __future__ import annotations

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.lesson_03 import trial as run
from course_lib.classroom.checks.lesson_03.pair_case import nearly
from course_lib.classroom.checks.lesson_03.trial import FACTOR, numbers
from course_lib.classroom.checks.looking import THREE, near

REPLICATED, SHARDED = "replicated", "sharded"
STOPPED = ("raised", "deadlock")


def try_at_once(answer: Answer, judge: Judge, seed: int, sizes: list[int]) -> None:
    """Gathers that are alive together, of other dims, dtypes and groups."""
    uses = [  # dtype, whole, dim, sizes, after; what has one size is in a group of one rank
        ("float64", [sum(sizes)], 0, sizes, SHARDED),
        ("float64", [5, 6], 1, [6], REPLICATED),
        ("float64", [sum(sizes)], 0, sizes, REPLICATED),
        ("float32", [5, sum(sizes)], -1, sizes[::-1], REPLICATED),
    ]
    when = "with four gathers whose backwards begin after all forwards"
    try:
        reports = judge.trial(answer, run.gathers_at_once, seed, uses, members=THREE, when=when)
    except Finding as finding:
        if finding.name not in (*STOPPED, "not called by all"):
            raise
        raise _at_once(finding.text) from None
    for i, (dtype, whole, dim, lengths, after) in enumerate(uses):
        alone, alike = len(lengths) == 1, near if dtype == "float64" else nearly
        x = numbers(seed + i, "x", 0, *whole)
        ws = [numbers(seed + i, "w", r, *whole) for r in range(1 if alone else 3)]
        full = ws[0] if after == REPLICATED else sum(ws)
        for rank, report in enumerate(reports):
            report, own = report[i], full.split(lengths, dim)[0 if alone else rank]
            if report["dtype"] != dtype:
                raise Finding(
                    "another dtype",
                    f"The pieces are {dtype}, and rank {rank} got {report['dtype']} back {when}.",
                )
            if not alike(
                report["beside"], FACTOR * ws[0 if alone or after == REPLICATED else rank]
            ):
                raise Finding(
                    "gradient written over",
                    f"In h = 5 u + gather(x) the gradient of h goes to both branches, as one "
                    f"tensor. The gather's backward wrote into it, and u's came out wrong (rank "
                    f"{rank}, after={after!r}). Work out of place.",
                )
            if not alike(report["out"], x) or not alike(report["grad"], own):
                what = f"of shape {whole} and {dtype}, with after={after!r}"
                raise _at_once(f"One {what}, is not right on rank {rank}.")


def _at_once(what: str) -> Finding:
    return Finding(
        "two at once",
        "One gather after the other comes out right. Four of them, whose backwards begin after "
        "all forwards, as in any net, and of which one has a group of its own, do not. Does "
        f"something of one call (in a class, a global name) reach another?\n{what}",
    )
