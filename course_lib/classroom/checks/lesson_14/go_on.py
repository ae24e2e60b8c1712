"""`from_old_ranks` of lesson 14: shards of m ranks, read by n ranks, and the same next loss.

An answer's shards are held against the logical tensors, its reads against what a rank needs, and
the losses of three more steps against those of a run that was never saved.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
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
    Idea,
    Looks,
    fresh_seed,
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
    for rank, report in enumerate(one.reports):
        if report["kind"] != "dict":
            raise SAYS(
                "not a dictionary",
                rank=rank,
                kind=report["kind"],
                when=one.when,
                keys=", ".join(KEYS),
            )
        if report["lost"]:
            lost = ", ".join(report["lost"])
            raise SAYS("a key missing", lost=lost, rank=rank, when=one.when)
    for kind in KINDS:
        for rank, (seen, wanted) in enumerate(zip(one.seen(kind), one.wanted(kind), strict=True)):
            if not isinstance(seen, Tensor):
                raise SAYS("not a shard", kind=kind, rank=rank, seen=seen, when=one.when)
            if len(seen) != len(wanted):
                _refuse_length(one, kind, rank, len(seen), len(wanted))


def _refuse_length(one: Trial, kind: str, rank: int, seen: int, wanted: int) -> None:
    text = f"`{kind}` on rank {rank} has {seen} elements, {one.when}, and not {wanted}. "
    totals = [sum(size for _, size in group) for group in one.run.sizes.layout(True)]
    if seen >= sum(totals):
        raise SAYS("not cut", text=text)
    if seen == sum(old_ranks.real(one.run, one.n, rank)):
        raise SAYS("own padding forgotten", text=text)
    if all(len(x) == sum(total // one.n for total in totals) for x in one.seen(kind)):
        raise SAYS("rounded down", text=text)
    raise SAYS("wrong length", text=text)


def _look_at_memory(one: Trial) -> None:
    refuse_changed(one, "a layout")
    for rank, report in enumerate(one.reports):
        if report["shared"]:
            raise SAYS("one buffer #1", rank=rank, when=one.when)
        if not report["kept"]:
            raise SAYS("one buffer #2", rank=rank, when=one.when)


def _look_at_values(one: Trial) -> None:
    for kind in KINDS:
        seen, wanted = one.seen(kind), one.wanted(kind)
        if not all(map(near, seen, wanted)):
            _refuse_shards(one, kind, seen, wanted)
    for key in (STEP, NEXT):
        for rank, value in enumerate(one.seen(key)):
            if type(value) is not int:
                text = f"`{key}` on rank {rank} is {value!r}, {one.when}; expected is an int."
                raise Finding("not a whole number", text)
    run, n = one.run, one.n
    if one.seen(STEP) != one.wanted(STEP):
        text = "Adam divides by 1 − βᵗ: with another t the next update has another size."
        if not any(one.seen(STEP)):
            raise SAYS("step forgotten", when=one.when, text=text)
        raise SAYS("another step", step=one.seen(STEP), when=one.when, text=text)
    own = BATCH // n
    done = run.samples * run.m
    ideas = (
        (
            "data from the start",
            [r * own for r in range(n)],
            "The samples begin anew: the old ranks have read some of them.",
        ),
        (
            "one old rank's count",
            [run.samples + r * own for r in range(n)],
            "`samples` is what *each* of the old ranks has read.",
        ),
        (
            "counted with the new ranks",
            [run.samples * n + r * own for r in range(n)],
            "The old ranks have read it: multiply by how many they were, not by the new ranks.",
        ),
        (
            "the same for all ranks",
            [done] * n,
            "Every rank would read the same samples: each has its part of the batch.",
        ),
        (
            "the old ranks' part",
            [done + r * (BATCH // run.m) for r in range(n)],
            "The new ranks share the batch: each has batch / n samples of it.",
        ),
        (
            "a batch for each rank",
            [done + r * BATCH for r in range(n)],
            "`batch` are the samples of all ranks together, of which each has its part.",
        ),
        (
            "parts of one sample",
            [done + r for r in range(n)],
            "A rank's part of a batch is batch / n samples, one after another.",
        ),
    )
    if one.seen(NEXT) != one.wanted(NEXT):
        for name, values, text in ideas:
            if one.seen(NEXT) == values:
                raise Finding(name, f"`next` is {values}, {one.when}. {text}")
        raise SAYS("another sample", next=one.seen(NEXT), when=one.when)


def _refuse_shards(one: Trial, kind: str, seen: list[Tensor], wanted: list[Tensor]) -> None:
    run, n, ranks = one.run, one.n, range(one.n)
    zeros = [torch.zeros_like(x) for x in wanted]
    ideas = [
        Idea("moments forgotten" if kind != MASTER else "nothing read",
             f"`{kind}` is zero. Without its moments an optimizer starts anew: the next loss is "
             "right, and the one after it is not.", zeros),
        *(Idea("kinds mixed up", f"`{kind}` holds what is in {other}.", one.wanted(other))
          for other in KINDS if other != kind),
        Idea("the call before", f"`{kind}` is what an earlier call has read, of another run. Does "
             "your function keep something between calls?", [trial.BEFORE * x for x in wanted]),
        Idea("every rank has the first one's",
             f"`{kind}` is the first rank's shard on every rank. Ask the group for the rank.",
             [wanted[0]] * n),
        Idea("the old order", f"`{kind}` has the parameters in the old run's order. The new one "
             "has another one: go by their names.",
             [old_ranks.in_the_old_order(run, n, r, kind) for r in ranks]),
        Idea("old pieces rounded down", f"`{kind}` is read as if an old rank's piece of a group "
             "were rounded down. It was padded: round up.",
             [old_ranks.misread(run, n, r, kind, floor=True) for r in ranks]),
        Idea("padding between the groups", f"`{kind}` is wrong in the second group: in an old "
             "rank's file it begins after that rank's piece of the first, padding included.",
             [old_ranks.misread(run, n, r, kind, base=True) for r in ranks]),
    ]  # fmt: skip
    refuse_idea(seen, ideas, one.when)
    if any(bool((x == old_ranks.PADDING).any()) for x in seen):
        raise SAYS("padding leaks in", kind=kind, when=one.when)
    pairs = list(zip(seen, wanted, strict=True))
    real = [w != 0 for w in wanted]
    if all(map(near, [x[r] for x, r in zip(seen, real, strict=True)],
               [w[r] for w, r in zip(wanted, real, strict=True)])):  # fmt: skip
        text = f"`{kind}` has its parameters, and no zeros in the padding, {one.when}."
        raise Finding("padding not zero", text)
    if all(map(near, seen, [torch.where(x == 0, 0.0, w) for x, w in pairs])):
        raise SAYS("some left zero", kind=kind, when=one.when)
    if all(bool(torch.isin(x, w).all()) for x, w in pairs):
        text = f"`{kind}` has the right elements in another order, {one.when}."
        raise Finding("another order", text)
    raise SAYS("another's elements", kind=kind, when=one.when)


def _look_at_reads(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        need = len(KINDS) * sum(old_ranks.real(one.run, one.n, rank))
        head = (
            f"The shards are right. Rank {rank} reads {report['read'] * trial.ITEM} bytes, "
            f"{one.when}, and needs {need * trial.ITEM}. "
        )
        whole = sum(len(piece) for pieces in old_ranks.files(one.run).values() for piece in pieces)
        if report["distinct"] == whole:
            raise SAYS("everything is read", head=head)
        if report["distinct"] > need:
            raise SAYS("too much is read", head=head)
        if report["read"] > need:
            raise SAYS("read twice", head=head)
        if report["sent"]:
            raise SAYS("sent round", head=head, sent=report["sent"])


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
