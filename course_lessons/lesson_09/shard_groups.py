"""`shard_groups` of lesson 09: an optimizer's groups, with pieces instead of parameters.

The result is checked element by element, then AdamW trains with it and is compared with one
process.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from course_classroom.judge import bench, layers
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import refuse_none
from course_classroom.judge.looking import ITEM, TOLERANCE
from course_classroom.judge.words import Page
from course_lessons.lesson_09.each import judged
from course_lib.collectives import all_gather
from course_lib.collectives.call import Group
from course_lib.zero.partition import Bucket, partition

STEPS = 4
# Flat order is the reverse. Two biases in different groups are equal, as in a fresh model.
SHAPES = ((3, 5), (5,), (2, 2), (4, 6), (6,), (5, 4), (5,))
ALIKE = (1, 6)
# Parameters and options of three groups in a different order than the bucket's, with different sets
# of options. One group of biases decays, another does not, and one parameter is in no group.
GROUPS = (
    ((4, 6), {"weight_decay": 0.1, "lr": 0.01, "betas": (0.8, 0.95), "initial_lr": 0.02}),
    ((0, 3, 5), {"weight_decay": 0.3, "lr": 0.05}),
    ((1,), {"weight_decay": 0.0, "lr": 0.05}),
)
DECAYED, PLAIN = 1, 2
PADDING, FROZEN = -2, -1  # owners that are not groups
SAYS = Page(__file__, "shard_groups")


def drawn(seed: int) -> list[Tensor]:
    """Draw random values for every parameter."""
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=made, dtype=torch.float64) for shape in SHAPES]


def parameters(seed: int) -> list[nn.Parameter]:
    return [nn.Parameter(x * (i not in ALIKE)) for i, x in enumerate(drawn(seed))]


def groups_of(params: list[nn.Parameter]) -> list[dict]:
    return [{"params": [params[i] for i in which], **options} for which, options in GROUPS]


def train(function: Callable, group: Group, seed: int) -> dict:
    """Call the answer, check the groups that it returns, and train with them."""
    params, rank = parameters(seed), group.rank()
    (bucket,) = partition([(str(i), p) for i, p in enumerate(params)], group.size()).buckets
    buffer = bucket.buffer()
    with torch.no_grad():
        for slot in bucket.slots:
            slot.parameter.data = bucket.view(buffer, slot).copy_(slot.parameter)
    shard, groups = bucket.shard(buffer, rank), groups_of(params)
    pieces = [(p.slot.parameter, p.start, p.stop, p.at) for p in bucket.pieces(rank)]
    first = [torch.zeros(1, dtype=torch.float64) for _ in range(2)]
    small, _ = bench.watched(lambda: function(*_small(first, rank, lr=0.1)))
    before, handed = _parts(small), list(pieces)
    out, facts = bench.watched(lambda: function(groups, handed, shard))
    shared = {p for one in _parts(out) for p in one} & {x.data_ptr() for x in first}
    kept = [*map(id, handed)] == [*map(id, pieces)] and _plain(groups) == _plain(groups_of(params))
    faults = {
        "input changed": not kept,
        "a message": facts["ops"],
        "kept between calls": shared or _parts(small) != before,
    }
    form = next((entry for entry, holds in faults.items() if holds), "")
    form = form or _form(out, shard, buffer)
    elements = [] if form else _elements(out, pieces, shard, groups)
    clean = not form and all(
        len(options) == (owner >= 0) and all(owner in one for one in options)
        for owner, options in elements
    )
    fine = layers.agreed(clean, group)  # on every rank
    later = bench.watched(lambda: function(*_small(first, rank)))[0] if fine else []
    return {
        "kind": bench.kind(out),
        "form": form,
        "small": [len(one) for one in before] == [int(rank == i) for i in (0, 1, -1)],
        "more": any(one.keys() != {"params", "weight_decay"} for one in later),
        "elements": elements,
        "groups": 0 if form else len(out),
        "gap": _gap(out, bucket, buffer, params, group, seed) if fine else 0.0,
    }


def _small(values: list[Tensor], rank: int, **options: float) -> tuple[list, list, Tensor]:
    """Make a second case with two elements: the first two ranks have one each, others padding."""
    params = [nn.Parameter(x) for x in values]
    pieces = [(params[rank], 0, 1, 0)] if rank < 2 else []
    shard = values[rank] if rank < 2 else torch.zeros(1, dtype=torch.float64)
    lists = [*([p] for p in params), []]
    return [{"params": p, "weight_decay": 0, **options} for p in lists], pieces, shard


def _parts(out: object) -> list[list[int]]:
    """Return the addresses of each group's parts, ignoring anything that is not a group."""
    found = out if isinstance(out, (list, tuple)) else []
    lists = [one.get("params") for one in found if isinstance(one, dict)]
    sequences = [one for one in lists if isinstance(one, (list, tuple))]
    return [[p.data_ptr() for p in one if bench.plain(p)] for one in sequences]


