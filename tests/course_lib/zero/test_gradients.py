"""Gradients on their way: torch's DDP as oracle, what breaks off, what is poisoned.

Whatever goes wrong in one backward, the next step has to be right.
"""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib import zero
from course_lib.zero import shards, stage2
from course_lib.zero.stage3.units import Unit
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
    train,
)

MANY = Case(accumulate=2, clip=0.3, bucket_bytes=200)


def backwards(me, model, no_sync, steps):
    """Gradients after each of some backwards, every second one without a message."""
    seen = []
    for step in range(steps):
        case = Case(skips="one rank" if step > 2 else "")

        def one(case=case, step=step, micro=0):
            loss_of(case, model, step, me.rank, me.world, micro)[0].backward()

        with no_sync():
            one()
            one(micro=1)
        one(micro=2)
        seen.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        if step % 2:
            model.zero_grad(set_to_none=step == 1)
    return seen


def against_ddp(me):
    """Our DataParallel and torch's, from other weights on each rank, on each rank's own data."""
    case = Case(frozen=("blocks.0.linear",), tied=True)
    ours, theirs = made_for(case, label=me.rank), made_for(case, label=me.rank)
    ddp = nn.parallel.DistributedDataParallel(
        theirs, bucket_cap_mb=1e-4, find_unused_parameters=True
    )
    data = zero.DataParallel(ours, dist.group.WORLD, bucket_bytes=600)
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        close(f"start of {name}", p, q, 0.0)
    want = backwards(me, ddp, ddp.no_sync, 6)
    got = backwards(me, data, data.no_sync, 6)
    for step, (a, b) in enumerate(zip(got, want, strict=True)):
        for (name, p), x, y in zip(ours.named_parameters(), a, b, strict=True):
            if x is None or y is None:  # torch's keeps zeros where nobody has a gradient
                assert x is None and (y is None or not y.any()), (step, name)
                assert not p.requires_grad or name.startswith("never")
            else:
                close(f"step {step}: grad of {name}", x, y)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_data_parallel_is_torchs(pool, world):
    pool.run(world, against_ddp, timeout=60)


def large_gradients(me):
    """Sums that float16 cannot hold, whose means it can."""
    model = nn.Linear(3, 2, bias=False).half()
    data = zero.DataParallel(model, dist.group.WORLD)
    (data.module.weight * 40000.0).sum().backward()
    return model.weight.grad.tolist()


def test_a_mean_does_not_overflow_where_the_sum_would(pool):
    for got in pool.run(3, large_gradients):
        assert torch.tensor(got).allclose(torch.tensor(40000.0), rtol=2e-3)


def broken_no_sync(me):
    case = Case()
    model, plain = made_for(case), made_for(case)
    data = zero.DataParallel(model, dist.group.WORLD, bucket_bytes=300)
    with pytest.raises(KeyError, match="the data"), data.no_sync():
        raise KeyError("the data ended")
    loss_of(case, data, 0, me.rank, me.world, 0)[0].backward()
    for rank in range(me.world):
        (loss_of(case, plain, 0, rank, me.world, 0)[0] / me.world).backward()
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        if q.grad is not None:
            close(name, p.grad, q.grad)


def test_after_an_error_inside_no_sync_gradients_are_sent_again(pool):
    pool.run(2, broken_no_sync)


class Fuse(torch.autograd.Function):
    """The identity, whose backward raises while the fuse is lit."""

    lit = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if Fuse.lit:
            raise ArithmeticError("the fuse has blown")
        return grad


def blown(me, case, where):
    """An error in the middle of a backward, and in the middle of a forward; then the next steps."""
    want, *_ = by_one_process(case, me.world)
    model = made_for(case)
    model.blocks[1].linear.register_forward_hook(lambda module, inputs, y: Fuse.apply(y))
    engine = engine_of(me, case, model)
    train(me, case, engine, steps=range(1))
    for micro in range(case.accumulate):
        Fuse.lit = where == "backward" and micro == case.accumulate - 1
        if where == "forward" and Fuse.lit is False and micro == 1:
            broken = model.blocks[2].norm.register_forward_pre_hook(_fall)
            with pytest.raises(ArithmeticError, match="fell"):
                loss_of(case, engine, 1, me.rank, me.world, micro)
            broken.remove()
        loss, _ = loss_of(case, engine, 1, me.rank, me.world, micro)
        if Fuse.lit:
            with pytest.raises(ArithmeticError, match="fuse"):
                engine.backward(loss)
            assert not engine.gradients._under_way, "what was sent is awaited before anything else"
            Fuse.lit = False
            train(me, case, engine, steps=range(1, 2))  # the whole step anew
        else:
            engine.backward(loss)
            engine.step()
    train(me, case, engine, steps=range(2, case.steps))
    match(f"{case} after an error in the {where}", engine, want)


