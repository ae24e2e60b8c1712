"""What happens to the weights from outside: looked at, loaded, taken out, given to another engine.

Whatever is taken stays as it was taken, and whatever is written is what the next step starts from.
"""

from __future__ import annotations

import contextlib
import copy
import io
import re

import pytest
import torch
from torch import nn

from course_lib import ranks, zero
from course_lib.zero.outside_changes import CHUNK, take_over
from tests.course_lib.tensor_parallel.parts import said
from tests.course_lib.zero.parts import (
    Case,
    close,
    engine_of,
    loss_of,
    made,
    made_for,
    match,
    optimizer_of,
    train,
    trains,
)

WAYS = {  # (stage, options): where the weights and their copies lie
    "0": (0, {}),
    "0 half": (0, {"precision": "bfloat16"}),
    "1": (1, {}),
    "1 half": (1, {"precision": "bfloat16"}),
    "2 cpu": (2, {"offload": "cpu"}),
    "1 half nvme": (1, {"precision": "bfloat16", "offload": {"optimizer": "nvme"}}),
    "3": (3, {}),
    "3 half": (3, {"precision": "bfloat16"}),
    "3 kept": (3, {"persist": 1 << 20}),
    "3 kept half": (3, {"persist": 1 << 20, "precision": "bfloat16"}),
    "3 half cpu": (3, {"precision": "bfloat16", "offload": "cpu"}),
    "3 nvme": (3, {"offload": {"optimizer": "nvme", "parameters": "nvme"}}),
    "3 half nvme": (3, {"precision": "bfloat16", "offload": {"optimizer": "nvme"}}),
}
LOADED = [  # each way, and each way to load, on what they take over from
    ("0", "model"), ("0 half", "model"), ("1", "data"), ("1 half", "copy_"), ("2 cpu", "model"),
    ("1 half nvme", "model"), ("1 half nvme", "data"), ("3", "data"), ("3", "engine"),
    ("3 half", "engine"), ("3 kept", "data"), ("3 kept", "model"), ("3 kept half", "copy_"),
    ("3 kept half", "model"), ("3 half cpu", "data"), ("3 nvme", "engine"),
    ("3 half nvme", "model"),
]  # fmt: skip


def started(me, way, folder=None, label="net"):
    """An engine of one of the ways, after a step, and its case."""
    stage, options = WAYS[way]
    options = dict(options)
    if "nvme" in way:
        options["offload"] = {**options["offload"], "folder": folder}
    case = Case(stage=stage, dtype=torch.float32, optimizer="adamw", steps=3)
    engine = engine_of(me, case, made_for(case, label), **options)
    case = case.but(dtype=engine.precision.dtype or case.dtype)
    train(me, case, engine, steps=range(1))
    return engine, case


def looked_at(me, way, folder):
    """A state_dict of a `gathered` block, after it, after a step, and in a file."""
    engine, case = started(me, way, folder)
    with engine.gathered(engine.model):
        state = engine.model.state_dict()
        want = copy.deepcopy(state)
    file = io.BytesIO()
    torch.save(state, file)
    with engine.gathered(engine.model):  # a step in the block, after something was taken
        early = engine.model.state_dict()
        train(me, case, engine, steps=range(1, 2))
        late = copy.deepcopy(engine.model.state_dict())
    assert any(not torch.equal(late[name], x) for name, x in want.items())
    with torch.no_grad():
        engine(made("x", 3, 5).to(case.dtype))
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    for name, x in want.items():
        assert torch.equal(loaded[name], x), name
        if engine.stage == 3:  # elsewhere it is the model's own, as in torch
            assert torch.equal(state[name], x) and torch.equal(early[name], x), name
    engine.close()


@pytest.mark.parametrize("way", ["1", "3", "3 half", "3 kept", "3 nvme"])
def test_what_is_taken_while_gathered_stays(pool, way, tmp_path):
    pool.run(2, looked_at, way, tmp_path)


