"""What an engine refuses before anything is cut, and which optimizers it takes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from course_lib import ranks, zero
from course_lib.zero.optimizer_parts import (
    ELEMENTWISE,
    TORCH_OTHERS,
    check_elementwise,
    check_fresh,
)
from tests.course_lib.tensor_parallel.parts import said
from tests.course_lib.zero.parts import Case, engine_of, made, made_for


def matrix():
    return [nn.Parameter(made("w", 6, 4).float())]


class OwnAdamW(torch.optim.AdamW):
    """A subclass, which might look at more than one element."""


def test_torchs_own_optimizers_are_answered_by_name():
    for name, kind in vars(torch.optim).items():
        if not isinstance(kind, type) or name == "Optimizer":
            continue
        if name in ELEMENTWISE:
            check_elementwise(kind(matrix()))
        else:
            for vouched in (False, True):
                message = said(ValueError, check_elementwise, kind(matrix()), vouched=vouched)
                assert (
                    TORCH_OTHERS[name] in message and "or stage 0, which shards nothing" in message
                )


def test_another_optimizer_wants_its_users_word():
    for make in (OwnAdamW, type("AdamW", (torch.optim.SGD,), {"__module__": "elsewhere"})):
        message = said(ValueError, check_elementwise, make(matrix(), lr=0.1))
        assert "is not one of torch's elementwise optimizers" in message
        assert "pass elementwise=True" in message
        check_elementwise(make(matrix(), lr=0.1), vouched=True)


def test_bitsandbytes_is_answered_by_its_bits_and_norms():
    optim = pytest.importorskip("bitsandbytes").optim
    for kind in (optim.AdamW, optim.Lion, optim.SGD32bit, optim.PagedAdam32bit):
        check_elementwise(
            kind(matrix(), lr=0.1, **({"momentum": 0.9} if "SGD" in str(kind) else {}))
        )
    for kind in (optim.AdamW8bit, optim.LAMB):
        assert "pass elementwise=True" in said(ValueError, check_elementwise, kind(matrix()))


def test_an_optimizer_that_has_made_steps_is_refused():
    for kind in (torch.optim.Adam, torch.optim.Adagrad):
        parameters = matrix()
        optimizer = kind(parameters)
        check_fresh(optimizer)
        parameters[0].grad = torch.ones_like(parameters[0])
        optimizer.step()
        assert "has made a step already" in said(ValueError, check_fresh, optimizer)
    with torch.device("meta"):
        meta = torch.optim.Adagrad(nn.Linear(2, 2).parameters())
    assert "on torch's meta device" in said(ValueError, check_fresh, meta)


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
        "own": [why(optimizer=OwnAdamW(model.parameters()))],
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
        assert all("0 shards nothing, 1 the optimizer's states" in one for one in found["stage"])
        assert all("an integer above 0" in one for one in found["accumulate"])
        assert all("None leaves the gradients as they are" in one for one in found["clip"])
        assert "precision='half' must be one of" in found["precision"][0]
        assert "2 of the optimizer's parameters are not the model's" in found["strange"][0]
        assert "it lacks 4 of those to be trained: blocks.1.norm.weight" in found["lost"][0]
        assert "(without names)" in found["bare"][0] and "no axis 'dp'" in found["bare"][0]
        assert "has the axes tp but no axis 'dp'" in found["tp"][0]
        assert "most_bytes=0 must be 1 or more" in found["buckets"][0]
        assert "Adafactor" in found["rows"][0] and "elementwise=True" in found["own"][0]
        assert "group" not in found or (rank == 1 and "not in the group" in found["group"][0])