def _fall(module, inputs):
    raise ArithmeticError("it fell")


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_after_a_broken_step_the_next_is_right(pool, stage, where):
    pool.run(2, blown, MANY.but(stage=stage), where)


class Poisoned:
    """A handle that comes late, and spoils what was handed over as soon as it is done."""

    def __init__(self, handle, spent, rank):
        self.handle, self.spent, self.rank = handle, spent, rank

    def wait(self):
        time.sleep(0.001 * self.rank)
        result = self.handle.wait()
        if self.spent is not None:
            result, spent, self.spent = result.clone(), self.spent, None
            spent.fill_(float("nan"))
        return result


def poisoned(me, case):
    """Every buffer is spoilt once its use is over, and the ranks are out of step."""
    want, *_ = by_one_process(case, me.world)

    def late(verb, spend):
        def call(x, group, *args, async_op=False, **options):
            time.sleep(0.002 * ((me.rank + spend.turn) % 2))
            spend.turn += 1
            if not async_op:
                return verb(x, group, *args, **options)
            handle = verb(x, group, *args, async_op=True, **options)
            return Poisoned(handle, x if spend.own else None, me.rank)

        return call

    class Spend:
        turn = 0

        def __init__(self, own):
            self.own = own

    kept = stage2.reduce_scatter, shards.all_gather, Unit.free
    stage2.reduce_scatter = late(kept[0], Spend(own=True))
    shards.all_gather = late(kept[1], Spend(own=False))

    def free(unit):
        was = unit.whole and not (unit.persistent or unit.pinned)
        kept[2](unit)
        if was:  # who looks at it now sees nothing but NaN, and does not crash
            unit.buffer.untyped_storage().resize_(unit.nbytes)
            unit.buffer.fill_(float("nan"))

    Unit.free = free
    try:
        engine = engine_of(me, case)
        train(me, case, engine)
    finally:
        stage2.reduce_scatter, shards.all_gather, Unit.free = kept
    match("poisoned", engine, want)


@pytest.mark.parametrize(("stage", "prefetch"), [(1, 0), (2, 0), (3, 0), (3, 1), (3, 2)])
def test_nobody_reads_a_buffer_after_its_use(pool, stage, prefetch):
    options = {"prefetch": prefetch, "keep": 400} if stage == 3 else {}
    pool.run(3, poisoned, MANY.but(stage=stage, stage3=options))


def under_the_backward(me, case):
    """How many buckets had left when the first layer's gradients came, and how many there are."""
    engine = engine_of(me, case)
    loss = loss_of(case, engine, 0, me.rank, me.world, 0)[0]
    came = []
    engine.model.first.bias.register_hook(lambda grad: came.append(engine.gradients._sent))
    engine.backward(loss)
    return came, len(engine.partition.buckets)


@pytest.mark.parametrize(("stage", "persist"), [(0, 0), (1, 0), (2, 0), (3, 0), (3, 60)])
def test_buckets_leave_under_the_backward(pool, stage, persist):
    # A layer that nobody calls would hold its bucket up, and all that come after it.
    case = Case(stage=stage, frozen=("never",), stage3={"persist": persist})
    for (sent,), count in pool.run(2, under_the_backward, case):
        assert count > 4 and sent >= count - 2


