"""Answers to lesson 00's exercises: right ones, and likely wrong ones with the name of each."""

from __future__ import annotations

from decimal import Decimal

import torch

from tests.course_lessons.answers import changed

MEAN = """
def mean_over_ranks(x, group):
    total = x.clone()
    dist.all_reduce(total, group=group)
    return total / group.size()
"""
LIBRARY = """
from course_lib.collectives import all_reduce


def mean_over_ranks(x, group):
    return all_reduce(x, group) / dist.get_world_size(group)
"""
COPIED = """
def copied(x):
    return torch.empty_like(x).copy_(x)
"""
DIVIDED_FIRST = """
def mean_over_ranks(x, group):
    part = copied(x).mul_(1 / group.size())
    work = dist.all_reduce(part, group=group, async_op=True)
    work.wait()
    return part
"""
HALVES = """
from course_lib.collectives import all_gather, reduce_scatter


def mean_over_ranks(x, group):
    n, flat = group.size(), x.flatten()
    padded = torch.cat([flat, flat.new_zeros(-len(flat) % n)])
    own = reduce_scatter(padded, group) / n
    return all_gather(own, group)[: len(flat)].view(x.shape)
"""
ONE_BUFFER = """
BUFFERS = {}


def mean_over_ranks(x, group):
    total = BUFFERS.setdefault((x.shape, x.dtype), torch.empty_like(x))
    total.copy_(x)
    dist.all_reduce(total, group=group)
    return total.div_(group.size())
"""
REMEMBERED = """
def mean_over_ranks(x, group, seen={}):
    key = (tuple(x.shape), group.size())
    if key not in seen:
        total = x.clone()
        dist.all_reduce(total, group=group)
        seen[key] = total / group.size()
    return seen[key].clone()
"""
FIRST_SIZE = """
class Size:
    n = None


def mean_over_ranks(x, group):
    Size.n = Size.n or group.size()
    total = x.clone()
    dist.all_reduce(total, group=group)
    return total / Size.n
"""
GATHERED = """
def mean_over_ranks(x, group):
    all_of_them = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(all_of_them, x, group=group)
    return torch.stack(all_of_them).mean(0)
"""
OF_GROUP, MEANS = "(total, group=group)", "total / group.size()"
LARGEST = changed(MEAN, (OF_GROUP, "(total, op=dist.ReduceOp.MAX, group=group)"))
SINGLE = changed(MEAN, ("x.clone()", "x.float().clone()"))
SUM, RETURNS = "dist.all_reduce(total, group=group)", "return total / group.size()"


def one(old: str, new: str) -> str:
    return changed(MEAN, (old, new))


WHO = {"a": 3, "b": 1, "c": 0, "d": 3, "e": 2}

RIGHT: dict = {
    "mean_over_ranks": {
        "plain": MEAN,
        "the library's verb": LIBRARY,
        "divided first, with a helper": [COPIED, DIVIDED_FIRST],
        "a reduce-scatter and an all-gather": HALVES,
        "torch's own mean": changed(
            MEAN,
            (OF_GROUP, "(total, op=dist.ReduceOp.AVG, group=group)"),
            (MEANS, "total"),
        ),
        "in two parts": changed(
            MEAN,
            (
                f"    dist.all_reduce{OF_GROUP}\n",
                "    for part in total.view(-1).tensor_split(2):\n"
                "        dist.all_reduce(part, group=group)\n",
            ),
        ),
    },
    "who_knows": {
        "numbers": WHO,
        "numbers of other types": {
            "a": 3.0, "b": 1, "c": 0.0, "d": Decimal(3), "e": torch.tensor([2])
        },
    },
}  # fmt: skip

