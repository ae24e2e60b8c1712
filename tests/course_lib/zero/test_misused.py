"""What PyTorch lets a user do and an engine cannot follow: refused, before a weight changes.

And what it follows: buffers, attention whose members are not called, compiled models, a bare
backward that is dropped.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from course_lib import ranks, zero
from course_lib.zero import gradient_guard
from tests.course_lib.tensor_parallel.parts import said
from tests.course_lib.zero.parts import (
    Case,
    by_one_process,
    close,
    engine_of,
    loss_of,
    made,
    made_for,
    match,
    optimizer_of,
    over_dp,
    randomized,
    train,
    trains,
)

UNVERSIONED = gradient_guard.unversioned


def edited(me, stage, options):
    """Gradients touched between backward and step, in the ways of a plain training loop."""
    case = Case(stage=stage, accumulate=2, dtype=torch.float32, tokens=True)
    model = made_for(case)
    optimizer, _ = optimizer_of(case, model)
    engine = engine_of(me, case, model, optimizer, **options)
    case = case.but(dtype=engine.precision.dtype or case.dtype)
    parts = [p for group in optimizer.param_groups for p in group["params"]]
    before = [part.detach().clone() for part in parts]

    def begin(micros=2):
        engine.zero_grad()
        for micro in range(micros):
            loss, _ = loss_of(case, engine, 0, me.rank, me.world, micro)
            engine.backward(loss, tokens=2)
            if micro < micros - 1:
                engine.step()

    def halved():
        for part in parts:
            if part.grad is not None:
                part.grad.mul_(0.5)

    def stepped(edit):
        begin()
        edit()
        engine.step()

    def between(edit):
        begin(1)
        edit()
        engine.step()
        engine.backward(loss_of(case, engine, 0, me.rank, me.world, 1)[0], tokens=2)

    reasons = {
        "clip": said(RuntimeError, stepped, lambda: clip_grad_norm_(model.parameters(), 1e-3)),
        "parts": said(RuntimeError, stepped, lambda: clip_grad_norm_(parts, 1e-3)),
        "halved": said(RuntimeError, stepped, halved),
        "norm": said(RuntimeError, stepped, lambda: model.first.weight.grad.norm()),
        "by hand": said(RuntimeError, optimizer.step),
    }
    if stage != 1:  # what has been added up is dropped
        reasons["zero_grad"] = said(RuntimeError, between, optimizer.zero_grad)
    if stage < 2:
        reasons["model.zero_grad"] = said(RuntimeError, between, model.zero_grad)
    assert all(map(torch.equal, parts, before))
    engine.zero_grad()
    for micro in range(2):
        engine.backward(loss_of(case, engine, 0, me.rank, me.world, micro)[0], tokens=2)
        model.zero_grad() if stage >= 2 else None  # stand-ins go, sums stay
        engine.step()
    assert engine.norm > 0 and not all(map(torch.equal, parts, before))
    return reasons


@pytest.mark.parametrize(
    ("stage", "options"),
    [(1, {}), (2, {}), (3, {}), (1, {"precision": "bfloat16"}), (3, {"offload": "cpu"})],
)
def test_gradients_are_not_edited_in_vain(pool, stage, options):
    for reasons in pool.run(2, edited, stage, options):
        assert "needs the gradient of " in reasons["clip"] and "clip=" in reasons["clip"]
        assert "needs the gradient of first.weight" in reasons["norm"]
        for name in ("parts", "halved"):
            assert "were edited after engine.backward()" in reasons[name]
            assert "clip=" in reasons[name]
        dropped = [reasons[name] for name in ("zero_grad", "model.zero_grad") if name in reasons]
        assert dropped and all("were dropped after engine.backward()" in one for one in dropped)
        assert "AdamW.step() was called by hand" in reasons["by hand"]


def edited_unseen(me, stage):
    """As torch's foreach operations write on a GPU: the version of the gradient stays."""
    gradient_guard.unversioned = lambda x: True
    try:
        case = Case(stage=stage, accumulate=2)
        model = made_for(case)
        engine = engine_of(me, case, model)
        parts = [p for group in engine.optimizer.param_groups for p in group["params"]]
        before = [part.detach().clone() for part in parts]
        said_at, losses = [], []
        for edit_after in (None, 0, 1):
            engine.zero_grad()
            for micro in range(2):
                loss, _ = loss_of(case, engine, 0, me.rank, me.world, micro)
                engine.backward(loss, tokens=2)
                every = {id(p.grad): p.grad for p in [*parts, *model.parameters()]}.values()
                grads = [
                    x for x in every if x is not None and type(x) is not gradient_guard.Elsewhere
                ]
                if micro == edit_after:
                    versions = [grad._version for grad in grads]
                    torch._foreach_mul_(grads, 0.5)
                    torch._C._autograd._unsafe_set_version_counter(tuple(grads), tuple(versions))
                if edit_after is None or micro == 0:
                    engine.step()
            if edit_after is None:
                losses.append(engine.norm)
                before = [part.detach().clone() for part in parts]
            else:
                said_at.append(said(RuntimeError, engine.step))
        assert losses[0] > 0 and all(map(torch.equal, parts, before))
        return said_at
    finally:
        gradient_guard.unversioned = UNVERSIONED


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_an_edit_that_leaves_the_version_is_seen_in_the_numbers(pool, stage):
    for reasons in pool.run(2, edited_unseen, stage):
        assert all("were edited after engine.backward()" in reason for reason in reasons)