class Reentrant(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.net = made_for(case)

    def forward(self, x, skip=()):
        return checkpoint(self.net, x.clone().requires_grad_(), use_reentrant=True)


def reentrant(me, stage):
    case = Case(stage=stage, bucket_bytes=300)
    model = Reentrant(case)
    engine = engine_of(me, case, model, torch.optim.SGD(model.parameters(), lr=0.1))
    loss = loss_of(case, engine, 0, me.rank, me.world, 0)[0]
    return said(RuntimeError, engine.backward, loss)


@pytest.mark.parametrize("stage", [0, 2])
def test_a_backward_inside_a_backward_is_refused(pool, stage):
    for one in pool.run(2, reentrant, stage):
        assert "a backward pass runs inside a second one" in one and "use_reentrant=False" in one


def two_models(me, stage):
    """Two engines on one mesh, their steps interleaved, one's optimizer unlike the other's."""
    cases = [Case(stage=stage, clip=0.2), Case(stage=stage, optimizer="momentum", accumulate=2)]
    engines = [engine_of(me, case) for case in cases]
    for step in range(4):
        losses = [
            loss_of(c, e, step, me.rank, me.world, 0)[0]
            for c, e in zip(cases, engines, strict=True)
        ]
        for engine, loss in zip(engines, losses, strict=True):
            engine.backward(loss)
            engine.step()
        engines[1].backward(loss_of(cases[1], engines[1], step, me.rank, me.world, 1)[0])
        engines[1].step()
    for case, engine in zip(cases, engines, strict=True):
        match(f"{case}", engine, by_one_process(case, me.world)[0])


@pytest.mark.parametrize("stage", [2, 3])
def test_two_models_do_not_get_into_each_others_way(pool, stage):
    pool.run(2, two_models, stage)


def misused(me, stage):
    """Calls that would train something else, each refused; and the engine goes on."""
    case = Case(stage=stage, accumulate=2, steps=2)
    model = made_for(case.but(frozen=("first.bias",)))
    engine = engine_of(me, case, model)

    def loss(micro=0):
        return loss_of(case, engine, 0, me.rank, me.world, micro)[0]

    found = {}
    engine.backward(loss())
    found["twice"] = said(RuntimeError, engine.backward, loss())
    engine.step()
    found["tokens"] = said(ValueError, engine.backward, loss(1), 3)
    found["negative"] = said(ValueError, engine.backward, loss(1), -1)
    found["shape"] = said(ValueError, engine.backward, torch.ones(2, requires_grad=True))
    found["graph"] = said(ValueError, engine.backward, loss(1).detach())
    found["number"] = said(ValueError, engine.backward, 3.0)
    engine.backward(loss(1))
    assert engine.step()
    model.first.bias.requires_grad_()
    found["thawed"] = said(RuntimeError, engine.backward, loss())
    model.first.bias.requires_grad_(False)
    model.register_parameter("late", nn.Parameter(made("late", 2)))
    found["added"] = said(RuntimeError, engine.backward, loss())
    del model.late
    loss().backward()
    found["past"] = said(RuntimeError, engine.step)
    return found


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_what_would_train_something_else_is_refused(pool, stage):
    for found in pool.run(2, misused, stage):
        assert "backward was called twice without a step" in found["twice"]
        assert "updates every 2 calls" in found["twice"]
        assert "for some micro-batches" in found["tokens"]
        assert "tokens=-1 must be 0 or more" in found["negative"]
        assert "got a tensor of shape (2,)" in found["shape"]
        assert "of shape () without a graph" in found["graph"]
        assert "got a float" in found["number"]
        assert "first.bias were added to the model, or unfrozen, after" in found["thawed"]
        assert "late were added to the model" in found["added"]
        assert "call engine.backward(loss), not loss.backward()" in found["past"]


def nothing_used(me, stage):
    """A loss that no parameter takes part in, on one rank, and then on all."""
    case = Case(stage=stage, optimizer="sgd")
    model = made_for(case)
    engine = engine_of(me, case, model)
    kept = [p.detach().clone() for _, p in engine.shards.parts()]
    alone = torch.ones((), requires_grad=True)
    engine.backward(alone * 2)
    assert engine.step() and engine.norm == 0.0
    assert all(map(torch.equal, [p for _, p in engine.shards.parts()], kept))
    if stage < 3:  # there all ranks have to run the same units
        loss = alone * 2 if me.rank == 0 else loss_of(case, engine, 0, me.rank, me.world, 0)[0]
        engine.backward(loss)
        plain = made_for(case)
        for rank in range(1, me.world):
            (loss_of(case, plain, 0, rank, me.world, 0)[0] / me.world).backward()
        torch.optim.SGD(plain.parameters(), lr=0.05).step()
        assert engine.step()
        match("a rank without a part in it", engine, plain)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_loss_without_parameters_leaves_them_alone(pool, stage):
    pool.run(2, nothing_used, stage)
