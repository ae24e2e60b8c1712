"""Answers to lesson 09's exercises: right ones, and likely wrong ones with the name that each is
refused by.
"""

from __future__ import annotations

from tests.course_lessons.answers import changed

SHARDED = """
import copy
from course_lib.collectives import all_reduce
from course_lib.memory import held

def is_sharded(box, group):
    n = torch.distributed.get_world_size(group)
    model = copy.deepcopy(box.model)
    optimizer = box.whole(list(model.parameters()))
    for step in range(4):
        box.train(step)
        optimizer.zero_grad()
        for other in range(n):
            (box.loss(model, *box.rows(step, other)) / n).backward()
        optimizer.step()
    away = max((p.detach() - q.detach()).abs().max().item()
               for p, q in zip(box.model.parameters(), model.parameters()))
    kept = held(box.optimizer).by_kind["optimizer states"]
    most = held(optimizer).by_kind["optimizer states"] * 2 / 3
    good = away <= 1e-9 and kept <= most
    fails = all_reduce(torch.tensor([0.0 if good else 1.0]), group)
    return fails.item() == 0
"""
MASTER = """
from course_lib.collectives import all_gather, all_reduce, reduce_scatter

def master_step(numbers, gradient, master, optimizer, group):
    n = torch.distributed.get_world_size(group)
    before = master.detach().clone()
    shown = before.bfloat16()
    master.grad = reduce_scatter(gradient, group).float() / n
    optimizer.step()
    after = master.detach()
    now = after.bfloat16()
    numbers.copy_(all_gather(now, group))
    lost = ((before != after) & (shown == now)).sum()
    return int(all_reduce(lost, group))
"""
PIECES = """
def pieces_of(lengths, n, rank):
    total = sum(lengths)
    width = -(-total // n)
    low, high = rank * width, (rank + 1) * width
    found, begin = [], 0
    for index, length in enumerate(lengths):
        start, stop = max(low, begin), min(high, begin + length)
        if start < stop:
            found.append((index, start - begin, stop - begin, start - low))
        begin += length
    return found
"""
GROUPS = """
def shard_groups(groups, pieces, shard):
    found = []
    for group in groups:
        mine = {id(p) for p in group["params"]}
        parts = [torch.nn.Parameter(shard[at:at + stop - start])
                 for p, start, stop, at in pieces if id(p) in mine]
        found.append({**group, "params": parts})
    return found
"""
RIGHT: dict = {
    "is_sharded": {
        "cells": SHARDED,
    },
    "master_step": {
        "cells": MASTER,
        "dist": """
import torch.distributed as dist

def master_step(numbers, gradient, master, optimizer, group):
    n, r = dist.get_world_size(group), dist.get_rank(group)
    width = master.numel()
    sent = gradient / n
    part = torch.empty(width, dtype=torch.bfloat16, device=sent.device)
    work = dist.reduce_scatter_tensor(part, sent, group=group, async_op=True)
    old_master = master.detach().clone()
    old = numbers[r * width:(r + 1) * width].clone()
    work.wait()
    optimizer.zero_grad()
    with torch.no_grad():
        master.grad = part.to(torch.float32)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        new = master.to(torch.bfloat16)
        dist.all_gather_into_tensor(numbers, new, group=group)
        count = torch.logical_and(torch.ne(old_master, master), torch.eq(old, new)).sum().double()
    dist.all_reduce(count, group=group)
    return count
""",
    },
    "pieces_of": {
        "cells": PIECES,
        "elements": """
import math
from itertools import groupby

def owner(lengths):
    return [(i, k) for i, length in enumerate(lengths) for k in range(length)]

def pieces_of(lengths, n, rank):
    places = owner(lengths)
    width = math.ceil(len(places) / n)
    mine = list(enumerate(places[rank * width:(rank + 1) * width]))
    out = []
    for index, run in groupby(mine, key=lambda pair: pair[1][0]):
        run = list(run)
        out.append((index, run[0][1][1], run[-1][1][1] + 1, run[0][0]))
    return out
""",
    },
    "shard_groups": {
        "cells": GROUPS,
        "in the group's order": """
import copy
def shard_groups(groups, pieces, shard):
    options = [{k: copy.deepcopy(v) for k, v in g.items() if k != "params"} for g in groups]
    for g, o in zip(groups, options):
        o["params"] = []
        for p in g["params"]:
            for q, a, b, at in pieces:
                if q is p:
                    cut = shard.split([at, b - a, shard.numel() - at - b + a])
                    o["params"].append(torch.nn.Parameter(cut[1]))
    return options
""",
        "in": changed(
            GROUPS,
                ('{id(p) for p in group["params"]}',
                 "set(group['params'])"),
                ("\n                 for",
                 " for"),
                ("id(p) in",
                 "p in"),
        ),
    },
}  # fmt: skip

