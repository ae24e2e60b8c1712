"""`shard_groups` of lesson 09: an optimizer's groups, with pieces in the place of parameters.

What comes back is looked at element by element, then AdamW trains with it beside one process.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on, refuse_none
from course_lib.classroom.checks.lesson_09 import each
from course_lib.classroom.checks.lesson_09.each import refuse_each
from course_lib.classroom.checks.looking import ITEM, THREE, TOLERANCE, TWO, fresh_seed
from course_lib.classroom.checks.words import Page
from course_lib.collectives import all_gather, all_reduce
from course_lib.collectives.call import Group
from course_lib.zero.partition import partition

STEPS = 4
# Flat order is the reverse of this one. Two biases in different groups are alike, as they are in a
# fresh model.
SHAPES = ((3, 5), (5,), (2, 2), (4, 6), (6,), (5, 4), (5,))
ALIKE = (1, 6)
# Three groups whose order is not the bucket's, and which have not all the same options: parameters,
# options. A group of biases decays, another does not, and one parameter is in none.
GROUPS = (
    ((4, 6), {"weight_decay": 0.1, "lr": 0.01, "betas": (0.8, 0.95), "initial_lr": 0.02}),
    ((0, 3, 5), {"weight_decay": 0.3, "lr": 0.05}),
    ((1,), {"weight_decay": 0.0, "lr": 0.05}),
)
DECAYED, PLAIN = 1, 2
PADDING, FROZEN = -2, -1  # owners that are no group
SAYS = Page("lesson_09/shard_groups")


def groups_of(params: list[nn.Parameter]) -> list[dict]:
    return [{"params": [params[i] for i in which], **options} for which, options in GROUPS]


def drawn(seed: int) -> list[Tensor]:
    """Numbers for every parameter."""
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=made, dtype=torch.float64) for shape in SHAPES]


def train(function: Callable, group: Group, seed: int) -> dict:
    """Ask for the groups, look at them, and train with them."""
    params = [nn.Parameter(x * (i not in ALIKE)) for i, x in enumerate(drawn(seed))]
    alone, rank = copy.deepcopy(params), group.rank()
    (bucket,) = partition([(str(i), p) for i, p in enumerate(params)], group.size()).buckets
    buffer = bucket.buffer()
    with torch.no_grad():
        for slot in bucket.slots:
            view = bucket.view(buffer, slot).copy_(slot.parameter)
            slot.parameter.data = view
    shard, groups = bucket.shard(buffer, rank), groups_of(params)
    pieces = [(p.slot.parameter, p.start, p.stop, p.at) for p in bucket.pieces(rank)]
    first = [torch.zeros(1, dtype=torch.float64) for _ in range(2)]
    small, _ = bench.watched(lambda: function(*_small(first, rank)))
    before, handed = _parts(small), list(pieces)
    out, facts = bench.watched(lambda: function(groups, handed, shard))
    shared = {p for one in _parts(out) for p in one} & {x.data_ptr() for x in first}
    report = {
        "kind": bench.kind(out),
        "form": _form(out, shard, buffer),
        "small": [len(one) for one in before] == [int(rank == i) for i in (0, 1, -1)],
        "elements": [],
        "gap": 0.0,
    }
    if _parts(small) != before or shared:
        report["form"] = "kept between calls"
    if facts["ops"]:
        report["form"] = "a message"
    if _plain(groups) != _plain(groups_of(params)) or [*map(id, handed)] != [*map(id, pieces)]:
        report["form"] = "input changed"
    if not report["form"]:
        report["elements"] = _elements(out, pieces, shard, groups)
        report["groups"] = len(out)
    good = torch.tensor(int(clean(report)))
    if all_reduce(good, group, "min"):  # on every rank
        report["gap"] = _gap(out, bucket, buffer, params, alone, group, seed)
    return report


def _gap(out, bucket, buffer, params, alone, group: Group, seed: int) -> float:
    """How far the weights are from those of one process after some steps."""
    rank, shard = group.rank(), bucket.shard(buffer, group.rank())
    optimizer, reference = torch.optim.AdamW(out), torch.optim.AdamW(groups_of(alone))
    for step in range(STEPS):
        mean = drawn(seed * 31 + step)  # over the ranks
        grads = bucket.buffer().fill_(1.0)  # padding gets some too, to see who takes it
        for slot, g in zip(reversed(bucket.slots), mean, strict=True):
            bucket.view(grads, slot).copy_(g)
        own = bucket.shard(grads, rank)
        for part in (p for one in optimizer.param_groups for p in one["params"]):
            at = (part.data_ptr() - shard.data_ptr()) // ITEM
            part.grad = own[at : at + part.numel()].clone()
        optimizer.step()
        buffer.copy_(all_gather(shard.clone(), group))
        for p, g in zip(alone, mean, strict=True):
            p.grad = g
        reference.step()
    return max(float((a - b).detach().abs().max()) for a, b in zip(params, alone, strict=True))


def _small(values: list[Tensor], rank: int) -> tuple[list[dict], list[tuple], Tensor]:
    """An earlier use, of two elements: the first two ranks have one each, the third padding."""
    params = [nn.Parameter(x) for x in values]
    pieces = [(params[rank], 0, 1, 0)] if rank < 2 else []
    shard = values[rank] if rank < 2 else torch.zeros(1, dtype=torch.float64)
    groups = [{"params": [p], "lr": 0.1, "weight_decay": i} for i, p in enumerate(params)]
    return [*groups, {"params": [], "lr": 0.2, "weight_decay": 0}], pieces, shard


def _parts(out: object) -> list[list[int]]:
    """Where the parts of each group lie, as far as these are groups."""
    found = out if isinstance(out, (list, tuple)) else []
    lists = [one.get("params") for one in found if isinstance(one, dict)]
    sequences = [one for one in lists if isinstance(one, (list, tuple))]
    return [[p.data_ptr() for p in one if bench.plain(p)] for one in sequences]


def _options(group: dict) -> dict:
    return {name: value for name, value in group.items() if name != "params"}


def _plain(groups: list[dict]) -> list[tuple]:
    return [(_options(one), list(map(id, one["params"]))) for one in groups]


def _form(out: object, shard: Tensor, buffer: Tensor) -> str:
    """The entry for what is no list of groups, or has parts that are not in the shard's memory."""
    if not isinstance(out, (list, tuple)) or len(_parts(out)) != len(out):
        return "not groups"
    if len({id(one) for one in out}) < len(out):
        return "twice #2"
    parts = [p for one in out for p in one["params"]]
    if not all(map(bench.plain, parts)):
        return "not groups"
    inside, own = buffer.untyped_storage().data_ptr(), shard.dtype
    parts = [part for part in parts if part.numel()]
    if any(part.untyped_storage().data_ptr() != inside for part in parts):
        return "copies"
    for part in parts:
        at = (part.data_ptr() - shard.data_ptr()) // ITEM
        if not 0 <= at <= len(shard) - part.numel():
            return "not cut"
    leaves = all(isinstance(p, nn.Parameter) and p.is_leaf and p.dim() == 1 for p in parts)
    return "" if leaves and all(p.dtype == own for p in parts) else "not parameters"


