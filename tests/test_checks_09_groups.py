"""Lesson 09's checks of an optimizer under the cut: its groups, and the proof that it shards.

Every answer here runs on the judge's real ranks.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_09 import proof_boxes
from course_lib.classroom.checks.lesson_09.proof import PASSED, REFUSED
from tests.answers import changed, lesson_09
from tests.likeliest import likeliest

FOLDER = Path(__file__).resolve().parent.parent / "solutions" / "09_zero_1"

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
# Views without a Parameter round them.
PLAIN = """
def shard_groups(groups, pieces, shard):
    def of(group):
        mine = set(map(id, group["params"]))
        return [shard[at:][: b - a] for p, a, b, at in pieces if id(p) in mine]

    return [{**group, "params": of(group)} for group in groups]
"""


def groups(*changes: tuple[str, str]) -> str:
    return changed(GROUPS, *changes)


VIEW = "shard[at : at + (stop - start)]"
ASK = 'if any(parameter is other for other in group["params"]):'
END = "    return found"
MERGE = '    found[0]["params"] += [p for one in found[1:] for p in one.pop("params")]\n'
WRONG_GROUPS = {
    "whole parameters": (
        "def shard_groups(groups, pieces, shard):\n    return [dict(g) for g in groups]\n",
        "not cut",
    ),
    "whole ones of the rank": (
        groups((f"view = {VIEW}\n", "view = parameter.data\n")),
        "not cut",
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
        "numbers left out",
    ),
    "one number less": (groups((VIEW, "shard[at : at + (stop - start) - 1]")), "numbers left out"),
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
        "another group's options",
    ),
    "twice": (
        groups((END, '    found[0]["params"] += [torch.nn.Parameter(p.data) '
                'for p in found[0]["params"]]\n' + END)),
        "twice",
    ),
    "empty groups left out": (
        groups((END, '    return [one for one in found if one["params"]]')),
        "other groups",
    ),
    "the given ones changed": (
        groups((END, "    for group, one in zip(groups, found):\n"
                '        group["params"] = one["params"]\n    return groups')),
        "input changed",
    ),
    "plain tensors": (PLAIN, "not parameters"),
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
WRONG_PROOF = {
    "yes": ("def is_sharded(box, group):\n    box.train(0)\n    return True\n", "always true"),
    "no": ("def is_sharded(box, group):\n    box.train(0)\n    return False\n", "always false"),
    "the training alone": (proof((STATES, "")), "whole states pass"),
    "the states alone": (proof((WEIGHTS, "            pass\n")), "wrong training passes"),
    "the ranks with each other": (
        proof(
            (
                WEIGHTS,
                "            first = p.detach().clone()\n"
                "            dist.broadcast(first, dist.get_global_rank(group, 0), group=group)\n"
                "            good = good and torch.equal(p, first)\n",
            )
        ),
        "wrong training passes",
    ),
    "the ranks, and that all moves": (
        proof(
            (
                WEIGHTS,
                "            first = p.detach().clone()\n"
                "            dist.broadcast(first, dist.get_global_rank(group, 0), group=group)\n"
                "            good = good and torch.equal(p, first)\n",
            ),
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
    "one step": (proof(("range(4)", "range(1)")), "one step"),
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
        "another optimizer refused",
    ),
    "the reason": (proof(("    return bool(good)", "    return 'sharded' if good else 'whole'")),
                   "no verdict"),
    "nothing": (proof(("    return bool(good)", "    return")), "nothing returned"),
}  # fmt: skip
NOT_TRIED = {"parameters averaged", "even"}  # a box that fails on two counts, and one on none

RIGHT = {"shard_groups": (GROUPS, BY_PIECE), "is_sharded": (PROOF,)}
WRONG = {"shard_groups": WRONG_GROUPS, "is_sharded": WRONG_PROOF}


def judged(desk: Desk, name: str, source: str) -> frame.Verdict:
    return desk.check(name, {name: source})


def reference(name: str) -> str:
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    source = next(c.source for c in cells if f"def {name}" in c.source)
    return source.split("\n", 1)[1]  # without the magic's line


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_are_right_whatever_their_style(desk, name):
    for source in RIGHT[name]:
        verdict = judged(desk, name, source)
        assert verdict.outcome == "right", str(verdict)
        assert verdict.points == frame.find(name).points


@pytest.mark.slow  # its notebook, which each run executes, says the same
@pytest.mark.parametrize("name", RIGHT)
def test_the_reference_is_right(desk, name):
    assert judged(desk, name, reference(name)).outcome == "right"


@pytest.mark.parametrize(
    "mistake",
    likeliest(
        WRONG_GROUPS, first=("whole parameters", "copies", "the whole shard", "decay by dims")
    ),
)
def test_wrong_groups_are_refused_by_their_name(desk, mistake):
    source, name = WRONG_GROUPS[mistake]
    verdict = judged(desk, "shard_groups", source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


@pytest.mark.parametrize(
    "mistake",
    likeliest(WRONG_PROOF, first=("yes", "the training alone", "the states alone", "one step")),
)
def test_a_test_that_proves_nothing_is_refused_by_its_name(desk, mistake):
    source, name = WRONG_PROOF[mistake]
    verdict = judged(desk, "is_sharded", source)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


def test_every_box_is_spoken_of_and_nearly_each_decides_some_answer():
    assert set(PASSED) == set(proof_boxes.OTHERS)
    assert set(REFUSED) == set(proof_boxes.SHARDED)
    names = {name for _, name in [*WRONG_PROOF.values(), *lesson_09.WRONG["is_sharded"].values()]}
    for kind, (name, _) in {**PASSED, **REFUSED}.items():
        assert name in names or kind in NOT_TRIED


@pytest.mark.parametrize("name", RIGHT)
def test_what_breaks_costs_one_check(desk, name):
    arguments = {"shard_groups": "a, b, c"}.get(name, "a, b")
    for body, found in (
        ("return 1 / 0", "raised"),
        ("...", ""),
        ("raise SystemExit", "raised"),
        ("return 'seven'", {"shard_groups": "not groups"}.get(name, "no verdict")),
    ):
        verdict = judged(desk, name, f"def {name}({arguments}):\n    {body}\n")
        assert verdict.name == found, str(verdict)
    assert judged(desk, name, RIGHT[name][0]).outcome == "right"


@pytest.mark.parametrize("name", RIGHT)
def test_neither_a_hint_nor_a_verdict_gives_the_answer_away(name):
    said = " ".join(frame.find(name).hints) + frame.find(name).when_right
    for piece in ("def ", "return ", "shard[", "backward()", "all_reduce("):
        assert piece not in said
