"""`from_old_ranks` of lesson 14: shards of m ranks, read by n ranks, and the same next loss.

An answer's shards are held against the logical tensors, its reads against what a rank needs, and
the losses of three more steps against those of a run that was never saved.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_14 import old_ranks
from course_lib.classroom.checks.lesson_14 import old_ranks_trial as trial
from course_lib.classroom.checks.lesson_14.old_ranks import (
    BATCH,
    KEYS,
    KINDS,
    MASTER,
    NEXT,
    STEP,
    Run,
)
from course_lib.classroom.checks.looking import (
    THREE,
    TWO,
    Looks,
    fresh_seed,
    ideas,
    near,
    refuse_changed,
    refuse_idea,
)
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_14/from_old_ranks")

# The old world, the new ranks, and whether the last of them holds no bias.
CASES = ((4, THREE, False), (3, TWO, False), (2, THREE, False), (2, THREE, True))


class Trial(NamedTuple):
    reports: list[dict]
    run: Run
    seed: int
    when: str

    @property
    def n(self) -> int:
        return len(self.reports)

    def seen(self, key: str) -> list:
        return [report["values"][key] for report in self.reports]

    def wanted(self, key: str) -> list:
        return [old_ranks.wanted(self.run, self.n, rank)[key] for rank in range(self.n)]


def judge_go_on(answer: Answer, judge: Judge) -> None:
    """Try from_old_ranks; raise the Finding that explains best what is wrong."""
    judge.take(answer, trial.__name__)
    seed = fresh_seed()
    LOOKS.at(answer, (_tried(answer, judge, *case, seed + k) for k, case in enumerate(CASES)))


def _tried(answer: Answer, judge: Judge, m: int, members: list[int], few: bool, seed: int) -> Trial:
    n = len(members)
    when = f"from {m} ranks to {n}, {on(members)}{', with few biases' if few else ''}"
    reports = judge.trial(answer, trial.run, m, few, seed, members=members, when=when)
    refuse_none(reports, when, "a dictionary with its shards")
    return Trial(reports, old_ranks.drawn(m, n, seed, few), seed, when)


def _look_at_shape(one: Trial) -> None:
    about = {"keys": ", ".join(KEYS), "when": one.when}
    for rank, report in enumerate(one.reports):
        looks = {"not a dictionary": report["kind"] != "dict", "a key missing": report["lost"]}
        lost = ", ".join(report["lost"])
        SAYS.refuse(looks, rank=rank, kind=report["kind"], lost=lost, **about)
    for kind in KINDS:
        for rank, (seen, wanted) in enumerate(zip(one.seen(kind), one.wanted(kind), strict=True)):
            if not isinstance(seen, Tensor):
                raise SAYS("not a shard", kind=kind, rank=rank, seen=seen, when=one.when)
            if len(seen) != len(wanted):
                _refuse_length(one, kind, rank, len(seen), len(wanted))


def _refuse_length(one: Trial, kind: str, rank: int, seen: int, wanted: int) -> None:
    totals = [sum(size for _, size in group) for group in one.run.sizes.layout(True)]
    floor = sum(total // one.n for total in totals)
    looks = {
        "not cut": seen >= sum(totals),
        "own padding forgotten": seen == sum(old_ranks.real(one.run, one.n, rank)),
        "rounded down": all(len(x) == floor for x in one.seen(kind)),
        "wrong length": True,
    }
    text = f"`{kind}` on rank {rank} has {seen} elements, {one.when}, and not {wanted}. "
    SAYS.refuse(looks, text=text)


def _look_at_memory(one: Trial) -> None:
    refuse_changed(one, "a layout")
    looks = {"one buffer #1": lambda r: r["shared"], "one buffer #2": lambda r: not r["kept"]}
    SAYS.refuse_each(one.reports, looks, when=one.when)


def _look_at_values(one: Trial) -> None:
    for kind in KINDS:
        seen, wanted = one.seen(kind), one.wanted(kind)
        if not all(map(near, seen, wanted)):
            _refuse_shards(one, kind, seen, wanted)
    for key in (STEP, NEXT):
        for rank, value in enumerate(one.seen(key)):
            other = {"not a whole number": type(value) is not int}
            SAYS.refuse(other, key=key, rank=rank, value=value, when=one.when)
    steps = one.seen(STEP)
    looks = {"step forgotten": not any(steps), "another step": steps != one.wanted(STEP)}
    SAYS.refuse(looks, step=steps, when=one.when)
    seen = one.seen(NEXT)
    if seen == one.wanted(NEXT):
        return
    n, m, each = one.n, one.run.m, one.run.samples  # each of the old ranks has read so many
    begins = {  # where the new ranks' samples begin, and how far apart they are
        "data from the start": (0, BATCH // n),
        "one old rank's count": (each, BATCH // n),
        "counted with the new ranks": (each * n, BATCH // n),
        "the same for all ranks": (each * m, 0),
        "the old ranks' part": (each * m, BATCH // m),
        "a batch for each rank": (each * m, BATCH),
        "parts of one sample": (each * m, 1),
    }
    met = {
        entry: seen == [first + r * apart for r in range(n)]
        for entry, (first, apart) in begins.items()
    }
    SAYS.refuse({**met, "another sample": True}, next=seen, when=one.when)


def _refuse_shards(one: Trial, kind: str, seen: list[Tensor], wanted: list[Tensor]) -> None:
    run, n, ranks = one.run, one.n, range(one.n)
    about = {"kind": kind, "when": one.when}
    misread = {
        "old pieces rounded down": {"floor": True},
        "padding between the groups": {"base": True},
    }
    gives = {
        "nothing read" if kind == MASTER else "moments forgotten": [0 * x for x in wanted],
        "the call before": [trial.BEFORE * x for x in wanted],
        "every rank has the first one's": [wanted[0]] * n,
        "the old order": [old_ranks.in_the_old_order(run, n, r, kind) for r in ranks],
        **{
            entry: [old_ranks.misread(run, n, r, kind, **how) for r in ranks]
            for entry, how in misread.items()
        },
    }
    for other in (other for other in KINDS if other != kind):
        mixed = {"kinds mixed up": one.wanted(other)}
        refuse_idea(seen, ideas(SAYS, mixed, other=other, **about), one.when)
    refuse_idea(seen, ideas(SAYS, gives, **about), one.when)
    pairs = list(zip(seen, wanted, strict=True))
    looks = {
        "padding leaks in": any(bool((x == old_ranks.PADDING).any()) for x in seen),
        "padding not zero": all(near(x[w != 0], w[w != 0]) for x, w in pairs),
        "some left zero": all(near(x, torch.where(x == 0, 0.0, w)) for x, w in pairs),
        "another order": all(bool(torch.isin(x, w).all()) for x, w in pairs),
        "another's elements": True,
    }
    SAYS.refuse(looks, **about)


def _look_at_reads(one: Trial) -> None:
    whole = sum(len(piece) for pieces in old_ranks.files(one.run).values() for piece in pieces)
    for rank, report in enumerate(one.reports):
        need = len(KINDS) * sum(old_ranks.real(one.run, one.n, rank))
        looks = {
            "everything is read": report["distinct"] == whole,
            "too much is read": report["distinct"] > need,
            "read twice": report["read"] > need,
            "sent round": report["sent"],
        }
        head = f"The shards are right. Rank {rank} reads {report['read'] * trial.ITEM} bytes, "
        head += f"{one.when}, and needs {need * trial.ITEM}. "
        SAYS.refuse(looks, head=head, sent=report["sent"])


def _look_at_losses(one: Trial) -> None:
    wanted = old_ranks.without_a_save(one.run, one.seed, trial.STEPS)
    for rank, report in enumerate(one.reports):
        for k, (seen, loss) in enumerate(zip(report["losses"], wanted, strict=True)):
            if not near(seen, loss):
                raise SAYS("another loss", k=k + 1, seen=seen, rank=rank, when=one.when, loss=loss)


LOOKS = Looks(
    shape=_look_at_shape,
    unchanged=_look_at_memory,
    value=_look_at_values,
    traffic=_look_at_reads,
    later_steps=_look_at_losses,
)
FROM_OLD_RANKS = Exercise(judge=judge_go_on, **SAYS.about)
