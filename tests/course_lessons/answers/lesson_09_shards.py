"""Answers to lesson 09's groups and proofs: right ones, and wrong ones by their names."""

from __future__ import annotations

from tests.course_lessons.answers import changed

# ---- shard_groups
GROUPS = """
import copy


def shard_groups(groups, pieces, shard):
    found = []
    for group in groups:
        one = {key: value for key, value in group.items() if key != "params"}
        one["params"] = []
        for parameter, start, stop, at in pieces:
            if any(parameter is other for other in group["params"]):
                view = shard[at : at + (stop - start)]
                one["params"].append(torch.nn.Parameter(view))
        found.append(one)
    return found
"""
# Another style: piece by piece.
BY_PIECE = """
def shard_groups(groups, pieces, shard):
    where = {id(p): i for i, group in enumerate(groups) for p in group["params"]}
    found = [dict(group, params=[]) for group in groups]
    for parameter, start, stop, at in pieces:
        if id(parameter) in where:
            part = torch.nn.Parameter(shard.narrow(0, at, stop - start))
            found[where[id(parameter)]]["params"].append(part)
    return found
"""


def groups(*changes: tuple[str, str]) -> str:
    return changed(GROUPS, *changes)


VIEW = "shard[at : at + (stop - start)]"
ASK = 'if any(parameter is other for other in group["params"]):'
END = "    return found"
MERGE = '    found[0]["params"] += [p for one in found[1:] for p in one.pop("params")]\n'
WRONG_GROUPS = {
    "an option of its own": (
        groups(("        found.append(one)\n",
                "        one.setdefault('lr', 1e-3)\n        found.append(one)\n")),
        "options lost",
    ),
    "one dictionary": (
        "def shard_groups(groups, pieces, shard):\n    found, one = [], {}\n"
        "    for g in groups:\n        mine = set(map(id, g['params']))\n"
        "        one.update(g, params=[torch.nn.Parameter(shard[at : at + b - a])\n"
        "                              for p, a, b, at in pieces if id(p) in mine])\n"
        "        found.append(one)\n    return found\n",
        "twice",
    ),
    "no decay of biases": (
        groups(("        found.append(one)\n",
                "        if all(p.dim() < 2 for p in group['params']):\n"
                "            one['weight_decay'] = 0.0\n        found.append(one)\n")),
        "options lost",
    ),
    "options of the groups before": (
        groups(
            ("    found = []\n", "    found, options = [], {}\n"),
            ("        one = {key: value for key, value in group.items() if key != \"params\"}\n",
             "        options.update(group)\n        one = dict(options)\n"),
        ),
        "options lost",
    ),
    "three options by name": (
        groups(('if key != "params"', 'if key in ("lr", "weight_decay", "betas")')),
        "options lost",
    ),
    "parameters not split": (
        "def shard_groups(groups, pieces, shard):\n    return [dict(g) for g in groups]\n",
        "not sharded",
    ),
    "whole ones of the rank": (
        groups((f"view = {VIEW}\n", "view = parameter.data\n")),
        "not sharded",
    ),
    "copies": (groups((VIEW, VIEW + ".clone()")), "copies"),
    "copies of the parameter": (
        groups((VIEW, "parameter.detach().reshape(-1)[start:stop].clone()")),
        "copies",
    ),
    "the whole shard": (
        "def shard_groups(groups, pieces, shard):\n"
        "    found = [dict(g, params=[]) for g in groups]\n"
        "    found[0]['params'].append(torch.nn.Parameter(shard))\n    return found\n",
        "padding trained",
    ),
    "to the end": (groups((VIEW, "shard[at:]")), "padding trained"),
    "frozen ones in the last": (
        groups((END, '    known = {id(p) for group in groups for p in group["params"]}\n'
                "    for parameter, start, stop, at in pieces:\n"
                "        if id(parameter) not in known:\n"
                f'            found[-1]["params"].append(torch.nn.Parameter({VIEW}))\n' + END)),
        "frozen and trained",
    ),
    "cut ones left out": (
        groups((ASK, ASK[:-1] + " and stop - start == parameter.numel():")),
        "elements left out",
    ),
    "one number less": (groups((VIEW, "shard[at : at + (stop - start) - 1]")), "elements left out"),
    "one group": (
        groups((END, '    found[0]["params"] += [p for one in found[1:] for p in one["params"]]\n'
                "    return found[:1]")),
        "one group for all",
    ),
    "options forgotten": (
        groups(('{key: value for key, value in group.items() if key != "params"}', "{}")),
        "options lost",
    ),
    "decay by dims": (
        groups((END, "    for one in found:\n"
                '        if one["weight_decay"] == 0.3:\n'
                '            dims = [p.dim() > 1 for p in one["params"]]\n'
                '            one["weight_decay"] = 0.3 if any(dims) else 0.0\n' + END)),
        "decay by the pieces' shape",
    ),
    "in the bucket's order": (
        "def shard_groups(groups, pieces, shard):\n"
        "    found = [dict(g, params=[]) for g in groups]\n"
        "    known = [id(p) for g in groups for p in g['params']]\n"
        "    mine = [x for x in pieces if id(x[0]) in known]\n"
        "    for i, (p, a, b, at) in enumerate(mine):\n"
        "        part = torch.nn.Parameter(shard[at : at + b - a])\n"
        "        found[i * len(groups) // len(mine)]['params'].append(part)\n"
        "    return found\n",
        "wrong group's options",
    ),
    "twice": (
        groups((END, '    found[0]["params"] += [torch.nn.Parameter(p.data) '
                'for p in found[0]["params"]]\n' + END)),
        "twice",
    ),
    "empty groups left out": (
        groups((END, '    return [one for one in found if one["params"]]')),
        "wrong groups",
    ),
    "the given ones changed": (
        groups((END, "    for group, one in zip(groups, found):\n"
                '        group["params"] = one["params"]\n    return groups')),
        "input changed",
    ),
    "parameters alone": (groups((END, '    return [p for one in found for p in one["params"]]')),
                         "not groups"),
    "nothing": (groups((END, "    return")), "nothing returned"),
}  # fmt: skip