def logged(me):
    """Views of weights that a hook puts aside while the model is evaluated."""
    engine, case = started(me, "3")
    want, kept = engine.state_dict(), {}

    def put_aside(module, x, y):
        if not torch.is_grad_enabled():
            kept[names[module]] = module.weight.detach().t()

    blocks = enumerate(engine.model.blocks)
    names = {block.linear: f"blocks.{i}.linear.weight" for i, block in blocks}
    for linear in names:
        linear.register_forward_hook(put_aside)
    with torch.no_grad():
        engine(made("x", 3, 5).to(case.dtype))
    train(me, case, engine, steps=range(1, 2))
    for name, view in kept.items():
        assert torch.equal(view.t().cpu(), want[name])
    return len(kept)


def test_what_a_hook_puts_aside_in_an_evaluation_stays(pool):
    assert pool.run(2, logged) == [3, 3]


def other_shape(me, stage):
    engine = engine_of(me, Case(stage=stage))
    weight = engine.model.last.weight
    if stage == 3:

        def change():
            with engine.gathered(weight):
                weight.data = torch.ones(1).double()
    else:

        def change():
            engine.backward(loss_of(Case(stage=stage), engine, 0, me.rank, me.world, 0)[0])
            weight.data = torch.ones(1).double()
            engine.step()

    return said(RuntimeError, change)


@pytest.mark.parametrize("stage", [1, 3])
def test_data_of_another_shape_is_refused(pool, stage):
    for reason in pool.run(2, other_shape, stage):
        assert "last.weight was given a tensor of shape (1,) as its data, but is of shape" in reason


class Shows(nn.Module):
    """Its output is a view of its weight."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Parameter(made("rows", 6, 7))

    def forward(self, n):
        return self.rows[:n]


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.places, self.last = nn.Linear(5, 7), Shows(), nn.Linear(7, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x) + self.places(x.shape[-2])))


def test_a_module_may_return_a_view_of_its_weight(pool):
    pool.run(2, trains, Positions, 3)


def looked_without_a_graph(me, stage, mode):
    """Evaluation before the first step, between micro-batches, before and after each call."""
    case = Case(stage=stage, accumulate=2, steps=3, stage3={"prefetch": 1})
    context = {"inference": torch.inference_mode, "no_grad": torch.no_grad}[mode]
    model = made_for(case)
    optimizer, _ = optimizer_of(case, model)
    engine = engine_of(me, case, model, optimizer)
    plain = made_for(case)
    plain_optimizer, _ = optimizer_of(case, plain)
    x = made("eval", 3, 5).to(case.dtype)

    def look():
        with context():
            close("evaluation", engine(x).clone(), plain(x).clone(), 1e-10)
            with engine.gathered(model.first.weight):
                close("gathered", model.first.weight.clone(), plain.first.weight.clone(), 1e-10)

    look()
    for step in range(case.steps):
        plain_optimizer.zero_grad()
        for micro in range(case.accumulate):
            loss = loss_of(case, engine, step, me.rank, me.world, micro)[0]
            look()
            engine.backward(loss)
            look()
            for rank in range(me.world):
                each = loss_of(case, plain, step, rank, me.world, micro)[0]
                (each / (me.world * case.accumulate)).backward()
            if micro == case.accumulate - 1:
                plain_optimizer.step()
            engine.step()
            look()
    match(f"evaluation under {mode}", engine, plain)


@pytest.mark.parametrize(
    ("stage", "mode"), [(0, "inference"), (2, "no_grad"), (3, "inference"), (3, "no_grad")]
)
def test_an_evaluation_at_any_moment_changes_nothing(pool, stage, mode):
    pool.run(2, looked_without_a_graph, stage, mode)


def load(engine, how, state):
    """Bring a state_dict into an engine's model, in one of the ways that users have."""
    model = engine.model
    if how == "engine":
        engine.load_state_dict(state)
        return
    away = any(hasattr(p, "promised") and not p.numel() for p in model.parameters())
    with engine.gathered(model) if away else contextlib.nullcontext():
        if how == "model":
            model.load_state_dict(state)
            return
        for name, p in model.named_parameters():
            if how == "data":
                p.data = state[name].to(p.dtype).clone()
            else:
                p.data.copy_(state[name])


