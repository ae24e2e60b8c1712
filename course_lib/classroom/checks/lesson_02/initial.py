"""`sharded_init` of lesson 02: parts of a layer whose values do not depend on how many hold them.

The whole is what torch.nn.Linear would have drawn. An answer is held against its parts, against the
generator's state afterwards, against what it keeps in memory and against sending nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.general import ROUNDED
from course_lib.classroom.checks.judge import Judge, refuse_world_numbers
from course_lib.classroom.checks.lesson_01.trial import CALLS, refuse_second
from course_lib.classroom.checks.lesson_02.dense import dense, own_seeds, parts, ratio, same
from course_lib.classroom.checks.lesson_02.results import (
    Owed,
    look_at_results,
    refuse_overwritten,
    tried,
    where,
)
from course_lib.classroom.checks.lesson_02.trial import COLUMNS, ROWS, initial
from course_lib.classroom.checks.looking import fresh_seed


class Trial(NamedTuple):
    """One call on a group, the dense layer that it should be a part of, and what came back."""

    way: str
    h: int
    f: int
    reports: list[dict]
    owed: list[list[Owed]]
    following: Tensor  # the generator's next numbers after the dense layer
    seed: int
    when: str
    second: bool  # whether a call with the same sizes came before it

    @property
    def n(self) -> int:
        return len(self.reports)


def judge_init(answer: Answer, judge: Judge) -> None:
    """Try sharded_init; raise the Finding that explains best what is wrong."""
    judge.take(answer, "course_lib.classroom.checks.lesson_02.trial")
    seed = fresh_seed()
    three, two = [0, 1, 2], [1, 2]
    p = 7 + 3 * (seed % 2)  # no size is another, or a number of ranks
    even = _try(answer, judge, COLUMNS, three, p, 12, seed)
    even += _try(answer, judge, ROWS, three, 12, p, seed)
    _look_at_values(answer, even)
    uneven = []
    for way, members, h, f in (
        (COLUMNS, three, p, 4),  # four over three ranks: the last has nothing
        (ROWS, three, 4, p),
        (ROWS, two, 2 * p + 1, p + 2),
    ):
        uneven += _try(answer, judge, way, members, h, f, seed)
    _look_at_values(answer, uneven)
    for trial in even + uneven:
        _look_at_traffic(trial)
    for trial in even + uneven:
        _look_at_generator(trial)
        _look_at_memory(trial)
        refuse_overwritten(trial.reports, trial.owed, trial.when)


def _try(
    answer: Answer,
    judge: Judge,
    way: str,
    members: list[int],
    h: int,
    f: int,
    seed: int,
) -> list[Trial]:
    when = where(members, f"W[{h}, {f}] cut by {way}")
    length = f if way == COLUMNS else h
    calls = tried(answer, judge, members, when, length, initial, h, f, way, seed)
    n, made = len(members), []
    for k, reports in enumerate(calls):
        weight, bias, following = dense(h, f, seed + k)
        owed = [parts(weight, bias, way, n, rank) for rank in range(n)]
        at = when + CALLS[k]
        look_at_results(reports, owed, at, "float32")
        made.append(Trial(way, h, f, reports, owed, following, seed + k, at, k > 0))
    return made


def _look_at_values(answer: Answer, trials: list[Trial]) -> None:
    wrong = [(t, part) for t in trials for part in range(2) if _wrong_ranks(t, part)]
    if not wrong:
        return
    if all(trial.n == 2 for trial, _ in wrong):
        refuse_world_numbers(answer, wrong[0][0].when)
    refuse_second(all(trial.second for trial, _ in wrong), wrong[0][0].when)
    wrong = [(trial, part) for trial, part in wrong if not trial.second]
    # The bias is drawn after the weight. And one of the two cuts may say more than the other.
    first = min(part for _, part in wrong)
    found = [_wrong_value(trial, first) for trial, part in wrong if part == first]
    raise next((one for one in found if one.name != "other numbers"), found[0])


def _wrong_ranks(trial: Trial, part: int) -> list[int]:
    return [
        rank
        for rank, report in enumerate(trial.reports)
        if not same(report["entries"][part], trial.owed[rank][part].part)
    ]


def _wrong_value(trial: Trial, part: int) -> Finding:
    wrong = _wrong_ranks(trial, part)
    rank, n = wrong[0], trial.n
    name = trial.owed[0][part].name
    got = [report["entries"][part] for report in trial.reports]
    right = [owed[part].part for owed in trial.owed]
    head = f"The {name} on rank {rank} is not the dense layer's {trial.when}."
    scaled = ratio(got[rank], right[rank])
    if scaled is not None:
        if trial.way == ROWS and math.isclose(scaled, math.sqrt(n), rel_tol=0.05):
            return Finding(
                "fan-in of the part",
                f"{head} It is {scaled:.3g} times too large. The bound of the values is one over "
                "the square root of h, the number of inputs that are summed: of the whole layer, "
                "not of this rank's part.",
            )
        if scaled == 0:
            return Finding("zeros", f"{head} It is all zeros.")
        return Finding("another scale", f"{head} It is {scaled:.3g} times the right one.")
    alike = all(one.shape == got[0].shape and same(one, got[0]) for one in got)
    if part == 1:
        if trial.way == ROWS and not alike:
            return Finding(
                "bias differs by rank",
                f"{head} By rows every rank holds the same whole bias, and these differ.",
            )
        return Finding(
            "bias drawn otherwise",
            f"{head} torch.nn.Linear draws the whole weight, then the bias, with the weight's "
            "bound: one over the square root of all h inputs.",
        )
    if alike and any(report["ops"] for report in trial.reports):
        return Finding(
            "rank 0's part everywhere",
            f"{head} All ranks hold the same part, as one of them has sent it. Each needs its own.",
        )
    if alike:
        return Finding(
            "same numbers on every rank",
            f"{head} All ranks hold the same values. With one seed, ranks that each draw a part "
            "of their own draw the same part: then the layer repeats itself.",
        )
    if own_seeds(trial.h, trial.f, trial.way, trial.seed, got):
        return Finding(
            "a seed for each rank",
            f"{head} Each rank has set a seed of its own. Then the parts differ, but the model "
            "depends on how many ranks there are; and whatever is to be drawn alike later on, such "
            "as a mask of dropout, no longer is.",
        )
    others = [part for part in right if same(got[rank], part)]
    if others:
        return Finding(
            "another rank's part",
            f"{head} It is the part of another rank. Which rank begins where is the same for all.",
        )
    whole, dim = trial.owed[rank][0].whole, 0 if trial.way == COLUMNS else 1
    mine = torch.arange(rank, whole.shape[dim], n)
    if same(got[rank], whole.index_select(dim, mine)):
        return Finding(
            "every n-th",
            f"{head} It is every {n}-th column or row of the layer. A rank's part is one piece: "
            "course_lib.layout.span says where it begins and ends.",
        )
    off = (got[rank] - right[rank]).abs().max()
    if off < 1e-2 * whole.abs().max():
        return Finding(
            ROUNDED, f"{head} It was rounded to a narrower type on the way; the layer is float32."
        )
    h_part = trial.owed[rank][0].part.shape[1]
    if got[rank].abs().max() > 1.001 / math.sqrt(max(1, min(h_part, trial.h))):
        return Finding(
            "another distribution",
            f"{head} Some values are beyond the bound that torch.nn.Linear has: one over the "
            "square root of the number of inputs.",
        )
    return Finding(
        "other numbers",
        f"{head} The values come from elsewhere in the generator's stream, or from another seed: "
        "another number of ranks would give another model. Which numbers of the whole layer are "
        "this rank's, and how many does the generator give before them?",
    )


def _look_at_traffic(trial: Trial) -> None:
    for rank, report in enumerate(trial.reports):
        if report["ops"]:
            ops = " and ".join(f"{count} × {op}" for op, count in report["ops"].items())
            raise Finding(
                "sent",
                f"The values are right, but rank {rank} calls {ops} {trial.when}. All ranks have "
                "the same seed: what one of them can draw, each can draw.",
            )


def _look_at_generator(trial: Trial) -> None:
    for rank, report in enumerate(trial.reports):
        if not torch.equal(report["next"], trial.following):
            raise Finding(
                "generator out of step",
                f"The values are right, but afterwards the generator of rank {rank} is not "
                f"in the state in which the dense layer would have left it, {trial.when}. The next "
                "layer would be another one; ranks whose generators differ also drop different "
                "neurons. Every rank has to draw as much as the whole.",
            )


def _look_at_memory(trial: Trial) -> None:
    for rank, report in enumerate(trial.reports):
        for kept, owed in zip(report["kept"], trial.owed[rank], strict=True):
            if kept > owed.part.nbytes and owed.part.numel() < owed.whole.numel():
                raise Finding(
                    "whole kept alive",
                    f"The values are right, but rank {rank} still keeps {kept} bytes for a "
                    f"{owed.name} of {owed.part.nbytes}, {trial.when}. A slice "
                    "is a view: as long as it lives, so does the full layer whose memory it "
                    "shares.",
                )
        for graph, owed in zip(report["in_graph"], trial.owed[rank], strict=True):
            if graph and owed.part.numel() < owed.whole.numel():
                raise Finding(
                    "whole kept alive",
                    f"The values are right, but the {owed.name} of rank {rank} has a graph of "
                    f"autograd behind it, {trial.when}, and the graph keeps the full parameter of "
                    f"{graph} bytes. A part of a layer begins a graph of its own: detach it.",
                )


SHARDED_INIT = Exercise(
    name="sharded_init",
    title="One model, whatever the number of ranks",
    points=3,
    judge=judge_init,
    when_right=(
        "Each rank holds its part of the layer that one process would have drawn, on two ranks and "
        "on three, and for both cuts; nothing was sent, nothing of the rest is kept, and every "
        "generator stands where it would after the whole layer."
    ),
    hints=(
        "What should not depend on the number of ranks: the numbers of the whole layer. So begin "
        "with all of them; which of torch's own classes draws them, and in what order?",
        "Every rank may draw the whole and keep a part: all have the same seed. course_lib.layout."
        "span(f, n, rank) says where a part begins and ends.",
        "torch.nn.Linear keeps its weight as [f, h]. Columns of W[h, f] are rows there.",
        "A slice shares its memory with the whole. What makes a tensor with a memory of its own, "
        "so that the rest can go?",
    ),
)
