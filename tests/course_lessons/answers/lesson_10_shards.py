"""Answers to lesson 10's buckets: right ones, and wrong ones by their names."""

from __future__ import annotations

from tests.course_lessons.answers import changed

EARLY = '''
from course_lib.collectives import reduce_scatter


def reduce_early(loss, parameters, most, group):
    """Each bucket knows how many gradients it still waits for."""
    n = group.size()
    order = parameters[::-1]
    buckets, at = [[]], 0
    for p in order:
        if buckets[-1] and at + p.numel() > most:
            buckets.append([])
            at = 0
        buckets[-1].append(p)
        at += p.numel()
    where = {p: i for i, bucket in enumerate(buckets) for p in bucket}
    missing = [len(bucket) for bucket in buckets]
    pieces = []

    def send(i):
        flat = torch.cat([p.grad.reshape(-1) for p in buckets[i]])
        flat = torch.cat([flat, flat.new_zeros(-flat.numel() % n)])
        pieces.append(reduce_scatter(flat, group))
        for p in buckets[i]:
            p.grad = None

    def hook(p):
        missing[where[p]] -= 1
        while len(pieces) < len(buckets) and missing[len(pieces)] == 0:
            send(len(pieces))

    handles = [p.register_post_accumulate_grad_hook(hook) for p in parameters]
    loss.backward()
    for handle in handles:
        handle.remove()
    return pieces
'''
# Another style: two messages on their way, buffers that gradients are copied into, torch's verb.
IN_FLIGHT = """
import torch.distributed as dist
from collections import deque


def reduce_early(loss, parameters, most, group):
    n = group.size()
    plan, room = [], 0
    for p in reversed(parameters):
        if not plan or room + p.numel() > most:
            plan.append({})
            room = 0
        plan[-1][p] = room
        room += p.numel()
    buffers, left = {}, [len(bucket) for bucket in plan]
    under_way, shards, sent = deque(), [], [0]

    def hook(p):
        i = next(i for i, bucket in enumerate(plan) if p in bucket)
        total = sum(q.numel() for q in plan[i])
        if i not in buffers:
            buffers[i] = torch.zeros(-(-total // n) * n, dtype=p.dtype)
        start = plan[i][p]
        buffers[i][start : start + p.numel()] = p.grad.flatten()
        p.grad = None
        left[i] -= 1
        while sent[0] < len(plan) and left[sent[0]] == 0:
            whole = buffers.pop(sent[0])
            piece = whole.new_empty(len(whole) // n)
            if len(under_way) == 2:
                under_way.popleft()[0].wait()
            work = dist.reduce_scatter_tensor(piece, whole, group=group, async_op=True)
            under_way.append((work, whole))
            shards.append(piece)
            sent[0] += 1

    handles = [p.register_post_accumulate_grad_hook(hook) for p in parameters]
    try:
        loss.backward()
    finally:
        for handle in handles:
            handle.remove()
    while under_way:
        under_way.popleft()[0].wait()
    return shards
"""


def early(*changes: tuple[str, str]) -> str:
    return changed(EARLY, *changes)


