"""What an engine refuses before anything is cut, and which optimizers it takes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from course_lib import ranks, zero
from course_lib.zero.elementwise import check_elementwise
from course_lib.zero.handover import check_fresh
from tests.tensor_parallel.parts import said
from tests.zero.parts import Case, engine_of, made, made_for, same_as_one_process


def matrix():
    return [nn.Parameter(made("w", 6, 4).float())]


ELEMENTWISE = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.0),  # as a warm-up begins
    "fused": lambda p: torch.optim.AdamW(p, fused=True),
    "foreach": lambda p: torch.optim.AdamW(p, foreach=True, maximize=True),
    "capturable": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.0, initial_accumulator_value=0.3),
    "adadelta": lambda p: torch.optim.Adadelta(p),
    "adamax": lambda p: torch.optim.Adamax(p),
    "nadam": lambda p: torch.optim.NAdam(p),
    "rprop": lambda p: torch.optim.Rprop(p),
    "empty group": lambda p: torch.optim.SGD([{"params": p}, {"params": []}], lr=0.1),
}
NOT_ELEMENTWISE = {
    "adafactor": lambda p: torch.optim.Adafactor(p),
    "lbfgs": lambda p: torch.optim.LBFGS(p),
    "muon": lambda p: torch.optim.Muon(p, lr=0.1),
    "muon at lr 0": lambda p: torch.optim.Muon(p, lr=0.0),
    "rows at lr 0": lambda p: Rows([{"params": p, "rows": True}], lr=0.0),
    "one group of two": lambda p: Rows([{"params": p}, {"params": [], "rows": True}], lr=0.1),
}


class Rows(torch.optim.SGD):
    """In groups that ask for it, a step as long in every row."""

    def step(self, closure=None):
        with torch.no_grad():
            for group in self.param_groups:
                for p in group["params"]:
                    norm = p.grad.norm() if group.get("rows") else 1.0
                    p.sub_(group["lr"] * p.grad / norm)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_optimizers_are_taken(name):
    parameters = matrix()
    optimizer = ELEMENTWISE[name](parameters)
    kept, states = parameters[0].detach().clone(), len(optimizer.state)
    groups = [dict(group) for group in optimizer.param_groups]
    check_fresh(optimizer)
    check_elementwise(optimizer)
    # It was tried out on a twin: nothing of it has changed.
    assert torch.equal(parameters[0], kept) and parameters[0].grad is None
    assert len(optimizer.state) == states
    assert [dict(group) for group in optimizer.param_groups] == groups
    check_fresh(optimizer)


@pytest.mark.parametrize("name", NOT_ELEMENTWISE)
def test_an_optimizer_that_looks_at_more_than_one_number_is_refused(name):
    if "muon" in name and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    found = said(ValueError, check_elementwise, NOT_ELEMENTWISE[name](matrix()))
    assert "Use an elementwise one, such as SGD, Adam or AdamW, or stage 0" in found
    assert "does not step on a shard" in found or "updates a shard otherwise" in found


def test_an_optimizer_that_has_made_steps_is_refused():
    for make in (ELEMENTWISE["momentum"], ELEMENTWISE["adam"], ELEMENTWISE["adagrad"]):
        parameters = matrix()
        optimizer = make(parameters)
        parameters[0].grad = torch.ones_like(parameters[0])
        optimizer.step()
        assert "has made a step already" in said(ValueError, check_fresh, optimizer)
    with torch.device("meta"):
        meta = torch.optim.Adagrad(nn.Linear(2, 2).parameters())
    assert "on torch's meta device" in said(ValueError, check_fresh, meta)


def taken(me, name):
    case = Case(stage=2, optimizer=name, clip=0.3, accumulate=2, decay=True)
    same_as_one_process(me, case)


@pytest.mark.parametrize("name", ["adagrad", "rmsprop"])
def test_states_made_before_the_first_step_are_cut_too(pool, name):
    pool.run(3, taken, name)


def cut_states(me):
    """States that no step would make anew: each part has its own piece of them."""
    model = made_for(Case())
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for i, p in enumerate(model.parameters()):
        optimizer.state[p]["sum"].copy_(made((i, "sum"), *p.shape).abs())
    whole = {p: optimizer.state[p]["sum"].flatten() for p in model.parameters()}
    engine = engine_of(me, Case(stage=2), model, optimizer)
    for piece, part in engine.shards.parts():
        own = whole[piece.slot.parameter][piece.start : piece.stop]
        assert torch.equal(optimizer.state[part]["sum"].flatten(), own), piece.slot.name


def test_each_part_gets_its_piece_of_the_states(pool):
    pool.run(3, cut_states)


def refused(me):
    """Each wrong way to make an engine; the model and its optimizer stay as they were."""
    mesh = ranks.mesh(me, dp=me.world, tp=1)
    model = made_for(Case())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]

    def why(model=model, optimizer=optimizer, mesh=mesh, stage=1, **options):
        return said(ValueError, zero.engine, model, optimizer, stage=stage, mesh=mesh, **options)

    other = nn.Linear(2, 2)
    some = [p for n, p in model.named_parameters() if not n.startswith("blocks.1")]
    bare = init_device_mesh(me.device.type, (me.world,))
    alone = init_device_mesh(me.device.type, (me.world,), mesh_dim_names=("tp",))
    found = {
        "stage": [why(stage=s) for s in (4, -1, True, "2", None)],
        "accumulate": [why(accumulate=k) for k in (0, -1, 1.5, True)],
        "clip": [why(clip=c) for c in (0.0, -1.0)],
        "precision": [why(precision="half")],
        "strange": [why(optimizer=torch.optim.SGD(other.parameters(), lr=0.1))],
        "lost": [why(optimizer=torch.optim.SGD(some, lr=0.1))],
        "bare": [why(mesh=bare)],
        "tp": [why(mesh=alone)],
        "buckets": [why(bucket_bytes=0)],
        "rows": [why(optimizer=torch.optim.Adafactor(model.parameters()))],
    }
    if me.world > 1:
        outside = ranks.new_group(me, [0])
        group = outside if me.rank == 0 else None
        if me.rank:
            found["group"] = [said(ValueError, zero.DataParallel, other, group)]
    assert [p for g in optimizer.param_groups for p in g["params"]] == list(model.parameters())
    assert all(map(torch.equal, model.parameters(), before))
    zero.engine(
        model, torch.optim.Adafactor(model.parameters()), stage=0, mesh=mesh
    )  # which cuts nothing
    assert dist.get_world_size() == me.world
    return found


def test_wrong_engines_are_refused_before_anything_is_cut(pool):
    for rank, found in enumerate(pool.run(2, refused)):
        assert all("0 cuts nothing, 1 the optimizer's states" in one for one in found["stage"])
        assert all("a whole number above 0" in one for one in found["accumulate"])
        assert all("None leaves the gradients as they are" in one for one in found["clip"])
        assert "precision='half' is none of" in found["precision"][0]
        assert "2 of the optimizer's parameters are not the model's" in found["strange"][0]
        assert "of those to be trained it lacks 4: blocks.1.norm.weight" in found["lost"][0]
        assert "(without names)" in found["bare"][0] and "no axis 'dp'" in found["bare"][0]
        assert "has the axes tp and no axis 'dp'" in found["tp"][0]
        assert "most_bytes=0 has to be 1 or more" in found["buckets"][0]
        assert "Adafactor" in found["rows"][0]
        assert "group" not in found or (rank == 1 and "not in the group" in found["group"][0])
