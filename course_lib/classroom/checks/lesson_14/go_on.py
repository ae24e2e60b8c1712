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
            raise Finding(
                "not a dictionary",
                f"Rank {rank} got a {report['kind']} back, {one.when}; expected is a dictionary "
                f"with {', '.join(KEYS)}.",
            )
        if report["lost"]:
            lost = ", ".join(report["lost"])
            raise Finding("a key missing", f"Without {lost} on rank {rank}, {one.when}.")
    for kind in KINDS:
        for rank, (seen, wanted) in enumerate(zip(one.seen(kind), one.wanted(kind), strict=True)):
            if not isinstance(seen, Tensor):
                raise Finding(
                    "not a shard",
                    f"`{kind}` on rank {rank} is {seen}, {one.when}; expected is a float64 tensor "
                    "with one dim.",
                )
            if len(seen) != len(wanted):
                _refuse_length(one, kind, rank, len(seen), len(wanted))


def _refuse_length(one: Trial, kind: str, rank: int, seen: int, wanted: int) -> None:
    text = f"`{kind}` on rank {rank} has {seen} elements, {one.when}, and not {wanted}. "
    totals = [sum(size for _, size in group) for group in one.run.sizes.layout(True)]
    if seen >= sum(totals):
        raise Finding("not cut", f"{text}That is all of the model: a rank holds its shard.")
    if seen == sum(old_ranks.real(one.run, one.n, rank)):
        raise Finding(
            "own padding forgotten",
            f"{text}The shards of all ranks are equally long: the last ones are padded with zeros.",
        )
    if all(len(x) == sum(total // one.n for total in totals) for x in one.seen(kind)):
        raise Finding(
            "rounded down",
            f"{text}A group that does not divide is padded, and not truncated: round up.",
        )
    raise Finding("wrong length", f"{text}Each group is padded and sharded by itself.")


def _look_at_memory(one: Trial) -> None:
    refuse_changed(one, "a layout")
    for rank, report in enumerate(one.reports):
        if report["shared"]:
            raise Finding(
                "one buffer",
                f"Two of the shards on rank {rank} are the same memory, {one.when}: the second "
                "has overwritten the first.",
            )
        if not report["kept"]:
            raise Finding(
                "one buffer",
                f"A second call has overwritten what the first one returned on rank {rank}, "
                f"{one.when}. Make new tensors in each call.",
            )


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
            raise Finding("step forgotten", f"`step` starts again at 0, {one.when}. {text}")
        raise Finding("another step", f"`step` is {one.seen(STEP)}, {one.when}. {text}")
    own = BATCH // n
    done = run.samples * run.m
    ideas = (
        ("data from the start", [r * own for r in range(n)],
         "The samples begin anew: the old ranks have read some of them."),
        ("one old rank's count", [run.samples + r * own for r in range(n)],
         "`samples` is what *each* of the old ranks has read."),
        ("counted with the new ranks", [run.samples * n + r * own for r in range(n)],
         "The old ranks have read it: multiply by how many they were, not by the new ranks."),
        ("the same for all ranks", [done] * n,
         "Every rank would read the same samples: each has its part of the batch."),
        ("the old ranks' part", [done + r * (BATCH // run.m) for r in range(n)],
         "The new ranks share the batch: each has batch / n samples of it."),
        ("a batch for each rank", [done + r * BATCH for r in range(n)],
         "`batch` are the samples of all ranks together, of which each has its part."),
        ("parts of one sample", [done + r for r in range(n)],
         "A rank's part of a batch is batch / n samples, one after another."),
    )  # fmt: skip
    if one.seen(NEXT) != one.wanted(NEXT):
        for name, values, text in ideas:
            if one.seen(NEXT) == values:
                raise Finding(name, f"`next` is {values}, {one.when}. {text}")
        raise Finding("another sample", f"`next` is {one.seen(NEXT)}, {one.when}.")


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
        raise Finding(
            "padding leaks in",
            f"`{kind}` has elements of an old file's padding, {one.when}. What stands there is no "
            "parameter: every group of the old run ends before it.",
        )
    pairs = list(zip(seen, wanted, strict=True))
    real = [w != 0 for w in wanted]
    if all(map(near, [x[r] for x, r in zip(seen, real, strict=True)],
               [w[r] for w, r in zip(wanted, real, strict=True)])):  # fmt: skip
        text = f"`{kind}` has its parameters, and no zeros in the padding, {one.when}."
        raise Finding("padding not zero", text)
    if all(map(near, seen, [torch.where(x == 0, 0.0, w) for x, w in pairs])):
        raise Finding(
            "some left zero",
            f"`{kind}` has zeros where parameters belong, {one.when}, and the rest is right. The "
            "elements of a parameter that a rank holds may be in several old files, and in as "
            "many as you like.",
        )
    if all(bool(torch.isin(x, w).all()) for x, w in pairs):
        text = f"`{kind}` has the right elements in another order, {one.when}."
        raise Finding("another order", text)
    raise Finding(
        "another's elements",
        f"`{kind}` has elements that belong elsewhere, {one.when}. For each parameter: which of "
        "its elements does this rank hold, and where were they stored before?",
    )


def _look_at_reads(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        need = len(KINDS) * sum(old_ranks.real(one.run, one.n, rank))
        head = (
            f"The shards are right. Rank {rank} reads {report['read'] * trial.ITEM} bytes, "
            f"{one.when}, and needs {need * trial.ITEM}. "
        )
        whole = sum(len(piece) for pieces in old_ranks.files(one.run).values() for piece in pieces)
        if report["distinct"] == whole:
            raise Finding(
                "everything is read",
                f"{head}It reads all files of all ranks: that is a gather, and n times the disk's "
                "work. Read the ranges that this rank needs.",
            )
        if report["distinct"] > need:
            raise Finding("too much is read", f"{head}Read the ranges that this rank needs.")
        if report["read"] > need:
            raise Finding("read twice", f"{head}Some of it is read more than once.")
        if report["sent"]:
            raise Finding(
                "sent round",
                f"{head}And it sends {report['sent']} bytes. Every rank reads what it needs: "
                "nothing has to be sent.",
            )


def _look_at_losses(one: Trial) -> None:
    wanted = old_ranks.without_a_save(one.run, one.seed, trial.STEPS)
    for rank, report in enumerate(one.reports):
        for k, (seen, loss) in enumerate(zip(report["losses"], wanted, strict=True)):
            if not near(seen, loss):
                raise Finding(
                    "another loss",
                    f"Loss {k + 1} after the load is {seen:.12g} on rank {rank}, {one.when}; "
                    f"without a save it is {loss:.12g}.",
                )


LOOKS = Looks(
    shape=_look_at_shape,
    unchanged=_look_at_memory,
    value=_look_at_values,
    traffic=_look_at_reads,
    later_steps=_look_at_losses,
)
FROM_OLD_RANKS = Exercise(judge=judge_go_on, **Page("lesson_14/from_old_ranks").about)