def at_stage_0(me):
    """A parameter's gradient is the mean over all ranks, and the user's: clipping as in torch."""
    case = Case(stage=0, steps=3)
    engine = engine_of(me, case)
    for step in range(case.steps):
        engine.backward(loss_of(case, engine, step, me.rank, me.world, 0)[0])
        clip_grad_norm_(engine.parameters(), 0.01)
        engine.step()
    match("clipped by hand", engine, by_one_process(case.but(clip=0.01), me.world)[0])
    engine.backward(loss_of(case, engine, 0, me.rank, me.world, 0)[0], tokens=4)
    clip_grad_norm_(engine.parameters(), 0.01)  # of sums that are not yet divided
    return said(RuntimeError, engine.step)


def test_at_stage_0_gradients_are_the_users_own(pool):
    for reason in pool.run(2, at_stage_0):
        assert "must still be divided by tokens" in reason


def past(me, stage):
    """After a bare loss.backward(): refused, with a way on; and then as if it had not been."""
    case = Case(stage=stage, steps=2)
    engine = engine_of(me, case)
    loss_of(case, engine, 7, me.rank, me.world, 0)[0].backward()
    reasons = [
        said(RuntimeError, engine.backward, loss_of(case, engine, 0, me.rank, me.world, 0)[0]),
        said(RuntimeError, engine.step),
    ]
    engine.zero_grad()
    train(me, case, engine)
    match("after a bare backward", engine, by_one_process(case, me.world)[0])
    return reasons


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_bare_backward_is_dropped_by_zero_grad(pool, stage):
    for reasons in pool.run(2, past, stage):
        assert all("engine.zero_grad() drops these gradients" in reason for reason in reasons)


def moved(me, stage):
    """`model.to` after the engine was made."""
    engine = engine_of(me, Case(stage=stage, dtype=torch.float32))
    engine.model.to(torch.float64)
    called = said(RuntimeError, engine, made("x", 2, 5).double())
    graph = torch.ones((), requires_grad=True) * 2
    return called, said(RuntimeError, engine.backward, graph)


@pytest.mark.parametrize("stage", [1, 3])
def test_a_model_that_has_another_dtype_since_is_refused(pool, stage):
    for reasons in pool.run(2, moved, stage):
        for reason in reasons:
            where = "cuda:0" if torch.cuda.is_available() else "cpu"
            assert f"is torch.float64 on {where}, but was torch.float32 on {where} when" in reason
            assert "precision=" in reason


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Parameter(made("table", 9, 4).float()), nn.Linear(4, 2)

    def forward(self, ids):
        return self.last(nn.functional.embedding(ids, self.table, sparse=True))


def refused(me):
    mesh = ranks.mesh(me, dp=me.world, tp=1)
    model = made_for(Case(dtype=torch.float32))
    parameters = list(model.parameters())
    before = [p.detach().clone() for p in parameters]

    def why(kind, optimizer=None, model=model, mesh=mesh, stage=0, **options):
        optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
        return said(kind, zero.engine, model, optimizer, stage=stage, mesh=mesh, **options)

    with torch.inference_mode():
        frozen = nn.Linear(2, 2)
    reasons = {
        "typo": why(TypeError, stage=1, acumulate=2),
        "nonsense": why(TypeError, stage=1, zebra=2),
        "of stage 3": why(ValueError, stage=1, persist=2),
        "group": why(TypeError, mesh=mesh.get_group("dp")),
        "nothing": why(TypeError, mesh=None),
        "dtype": why(ValueError, precision=torch.int8),
        "inference": why(ValueError, model=frozen),
    }
    assert all(map(torch.equal, parameters, before))
    return reasons


