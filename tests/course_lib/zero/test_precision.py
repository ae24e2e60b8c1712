"""Half precision: masters that keep small steps, an overflow that skips everywhere, the scale."""

from __future__ import annotations

import copy
import math
import random

import pytest
import torch
from torch import nn

from course_lib.zero import LossScale, Precision
from tests.course_lib.tensor_parallel.parts import said
from tests.course_lib.zero.parts import Case, close, engine_of, loss_of, made_for, over_dp, train

HALF = Case(dtype=torch.float32, clip=0.5, bucket_bytes=300, frozen=("never",))


def frozen_state(engine):
    """Everything that a step may change, to compare bit by bit."""
    kept = [p.detach().clone() for _, p in engine.shards.parts()]
    for state in engine.optimizer.state.values():
        kept += [x.clone() for x in state.values() if torch.is_tensor(x)]
    if engine.stage != 3:
        kept += [p.detach().clone() for p in engine.model.parameters()]
    return kept


def overflow(me, stage, where):
    """An inf in one rank's gradients, in the first or last number of the model: all ranks skip."""
    case = HALF.but(stage=stage)
    engine = engine_of(me, case, precision="float16")
    engine.precision.scale.value = 256.0
    engine.precision.scale.left = 1
    train_half(me, case, engine, range(2))
    before = frozen_state(engine)
    names = {"first": "first.weight", "last": "back.weight"}
    parameter = dict(engine.model.named_parameters())[names[where]]

    def spoil(grad):
        grad = grad.clone()
        grad.view(-1)[0 if where == "first" else -1] = math.inf
        return grad

    hook = parameter.register_hook(spoil) if me.rank == 1 else None
    moved = train_half(me, case, engine, range(2, 3))
    if hook is not None:
        hook.remove()
    same = all(map(torch.equal, frozen_state(engine), before))
    value, skipped = engine.precision.scale.value, engine.skipped
    after = train_half(me, case, engine, range(3, 4))
    changed = not all(map(torch.equal, frozen_state(engine), before))
    return moved, same, value, skipped, after, changed


def train_half(me, case, engine, steps):
    done = []
    for step in steps:
        loss = loss_of(Halved(case), engine, step, me.rank, me.world, 0)[0]
        engine.backward(loss.float())
        done.append(engine.step())
    return done


def Halved(case):
    return case.but(dtype=torch.float16)


@pytest.mark.parametrize(("stage", "where"), [(0, "first"), (1, "last"), (2, "first"), (3, "last")])
def test_an_overflow_on_one_rank_makes_all_skip(pool, stage, where):
    for moved, same, value, skipped, after, changed in pool.run(3, overflow, stage, where):
        assert moved == [False] and same, "a skipped step has changed something"
        assert (value, skipped) == (128.0, 1)
        assert after == [True] and changed


def not_a_number(me, stage):
    """Without a loss scale a NaN stops the training, on all ranks, and names where it was."""
    case = Case(stage=stage, clip=0.5, bucket_bytes=300)
    engine = engine_of(me, case)
    train(me, case, engine, steps=range(1))
    before = frozen_state(engine)
    hook = engine.model.blocks[1].linear.weight.register_hook(lambda g: g * math.nan)
    hook.remove() if me.rank != 1 else None
    engine.backward(loss_of(case, engine, 1, me.rank, me.world, 0)[0])
    found = said(FloatingPointError, engine.step)
    hook.remove()
    assert all(map(torch.equal, frozen_state(engine), before))
    train(me, case, engine, steps=range(1, 3))
    return found


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_nan_stops_all_ranks_and_is_named(pool, stage):
    for found in pool.run(3, not_a_number, stage):
        assert "no weight changed" in found and "blocks.1.linear.weight" in found
        assert "on rank " in found