def loaded(me, way, how, folder):
    """Trained on from weights that were loaded after a step: as an engine that began with them."""
    engine, case = started(me, way, folder / "one")
    fresh = made_for(case.but(dtype=torch.float32), "others")
    state = copy.deepcopy(fresh.state_dict())
    load(engine, how, state)
    if how in ("engine", "data"):  # else the step is the first to look at them
        held = engine.state_dict()
        for name, x in state.items():
            assert torch.equal(held[name], x.to(held[name])), name
    train(me, case, engine, steps=range(1, 2))
    moved = engine.state_dict()
    most = max((moved[n].float() - state[n].cpu()).abs().max().item() for n in state)
    assert 0 < most < 0.2  # a step of AdamW away from what was loaded, and no further
    engine.close()
    return moved


@pytest.mark.parametrize(("way", "how"), LOADED)
def test_weights_loaded_at_any_moment_stay(pool, way, how, tmp_path):
    (tmp_path / "one").mkdir()
    first, second = pool.run(2, loaded, way, how, tmp_path)
    assert all(torch.equal(first[name], second[name]) for name in first)


def updated(engine):
    """Copies of what the optimizer updates on this rank, read from its files if need be."""
    return {name: x.clone() for name, x in engine.own_tensors() if name.endswith(":value")}


def low_bits(me, way, folder):
    """What was not written to keeps the bits that its copy in 16 bits does not show."""
    engine, _ = started(me, way, folder)
    before = updated(engine)
    model = engine.model
    with engine.gathered(model) if engine.stage == 3 else contextlib.nullcontext(), torch.no_grad():
        model.last.weight[1, 2] += 1.0
    changed = []
    for name, new in updated(engine).items():
        slot, start = re.match(r"(.*)\[(\d+):", name).groups()
        where = (new != before[name]).reshape(-1).nonzero().flatten().tolist()
        changed += [(slot, int(start) + i) for i in where]
    engine.close()
    return changed


@pytest.mark.parametrize("way", ["0 half", "1 half nvme", "3 half", "3 half cpu"])
def test_what_was_not_written_keeps_its_low_bits(pool, way, tmp_path):
    changed = set().union(*pool.run(2, low_bits, way, tmp_path))
    assert changed == {("last.weight", 7 + 2)}  # row 1 of rows of 7


def not_alike(me):
    """Ranks that write different numbers, without write=, and what an exception leaves."""
    engine, case = started(me, "3")
    before = engine.state_dict()

    def write():
        with engine.gathered(engine.model.blocks), torch.no_grad():
            engine.model.blocks[1].linear.weight[0, 0] += float(me.rank == 1)

    reason = said(RuntimeError, write)
    with contextlib.suppress(KeyError), engine.gathered(engine.model):
        raise KeyError("in the block")
    after = engine.state_dict()
    assert all(torch.equal(after[name], x) for name, x in before.items())
    train(me, case, engine, steps=range(1, 2))
    outside = said(RuntimeError, engine.model.load_state_dict, before)
    kept = [copy.deepcopy(p) for p in engine.model.parameters() if not hasattr(p, "promised")]
    part = said(RuntimeError, engine.model.blocks[0].load_state_dict, {})
    assert not kept
    return reason, outside, part


def test_what_ranks_write_differently_is_refused_on_all(pool):
    for rank, (reason, outside, part) in enumerate(pool.run(3, not_alike)):
        assert "blocks.1 was changed inside gathered(), but not in the same way" in reason
        assert f"(on this one {'blocks.1' if rank == 1 else 'nothing'})" in reason
        assert "pass write=True" in reason
        assert "nothing was loaded" in outside and "engine.load_state_dict(state)" in outside
        assert "blocks.0.norm.weight" in part


def wrong_states(me, stage):
    engine = engine_of(me, Case(stage=stage))
    before = engine.state_dict()
    state = {name: x + 1 for name, x in before.items()}
    short = {name: x for name, x in state.items() if name != "last.weight"}
    reasons = [
        said(ValueError, engine.load_state_dict, short if me.rank == 1 else state),
        said(ValueError, engine.load_state_dict, {**state, "strange": torch.ones(1)}),
        said(ValueError, engine.load_state_dict, {**state, "last.bias": torch.ones(2)}),
        said(ValueError, engine.load_state_dict, {n: x + me.rank for n, x in state.items()}),
    ]
    after = engine.state_dict()
    assert all(torch.equal(after[name], x) for name, x in before.items())
    return reasons