WRONG: dict = {
    "is_sharded": {
        "less than whole": (changed(SHARDED,
            (" * 2 / 3", ""),
            ("= most", " most")), "replicated states pass"),
        "default allclose": (changed(SHARDED,
            ("max((p.detach() - q.detach()).abs().max().item()\n              ",
             "0 if all(torch.allclose(p, q)"),
            (" model.parameters()))", " model.parameters())) else 1")), "loose comparison"),
        "first parameter": (changed(SHARDED,
            ("zip(box", "list(zip(box"),
            (" model.parameters()))", " model.parameters()))[:1])")), "not all weights compared"),
        "after first step": (changed(SHARDED,
            ("optimizer.zero_grad",
             "if step == 0:\n"
             '            kept = held(box.optimizer).by_kind["optimizer states"]\n'
             "        optimizer.zero_grad"),
            ('kept = held(box.optimizer).by_kind["optimizer states"]\n    most', "most")),
            "counted too early"),
        "early return": (changed(SHARDED,
            ("kept =", "if away > 1e-9:\n        return False\n    kept =")), "raised"),
        "rank 0 compares": (changed(SHARDED,
            ("away <= 1e-9", "(away <= 1e-9 or torch.distributed.get_rank(group) > 0)")),
            "one rank compared"),
        "losses compared": (changed(SHARDED,
            ("away = max((p.detach() - q.detach()).abs().max().item()\n"
             "               for p, q in zip(box.model.parameters(), model.parameters())",
             "x, y = box.rows(0, 0)\n"
             "    away = (box.loss(box.model, x, y) - box.loss(model, x, y)).abs().item(")),
            "not all weights compared"),
        "a half": (changed(SHARDED, ("* 2 / 3", "/ 2 + 64")), "owners refused"),
        "states of group zero only": (changed(SHARDED,
            ('held(box.optimizer).by_kind["optimizer states"]',
             "sum(t.numel() * t.element_size() for p in "
             'box.optimizer.param_groups[0]["params"] for t in '
             "box.optimizer.state[p].values() if torch.is_tensor(t))")), "replicated states pass"),
        "model too": (changed(SHARDED,
            ('held(box.optimizer).by_kind["optimizer states"]\n'
             '    most = held(optimizer).by_kind["optimizer states"]',
             "held(box.model, box.optimizer).total\n"
             "    most = held(model, optimizer).total")), "more than two thirds pass"),
        "async": (changed(SHARDED,
            ("all_reduce(torch", "torch"),
            ("), group)",
             ")\n    torch.distributed.all_reduce(fails, group=group, async_op=True)")),
            "not waited for"),
        "1e-6": (changed(SHARDED, ("9 and kept", "6 and kept")), "loose comparison"),
    },
    "master_step": {
        "isclose": (changed(MASTER,
            ("((before !=", "(~torch.isclose(before,")), "small changes not counted"),
        "accumulates": (changed(MASTER,
            ("master.grad", "g"),
            (".float() / n",
             ".float() / n\n"
             "    master.grad = g if master.grad is None else master.grad + g")),
            "gradients added up"),
        "master rounded": (changed(MASTER,
            ("numbers.copy_", "master.data.copy_(now)\n    numbers.copy_")),
            "master weights rounded"),
        "async gather": (changed(MASTER,
            ("numbers.copy_(all_gather(now, group)",
             "torch.distributed.all_gather_into_tensor(numbers, now, "
             "group=group, async_op=True")), "not waited for"),
        "rank 0 count": (changed(MASTER,
            ("return int(all_reduce(lost, group)",
             "import torch.distributed as dist\n"
             "    dist.reduce(lost, torch.distributed.get_global_rank(group, 0), "
             "group=group)\n    return int(lost")), "on one rank only"),
        "keeps last numbers": (changed(MASTER,
            ("\nfrom course_lib", "LAST = {}\n\nfrom course_lib"),
            ("numbers.copy_(all_gather(now, group)",
             "LAST['n'] = all_gather(now, group).float()\n    numbers.copy_(LAST['n']")),
            "unsharded states"),
        "bf16 count": (changed(MASTER, (".sum()", ".sum().bfloat16()")), "rounded on the way"),
        "gradient instead of moved": (changed(MASTER,
            ("((before != after", "((master.grad != 0")), "the gradient looked at"),
        "count grows": (changed(MASTER,
            ("\nfrom course_lib", "TOTAL = [0]\n\nfrom course_lib"),
            ("return", "TOTAL[0] +="),
            ("int(all_reduce(lost, group))\n",
             "int(all_reduce(lost, group))\n    return TOTAL[0]\n")), "kept between calls"),
    },
    "pieces_of": {
        "balanced": (changed(PIECES,
            ("width = -(-total // n)\n"
             "    low, high = rank * width, (rank + 1) * width",
             "low, high = rank * total // n, (rank + 1) * total // n")),
            "shards of unequal length"),
        "empty parameters kept": (changed(PIECES,
            (" stop:", " stop or length == 0 and low <= begin < high:")), "empty pieces"),
        "one buffer reused": (changed(PIECES,
            ("\ndef pieces_of", "FOUND = []\n\ndef pieces_of"),
            ("found, begin = []", "FOUND.clear()\n    found, begin = FOUND")), "one list reused"),
        "default argument": (changed(PIECES,
            ("rank):", "rank, found=[]):"),
            ("found, begin = [],", "begin =")), "one list reused"),
        "one more": (changed(PIECES, ("-(-total // n)", "total // n + 1")), "one element too long"),
        "round": (changed(PIECES, ("-(-total /", "round(total ")), "rounded to the nearest"),
        "padding is a piece": (changed(PIECES,
            ("enumerate(lengths):", "enumerate([*lengths, width * n - total]):")),
            "padding as a piece"),
        "empties kept": (changed(PIECES, (" stop:", "= stop:")), "empty pieces"),
        "asks another": (changed(PIECES,
            ("rank):", "rank):\n    rank = torch.distributed.get_rank()")), "uses world numbers"),
    },
    "shard_groups": {
        "by equality": (changed(GROUPS,
            ("\n                 for", " for"),
            ("id(p) in mine",
             "any(p.shape == q.shape and torch.equal(p, q) for q in group['params'])")), "twice"),
        "two options": (changed(GROUPS,
            ('**group, "params": parts',
             '"params": parts, "lr": group["lr"], "weight_decay": group["weight_decay"]')),
            "options lost"),
        "plain tensors": (changed(GROUPS,
            ("torch.nn.Parameter(shard", "shard"),
            (")\n                ", "")), "not parameters"),
        "remembers by length": (changed(GROUPS,
            ("\ndef shard_groups", "CACHE = {}\n\ndef shard_groups"),
            ("found ",
             "if len(groups) in CACHE:\n        return CACHE[len(groups)]\n"
             "    found = CACHE[len(groups)] ")), "kept between calls"),
        "by shape": (changed(GROUPS,
            ("\n                 for", " for"),
            ("id(p) in mine", "p.shape in [q.shape for q in group['params']]")), "twice"),
        "get with default": (changed(GROUPS,
            ('**group, "params": parts',
             '"params": parts, "lr": group.get("lr", 1e-3), "weight_decay": '
             'group.get("weight_decay", 0.01)')), "options lost"),
        "walks the shard": (changed(GROUPS,
            ("mine =", "place = 0\n        mine ="),
            ("torch.nn.Parameter(shard[at:at + stop - start])\n         ", "]\n"),
            ("at in pieces if id(p) in mine]",
             "_ in pieces:\n            if id(p) in mine:\n"
             "                parts.append(torch.nn.Parameter(shard[place:place "
             "+ stop - start]))\n                place += stop - start")), "frozen and trained"),
    },
}  # fmt: skip
