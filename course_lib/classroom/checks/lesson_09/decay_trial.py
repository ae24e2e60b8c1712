"""What runs on the judge's ranks for `shard_groups`: AdamW on pieces of a flat bucket, in groups.

The bucket is cut where it falls; beside it AdamW trains the whole parameters in one process. Lesson
09.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.classroom.checks import bench
from course_lib.collectives import all_gather, all_reduce
from course_lib.zero.partition import partition

STEPS = 4
OPTIONS = ("lr", "weight_decay", "betas")  # the last in one group only
# Flat order is the reverse of this one. Two biases in different groups are alike, as they are in a
# fresh model.
SHAPES = ((3, 5), (5,), (2, 2), (4, 6), (6,), (5, 4), (5,))
ALIKE = (1, 6)
DECAYED, PLAIN, SLOW, FROZEN = (0, 3), (1, 4), (5, 6), (2,)


def warm() -> None:
    """Take the first use of an optimizer, which loads much."""
    part = nn.Parameter(torch.zeros(2))
    part.grad = torch.ones(2)
    torch.optim.AdamW([part]).step()


def parameters(seed: int) -> list[nn.Parameter]:
    made = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(shape, generator=made, dtype=torch.float64) for shape in SHAPES]
    return [nn.Parameter(x * (i not in ALIKE)) for i, x in enumerate(drawn)]


def groups_of(params: list[nn.Parameter]) -> list[dict]:
    """Three groups whose order is not the bucket's; one parameter is in none."""
    return [
        {"params": [params[i] for i in DECAYED], "weight_decay": 0.3, "lr": 0.05},
        {"params": [params[i] for i in PLAIN], "weight_decay": 0.0, "lr": 0.05},
        {
            "params": [params[i] for i in SLOW],
            "weight_decay": 0.1,
            "lr": 0.01,
            "betas": (0.8, 0.95),
        },
    ]


def gradients(seed: int, step: int) -> list[Tensor]:
    """The mean over the ranks, of every parameter; padding gets some too, to see who takes it."""
    made = torch.Generator().manual_seed(seed * 31 + step)
    return [torch.randn(shape, generator=made, dtype=torch.float64) for shape in SHAPES]


def train(function: Callable, group: dist.ProcessGroup, seed: int) -> dict:
    """Ask for the groups, look at them, and train with them."""
    n, rank = group.size(), group.rank()
    params = parameters(seed)
    alone = copy.deepcopy(params)
    named = [(str(i), p) for i, p in enumerate(params)]
    (bucket,) = partition(named, n).buckets
    buffer = bucket.buffer()
    with torch.no_grad():
        for slot in bucket.slots:
            view = bucket.view(buffer, slot)
            view.copy_(slot.parameter)
            slot.parameter.data = view
    shard = bucket.shard(buffer, rank)
    pieces = [(p.slot.parameter, p.start, p.stop, p.at) for p in bucket.pieces(rank)]
    groups = groups_of(params)
    kept = [{**one, "params": list(one["params"])} for one in groups]
    first = [torch.zeros(1, dtype=torch.float64) for _ in range(2)]
    small, _ = bench.watched(lambda: function(*_small(first, rank)))
    before = _parts(small)
    handed = list(pieces)
    out, facts = bench.watched(lambda: function(groups, handed, shard))
    told = {
        "kind": bench.kind(out),
        "changed": not _same(groups, kept) or list(map(id, handed)) != list(map(id, pieces)),
        "spoiled": _parts(small) != before,
        "kept": bool({p for one in _parts(out) for p in one} & {x.data_ptr() for x in first}),
        "small": [len(one) for one in before] == [int(rank == i) for i in (0, 1, -1)],
        "ops": facts["ops"],
        **_look(out, kept, pieces, shard, buffer),
    }
    good = torch.tensor(int(told["clean"] and not told["trouble"]))
    if not all_reduce(good, group, "min"):  # on any rank
        return {**told, "gap": None}
    optimizer = torch.optim.AdamW(out)
    reference = torch.optim.AdamW(groups_of(alone))
    for step in range(STEPS):
        mean = gradients(seed, step)
        flat = bucket.buffer().fill_(1.0)
        for slot, (name, _) in zip(reversed(bucket.slots), named, strict=True):
            bucket.view(flat, slot).copy_(mean[int(name)])
        own = bucket.shard(flat, rank)
        for part in (p for one in optimizer.param_groups for p in one["params"]):
            at = (part.data_ptr() - shard.data_ptr()) // 8
            part.grad = own[at : at + part.numel()].view(part.shape).clone()
        optimizer.step()
        buffer.copy_(all_gather(shard.clone(), group))
        for p, g in zip(alone, mean, strict=True):
            p.grad = g
        reference.step()
    gap = max(float((a - b).detach().abs().max()) for a, b in zip(params, alone, strict=True))
    return {**told, "gap": gap}


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
    lists = [one.get("params", ()) for one in found if isinstance(one, dict)]
    return [[p.data_ptr() for p in one if bench.plain(p)] for one in lists
            if isinstance(one, (list, tuple))]  # fmt: skip


