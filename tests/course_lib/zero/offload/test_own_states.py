"""What a checkpoint takes from an engine goes into a fresh one, which goes on bit by bit the same.

Every stage, offload and precision; values and states on the device, on the host and in files.
"""

from __future__ import annotations

import copy
import json

import pytest
import torch
import torch.distributed as dist

from course_lib.zero import LossScale, Precision
from tests.course_lib.tensor_parallel.parts import said
from tests.course_lib.zero.offload.parts import FLOAT, WAYS, offloaded
from tests.course_lib.zero.parts import engine_of, loss_of, made_for, optimizer_of

CASE = FLOAT.but(accumulate=1, schedule=False, bucket_bytes=900, stage3={"persist": 40})
EVERY = {**{f"{stage}": (stage, None) for stage in range(4)}, **WAYS}


def made(me, way, folder, precision, label="net", case=CASE):
    """An engine of a way, on a model with numbers of its own for each label."""
    case = case.but(stage=EVERY[way][0])
    options = {"offload": offloaded(way, folder)} if way in WAYS else {}
    if precision == "float16":  # a scale that soon grows, and has met an overflow
        precision = Precision(torch.float16, True, LossScale(value=64.0, window=2))
    model = made_for(case, label)
    return case, engine_of(
        me, case, model, optimizer_of(case, model)[0], precision=precision, **options
    )


def train(me, case, engine, steps) -> None:
    """Some steps; where there is a loss scale the second one overflows."""
    case = case.but(dtype=engine.precision.dtype or case.dtype)
    for step in steps:
        loss, _ = loss_of(case, engine, step, me.rank, me.world, 0)
        over = step == 1 and engine.precision.scale is not None and me.rank == 1
        engine.backward(loss * (torch.inf if over else 1.0))
        engine.step()


def taken(engine) -> dict[str, torch.Tensor]:
    """All that the engine gives to a checkpoint, as clones."""
    tensors = {name: x.clone() for name, x in engine.own_tensors()}
    slots = {name: (x.dtype, tuple(x.shape)) for name, x in tensors.items()}
    assert list(engine.own_slots().items()) == list(slots.items())
    return tensors


def after(me, case, engine, steps) -> tuple:
    """Where a training comes to: its tensors, its counters, what the model computes with."""
    train(me, case, engine, steps=steps)
    return taken(engine), engine.counters(), engine.norm, engine.state_dict()


def same(label, got: tuple, want: tuple) -> None:
    assert got[1:3] == want[1:3], (label, got[1:3], want[1:3])
    for mine, others in ((got[0], want[0]), (got[3], want[3])):
        assert mine.keys() == others.keys(), label
        for name, x in mine.items():
            assert x.dtype == others[name].dtype and torch.equal(x, others[name]), (label, name)


def goes_on(me, ways, precision, folder):
    for way in ways:
        case, engine = made(me, way, folder, precision)
        train(me, case, engine, steps=range(2))
        for group in engine.optimizer.param_groups:  # as a schedule does
            group["lr"] *= 0.5
        slots, tensors, counters = engine.own_slots(), taken(engine), engine.counters()
        counters = json.loads(json.dumps(counters))
        assert any(name.endswith(":exp_avg_sq") for name in slots), slots
        assert not any("never" in name and not name.endswith(":value") for name in slots), slots
        want = after(me, case, engine, range(2, 4))
        if precision == "as is":  # later in the same training
            engine.put_own(slots, tensors.__getitem__)
            engine.set_counters(counters)
            same(f"{way}, back", after(me, case, engine, range(2, 4)), want)
        engine.close()
        case, engine = made(me, way, folder, precision, "others")
        engine.put_own(slots, tensors.__getitem__)
        engine.set_counters(counters)
        held = taken(engine)
        assert all(torch.equal(x, tensors[name]) for name, x in held.items()), way
        same(f"{way} {precision}, anew", after(me, case, engine, range(2, 4)), want)
        assert want[1]["skipped"] == (precision == "float16")
        engine.close()


SOME = {"as is": ["1", "3-nvme-nvme"], "bfloat16": ["0", "2-nvme"], "float16": ["1-cpu", "3"]}


@pytest.mark.parametrize("precision", SOME)
def test_a_fresh_engine_goes_on_where_another_was(pool, precision, tmp_path):
    pool.run(2, goes_on, SOME[precision], precision, tmp_path, timeout=90)


@pytest.mark.slow
@pytest.mark.parametrize("precision", SOME)
def test_so_it_does_on_every_way(pool, precision, tmp_path):
    pool.run(2, goes_on, list(EVERY), precision, tmp_path, timeout=180)


def test_also_where_shards_are_uneven(pool, tmp_path):
    pool.run(3, goes_on, ["2", "2-nvme", "3-nvme-nvme"], "bfloat16", tmp_path, timeout=120)


