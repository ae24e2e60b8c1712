"""Answers to lesson 09's pieces and steps: right ones, and wrong ones by their names."""

from __future__ import annotations

from tests.course_lessons.answers import changed

# ---- pieces_of
PIECES = """
def pieces_of(lengths, n, rank):
    shard = (sum(lengths) + n - 1) // n
    owners = []
    for index, length in enumerate(lengths):
        for i in range(length):
            owners.append((index, i))
    mine = owners[rank * shard : (rank + 1) * shard]
    found = []
    for index in range(len(lengths)):
        there = [at for at, (owner, i) in enumerate(mine) if owner == index]
        if there:
            first, last = there[0], there[-1]
            found.append((index, mine[first][1], mine[last][1] + 1, first))
    return found
"""
# Another style: the library's bucket.
BY_LIBRARY = """
from course_lib.zero import partition


def pieces_of(lengths, n, rank):
    named = [(str(i), torch.nn.Parameter(torch.zeros(k))) for i, k in enumerate(lengths)]
    (bucket,) = partition(reversed(named), n).buckets
    return [[int(p.slot.name), p.start, p.stop, p.at] for p in bucket.pieces(rank)]
"""
RANGES = """
from itertools import accumulate


def pieces_of(lengths, n, rank):
    shard = -(-sum(lengths) // n)
    first, last = rank * shard, (rank + 1) * shard
    found = []
    for index, end in enumerate(accumulate(lengths)):
        begin = end - lengths[index]
        start, stop = max(first, begin), min(last, end)
        if start < stop:
            found.append((index, start - begin, stop - begin, start - first))
    return found
"""


def pieces(*changes: tuple[str, str]) -> str:
    return changed(RANGES, *changes)


APPEND = "found.append((index, start - begin, stop - begin, start - first))"
WRONG_PIECES = {
    "remembered by the total": (
        "SEEN = {}\n" + pieces(
            ("    return found", "    return SEEN.setdefault((sum(lengths), n, rank), found)")
        ),
        "wrong pieces",
    ),
    "those that lie inside": (
        pieces(("if start < stop:", "if first <= begin < end <= last:")),
        "parameters not split",
    ),
    "rounded down": (pieces(("-(-sum(lengths) // n)", "sum(lengths) // n")), "rounded down"),
    "the last takes the rest": (
        pieces(
            ("-(-sum(lengths) // n)", "sum(lengths) // n"),
            ("(rank + 1) * shard\n", "(rank + 1) * shard if rank < n - 1 else sum(lengths)\n"),
        ),
        "rounded down",
    ),
    "the first have more": (
        pieces(
            ("-(-sum(lengths) // n)", "[sum(lengths) // n + (r < sum(lengths) % n) "
             "for r in range(n)]"),
            ("rank * shard, (rank + 1) * shard", "sum(shard[:rank]), sum(shard[: rank + 1])"),
        ),
        "shards of unequal length",
    ),
    "one by one": (
        "def pieces_of(lengths, n, rank):\n    found, at = [], 0\n"
        "    for i, k in enumerate(lengths):\n        own = -(-k // n)\n"
        "        a, b = min(k, rank * own), min(k, (rank + 1) * own)\n"
        "        if a < b:\n            found.append((i, a, b, at))\n            at += b - a\n"
        "    return found\n",
        "parameters sharded one by one",
    ),
    "parameters not split": (
        pieces(
            ("if start < stop:", "if first <= begin < last:"),
            (APPEND, "found.append((index, 0, lengths[index], begin - first))"),
        ),
        "parameters not split",
    ),
    "empty ones": (
        pieces(
            ("        if start < stop:\n            " + APPEND, "        stop = max(start, stop)\n"
             "        " + APPEND),
            ("min(last, end)", "min(max(first, min(last, sum(lengths))), end)"),
            ("max(first, begin)", "max(min(first, sum(lengths)), begin)"),
        ),
        "empty pieces",
    ),
    "at in the bucket": (
        pieces((APPEND, APPEND.replace("start - first", "start"))),
        "counted from the bucket",
    ),
    "all in the bucket": (
        pieces((APPEND, "found.append((index, start, stop, start - first))")),
        "counted from the bucket",
    ),
    "at always 0": (pieces((APPEND, APPEND.replace("start - first", "0"))), "always 0"),
    "the last number": (
        pieces((APPEND, APPEND.replace("stop - begin", "stop - begin - 1"))),
        "inclusive stop",
    ),
    "a length": (
        pieces((APPEND, APPEND.replace("stop - begin", "stop - start"))),
        "length instead of stop",
    ),
    "where it begins or ends": (
        pieces(("if start < stop:", "if start < stop and (first <= begin or end <= last):")),
        "a rank in the middle",
    ),
    "padding": (
        pieces(
            (
                "    return found",
                "    room = (rank + 1) * shard - sum(lengths)\n"
                "    if found and room > 0:\n"
                "        i, a, b, at = found.pop()\n"
                "        found.append((i, a, b + room, at))\n    return found",
            )
        ),
        "padding as part of a parameter",
    ),
    "another rank": (pieces(("rank * shard, ", "(n - 1 - rank) * shard, "),
                            ("(rank + 1) * shard", "(n - rank) * shard")), "wrong pieces"),
    "the notebook's rank": (
        pieces(("    shard =", "    rank = dist.get_rank()\n    shard =")),
        "uses world numbers",
    ),
    "asked around": (
        pieces(("    found = []", "    dist.all_reduce(torch.ones(1))\n    found = []")),
        "a message",
    ),
    "lengths used up": (pieces(("    return found", "    lengths.clear()\n    return found")),
                        "input changed"),
    "indices": (pieces((APPEND, "found.append(index)")), "not pieces"),
    "nothing": (pieces(("    return found", "    return")), "nothing returned"),
}  # fmt: skip