SEND = "        pieces.append(reduce_scatter(flat, group))\n"
FORGET = "        for p in buckets[i]:\n            p.grad = None\n"
LOOP = "        while len(pieces) < len(buckets) and missing[len(pieces)] == 0:\n"
WRONG_EARLY = {
    "a list for all calls": (
        early(
            ("most, group):", "most, group, pieces=[]):"),
            ("    pieces = []\n", "    first = len(pieces)\n"),
            (
                "len(pieces) < len(buckets) and missing[len(pieces)] == 0",
                "len(pieces) - first < len(buckets) and missing[len(pieces) - first] == 0",
            ),
            ("send(len(pieces))", "send(len(pieces) - first)"),
        ),
        "kept between calls",
    ),
    "padded to the next multiple": (
        early(("-flat.numel() % n", "n - flat.numel() % n")),
        "padded without need",
    ),
    "padding taken off": (
        early(
            (
                "    return pieces",
                "    sizes = [sum(p.numel() for p in b) for b in buckets]\n"
                "    r = group.rank()\n"
                "    return [x[: max(0, k - r * len(x))] for x, k in zip(pieces, sizes)]",
            )
        ),
        "padding taken off",
    ),
    "after the backward": (
        early(
            (
                "    loss.backward()\n",
                "    loss.backward()\n    list(map(send, range(len(buckets))))\n",
            ),
            (LOOP, "        while False:\n"),
        ),
        "sent after the backward",
    ),
    "all-reduce, then split": (
        early(
            ("import reduce_scatter", "import all_reduce"),
            (
                SEND,
                "        piece = all_reduce(flat, group).chunk(n)[group.rank()].clone()\n"
                "        pieces.append(piece)\n",
            ),
        ),
        "all-reduce, then split",
    ),
    "whole buckets": (
        early(
            ("import reduce_scatter", "import all_reduce"),
            (SEND, "        pieces.append(all_reduce(flat, group))\n"),
        ),
        "not sharded",
    ),
    "from the first": (
        early(("parameters[::-1]", "list(parameters)")),
        "filled from the first parameter",
    ),
    "reversed inside buckets": (
        early(("in buckets[i]])\n", "in buckets[i][::-1]])\n")),
        "reversed inside buckets",
    ),
    "list reversed": (early(("    return pieces", "    return pieces[::-1]")), "list reversed"),
    "one bucket": (early(("at + p.numel() > most", "at < 0")), "one bucket for all"),
    "a bucket each": (early(("at + p.numel() > most", "at > 0")), "a bucket for each parameter"),
    "so many parameters": (
        early(("at + p.numel() > most", "len(buckets[-1]) >= 3")),
        "wrong buckets",
    ),
    "a mean": (early((SEND, "        pieces.append(reduce_scatter(flat, group) / n)\n")), "a mean"),
    "nothing sent": (
        early((SEND, "        pieces.append(flat.chunk(n)[group.rank()].clone())\n")),
        "not summed",
    ),
    "the gradients stay": (early((FORGET, "")), "too much at once"),
    "forgotten in the end": (
        early(
            (FORGET, ""),
            (
                "    return pieces",
                "    for p in parameters:\n        p.grad = None\n    return pieces",
            ),
        ),
        "too much at once",
    ),
    "all on their way": (
        early(
            (SEND, "        pieces.append(reduce_scatter(flat, group, async_op=True))\n"),
            ("    return pieces", "    return [piece.wait() for piece in pieces]"),
        ),
        "too much at once",
    ),
    "a view": (
        early(
            (
                SEND,
                "        flat[: len(flat) // n] = reduce_scatter(flat, group)\n"
                "        pieces.append(flat[: len(flat) // n])\n",
            )
        ),
        "view of the full bucket",
    ),
    "hooks stay": (early(("        handle.remove()\n", "        pass\n")), "hooks left"),
    "no backward": (early(("    loss.backward()\n", "    loss.detach()\n")), "no backward"),
    "nothing": (early(("    return pieces", "    return")), "nothing returned"),
    "one tensor": (early(("    return pieces", "    return torch.cat(pieces)")), "not a list"),
}

ALL = '''
import torch.distributed as dist
from course_lib.collectives import reduce_scatter


def shard_of_all(loss, named, group):
    """Flags in a tensor of bytes."""
    loss.backward()
    seen, names = [], []
    for name, p in named:
        if p.requires_grad and not any(p is q for q in seen):
            seen.append(p)
            names.append(name)
    came = torch.tensor([float(p.grad is not None) for p in seen])
    dist.all_reduce(came, group=group)
    total = sum(p.numel() for p in seen)
    flat = torch.zeros(total + -total % group.size(), dtype=seen[0].dtype)
    at = 0
    for p in seen:
        if p.grad is not None:
            flat[at : at + p.numel()] = p.grad.flatten()
        at += p.numel()
    for _, p in named:
        p.grad = None
    used = {name for name, flag in zip(names, came) if flag > 0}
    return reduce_scatter(flat, group), used
'''
# Another style: every rank tells its names, as objects; hooks note who came.
BY_OBJECTS = """
import torch.distributed as dist


def shard_of_all(loss, named, group):
    n, first = group.size(), {}
    for name, p in named:
        if p.requires_grad and p not in first:
            first[p] = name
    loss.backward()
    mine = [i for i, p in enumerate(first) if p.grad is not None]
    flags = torch.zeros(len(first), dtype=torch.int32)
    flags[mine] = 1
    dist.all_reduce(flags, dist.ReduceOp.MAX, group=group)
    parts = [torch.zeros(p.numel(), dtype=p.dtype) if p.grad is None else p.grad.flatten()
             for p in first]
    flat = torch.cat(parts)
    flat = torch.nn.functional.pad(flat, (0, -len(flat) % n))
    out = flat.new_zeros(len(flat) // n)
    dist.reduce_scatter_tensor(out, flat, group=group)
    for p in first:
        p.grad = None
    return [out, [name for name, flag in zip(first.values(), flags.tolist()) if flag]]
"""


