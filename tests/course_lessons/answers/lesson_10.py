"""Answers to lesson 10's exercises: right ones, and wrong ones by the name each is refused by."""

from __future__ import annotations

from tests.course_lessons.answers import changed

STEP = """
import math
from course_lib.collectives import all_reduce

def agreed_step(parts, optimizer, scale, most, group):
    bad = sum((~torch.isfinite(p.grad)).sum() for p in parts)
    squares = sum((p.grad.double() / scale).square().sum() for p in parts)
    told = torch.stack([torch.as_tensor(x).double() for x in (bad, squares)])
    told = all_reduce(told, group)
    skip = told[0].item() > 0
    if not skip:
        norm = math.sqrt(told[1].item())
        factor = most / (norm + 1e-6) if norm > most else 1.0
        for p in parts:
            p.grad.mul_(factor / scale)
        optimizer.step()
    for p in parts:
        p.grad = None
    return not skip, scale / 2 if skip else scale
"""
EARLY = """
import torch.nn.functional as F
from course_lib.collectives import reduce_scatter

def reduce_early(loss, parameters, most, group):
    n = torch.distributed.get_world_size(group)
    buckets = []
    length = 0
    for p in reversed(parameters):
        if not buckets or length + p.numel() > most:
            buckets.append([])
            length = 0
        buckets[-1].append(p)
        length += p.numel()
    place = {id(p): i for i, bucket in enumerate(buckets) for p in bucket}
    missing = [len(bucket) for bucket in buckets]
    pieces = []

    def send():
        while len(pieces) < len(buckets) and missing[len(pieces)] == 0:
            bucket = buckets[len(pieces)]
            flat = torch.cat([p.grad.reshape(-1) for p in bucket])
            for p in bucket:
                p.grad = None
            flat = F.pad(flat, (0, -flat.numel() % n))
            pieces.append(reduce_scatter(flat, group))

    def hook(p):
        missing[place[id(p)]] -= 1
        send()

    hooks = [p.register_post_accumulate_grad_hook(hook) for p in parameters]
    try:
        loss.backward()
    finally:
        for h in hooks:
            h.remove()
    return pieces
"""
ALL = """
import torch.nn.functional as F
from course_lib.collectives import all_reduce, reduce_scatter

def shard_of_all(loss, named, group):
    n = torch.distributed.get_world_size(group)
    loss.backward()
    first = {}
    for name, p in named:
        if p.requires_grad:
            first.setdefault(p, name)
    used = all_reduce(torch.tensor([p.grad is not None for p in first], dtype=torch.int32), group)
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in first]
    flat = torch.cat([g.reshape(-1) for g in grads])
    for p in first:
        p.grad = None
    shard = reduce_scatter(F.pad(flat, (0, -flat.numel() % n)), group)
    return shard, {name for name, k in zip(first.values(), used.tolist()) if k > 0}
"""
DIST = """
import torch.distributed as dist

def finite_everywhere(parts, group):
    good = torch.tensor(float(all(bool(torch.isfinite(p.grad).all()) for p in parts)))
    dist.all_reduce(good, op=dist.ReduceOp.MIN, group=group)
    return bool(good)

def agreed_step(parts, optimizer, scale, most, group):
    if not finite_everywhere(parts, group):
        optimizer.zero_grad()
        return False, 0.5 * scale
    with torch.no_grad():
        for p in parts:
            p.grad /= scale
        norms = torch.stack([torch.linalg.vector_norm(p.grad) for p in parts])
        square = norms.pow(2).sum().reshape(1)
        every = [torch.empty_like(square) for _ in range(dist.get_world_size(group))]
        dist.all_gather(every, square, group=group)
        norm = torch.cat(every).sum().sqrt()
        if norm > most:
            for p in parts:
                p.grad *= most / (norm + 1e-6)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return True, scale
"""
RIGHT: dict = {
    "agreed_step": {
        "cells": STEP,
        "dist": DIST,
        "float32 norm": changed(DIST,
            ("torch.linalg.vector_norm(p.grad) for", "p.grad.float().norm() for")),
    },
    "reduce_early": {"cells": EARLY},
    "shard_of_all": {
        "cells": ALL,
        "grad": """
import torch.distributed as dist

def distinct(named):
    seen, out = set(), []
    for name, p in named:
        if p.requires_grad and id(p) not in seen:
            seen.add(id(p))
            out.append((name, p))
    return out

def shard_of_all(loss, named, group):
    n, mine = dist.get_world_size(group), distinct(named)
    grads = torch.autograd.grad(loss, [p for _, p in mine], allow_unused=True)
    total = sum(p.numel() for _, p in mine)
    width = (total + n - 1) // n
    bucket = torch.zeros(n * width, dtype=mine[0][1].dtype, device=mine[0][1].device)
    flags = torch.zeros(len(mine), dtype=torch.uint8, device=bucket.device)
    at = 0
    for i, ((_, p), g) in enumerate(zip(mine, grads)):
        if g is not None:
            bucket[at:at + p.numel()] = g.flatten()
            flags[i] = 1
        at += p.numel()
    shard = bucket.new_empty(width)
    dist.reduce_scatter_tensor(shard, bucket, group=group)
    dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=group)
    return [shard, set(mine[i][0] for i in flags.nonzero().flatten().tolist())]
""",
        "bool flags": changed(ALL, ("torch.int32)", "torch.bool)")),
    },
}  # fmt: skip