# ---- is_sharded
PROOF = """
import copy

import torch.distributed as dist


def kept(optimizer):
    seen = {}
    for state in optimizer.state.values():
        for value in state.values():
            if torch.is_tensor(value):
                storage = value.untyped_storage()
                seen[storage.data_ptr()] = storage.nbytes()
    return sum(seen.values())


def is_sharded(box, group):
    n = group.size()
    one = copy.deepcopy(box.model)
    optimizer = box.whole(list(one.parameters()))
    good = True
    for step in range(4):
        optimizer.zero_grad()
        total = 0.0
        for rank in range(n):
            total = total + box.loss(one, *box.rows(step, rank))
        (total / n).backward()
        optimizer.step()
        box.train(step)
        for p, q in zip(box.model.parameters(), one.parameters()):
            good = good and torch.allclose(p, q, rtol=0, atol=1e-9)
    good = good and kept(box.optimizer) <= 2 / 3 * kept(optimizer)
    good = torch.tensor(int(good))
    dist.all_reduce(good, dist.ReduceOp.MIN, group=group)
    return bool(good)
"""


def proof(*changes: tuple[str, str]) -> str:
    return changed(PROOF, *changes)


STATES = "    good = good and kept(box.optimizer) <= 2 / 3 * kept(optimizer)\n"
WEIGHTS = "            good = good and torch.allclose(p, q, rtol=0, atol=1e-9)\n"
AGREE = "    dist.all_reduce(good, dist.ReduceOp.MIN, group=group)\n"
NUMEL = (
    "    def numel(o):\n"
    "        values = [v for s in o.state.values() for v in s.values() if torch.is_tensor(v)]\n"
    "        return sum(v.numel() for v in values)\n"
    "    good = good and numel(box.optimizer) <= 2 / 3 * numel(optimizer)\n"
)
SUM = (
    "    every = torch.tensor(float(kept(box.optimizer)))\n"
    "    dist.all_reduce(every, group=group)\n"
    "    good = good and every <= 1.3 * kept(optimizer)\n"
)
AS_RANK_0 = (
    "            first = p.detach().clone()\n"
    "            dist.broadcast(first, dist.get_global_rank(group, 0), group=group)\n"
    "            good = good and torch.equal(p, first)\n"
)
WRONG_PROOF = {
    "less than two thirds": (proof(("<= 2 / 3 *", "< 2 / 3 *")), "owners refused"),
    "to a millionth": (proof(("atol=1e-9", "atol=1e-6")), "loose comparison"),
    "yes": ("def is_sharded(box, group):\n    box.train(0)\n    return True\n", "always true"),
    "no": ("def is_sharded(box, group):\n    box.train(0)\n    return False\n", "always false"),
    "the training alone": (proof((STATES, "")), "replicated states pass"),
    "the states alone": (proof((WEIGHTS, "            pass\n")), "wrong training passes"),
    "the ranks with each other": (proof((WEIGHTS, AS_RANK_0)), "wrong training passes"),
    "the ranks, and that all moves": (
        proof(
            (WEIGHTS, AS_RANK_0),
            ("    for step in range(4):\n",
             "    start = [p.detach().clone() for p in one.parameters()]\n"
             "    for step in range(4):\n"),
            (STATES, STATES + "    pairs = zip(start, box.model.parameters())\n"
             "    good = good and all(bool((a != b).all()) for a, b in pairs)\n"),
        ),
        "agreement taken for training",
    ),
    "its own shard, one step": (
        proof(
            ("range(4)", "range(1)"),
            (WEIGHTS, "            pass\n"),
            (STATES, STATES + "    flat = [torch.cat([p.data.flatten() for p in m.parameters()]) "
             "for m in (box.model, one)]\n"
             "    size = -(-len(flat[0]) // n)\n"
             "    a, b = (x[group.rank() * size :][:size] for x in flat)\n"
             "    good = good and torch.allclose(a, b, rtol=0, atol=1e-9)\n"),
        ),
        "never gathered",
    ),
    "only one step checked": (proof(("range(4)", "range(1)")), "only one step checked"),
    "rank 0 says": (
        proof((AGREE, "    dist.broadcast(good, dist.get_global_rank(group, 0), group=group)\n")),
        "one rank asked",
    ),
    "each for itself": (proof((AGREE, "")), "ranks disagree"),
    "the others nod": (
        proof(("    return bool(good)", "    return bool(good) or group.rank() > 0")),
        "ranks disagree",
    ),
    "the sum of all": (proof((STATES, SUM)), "the sum of all ranks"),
    "elements": (proof((STATES, NUMEL)), "numel believed"),
    "sums": (
        proof(("good and torch.allclose(p, q, rtol=0, atol=1e-9)",
               "good and abs(p.sum() - q.sum()) < 1e-9")),
        "sums compared",
    ),
    "exactly an n-th": (
        proof(("<= 2 / 3 * kept(optimizer)", "* n <= kept(optimizer)")),
        "uneven shards refused",
    ),
    "an n-th, rounded up": (
        proof(("<= 2 / 3 * kept(optimizer)", "* n <= 1.1 * kept(optimizer) + 64")),
        "owners refused",
    ),
    "two moments": (
        proof((STATES, "    numbers = sum(p.numel() for p in one.parameters())\n"
               "    moments = [s['exp_avg'] for s in box.optimizer.state.values() "
               "if 'exp_avg' in s]\n" + STATES
               + "    good = good and 0 < len(moments)\n")),
        "different optimizer refused",
    ),
    "the reason": (proof(("    return bool(good)", "    return 'sharded' if good else 'whole'")),
                   "no verdict"),
    "nothing": (proof(("    return bool(good)", "    return")), "nothing returned"),
}  # fmt: skip

RIGHT: dict = {
    "shard_groups": {"by group": GROUPS, "by piece": BY_PIECE},
    "is_sharded": {"storages": PROOF},
}
WRONG: dict = {"shard_groups": WRONG_GROUPS, "is_sharded": WRONG_PROOF}