def _elements(out: list, pieces: list, shard: Tensor, groups: list[dict]) -> list[tuple]:
    """Of each element of the shard: its owner, how many parts it is in, whose options it has."""
    owner = [PADDING] * len(shard)
    for parameter, start, stop, at in pieces:
        found = [i for i, g in enumerate(groups) if any(parameter is p for p in g["params"])]
        owner[at : at + stop - start] = [*found, FROZEN][:1] * (stop - start)
    times, options = [0] * len(shard), [[] for _ in shard]
    for one in out:
        same = [i for i, g in enumerate(groups) if _options(g) == _options(one)]
        for part in one["params"]:
            start = (part.data_ptr() - shard.data_ptr()) // ITEM
            for i in range(start, start + part.numel()):
                times[i] += 1
                options[i] = same
    return list(zip(owner, times, options, strict=True))


def clean(report: dict) -> bool:
    """Whether each element is in as many parts as it should be, and with its own options."""
    return not report["form"] and all(
        times == (owner >= 0) and (owner < 0 or owner in options)
        for owner, times, options in report["elements"]
    )


def judge_decay(answer: Answer, judge: Judge) -> None:
    """On three ranks, then on two that are not the notebook's first two."""
    judge.take(answer, __name__, each.__name__)
    seed = fresh_seed()
    for members in (THREE, TWO):
        when = on(members)
        reports = judge.trial(answer, train, seed, members=members, when=when)
        refuse_none(reports, when, "a list of groups")
        for rank, report in enumerate(reports):
            if report["form"]:
                raise SAYS(report["form"], where=f"on rank {rank}, {when}")
        look_at_elements([one for report in reports for one in report["elements"]], when)
        looks = {
            "other groups #1": lambda one: one["groups"] != len(GROUPS),
            "other groups #2": lambda one: not one["small"],
        }
        for rank, report in enumerate(reports):
            refuse_each(SAYS, [report], looks, where=f"on rank {rank}, {when}")
        gap = max(report["gap"] for report in reports)
        if not gap <= TOLERANCE:
            raise SAYS("other weights", gap=gap, when=when)


def look_at_elements(elements: list[tuple], when: str) -> None:
    """Every element that is trained in one part, with the options of its group."""
    trained = [one for one in elements if one[0] >= 0]
    left_out = sum(not times for _, times, _ in trained)
    wrong = [one for one in trained if one[0] not in one[2]]
    decayed = [options for owner, _, options in wrong if owner == DECAYED]
    for entry, holds in (
        ("padding trained", any(owner == PADDING and times for owner, times, _ in elements)),
        ("frozen and trained", any(owner == FROZEN and times for owner, times, _ in elements)),
        ("twice #1", any(times > 1 for _, times, _ in elements)),
        ("numbers left out", left_out),
        ("options lost", wrong and not any(options for _, _, options in wrong)),
        ("one group for all", wrong and len({tuple(one[2]) for one in trained}) == 1),
        ("decay by the pieces' shape", decayed and all(one == [PLAIN] for one in decayed)),
        ("another group's options", wrong),
    ):
        if holds:
            count = left_out if entry == "numbers left out" else len(wrong)
            raise SAYS(entry, count=count, when=when)


DECAY = Exercise(judge=judge_decay, **SAYS.about)