WRONG: dict = {
    "mean_over_ranks": {
        "the sum": (one(" / group.size()", ""), "sum"),
        "in place": (one("x.clone()", "x"), "input changed"),
        "half of it": (one("group.size()", "2"), "a fixed number of ranks"),
        "a third of it": (one("group.size()", "3"), "a fixed number of ranks"),
        "the notebook's world": (one("group.size()", "world"), "uses world numbers"),
        "no collective": (one(f"    {SUM}\n", ""), "divided, not added"),
        "own x": (MEAN[: MEAN.index("    total")] + "    return x.clone()\n", "nothing sent"),
        "mean of own x": (
            MEAN[: MEAN.index("    total")] + "    return x.mean()\n",
            "wrong shape",
        ),
        "a reduce": (
            one(SUM, "dist.reduce(total, group=group, group_dst=0)"), "not on every rank",
        ),
        "nothing returned": (one(RETURNS, "total /= group.size()"), "nothing returned"),
        "of rows alone": (one("x.clone()", "torch.stack([row.clone() for row in x])"), "raised"),
        "twice": (one("/ group.size()", "/ group.size() ** 2"), "divided twice"),
        "everybody's x": (GATHERED, "too much sent"),
        "divided by the elements": (one("group.size()", "x.numel()"),
            "divided by the elements"),
        "torch's world": (one("group.size()", "dist.get_world_size()"), "uses world numbers"),
        "no group": (one(", group=group)", ")"), "group left out"),
        "returned on rank 0": (
            one(RETURNS, "if group.rank() == 0:\n        " + RETURNS), "not returned everywhere",
        ),
        "the largest": (LARGEST, "wrong values"),
        "one buffer for all results": (ONE_BUFFER, "one buffer"),
        "kept by its shape": (REMEMBERED, "wrong second call"),
        "flat": (changed(MEAN, ("x.clone()", "x.flatten().clone()")), "wrong shape"),
        "not waited for": (
            changed(MEAN, (OF_GROUP, "(total, group=group, async_op=True)")), "not waited for",
        ),
        "the first group's size": (FIRST_SIZE, "a fixed number of ranks"),
        "through float32": (
            changed(SINGLE, (MEANS, f"({MEANS}).double()")), "rounded on the way",
        ),
        "through bfloat16": (
            changed(MEAN, ("x.clone()", "x.bfloat16()"), (MEANS, f"({MEANS}).to(x.dtype)")),
            "rounded on the way",
        ),
        "only float64": (
            changed(MEAN, ("x.clone()", "x.to(torch.float64, copy=True)")), "wrong shape",
        ),
        "the largest, undivided": (changed(LARGEST, (MEANS, "total")), "wrong values"),
        "whole numbers": (changed(MEAN, (" / ", " // ")), "whole numbers"),
        "contiguous is no copy": (
            changed(MEAN, ("x.clone()", "x.contiguous()")), "input changed",
        ),
        "a list": (changed(MEAN, (MEANS, f"({MEANS}).tolist()")), "wrong shape"),
        "a generator": (changed(MEAN, ("return", "yield")), "wrong shape"),
        "no numbers": (changed(MEAN, (MEANS, f"{MEANS} * float('nan')")), "wrong values"),
    },
    "who_knows": {
        "rank 0 stands for all": ({**WHO, "b": 3}, "one rank is not all"),
        "a range without its end": ({**WHO, "e": 1}, "a range counts both ends"),
        "ranks see the notebook's variables": ({**WHO, "c": 3}, "the notebook is not a rank"),
        "the notebook counted in": (
            {name: number + 1 for name, number in WHO.items()},
            "the notebook is not a rank",
        ),
        "push goes nowhere": ({**WHO, "d": 0}, "push reaches all"),
        "push goes to one": ({**WHO, "d": 1}, "push reaches all"),
        "several at once": ({**WHO, "c": 3, "d": 4, "e": 1}, "several ideas"),
        "one idea and one slip": ({**WHO, "a": 2, "e": 1}, "a range counts both ends"),
        "everything everywhere": (dict.fromkeys(WHO, 3), "variables are not shared"),
        "two ranks in the world": ({**WHO, "a": 2, "d": 2}, "wrong number"),
        "in words": ({**WHO, "b": "one"}, "not a number"),
        "yes and no": ({**WHO, "b": True}, "not a number"),
        "a range is taken for all": ({**WHO, "e": 3}, "a range is not all"),
        "rank 0": ({**WHO, "b": 0}, "which rank, not how many"),
        "what they hold": (dict(zip(WHO, range(1, 6), strict=True)), "its value"),
    },
}  # fmt: skip