def test_what_no_engine_can_follow_is_refused_by_name(pool):
    for reasons in pool.run(2, refused):
        assert "no option 'acumulate'; did you mean 'accumulate'?" in reasons["typo"]
        assert "no option 'zebra'. It takes" in reasons["nonsense"]
        assert "persist is only for stage 3, but this is stage 1" in reasons["of stage 3"]
        assert "the mesh is a ProcessGroup" in reasons["group"] and "from_group" in reasons["group"]
        assert "the mesh is a NoneType" in reasons["nothing"]
        assert "precision='int8' must be one of" in reasons["dtype"]
        assert "weight was made under torch.inference_mode()" in reasons["inference"]


def sparse_by_hand(me, stage):
    model = Functional()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = over_dp(me, model, optimizer, stage)
    return said(RuntimeError, engine.backward, engine(torch.tensor([1, 2])).sum())


@pytest.mark.parametrize("stage", [0, 3])
def test_a_sparse_gradient_that_comes_is_refused(pool, stage):
    for reason in pool.run(2, sparse_by_hand, stage):
        assert "the gradient of table is sparse" in reason


class Attends(nn.Module):
    """torch's attention, whose out_proj is used and never called, outside of a list of blocks."""

    def __init__(self, heads=2, width=6):
        super().__init__()
        self.first = nn.Linear(5, width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(width, heads, 8, dropout=0.0, batch_first=True)
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(width, 3))

    def forward(self, x):
        x = self.first(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.last(self.layer(x))


@pytest.mark.parametrize("stage", [1, 3])
def test_attention_whose_members_are_not_called(pool, stage):
    pool.run(2, trains, Attends, stage)


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 7), nn.Linear(7, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(7, 7), nn.Tanh()) for _ in range(2))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.last(x)


def compiled(me, how, stage, backend):
    def wrap(engine):
        torch._dynamo.reset()
        if how == "whole":
            return torch.compile(engine.model, backend=backend)
        for module in engine.model.blocks if how == "blocks" else [engine.model]:
            module.compile(backend=backend)
        return engine

    trains(me, Stack, stage, evaluate=how == "blocks", wrap=wrap)


@pytest.mark.parametrize(
    ("stage", "how"), [(0, "whole"), (2, "in place"), (3, "whole"), (3, "in place"), (3, "blocks")]
)
def test_a_compiled_model_trains_as_a_plain_one(pool, stage, how):
    pool.run(2, compiled, how, stage, "aot_eager", timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["whole", "blocks"])
def test_a_model_compiled_to_kernels_trains_at_stage_3(pool, how):
    pool.run(2, compiled, how, 3, "inductor", timeout=280)


class Normed(nn.Module):
    """A BatchNorm, a table that a forward writes to, and one that no state_dict has."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3)
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("own", torch.zeros(1), persistent=False)

    def forward(self, x):
        x = self.norm(self.first(x))
        if self.training:
            with torch.no_grad():
                self.seen[0] += x.square().mean()
        return self.last(torch.relu(x))


def buffers(me, stage, wrapped):
    """Buffers are the first rank's, as torch's DDP has them."""
    model, plain = (randomized(Normed(), "normed") for _ in range(2))
    theirs = DistributedDataParallel(plain)
    sgd = torch.optim.SGD
    step, optimizer = sgd(plain.parameters(), lr=0.1), sgd(model.parameters(), lr=0.1)
    mesh = ranks.mesh(me, dp=me.world, tp=1)
    engine = None
    if wrapped:
        ours = zero.DataParallel(model, mesh.get_group("dp"))
    else:
        ours = engine = zero.engine(model, optimizer, stage=stage, mesh=mesh)
    for turn in range(3):
        x = made((turn, me.rank), 6, 5)
        step.zero_grad()
        theirs(x).square().mean().backward()
        step.step()
        loss = ours(x).square().mean()
        if wrapped:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        else:
            engine.backward(loss)
            engine.step()
    equal = copy.deepcopy(dict(model.named_buffers()))
    theirs(made("x", 4, 5)), ours(made("x", 4, 5))
    state = engine.state_dict() if engine else model.state_dict()
    first = copy.deepcopy(plain.state_dict())
    if me.rank == 0 or wrapped:
        for name, x in first.items():
            close(name, state[name].double(), x.double(), 1e-5)
    return equal


@pytest.mark.parametrize("stage", [0, 1, 2, 3, None])
def test_buffers_are_kept_equal_as_ddp_does(pool, stage):
    first, second = pool.run(2, buffers, stage, stage is None)
    for name in ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "seen"):
        # DataParallel brings them together before a forward, an engine after each step.
        assert stage is None or torch.equal(first[name], second[name])