AS_COMPLETE = (
    "while len(pieces) < len(buckets) and missing[len(pieces)] == 0:\n"
    "            bucket = buckets[len(pieces)]",
    "for i, bucket in enumerate(buckets):\n            if missing[i] != 0:\n"
    "                continue\n            missing[i] = -1",
)
WRONG: dict = {
    "agreed_step": {
        "only first part looked at": (changed(STEP,
            ("torch.isfinite(p.grad)).sum() for p in parts)",
             "torch.isfinite(p.grad)).sum() for p in parts[:1])")), "stepped despite an inf"),
        "most squared": (changed(STEP,
            ("math.sqrt(told[1].item()", "told[1].item("),
            ("(norm +", "(math.sqrt(norm) +")), "squared norm"),
        "empty returns": (changed(STEP,
            ("group):",
             "group):\n    if sum(p.numel() for p in parts) == 0:\n"
             "        return True, scale")), "left out by an empty rank"),
        "sum of norms": (changed(STEP,
            ("torch.stack", "all_reduce(torch.stack"),
            ("torch.as_tensor(x).double() for x in (bad, squares)])\n"
             "    told = all_reduce(told",
             "torch.as_tensor(bad).double(), torch.as_tensor(squares).double().sqrt()])"),
            ("math.sqrt(told[1].item()", "told[1].item(")), "norms added up"),
        "no eps": (changed(STEP, ("(norm + 1e-6)", "norm")), "1e-6 left out"),
        "async": (changed(STEP,
            ("torch.as_tensor(x).double() for x in (bad, squares)])\n"
             "    told = all_reduce(told, group",
             "torch.as_tensor(bad).double(), torch.as_tensor(squares).double()])\n"
             "    torch.distributed.all_reduce(told, group=group, async_op=True")),
            "not waited for"),
        "message a part": (changed(STEP,
            ("torch.stack([torch.as_tensor(x).double() for x in (bad, squares)])\n"
             "    told = all_reduce(told, group",
             "0\n    for p in parts:\n"
             "        own = (~p.grad.isfinite()).sum(), (p.grad / scale).square().sum()\n"
             "        told = told + all_reduce(torch.stack([x.double() for x in own]), group")),
            "left out by an empty rank"),
    },
    "reduce_early": {
        "as they complete": (changed(EARLY, AS_COMPLETE), "wrong sending order"),
        "full at most": (changed(EARLY, (" most:", "= most:")), "exactly full"),
        "if for while": (changed(EARLY, ("while len", "if len")), "buckets that never left"),
        "pieces global, cleared": (changed(EARLY,
            ("\nimport", "PIECES = []\n\nimport"),
            ("pieces = []", "PIECES.clear()\n    pieces = PIECES")), "one buffer reused"),
        "as they complete, returned in bucket order": (changed(EARLY,
            AS_COMPLETE,
            ("pieces.append(reduce_scatter(flat", "pieces.append((i, reduce_scatter(flat"),
            ("group))", "group)))"),
            ("return pieces",
             "return [piece for _, piece in sorted(pieces, key=lambda one: one[0])]")),
            "wrong sending order"),
        "last parameter of a bucket triggers": (changed(EARLY,
            ("missing[place[id(p)]] -= 1",
             "i = place[id(p)]\n        if p is buckets[i][-1]:\n"
             "            missing[i] = 0")), "raised"),
        "list emptied": (changed(EARLY,
            ("for p in reversed(parameters):",
             "every = list(parameters)\n    while parameters:\n"
             "        p = parameters.pop()"),
            ("parameters]", "every]")), "input changed"),
        "most less one": (changed(EARLY, (" most:", " most - 1:")), "exactly full"),
        "float32": (changed(EARLY,
            ("pieces.append(reduce_scatter(flat, group))",
             "pieces.append(reduce_scatter(flat.float(), group).to(flat.dtype))")),
            "rounded on the way"),
        "async, not awaited": (changed(EARLY,
            ("pieces.append(reduce_scatter(flat, group)",
             "out = flat.new_zeros(flat.numel() // n)\n"
             "            torch.distributed.reduce_scatter_tensor(out, flat, "
             "group=group, async_op=True)\n            pieces.append(out")), "not waited for"),
    },
    "shard_of_all": {
        "by equality": (changed(ALL,
            ("p.requires_grad:\n            first.setdefault(p, name)",
             "p.requires_grad and not any(p.shape == q.shape and torch.equal(p, "
             "q) for q in first):\n            first[p] = name")), "equal taken for the same"),
        "rank without a gradient skips": (changed(ALL,
            (" name)",
             " name)\n    if all(p.grad is None for p in first):\n"
             "        return torch.zeros(1), set()")), "left out by an empty rank"),
        "named emptied": (changed(ALL,
            ("for name, p in named:", "while named:\n        name, p = named.pop(0)")),
            "input changed"),
        "flags async": (changed(ALL,
            ("all_reduce(torch", "torch"),
            ("torch.int32), group)",
             "torch.int32)\n"
             "    torch.distributed.all_reduce(used, group=group, async_op=True)")),
            "not waited for"),
        "flags of all": (changed(ALL, ("k > 0}", "k == n}")), "used by every rank"),
        "mean over users": (changed(ALL,
            ("for p in first:",
             "flat = flat / torch.cat([k.clamp(min=1).expand(p.numel()) for p, k "
             "in zip(first, used)])\n    for p in first:")), "mean over the ranks that used it"),
        "unused left out": (changed(ALL,
            ("grads = [torch", "flat = torch.cat([(torch"),
            ("p.grad for p in first]\n"
             "    flat = torch.cat([g.reshape(-1) for g in grads",
             "p.grad).reshape(-1) for p, k in zip(first, used.tolist()) if k")), "unused left out"),
        "by shape": (changed(ALL,
            ("p.requires_grad:\n            first.setdefault(p, name)",
             "p.requires_grad and not any(p.shape == q.shape for q in first):\n"
             "            first[p] = name")), "equal taken for the same"),
        "float32": (changed(ALL,
            ("reduce_scatter(F.pad(flat, (0, ", "reduce_scatter(F.pad(flat.float(), (0, "),
            ("n)), group)", "n)), group).to(flat.dtype)")), "rounded on the way"),
        "buffer reused": (changed(ALL,
            ("\nimport", "BUFFER = {}\n\nimport"),
            ("return",
             "shard = BUFFER.setdefault('s', torch.empty_like(shard)).copy_(shard)\n"
             "    return")), "one buffer reused"),
    },
}  # fmt: skip