def loaded_before(me, folder):
    """What was loaded since the last step is what is saved, and what is put back."""
    for way in ("1-cpu", "2-nvme", "3-nvme"):
        case, engine = made(me, way, folder, "bfloat16")
        train(me, case, engine, steps=range(1))
        state = {name: x + 1.0 for name, x in engine.state_dict().items()}
        engine.load_state_dict(state)
        slots, tensors = engine.own_slots(), taken(engine)
        engine.load_state_dict({name: x * 3.0 for name, x in state.items()})
        engine.put_own(slots, tensors.__getitem__)
        got = engine.state_dict()
        assert all(torch.equal(x, state[name]) for name, x in got.items()), way
        engine.close()


def test_weights_that_were_loaded_are_saved(pool, tmp_path):
    pool.run(2, loaded_before, tmp_path, timeout=60)


def unfit(me, folder):
    """One rank's slots do not fit: all ranks refuse, and nothing is changed."""
    case, engine = made(me, "2-nvme", folder, "as is")
    train(me, case, engine, steps=range(1))
    slots, tensors = engine.own_slots(), taken(engine)
    first = next(iter(slots))
    large = next(name for name in slots if name.endswith(":exp_avg"))
    changes = {
        f"{first} is missing": {name: x for name, x in slots.items() if name != first},
        f"{first} is float64 of shape (3,), but the engine's is float32": {
            **slots, first: (torch.float64, (3,))
        },
        "nobody[0:3]:value is not among the parameters that this rank updates": {
            **slots, "nobody[0:3]:value": (torch.float32, (3,))
        },
        f"{large} is missing, but this AdamW keeps": {
            name: x for name, x in slots.items() if name != large
        },
        "momentum_buffer is a state that this AdamW does not keep": {
            **slots, large.replace("exp_avg", "momentum_buffer"): slots[large]
        },
    }  # fmt: skip
    for words, wrong in changes.items():
        here = wrong if me.rank == 1 else slots
        message = said(ValueError, engine.put_own, here, tensors.__getitem__)
        assert "nothing was restored: on rank 1" in message, message
        assert me.rank == 0 or words in message, (message, words)
    assert all(torch.equal(x, tensors[name]) for name, x in taken(engine).items())
    loss, _ = loss_of(case, engine, 1, me.rank, me.world, 0)
    engine.backward(loss)
    assert "a step has begun" in said(RuntimeError, engine.own_tensors)
    engine.zero_grad()

    def read(name):
        if me.rank == 1 and name == large:
            raise OSError(5, "the disk is gone")
        return tensors[name]

    message = said(OSError, engine.put_own, slots, read)
    assert "the disk is gone" in message and "Only part of the states was restored" in message, (
        message
    )
    assert "can no longer be used" in said(RuntimeError, engine.step)
    engine.close()
    dist.barrier()
    scaled = {**engine.counters(), "scale": {"value": 1.0, "good": 0, "left": 1}}
    assert "with a loss scale" in said(ValueError, engine.set_counters, scaled)
    fewer = {**engine.counters(), "groups": []}
    assert "had 0 groups" in said(ValueError, engine.set_counters, fewer)


def test_what_does_not_fit_is_refused_on_all_ranks(pool, tmp_path):
    pool.run(2, unfit, tmp_path, timeout=60)


class Counted(torch.optim.AdamW):
    """Keeps numbers that are no tensors."""

    def step(self, closure=None):
        super().step()
        for state in self.state.values():
            state["calls"] = state.get("calls", 0) + 1
            state["rate"], state["warm"], state["nothing"] = 0.5 * state["calls"], True, None


def numbers(me):
    case = CASE.but(stage=1)

    def build():
        model = made_for(case)
        optimizer = Counted(model.parameters(), lr=0.01)
        return engine_of(me, case, model, optimizer, elementwise=True)

    engine = build()
    train(me, case, engine, steps=range(2))
    slots, tensors = engine.own_slots(), taken(engine)
    [name] = [name for name in slots if name.startswith("first.bias") and "calls" in name][:1]
    assert slots[name] == (torch.int64, ()) and name.endswith(":calls (int)")
    again = build()
    again.put_own(slots, tensors.__getitem__)
    for state in again.optimizer.state.values():
        seen = {key: x for key, x in state.items() if not isinstance(x, torch.Tensor)}
        assert seen == {"calls": 2, "rate": 1.0, "warm": True}
    state = next(iter(again.optimizer.state.values()))
    state["words"] = copy.deepcopy(["no", "number"])
    assert "a list, but a checkpoint takes tensors" in said(ValueError, again.own_slots)


def test_states_that_are_numbers_are_tensors_too(pool):
    pool.run(1, numbers, timeout=60)