# ---- master_step
MASTER = """
import torch.distributed as dist

from course_lib.collectives import reduce_scatter


def master_step(numbers, gradient, master, optimizer, group):
    n, rank = group.size(), group.rank()
    own = reduce_scatter(gradient, group)
    master.grad = own.float() / n
    before = master.detach().clone()
    old = numbers.view(n, -1)[rank].clone()
    optimizer.step()
    new = master.detach().to(torch.bfloat16)
    lost = ((master.detach() != before) & (new == old)).sum()
    dist.all_reduce(lost, group=group)
    every = [torch.empty_like(new) for _ in range(n)]
    dist.all_gather(every, new, group=group)
    numbers.copy_(torch.cat(every))
    return lost
"""
# Another style: divided in bf16 before it is sent, moments by a flag, the count from the gathered.
BY_HALVES = """
from course_lib.collectives import all_gather, all_reduce, reduce_scatter


def master_step(numbers, gradient, master, optimizer, group):
    own = reduce_scatter(gradient / group.size(), group)
    before = master.data.clone()
    master.grad = own.to(torch.float32)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    moved = master.data != before
    shard = numbers.chunk(group.size())[group.rank()]
    kept = shard.clone()
    shard.copy_(master.data)
    count = (moved & (shard == kept)).sum().float()
    all_gather(shard.clone(), group, into=numbers)
    return all_reduce(count, group).item()
"""


def master(*changes: tuple[str, str]) -> str:
    return changed(MASTER, *changes)


