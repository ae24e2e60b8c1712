"""`dropout_streams` of lesson 05: what copies share, what heads do not, and that both go on.

Equal means equal; independent is a statistical test of every pair of masks, with its bound stated
below. Each way in which a stream goes wrong shows at its own place in the order of the masks.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import WORLD, Judge, on
from course_lib.classroom.checks.lesson_05 import streams_trial as trial
from course_lib.classroom.checks.lesson_05.streams_trial import (
    COMMON,
    COPIES,
    ELEMENTS,
    HEADS,
    MOST,
    PAIRS,
    SWALLOWED,
)

REPLICAS = 3
# Two independent masks agree in half of their elements, give or take sqrt(ELEMENTS)/2. More than
# six times that is seen once in 5·10⁸ pairs; a right answer has some 700 pairs to pass.
BOUND = 6.0


def judge_streams(answer: Answer, judge: Judge) -> None:
    """Seed three replicas on three tp ranks, then on two, and compare all masks."""
    judge.take(answer, trial.__name__)
    seed = int.from_bytes(os.urandom(3), "big")
    for members in ([0, 1, 2], [1, 2]):
        n = len(members)
        where = f"on {n} tp ranks and {REPLICAS} replicas"
        how = {"members": members, "when": f"{on(members)}, as tp ranks"}
        reports = judge.trial(answer, trial.masks, seed, REPLICAS, **how)
        _look_at_results(reports, where)
        copies = torch.stack([report["copies"] for report in reports])  # (tp, dp, 4, ELEMENTS)
        heads = torch.stack([report["heads"] for report in reports])  # (tp, dp, 3, ELEMENTS)
        _look_at_copies(copies, where)
        _look_at_ranks(heads, where)
        _look_at_ways_out(copies, where)
        _look_at_heads(copies, heads, where)
        _look_at_seeds(reports, where)
        _look_at_replicas(copies, heads, where)
    how = {"members": [0, 1, 2], "when": "with ranks up to 1,000 on both axes"}
    reports = judge.trial(answer, trial.seeds, seed, **how)
    _look_at_processes([report["common"] for report in reports])
    parts = [PAIRS[rank::WORLD] for rank in range(WORLD)]
    drawn = [report["drawn"] for report in reports]
    _look_at_many([*zip(parts, drawn, strict=True), (COMMON, reports[0]["common"])])


def _look_at_results(reports: list[dict], where: str) -> None:
    for rank, report in enumerate(reports):
        if report["problem"] == "None":
            raise Finding(
                "nothing returned",
                f"Rank {rank} got None back {where}. Seed, then return a function `private`: it is "
                "used as `with private(): …`.",
            )
        if report["problem"] == SWALLOWED:
            raise Finding(
                "error swallowed",
                f"An exception raised inside `private` did not come out of it on rank {rank} "
                f"{where}. The generator has to be put back on that way out too, and the exception "
                "has to go on: the caller must learn that the block failed. `finally` does both.",
            )
        if report["problem"]:
            raise Finding(
                "not a context",
                f"What came back on rank {rank} ({report['problem']}) cannot be used as `with "
                "private(): …`. torch's dropout takes no generator of yours: inside the block, "
                "torch's own generator has to give this rank's numbers. contextlib.contextmanager "
                "makes such a function.",
            )
        if report["ops"]:
            raise Finding(
                "asked the others",
                f"A collective was called {where}. The three numbers that you get say everything: "
                "no rank needs to be asked.",
            )


def _look_at_copies(copies: Tensor, where: str) -> None:
    """The masks of copies: the same on all tp ranks, before and after heads; never one twice."""
    alike = [bool((copies[:, :, i] == copies[:1, :, i]).all()) for i in range(len(COPIES))]
    if not alike[0]:
        raise Finding(
            "copies drop different elements",
            f"{where.capitalize()}: the first mask outside of `private` differs between tp ranks. "
            "All of them hold the same residual stream; with different masks the copies are copies "
            "no longer. What all hold alike must not depend on tp_rank.",
        )
    if not alike[1]:
        raise Finding(
            "stream not given back",
            f"{where.capitalize()}: before `private` the tp ranks draw the same mask, after it "
            "they do not. On leaving the block torch's generator has to be in the state that "
            "it has on every other rank too.",
        )
    for i in range(1, len(COPIES)):
        for j in range(i):
            if alike[i] and torch.equal(copies[0, 0, i], copies[0, 0, j]):
                raise Finding(
                    "shared stream rewound",
                    f"{where.capitalize()}: after `private` the copies' mask from before comes "
                    "again. The shared stream has to go on, not to begin again: put back what the "
                    "generator's state was on *entering*, not what it was on seeding.",
                )


def _look_at_ranks(heads: Tensor, where: str) -> None:
    """The masks of heads: another on every tp rank."""
    for i in range(len(HEADS)):
        found = _related(heads[:, 0, i])
        if found:
            raise Finding(
                "one stream for all",
                f"{where.capitalize()}: inside `private`, tp ranks {found[0]} and {found[1]} drop "
                f"the same elements ({_agreement(heads[found[0], 0, i], heads[found[1], 0, i])} "
                "agree). They hold different heads, and one large model would draw for each of "
                "them.",
            )


def _look_at_ways_out(copies: Tensor, where: str) -> None:
    """The masks of copies after heads that drew unevenly, and after an error."""
    alike = [bool((copies[:, :, i] == copies[:1, :, i]).all()) for i in range(len(COPIES))]
    if not alike[2]:
        raise Finding(
            "moved by the heads",
            f"{where.capitalize()}: where one rank draws more inside `private` than another (heads "
            "that do not divide), the shared stream stands elsewhere on each. What is drawn inside "
            "must not move it.",
        )
    if not alike[3]:
        raise Finding(
            "lost on an error",
            f"{where.capitalize()}: after an exception inside `private` the tp ranks draw "
            "different masks. Put the generator back on that way out too: try and finally.",
        )


def _look_at_heads(copies: Tensor, heads: Tensor, where: str) -> None:
    """The masks of heads: others every time, and others than those of the copies."""
    for rank in range(len(heads)):
        if _related(heads[rank, 0]):
            raise Finding(
                "the same mask again",
                f"{where.capitalize()}: on tp rank {rank} two `private` blocks give the same mask, "
                "so every layer drops the same elements. A second block goes on where the first "
                "ended, or begins from a new number.",
            )
        both = torch.cat((copies[rank, 0], heads[rank, 0]))
        if _related(both):
            raise Finding(
                "heads copy the residual",
                f"{where.capitalize()}: on tp rank {rank} a mask of heads is also a mask of the "
                "copies: the private stream starts from the shared one's seed.",
            )


def _look_at_replicas(copies: Tensor, heads: Tensor, where: str) -> None:
    if _related(copies[0, :, 0]):
        raise Finding(
            "replicas drop alike",
            f"{where.capitalize()}: two replicas draw the same masks for different data. The "
            "tp ranks of one replica share a stream, and dp_rank belongs into its seed.",
        )
    for rank in range(len(heads)):
        if _related(heads[rank, :, 0]):
            raise Finding(
                "heads of replicas drop alike",
                f"{where.capitalize()}: tp rank {rank} draws the same masks for its heads in two "
                "replicas. The private stream needs dp_rank as well.",
            )
    every = torch.cat((heads.flatten(0, 2), copies[0].flatten(0, 1)))  # (streams' masks, ELEMENTS)
    if _related(every):
        raise Finding(
            "seeds collide",
            f"{where.capitalize()}: two streams that should have nothing in common, of different "
            "replicas and ranks, are the same one. Adding up does that: 1 + 0 is 0 + 1. Give every "
            "pair (dp_rank, tp_rank), and the shared stream of each replica, a number of its own.",
        )


def _look_at_seeds(reports: list[dict], where: str) -> None:
    if not all(report["again"] for report in reports):
        raise Finding(
            "not reproducible",
            f"{where.capitalize()}: the same seed and ranks gave other masks the second time. A "
            "run that cannot be repeated cannot be debugged.",
        )
    if not all(report["seed used"] for report in reports):
        raise Finding("seed not used", f"{where.capitalize()}: another seed gave the same masks.")


def _look_at_processes(common: list[Tensor]) -> None:
    """The same three numbers, asked in three processes, have to give the same streams."""
    for rank, drawn in enumerate(common[1:], 1):
        if not torch.equal(drawn, common[0]):
            raise Finding(
                "not reproducible",
                f"With the same seed, dp_rank and tp_rank, process {rank} draws other numbers than "
                "process 0. Something besides the three numbers goes into a seed: what differs "
                "from one process to the next, and from today's run to tomorrow's?",
            )


def _look_at_many(played: list[tuple[list, Tensor]]) -> None:
    """No two of some 2,000 pairs have a stream in common: the first numbers tell."""
    met: dict[bytes, str] = {}
    twice: dict[tuple[str, str], None] = {}
    for pairs, drawn in played:
        for (dp, tp), (shared, *heads) in zip(pairs, drawn, strict=True):
            names = [f"the shared stream of dp_rank {dp}"]
            names += [f"the private one of dp_rank {dp} and tp_rank {tp}"] * len(heads)
            for name, numbers in zip(names, (shared, *heads), strict=True):
                before = met.setdefault(numbers.numpy().tobytes(), name)
                if before != name:
                    twice[before, name] = None
    if len(twice) > 1:  # one of millions of pairs may meet by chance, where seeds are drawn
        a, b = next(iter(twice))
        raise Finding(
            "seeds collide",
            f"{a[0].upper()}{a[1:]} and {b} are the same stream. dp_rank and tp_rank are at most "
            f"{MOST}, and both may be {MOST}: {MOST + 1} values each, and the shared stream needs "
            "a number that no tp rank has.",
        )


def _related(masks: Tensor) -> tuple[int, int] | None:
    """The first two of (masks, ELEMENTS) that are not independent; None where all are."""
    signs = masks.float() * 2 - 1  # whole numbers as large as ELEMENTS: exact
    z = (signs @ signs.t()).abs() / ELEMENTS**0.5  # of a standard normal, where independent
    pairs = (z.fill_diagonal_(0) > BOUND).nonzero()
    return tuple(map(int, pairs[0])) if len(pairs) else None


def _agreement(a: Tensor, b: Tensor) -> str:
    return f"{(a == b).double().mean():.0%}"


STREAMS = Exercise(
    name="dropout_streams",
    title="Which random numbers ranks share",
    points=4,
    judge=judge_streams,
    when_right=(
        "Copies draw one mask on all tp ranks, before and after heads, also after an error and "
        "where ranks draw different amounts; heads draw independently by rank, layer and replica; "
        "and the seed brings everything back."
    ),
    hints=(
        "Make a table: for the residual stream and for the heads, on which of dp_rank and tp_rank "
        "may the mask depend? What is in no cell of the table must not be in that seed.",
        "`torch.random.fork_rng(devices=[])` is a context that puts the CPU generator's state back "
        "on leaving, after an exception too. What is left to decide is what the generator is set "
        "to inside.",
        "Two blocks in a row have to differ. Either the private state is kept between them "
        "(`torch.get_rng_state()` on leaving), or each block begins from a number that has not "
        "been used: where could such a number come from, the same way on every rank?",
        "Distinct seeds: put the numbers together as digits of one number, as in seed · 100 + "
        "dp_rank · 10 + tp_rank, but with a base that is larger than 1000, so that no digit "
        "overflows into the next place. The shared stream gets a last digit that no tp rank has.",
    ),
)
