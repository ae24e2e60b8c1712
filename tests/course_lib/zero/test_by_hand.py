"""ZeRO by hand: what it trains, sends and holds; and the engine against it."""

from __future__ import annotations

import pytest
import torch

from course_lib import ranks, zero
from course_lib.gpt import GPT, Config
from course_lib.ledger import ledger
from course_lib.memory import held
from course_lib.zero.by_hand import Stage1, Stage2, Stage3
from tests.course_lib.tensor_parallel.parts import made

# 750 numbers, 794 where the head has a weight of its own; buckets and units divide unevenly.
SIZES = {"vocabulary": 11, "length": 5, "hidden": 4, "layers": 3, "heads": 2, "inner": 14}
MOST, STEPS, MICRO, FLOAT = 150, 5, 2, 8
OPTIMIZERS = {
    "momentum": lambda parts: torch.optim.SGD(parts, lr=0.05, momentum=0.9),
    "adamw": lambda parts: torch.optim.AdamW(parts, lr=0.01, weight_decay=0.1),
}


def model_of(me, tied: bool) -> GPT:
    torch.manual_seed(7)
    return GPT(Config(tied=tied, **SIZES)).to(me.device, torch.float64)


def cut(stage: int, model: GPT, optimizer, group):
    if stage == 1:
        return Stage1(model, optimizer, group)
    if stage == 2:
        return Stage2(model, optimizer, group, MOST)
    return Stage3(model, optimizer, group, list(model.blocks))


def loss_of(model: GPT, step: int, micro: int, rank: int) -> torch.Tensor:
    """A mean over this rank's rows, as a part of the step's."""
    rows = (made((step, micro, rank), 2, 6).abs() * 1000).long().remainder(SIZES["vocabulary"])
    rows = rows.to(next(model.parameters()).device)
    logits = model(rows[:, :-1])  # (b, s, v)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()) / MICRO


def by_one_process(me, tied: bool, name: str) -> tuple[GPT, list[float]]:
    model, losses = model_of(me, tied), []
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    for step in range(STEPS):
        for micro in range(MICRO):
            for rank in range(me.world):
                loss = loss_of(model, step, micro, rank) / me.world
                losses += [loss.item() * me.world] if rank == me.rank else []
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, losses


def trained(me, stage: int, tied: bool, name: str) -> None:
    mesh = ranks.mesh(me, dp=me.world, tp=1)
    group = mesh.get_group("dp")
    model, losses = model_of(me, tied), []
    hand = cut(stage, model, OPTIMIZERS[name], group)
    engine_model = model_of(me, tied)
    options = {"persist": 0} if stage == 3 else {"bucket_bytes": 8 * MOST}
    theirs = OPTIMIZERS[name](list(engine_model.parameters()))
    engine = zero.engine(engine_model, theirs, stage=stage, mesh=mesh, accumulate=MICRO, **options)
    for step in range(STEPS):
        for micro in range(MICRO):
            loss = loss_of(model, step, micro, me.rank)
            losses.append(loss.item())
            loss.backward()
            engine.backward(MICRO * loss_of(engine, step, micro, me.rank))
            engine.step()
        hand.step()
    expected, known = by_one_process(me, tied, name)
    for unit in hand.units if stage == 3 else []:
        unit.whole.untyped_storage().resize_(unit.cut.padded * FLOAT)
        unit.gather()
    close = {"rtol": 0, "atol": 1e-10}
    torch.testing.assert_close(losses, known, **close)
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(p, q, **close)
    with engine.gathered(*engine_model.parameters()):
        for p, q in zip(engine_model.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(p, q, **close)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_five_steps_are_those_of_one_process_and_of_the_engine(pool, world, stage, tied, name):
    pool.run(world, trained, stage, tied, name)


def left_out(me, stage: int) -> None:
    group = ranks.mesh(me, dp=me.world, tp=1).get_group("dp")
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 2), "idle": torch.nn.Linear(3, 2)})
    model.blocks = torch.nn.ModuleList(model.values())
    hand = cut(stage, model.to(me.device), OPTIMIZERS["adamw"], group)
    model["used"](torch.ones(1, 3, device=me.device)).sum().backward()
    with pytest.raises(RuntimeError, match=r"\(2, 3\).*zero.engine allows missing gradients"):
        hand.step()


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_parameter_without_a_gradient_is_no_silent_step(pool, stage):
    pool.run(2, left_out, stage)


def came_late(me) -> None:
    """The bucket is full before the second backward has all of its gradients."""
    group = ranks.mesh(me, dp=me.world, tp=1).get_group("dp")
    first, second = torch.nn.Linear(3, 2), torch.nn.Linear(2, 2)
    model = torch.nn.Sequential(first, second).to(me.device)
    hand, x = Stage2(model, OPTIMIZERS["momentum"], group), torch.ones(1, 3, device=me.device)
    first(x).sum().backward()
    model(x).sum().backward()
    with pytest.raises(RuntimeError, match=r"\(2, 3\).*needs one in every backward"):
        hand.step()


def test_a_gradient_that_comes_after_its_bucket_has_left_is_no_silent_step(pool):
    pool.run(2, came_late)


def two_dtypes(me) -> None:
    group = ranks.mesh(me, dp=me.world, tp=1).get_group("dp")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match="takes one dtype"):
        Stage1(model.to(me.device), OPTIMIZERS["adamw"], group)


def test_one_buffer_has_one_dtype(pool):
    pool.run(1, two_dtypes)


def measured(me, stage: int) -> None:
    group = ranks.mesh(me, dp=me.world, tp=1).get_group("dp")
    model = model_of(me, tied=True)
    hand = cut(stage, model, OPTIMIZERS["adamw"], group)
    parts = {1: lambda: [hand.flat], 2: lambda: hand.buckets, 3: lambda: hand.units}[stage]()
    assert len(parts) == {1: 1, 2: 6, 3: 4}[stage]
    shards = sum(part.cut.shard for part in parts) * FLOAT
    padded = sum(part.cut.padded for part in parts) * FLOAT
    numbers = sum(p.numel() for p in model_of(me, tied=True).parameters()) * FLOAT
    assert numbers <= padded < numbers + len(parts) * me.world * FLOAT
    for step in range(2):  # the second finds the optimizer's states there
        with ledger() as book:
            for micro in range(MICRO):
                loss_of(model, step, micro, me.rank).backward()
            kinds = held(model, hand.optimizer).by_kind
            hand.step()
    scattered, gathered = {1: (1, 1), 2: (MICRO, 1), 3: (MICRO, 2 * MICRO)}[stage]
    times = {"reduce_scatter": scattered, "all_gather": gathered}
    for op, count in times.items():
        records = [record for record in book.records if record.op == op]
        assert len(records) == count * len(parts)
        assert sum(record.must for record in records) == count * (me.world - 1) * shards
    assert len(book.records) == sum(times.values()) * len(parts)
    assert kinds["parameters"] == (shards if stage == 3 else padded)
    assert kinds["gradients"] == (numbers if stage == 1 else shards)
    steps = 4 * len(parts)  # AdamW counts them in float32
    assert kinds["optimizer states"] == 2 * shards + steps


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_what_a_step_sends_and_holds_is_the_closed_form(pool, world, stage):
    pool.run(world, measured, stage)