def _options(group: dict) -> dict:
    return {name: value for name, value in group.items() if name != "params"}


def _plain(groups: list[dict]) -> list[tuple]:
    return [(_options(one), list(map(id, one["params"]))) for one in groups]


def _begin(part: Tensor, shard: Tensor) -> int:
    return (part.data_ptr() - shard.data_ptr()) // ITEM


def _form(out: object, shard: Tensor, buffer: Tensor) -> str:
    """Return the entry if the result is not groups or has parts outside the shard's memory."""
    if not isinstance(out, (list, tuple)) or len(_parts(out)) != len(out):
        return "not groups"
    if len({id(one) for one in out}) < len(out):
        return "twice #2"
    parts = [p for one in out for p in one["params"]]
    if not all(map(bench.plain, parts)):
        return "not groups"
    parts, inside = [p for p in parts if p.numel()], buffer.untyped_storage().data_ptr()
    if any(part.untyped_storage().data_ptr() != inside for part in parts):
        return "copies"
    if not all(0 <= _begin(part, shard) <= len(shard) - part.numel() for part in parts):
        return "not sharded"
    leaves = all(isinstance(p, nn.Parameter) and p.is_leaf and p.dim() == 1 for p in parts)
    return "" if leaves and all(p.dtype == shard.dtype for p in parts) else "not parameters"


def _elements(
    out: list, pieces: list, shard: Tensor, groups: list[dict]
) -> list[tuple[int, list[list[int]]]]:
    """Return each shard element's owner and, for every part with this element, the groups that have
    the part's options."""
    owners, options = [PADDING] * len(shard), [[] for _ in shard]
    for parameter, start, stop, at in pieces:
        among = [i for i, g in enumerate(groups) if any(parameter is p for p in g["params"])]
        owners[at : at + stop - start] = [*among, FROZEN][:1] * (stop - start)
    for one in out:
        same = [i for i, g in enumerate(groups) if _options(g) == _options(one)]
        for part in one["params"]:
            begin = _begin(part, shard)
            for found in options[begin : begin + part.numel()]:
                found.append(same)
    return list(zip(owners, options, strict=True))


def _gap(out: list, bucket: Bucket, buffer: Tensor, params: list, group: Group, seed: int) -> float:
    """Return the distance between the trained weights and one process's weights."""
    alone, shard = parameters(seed), bucket.shard(buffer, group.rank())
    optimizer, reference = torch.optim.AdamW(out), torch.optim.AdamW(groups_of(alone))
    for step in range(STEPS):
        mean = drawn(seed * 31 + step)  # over the ranks
        grads = bucket.buffer().fill_(1.0)  # padding gets some too, to show who uses it
        for slot, g in zip(reversed(bucket.slots), mean, strict=True):
            bucket.view(grads, slot).copy_(g)
        own = bucket.shard(grads, group.rank())
        for part in (p for one in optimizer.param_groups for p in one["params"]):
            begin = _begin(part, shard)
            part.grad = own[begin : begin + part.numel()].clone()
        optimizer.step()
        buffer.copy_(all_gather(shard.clone(), group))
        for p, g in zip(alone, mean, strict=True):
            p.grad = g
        reference.step()
    return max(float((a - b).detach().abs().max()) for a, b in zip(params, alone, strict=True))


def look(reports: list[dict], when: str, seed: int) -> None:
    refuse_none(reports, when, "a list of groups")
    for rank, report in enumerate(reports):
        if report["form"]:
            raise SAYS(report["form"], rank=rank, when=when)
    look_at_elements([one for report in reports for one in report["elements"]], when)
    looks = {
        "wrong groups #1": lambda r: r["groups"] != len(GROUPS),
        "wrong groups #2": lambda r: not r["small"],
        "options lost": lambda r: r["more"],
        "wrong weights": lambda r: not r["gap"] <= TOLERANCE,
    }
    SAYS.refuse_each(reports, looks, when=when)


def look_at_elements(elements: list[tuple[int, list]], when: str) -> None:
    """Check that every element is trained in one part, with the options of its group."""
    left_out = sum(owner >= 0 and not options for owner, options in elements)
    trained = [(owner, options[0]) for owner, options in elements if owner >= 0 and options]
    wrong = [(owner, options) for owner, options in trained if owner not in options]
    decayed = [options for owner, options in wrong if owner == DECAYED]
    holds = {
        "padding trained": any(owner == PADDING and options for owner, options in elements),
        "frozen and trained": any(owner == FROZEN and options for owner, options in elements),
        "twice #1": any(len(options) > 1 for _, options in elements),
        "elements left out": left_out,
        "options lost": wrong and not any(options for _, options in wrong),
        "one group for all": wrong and len({tuple(options) for _, options in trained}) == 1,
        "decay by the pieces' shape": decayed and all(one == [PLAIN] for one in decayed),
        "wrong group's options": wrong,
    }
    SAYS.refuse(holds, left_out=left_out, count=len(wrong), when=when)


DECAY = Exercise(judge=judged(train, look), **SAYS.about)