def _same(groups: object, kept: list[dict]) -> bool:
    if not isinstance(groups, list) or len(groups) != len(kept):
        return False
    for one, other in zip(groups, kept, strict=True):
        if set(one) != set(other) or any(one.get(k) != other.get(k) for k in OPTIONS):
            return False
        if list(map(id, one["params"])) != list(map(id, other["params"])):
            return False
    return True


def _look(out: object, groups: list[dict], pieces: list, shard: Tensor, buffer: Tensor) -> dict:
    """What the groups that came back are made of, number by number of the shard."""
    told: dict = {"trouble": "", "clean": False, "parts": [], "groups": 0}
    if not isinstance(out, (list, tuple)) or not all(isinstance(g, dict) for g in out):
        return {**told, "trouble": "not groups"}
    if not all(isinstance(g.get("params"), (list, tuple)) for g in out):
        return {**told, "trouble": "not groups"}
    if any(not bench.plain(p) for g in out for p in g["params"]):
        return {**told, "trouble": "not groups"}
    owner = [-2] * len(shard)  # padding; -1 is frozen
    for parameter, start, stop, at in pieces:
        found = [i for i, g in enumerate(groups) if any(parameter is p for p in g["params"])]
        owner[at : at + stop - start] = [found[0] if found else -1] * (stop - start)
    want = [{k: g.get(k) for k in OPTIONS} for g in groups]
    first, last = shard.data_ptr(), shard.data_ptr() + 8 * len(shard)
    whole = buffer.data_ptr(), buffer.data_ptr() + 8 * len(buffer)
    times, options = [0] * len(shard), [None] * len(shard)
    for one in out:
        given = {k: one.get(k) for k in OPTIONS}
        for part in one["params"]:
            start, stop = part.data_ptr(), part.data_ptr() + 8 * part.numel()
            if not part.numel():
                continue
            if not (whole[0] <= start and stop <= whole[1]):
                return {**told, "trouble": "copies"}
            if not (first <= start and stop <= last):
                return {**told, "trouble": "beyond the shard"}
            named = isinstance(part, nn.Parameter) and part.is_leaf and part.dim() == 1
            if part.dtype != shard.dtype or not named:
                return {**told, "trouble": "not parameters"}
            for i in range((start - first) // 8, (stop - first) // 8):
                times[i] += 1
                options[i] = given
    told["groups"] = len(out)
    told["numbers"] = [
        {
            "owner": owner[i],
            "times": times[i],
            "right": owner[i] < 0 or options[i] == want[owner[i]],
            "as": [k for k, w in enumerate(want) if options[i] == w],
        }
        for i in range(len(shard))
    ]
    told["wide"] = [len(p.shape) > 1 for p, start, stop, _ in pieces for _ in range(stop - start)]
    told["clean"] = all(
        x["times"] == (1 if x["owner"] >= 0 else 0) and x["right"] for x in told["numbers"]
    )
    return told