@pytest.mark.parametrize("stage", [1, 3])
def test_a_state_dict_that_does_not_fit_changes_nothing_on_any_rank(pool, stage):
    for missing, strange, shape, differ in pool.run(2, wrong_states, stage):
        assert "on rank 1 last.weight is missing" in missing and "rank 0" not in missing
        assert "strange is not the model's" in strange
        assert "last.bias is of shape (2,), but the model's of (3,)" in shape
        assert "the ranks got different weights" in differ


def ended(me, way, folder):
    """`with zero.engine(…)`, and what can be had afterwards."""
    engine, case = started(me, way, folder)
    with engine:
        train(me, case, engine, steps=range(1, 2))
        want = engine.state_dict()
    assert not [file for file in folder.iterdir() if f"rank-{me.rank:05d}" in file.name]
    for state in (engine.state_dict(), dict(_gathered(engine))):
        assert all(torch.equal(state[name].cpu(), x) for name, x in want.items())
    refused = said(RuntimeError, engine, made("x", 2, 5).to(case.dtype))
    if engine.stage < 3:
        return refused
    again = said(ValueError, zero.engine, engine.model, optimizer_of(case, engine.model)[0],
                 stage=1, mesh=ranks.mesh(me, dp=me.world, tp=1))  # fmt: skip
    assert "engine.close(whole=True)" in again
    engine.close(whole=True)
    state = engine.model.state_dict()
    assert all(torch.equal(state[name].cpu(), x) for name, x in want.items())
    assert all(type(p) is nn.Parameter for p in engine.model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in engine.model.modules())
    second = engine_of(me, case.but(stage=2), engine.model)
    train(me, case.but(stage=2), second, steps=range(1))
    second.close()
    return refused


@pytest.mark.parametrize("way", ["0", "2 cpu", "3", "3 half", "3 nvme"])
def test_after_the_end_weights_can_be_taken_out(pool, way, tmp_path):
    for refused in pool.run(2, ended, way, tmp_path):
        assert "the engine was closed" in refused


def _gathered(engine):
    with engine.gathered(engine.model):
        return engine.model.state_dict()


def two_engines(me, stage):
    case = Case(stage=stage)
    model = made_for(case)
    engine = engine_of(me, case, model)
    wrapped = []
    for second in (0, 1, 2, 3):
        make = said(ValueError, engine_of, me, case.but(stage=second), model)
        wrapped.append(make)
    if stage < 3:
        wrapped.append(said(ValueError, zero.DataParallel, model, engine.group))
    train(me, case, engine, steps=range(1))  # the first goes on
    engine.close(whole=True)
    other = engine_of(me, case.but(stage=1), model)
    train(me, case, other, steps=range(1))
    del other
    engine_of(me, case, model).close()  # one that nobody has any more is in nobody's way
    return wrapped


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_second_engine_on_a_model_is_refused(pool, stage):
    for reasons in pool.run(2, two_engines, stage):
        assert all("are already trained by an engine or DataParallel" in r for r in reasons)
        assert all("engine.close()" in r for r in reasons)


def copied(me):
    """Deep copies at stage 3: whole ones in `gathered`, of which the engine knows nothing."""
    engine, case = started(me, "3")
    model, x = engine.model, made("x", 3, 5).to(case.dtype)
    outside = said(RuntimeError, copy.deepcopy, model)
    saved = said(RuntimeError, torch.save, model.last.weight, io.BytesIO())
    with engine.gathered(model):
        twin = copy.deepcopy(model)
        average = torch.optim.swa_utils.AveragedModel(model)
    with torch.no_grad():
        want = engine(x).clone()
        gathers = engine.shards.together.gathers
        assert torch.equal(twin(x), want) and torch.equal(average(x), want)
        assert engine.shards.together.gathers == gathers
    train(me, case, engine, steps=range(1, 2))
    with engine.gathered(model):
        average.update_parameters(model)
        close("average", average.module.last.bias.data, model.last.bias.data, 1.0)
    return outside, saved


def test_copies_of_a_model_at_stage_3(pool):
    for outside, saved in pool.run(2, copied):
        assert "clone needs the values of" in outside and "engine.gathered(" in outside
        assert "last.weight" in saved


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_copy_on_the_host_takes_over_a_gpus_weights():
    copied = torch.zeros(CHUNK + 5)
    take_over([(copied, torch.ones(CHUNK + 5, dtype=torch.bfloat16, device="cuda"))])
    assert bool((copied == 1).all())