def all_of(*changes: tuple[str, str]) -> str:
    return changed(ALL, *changes)


ONCE = "        if p.requires_grad and not any(p is q for q in seen):\n"
REDUCE = "    dist.all_reduce(came, group=group)\n"
LAST = "    return reduce_scatter(flat, group), used\n"
WRONG_ALL = {
    "padded to the next multiple": (
        all_of(("-total % group.size()", "(group.size() - total % group.size())")),
        "padded without need",
    ),
    "by name, the tied ones too": (
        all_of(
            (
                "in named:\n        if p.req",
                "in sorted(named, key=lambda x: x[0]):\n        if p.req",
            )
        ),
        "wrong order",
    ),
    "tied twice": (all_of((ONCE, "        if p.requires_grad:\n")), "tied twice"),
    "frozen too": (all_of((ONCE, "        if not any(p is q for q in seen):\n")), "frozen too"),
    "what it has used": (
        all_of((ONCE, ONCE.replace("if p.requires_grad", "if p.grad is not None"))),
        "local bucket",
    ),
    "everything": (all_of((ONCE, "        if True:\n")), "tied twice"),
    "local flags": (all_of((REDUCE, "")), "local flags"),
    "everybody": (all_of(("if flag > 0}", "if flag >= 0}")), "unused named"),
    "a zero is none": (
        all_of(("float(p.grad is not None)", "float(p.grad is not None and bool(p.grad.any()))")),
        "a zero is a gradient",
    ),
    "both names": (
        all_of(
            (
                "    used = {name for name, flag in zip(names, came) if flag > 0}\n",
                "    yes = [p for p, flag in zip(seen, came) if flag > 0]\n"
                "    used = {name for name, p in named if any(p is q for q in yes)}\n",
            )
        ),
        "by both names",
    ),
    "the last name": (
        all_of(
            (
                "    used = {name",
                "    names = [[m for m, q in named if q is p][-1] for p in seen]\n    used = {name",
            )
        ),
        "by its second name",
    ),
    "all-reduce, then split": (
        all_of(
            (
                LAST,
                "    dist.all_reduce(flat, group=group)\n"
                "    return flat.chunk(group.size())[group.rank()].clone(), used\n",
            )
        ),
        "all-reduce, then split",
    ),
    "whole": (
        all_of((LAST, "    dist.all_reduce(flat, group=group)\n    return flat, used\n")),
        "not sharded",
    ),
    "a mean": (
        all_of((LAST, "    return reduce_scatter(flat, group) / group.size(), used\n")),
        "a mean",
    ),
    "nothing sent": (
        all_of((LAST, "    return flat.chunk(group.size())[group.rank()].clone(), used\n")),
        "not summed",
    ),
    "turned": (
        all_of(
            (
                "    for name, p in named:\n        if p.req",
                "    for name, p in named[::-1]:\n        if p.req",
            )
        ),
        "wrong order",
    ),
    "one at a time": (
        all_of(
            (
                "    for _, p in named:\n        p.grad = None\n",
                "    for _, p in named:\n        p.grad = None\n"
                "        reduce_scatter(torch.zeros(30 * group.size()).double(), group)\n",
            )
        ),
        "too much sent",
    ),
    "the gradients stay": (
        all_of(("    for _, p in named:\n        p.grad = None\n", "")),
        "gradients left",
    ),
    "a view": (
        all_of(
            (
                LAST,
                "    k = len(flat) // group.size()\n    flat[:k] = reduce_scatter(flat, group)\n"
                "    return flat[:k], used\n",
            )
        ),
        "view of the full bucket",
    ),
    "no names": (all_of((LAST, "    return reduce_scatter(flat, group), came\n")), "no names"),
    "the shard alone": (all_of((LAST, "    return reduce_scatter(flat, group)\n")), "not a pair"),
    "nothing": (all_of((LAST, "    reduce_scatter(flat, group)\n")), "nothing returned"),
}

RIGHT: dict = {
    "reduce_early": {"by hand": EARLY, "in flight": IN_FLIGHT},
    "shard_of_all": {"flags of bytes": ALL, "a list of names": BY_OBJECTS},
}
WRONG: dict = {"reduce_early": WRONG_EARLY, "shard_of_all": WRONG_ALL}