def tiny_steps(me, stage, precision):
    """Steps far smaller than what bfloat16 can tell apart at 1, two hundred of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5, bias=False), nn.Linear(5, 1, bias=False))
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    engine = over_dp(me, model, optimizer, stage, precision=precision, check=False)
    x = torch.ones(1, 3, dtype=torch.bfloat16 if precision == "bfloat16" else torch.float32)
    for _ in range(200):
        engine.backward(-engine(x).float().mean())
        engine.step()
    kinds = {part.dtype for _, part in engine.shards.parts()}
    with engine.gathered(model):
        return [p.float().mean().item() for p in model.parameters()], kinds, model[0].weight.dtype


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_tiny_steps_add_up_in_the_master(pool, stage):
    want = pool.run(1, tiny_steps, 0, "float32")[0][0]
    for got, kinds, dtype in pool.run(2, tiny_steps, stage, "bfloat16"):
        assert kinds == {torch.float32} and dtype == torch.bfloat16
        for a, b in zip(got, want, strict=True):
            assert b > 1.015  # of which the first steps are lost in 8 bits of mantissa
            assert a == pytest.approx(b, abs=2**-7)
            assert a > 1.0


# ---- the loss scale
@pytest.mark.cpu("no tensor is made")
def test_the_scale_is_deepspeeds(monkeypatch):
    scaler = pytest.importorskip("deepspeed.runtime.fp16.loss_scaler")
    monkeypatch.setattr(scaler.dist, "get_rank", lambda: 1)  # rank 0 would log every overflow
    dice = random.Random(5)
    for patience in (1, 2, 3):
        for window in (1, 3, 7):
            theirs = scaler.DynamicLossScaler(
                init_scale=2.0**9,
                scale_window=window,
                min_scale=1.0,
                delayed_shift=patience,
                consecutive_hysteresis=False,
                raise_error_at_min_scale=False,
            )
            ours = LossScale(2.0**9, window=window, patience=patience)
            for _ in range(400):
                overflow = dice.random() < 0.25
                theirs.update_scale(overflow)
                ours.after(overflow)
                assert ours.value == theirs.cur_scale, (patience, window)


@pytest.mark.cpu("no tensor is made")
def test_the_scale_doubles_and_halves():
    scale = LossScale(8.0, window=3, patience=2)
    values = []
    for overflow in (True, True, True, False, False, False, False, True, True):
        scale.after(overflow)
        values.append(scale.value)
    assert values == [8, 4, 2, 2, 2, 2, 4, 4, 2]
    low = LossScale(2.0, window=10, patience=1, least=1.0)
    for _ in range(5):
        low.after(True)
    assert low.value == 1.0


@pytest.mark.cpu("no tensor is made")
@pytest.mark.parametrize("wrong", [{"value": 0.5}, {"window": 0}, {"patience": 0}, {"least": 0.0}])
def test_a_scale_that_cannot_be_is_refused(wrong):
    assert "value must be at least `least`" in said(ValueError, LossScale, **wrong)


@pytest.mark.cpu("no tensor is made")
def test_precisions_by_name():
    assert Precision.named("as is") == Precision(None, False)
    assert Precision.named("float32") == Precision(torch.float32, False)
    assert Precision.named("bfloat16") == Precision(torch.bfloat16, True)
    half = Precision.named("float16")
    assert half.master and half.scale.value == 2.0**16 and half.scale.patience == 2
    one, two = Precision.named(half), Precision.named(half)
    one.scale.after(True)
    one.scale.after(True)
    assert (one.scale.value, two.scale.value) == (2.0**15, 2.0**16)  # each engine has its own
    assert "precision='fp16' must be one of float32" in said(ValueError, Precision.named, "fp16")


def scaled(me, clip):
    """Norms and weights of plain descent, which an optimizer like Adam would hide a factor from."""
    told = []
    for value in (1.0, 64.0):
        case = HALF.but(stage=2, optimizer="sgd", clip=clip)
        half = Precision(torch.float16, True, LossScale(value=value))
        engine, seen = engine_of(me, case, precision=half), []
        for step in range(4):
            assert train_half(me, case, engine, range(step, step + 1)) == [True]
            seen.append(engine.norm)
        told.append((seen, [part.detach().clone() for _, part in engine.shards.parts()]))
    return told


@pytest.mark.parametrize("clip", [None, 0.3])
def test_the_scale_changes_neither_norm_nor_step(pool, clip):
    for (norms, parts), (others, same) in pool.run(3, scaled, clip):
        assert norms == pytest.approx(others, rel=5e-3)
        assert clip is None or max(norms) > clip
        for part, other in zip(parts, same, strict=True):
            assert torch.allclose(part, other, rtol=0, atol=1e-3)


def steps_counted(me):
    """A skipped step is none for Adam's own count of steps either."""
    case = HALF.but(stage=1)
    model = made_for(case)
    engine = engine_of(me, case, model, precision="float16")
    engine.precision.scale.value, engine.precision.scale.left = 2.0**40, 1  # overflows at once
    scale = copy.deepcopy(engine.precision.scale)
    done = train_half(me, case, engine, range(30))
    counts = {int(s["step"]) for s in engine.optimizer.state.values()}
    return done, counts, engine.skipped, scale.value / engine.precision.scale.value


def test_after_overflows_a_scale_is_found(pool):
    for done, counts, skipped, lower in pool.run(2, steps_counted):
        good = sum(done)
        assert 0 < good < 30 and skipped == 30 - good
        assert counts == {good}
        assert done == [False] * skipped + [True] * good
        assert lower == 2.0**skipped


def stages_agree(me, precision):
    """In 16 bits the stages are not one process's numbers, but each other's, to the last bit at
    two ranks: a sum of two does not depend on its order."""
    seen = []
    for stage in (0, 1, 2, 3):
        case = HALF.but(stage=stage, bucket_bytes=300)
        engine = engine_of(me, case, precision=precision)
        if engine.precision.scale is not None:
            engine.precision.scale.value = 128.0
        dtype = engine.precision.dtype
        for step in range(5):
            loss = loss_of(case.but(dtype=dtype), engine, step, me.rank, me.world, 0)[0]
            engine.backward(loss.float())
            assert engine.step()
        with engine.gathered(engine.model):
            seen.append([p.detach().clone() for p in engine.model.parameters()])
    return seen


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_the_stages_agree_in_half_precision(pool, precision):
    for first, *others in pool.run(2, stages_agree, precision):
        for other in others:
            for a, b in zip(first, other, strict=True):
                # The norm is summed in another order, so the clipped step may differ by a rounding.
                close("weights", b.float(), a.float(), 2e-2 if precision == "bfloat16" else 2e-3)