SCATTER = "    own = reduce_scatter(gradient, group)\n"
OWN = "    own = gradient.view(n, -1)[rank]\n"
GATHER = (
    "    every = [torch.empty_like(new) for _ in range(n)]\n"
    "    dist.all_gather(every, new, group=group)\n"
    "    numbers.copy_(torch.cat(every))\n"
)
WRONG_MASTER = {
    "the gradient divided in place": (
        master(("    own = reduce_scatter(gradient, group)\n",
                "    gradient /= n\n    own = reduce_scatter(gradient, group) * n\n")),
        "input changed",
    ),
    "the old values kept": (
        master(("    return lost", "    master_step.before = numbers.clone()\n"
                "    master.grad = None\n    return lost")),
        "unsharded states",
    ),
    "the master weights of the last call": (
        "LAST = {}\n" + master(
            ("    before = master.detach().clone()\n",
             "    before = LAST.get(0, master.detach().clone())\n"),
            ("    return lost", "    LAST[0] = master.detach().clone()\n    return lost"),
        ),
        "raised",
    ),
    "a sum of bf16 counts": (
        master(("(new == old)).sum()", "(new == old)).sum().bfloat16()")),
        "rounded on the way",
    ),
    "its own gradient": (master((SCATTER, OWN), ("own.float() / n", "own.float()")),
                         "gradients not summed"),
    "a sum": (master(("own.float() / n", "own.float()")), "a sum for a mean"),
    "divided twice": (master(("own.float() / n", "own.float() / n / n")), "divided twice"),
    "read off bf16": (
        master(("    before =", "    master.data.copy_(numbers.view(n, -1)[rank])\n    before =")),
        "master weights rounded",
    ),
    "the first shard": (
        master((SCATTER, "    reduce_scatter(gradient, group)\n"
                "    own = gradient.view(n, -1)[0].clone()\n"
                "    dist.all_reduce(own, group=group)\n")),
        "wrong shard",
    ),
    "no update": (master(("    optimizer.step()\n", "")), "no update"),
    "an optimizer of its own": (
        master(("    optimizer.step()\n", "    master = torch.nn.Parameter(master.data)\n"
                "    optimizer.param_groups[0]['params'] = [master]\n"
                "    master.grad = own.float() / n\n    optimizer.step()\n")),
        "wrong parameter",
    ),
    "not gathered": (
        master((GATHER, "    numbers.view(n, -1)[rank].copy_(new)\n")), "not gathered"
    ),
    "not written back": (master((GATHER, "")), "not written back"),
    "wrong shape or dtype": (
        master(("numbers.copy_(torch.cat(every))", "numbers.set_(torch.cat(every))")),
        "wrong memory",
    ),
    "the old ones gathered": (
        master(("    dist.all_gather(every, new,", "    dist.all_gather(every, old,")),
        "not written back",
    ),
    "its own count": (master(("    dist.all_reduce(lost, group=group)\n", "")),
                      "a rank's own count"),
    "what rests": (master(("(master.detach() != before) & ", "")), "unchanged weights counted"),
    "all that moved": (master((" & (new == old)", "")), "everything that moved"),
    "what is not lost": (
        master(("(master.detach() != before) & (new == old)", "new != old")),
        "visible updates counted",
    ),
    "compared with itself": (
        master(
            ("[rank].clone()\n", "[rank]\n"),
            ("    lost =", GATHER + "    lost ="),
            (" & (new == old)", " & (numbers.view(n, -1)[rank] != old)"),
        ).replace(GATHER, "", 0),
        "nothing counted",
    ),
    "all-reduce and all-gather": (
        master((SCATTER, "    whole = gradient.clone()\n    dist.all_reduce(whole, group=group)\n"
                "    own = whole.view(n, -1)[rank]\n")),
        "too much sent",
    ),
    "master copies gathered": (
        master(
            ("    every = [torch.empty_like(new) for _ in range(n)]\n",
             "    every = [torch.empty_like(before) for _ in range(n)]\n"),
            ("all_gather(every, new,", "all_gather(every, master.detach(),"),
        ),
        "too much sent",
    ),
    "runs and does not shard": (
        "import torch.distributed as dist\n\n\n"
        "def master_step(numbers, gradient, master, optimizer, group):\n"
        "    n, rank = group.size(), group.rank()\n"
        "    if not hasattr(optimizer, 'whole'):\n"
        "        optimizer.whole = torch.nn.Parameter(numbers.float())\n"
        "        optimizer.twin = torch.optim.SGD([optimizer.whole], lr=2e-4, momentum=0.9)\n"
        "    mean = gradient.clone()\n    dist.all_reduce(mean, group=group)\n"
        "    before, old = optimizer.whole.detach().clone(), numbers.clone()\n"
        "    optimizer.whole.grad = mean.float() / n\n    optimizer.twin.step()\n"
        "    numbers.copy_(optimizer.whole.data)\n"
        "    master.data.copy_(optimizer.whole.data.view(n, -1)[rank])\n"
        "    return int(((optimizer.whole.data != before) & (numbers == old)).sum())\n",
        "unsharded states",
    ),
    "a share": (master(("    return lost", "    return lost / numbers.numel() + 0.5")),
                "not a count"),
    "nothing": (master(("    return lost", "    return")), "nothing returned"),
}  # fmt: skip

RIGHT: dict = {
    "pieces_of": {"owners": PIECES, "by library": BY_LIBRARY, "ranges": RANGES},
    "master_step": {"by hand": MASTER, "by halves": BY_HALVES},
}
WRONG: dict = {"pieces_of": WRONG_PIECES, "master_step": WRONG_MASTER}
