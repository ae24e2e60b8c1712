"""Stage 3: when units come and go, what stays, who may look, and ranks that go different ways."""

from __future__ import annotations

import copy
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib import ranks, zero
from course_lib.gpt import GPT, Config
from course_lib.memory import peak
from course_lib.zero.stage3.units import Promise
from tests.course_lib.tensor_parallel.parts import said
from tests.course_lib.zero.parts import (
    Case,
    Net,
    close,
    engine_of,
    loss_of,
    made,
    made_for,
    match,
    optimizer_of,
    over_dp,
    randomized,
    same_as_one_process,
    train,
    trains,
)

THREE = Case(stage=3, clip=0.3, accumulate=2)
UNIT = 8 * (14 + 56)  # bytes of a block in float64; 3 of them, and the layers around
LEAN, FAST = 0, 1 << 60


def settings(me, stage3):
    engine = same_as_one_process(me, THREE.but(stage3=stage3, tied=True))
    return len(engine.shards.units), sum(unit.persistent for unit in engine.shards.units)


@pytest.mark.parametrize(
    ("keep", "prefetch"), [(LEAN, 0), (LEAN, 2), (2 * UNIT + 100, 1), (FAST, 0), (FAST, 2)]
)
def test_prefetch_and_keep_change_no_number(pool, prefetch, keep):
    for units, persistent in pool.run(2, settings, {"prefetch": prefetch, "keep": keep}):
        assert (units, persistent) == (6, 0)


@pytest.mark.parametrize(("persist", "units", "kept"), [(60, 6, 1), (400, 1, 1)])
def test_small_parameters_persist_and_change_no_number(pool, persist, units, kept):
    # 7 numbers of 8 bytes are fewer than 60; below 400 lie all parameters of this model.
    for found in pool.run(3, settings, {"persist": persist}):
        assert found == (units, kept)


def gathers(me, keep, prefetch, persist=0):
    """How often each unit is gathered in a steady step, and the most that is whole at once."""
    # What nobody calls would hold its gradients' bucket up, and all units after it.
    case = THREE.but(frozen=("never",))
    engine = engine_of(me, case, keep=keep, prefetch=prefetch, persist=persist)
    train(me, THREE, engine, steps=range(2))
    before, whole, named = engine.shards.together.gathers, [], []
    kept = engine.shards.together.gather

    def gather(name):
        named.append(name)
        kept(name)
        whole.append(sum(u.whole or u._arriving is not None for u in engine.shards.units) + 1)

    engine.shards.together.gather = gather
    train(me, THREE, engine, steps=range(2, 3))
    engine.shards.together.gather = kept
    assert len(named) == engine.shards.together.gathers - before
    return {name: named.count(name) for name in named}, max(whole)


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_lean_gathers_twice_and_fast_once_for_each_backward(pool, prefetch):
    lean, fast, some = (
        pool.run(2, gathers, keep, prefetch)[0] for keep in (LEAN, FAST, 2 * UNIT + 100)
    )
    k = THREE.accumulate
    units = {"first", "blocks.0", "blocks.1", "blocks.2", "last", "back"}
    # The last unit of the forward is the first of the backward, and stays for it.
    ends = {"back", "last"} if prefetch else {"back"}
    assert set(lean[0]) == units
    assert {n for n, count in lean[0].items() if count == 2 * k} >= units - ends
    assert lean[0]["back"] == k
    # Kept from a forward to its backward; freed when its gradient has left.
    assert fast[0] == dict.fromkeys(units, k)
    assert sum(fast[0].values()) < sum(some[0].values()) < sum(lean[0].values())
    assert lean[1] <= 2 + prefetch and fast[1] == len(units)


def ahead(me, depth):
    """Which units were asked for, and which were whole, when each block began."""
    engine = engine_of(me, THREE.but(stage3={"prefetch": depth}))
    train(me, THREE, engine, steps=range(2))
    seen = []
    units = engine.shards.units
    for i, block in enumerate(engine.model.blocks):
        block.norm.register_forward_pre_hook(
            lambda *_, i=i: seen.append(
                (i, [u.name for u in units if u._arriving is not None], [u.whole for u in units])
            )
        )
    loss_of(THREE, engine, 0, me.rank, me.world, 0)
    return seen


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_as_many_units_are_under_way_as_asked_for(pool, depth):
    order = ["first", "blocks.0", "blocks.1", "blocks.2", "last", "back"]
    for seen in pool.run(2, ahead, depth):
        for i, arriving, whole in seen:
            assert arriving == order[i + 2 : i + 2 + depth]
            assert sum(whole) == 1  # its own


class Oddly(nn.Module):
    """Uses another module's weight in its forward, which that module does not run."""

    def __init__(self, how):
        super().__init__()
        self.net, self.how = Net(), how

    def forward(self, x, skip=()):
        y = self.net(x)
        if self.how == "product":
            return y + F.linear(x, self.net.blocks[0].linear.weight[:3, :5])
        if self.how == "sum":
            return y + sum(p.sum() for p in self.net.blocks[0].parameters())
        if self.how == "transpose":
            return y + (x @ self.net.last.weight.T[:5])
        return y


def outside(me, how):
    model = randomized(Oddly(how), "odd")
    engine = engine_of(me, THREE, model, torch.optim.SGD(model.parameters(), lr=0.1))
    return said(RuntimeError, loss_of, THREE, engine, 0, me.rank, me.world, 0)


@pytest.mark.parametrize("how", ["product", "sum", "transpose"])
def test_a_weight_used_where_its_unit_does_not_run_says_so(pool, how):
    for one in pool.run(2, outside, how):
        assert "net.last.weight" in one if how == "transpose" else "net.blocks.0." in one
        assert "gathered only while its unit runs" in one and "engine.gathered(" in one


def saved(me):
    """Placeholders are not saved, copied or compared by mistake; inside `gathered` all is well."""
    engine = engine_of(me, THREE)
    model = engine.model
    weight = model.last.weight
    assert isinstance(weight, Promise) and isinstance(weight, nn.Parameter)
    assert weight.numel() == 0 and weight.requires_grad and weight.grad is None
    assert "last.weight" in dict(model.named_parameters()) and "Parameter" in repr(weight)
    found = [said(RuntimeError, model.state_dict), said(RuntimeError, torch.clone, weight)]
    with engine.gathered(model):
        state = copy.deepcopy(model.state_dict())
        assert type(weight) is nn.Parameter
    for name, p in made_for(THREE).named_parameters():
        close(name, state[name], p.data, 0.0)
    assert isinstance(weight, Promise)
    return found


def test_a_placeholder_is_not_saved_by_mistake(pool):
    for found in pool.run(2, saved):
        assert all("gathered only while its unit runs" in one for one in found)
        assert "detach needs the values of" in found[0] and "last.weight" in found[1]


def written(me, precision):
    """What rank 0 writes inside `gathered` is every rank's, its copies in float32 included."""
    case = THREE.but(dtype=torch.float32, optimizer="sgd")
    model = made_for(case)
    engine = engine_of(me, case, model, precision=precision)
    with engine.gathered(model.blocks[1], model.first.bias, write=True), torch.no_grad():
        model.blocks[1].linear.weight.fill_(2.0 + me.rank)
        if me.rank == 0:  # another tensor in its place, on the rank whose word counts
            model.first.bias.data = torch.full_like(model.first.bias, 7.0)
    with engine.gathered(model.first.weight), torch.no_grad():
        model.first.weight.fill_(-1.0)  # without write=: the same on all ranks
    with engine.gathered(model):
        values = model.blocks[1].linear.weight.unique().tolist() + model.first.bias.tolist()
        assert model.first.weight.unique().tolist() == [-1.0]
        kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    train(me, case.but(dtype=model.first.bias.dtype), engine, steps=range(1))
    with engine.gathered(model):
        moved = (model.first.bias - kept["first.bias"]).abs().max().item()
    stranger = said(ValueError, engine.gathered(nn.Linear(2, 2)).__enter__)
    return values, moved, stranger


@pytest.mark.parametrize("precision", ["as is", "bfloat16"])
def test_gathered_with_write_reaches_every_rank(pool, precision):
    for values, moved, stranger in pool.run(3, written, precision):
        assert values == [2.0] + [7.0] * 7
        assert moved < 1.0  # the master was written too: else it would be back at its start
        assert "2 parameters belong to no unit" in stranger


def used_while_gathered(me):
    """A weight used by hand, held by `gathered` through forward, backward and the freeing hooks."""
    model, plain = (randomized(Oddly("product"), "odd") for _ in range(2))
    engine = engine_of(me, THREE.but(accumulate=1, clip=None, optimizer="sgd"), model)
    step = torch.optim.SGD(plain.parameters(), lr=0.05)
    for turn in range(2):
        with engine.gathered(model.net.blocks[0]):
            engine.backward(loss_of(THREE, engine, turn, me.rank, me.world, 0)[0])
            engine.step()
            now = model.net.blocks[0].linear.weight.detach().clone()  # the new, not the old
        assert isinstance(model.net.blocks[0].linear.weight, Promise)
        step.zero_grad()
        for rank in range(me.world):
            (loss_of(THREE, plain, turn, rank, me.world, 0)[0] / me.world).backward()
        step.step()
        close("while gathered", now, plain.net.blocks[0].linear.weight.data)
    match("used by hand", engine, plain)


def test_a_weight_used_while_gathered_is_there(pool):
    pool.run(2, used_while_gathered)


class ByMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def run(self, x, skip=()):
        return self.net.last(self.net.blocks[0](self.net.first(x)))


def by_method(me):
    """A model that is run by a method of its own: each backward ends a forward all the same."""
    model = randomized(ByMethod(), "method")
    case = THREE.but(accumulate=1)
    engine = engine_of(me, case, model, torch.optim.SGD(model.parameters(), lr=0.1))
    asked = []
    for step in range(4):
        loss = loss_of(case, model.run, step, me.rank, me.world, 0)[0]
        engine.backward(loss)
        engine.step()
        asked.append(engine.shards.together._asked)
    return asked, len(engine.shards.order.now)


def test_units_gathered_through_a_method_of_the_model(pool):
    for asked, units in pool.run(2, by_method):
        assert asked == [3, 3, 3, 3]  # the first way is new, and then it is known
        assert units == 3


TINY = {"vocabulary": 11, "length": 8, "layers": 2}
GPT2 = Config.gpt2(**TINY, hidden=20, heads=5, inner=13)
LLAMA = Config.llama(**TINY, hidden=24, heads=4, kv_heads=2, inner=10)


def filled(me, config, precision):
    """A model from the meta device, filled a parameter at a time: trained as one made whole."""

    def start(name, x):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(len(name))
            whole.start_one(name, x)

    dtype = {"as is": torch.float32, "bfloat16": torch.bfloat16}[precision]
    whole = GPT(config).to(dtype)
    with torch.no_grad():
        for name, p in whole.named_parameters():
            start(name, p)
    with torch.device("meta"):
        model = GPT(config)
    if config.tied:
        model.head.weight = model.tokens.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine = over_dp(me, model, optimizer, 3, fill=start, precision=precision)
    with engine.gathered(model):
        for (name, p), q in zip(model.named_parameters(), whole.parameters(), strict=True):
            close(name, p.data, q.data, 0.0)
    ids = made((me.rank, "ids"), 2, 5).mul(1000).long().abs() % 11
    before = None
    for _ in range(2):
        loss = F.cross_entropy(engine(ids).flatten(0, 1).float(), ids.flatten())
        engine.backward(loss)
        assert engine.step() and (before is None or loss.item() != before)
        before = loss.item()
    assert config.tied == (model.head.weight is model.tokens.weight)
    assert not any(p.is_meta for p in model.parameters())


@pytest.mark.parametrize(
    ("config", "precision"), [(GPT2, "as is"), (LLAMA, "as is"), (GPT2, "bfloat16")]
)
def test_a_model_from_the_meta_device_is_the_one_made_whole(pool, config, precision):
    pool.run(2, filled, config, precision, timeout=60)


def unfilled(me):
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    return said(ValueError, over_dp, me, model, torch.optim.SGD(model.parameters(), lr=0.1), 3)


def test_a_model_without_numbers_wants_a_fill(pool):
    for one in pool.run(2, unfilled):
        assert "weight is on torch's meta device" in one and "pass fill=" in one


WIDE = Config.gpt2(vocabulary=64, length=8, layers=6, hidden=64, heads=4, tied=False)


def building(me, precision):
    """The peak of building a model already cut, in bytes, and what it should be."""
    with torch.device("meta"):
        model = GPT(WIDE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sizes = [p.numel() for p in model.parameters()]
    with peak() as p:
        over_dp(me, model, optimizer, 3, fill=lambda name, x: x.fill_(0.5), precision=precision)
    return p.bytes, sum(sizes), max(sizes)


@pytest.mark.parametrize(("precision", "each", "whole"), [("as is", 4, 4), ("bfloat16", 6, 2)])
def test_no_rank_ever_holds_the_model_whole(pool, precision, each, whole):
    for most, total, largest in pool.run(4, building, precision):
        # The shards (and their float32 copies), the largest parameter, and small change.
        assert most <= each * total / 4 + whole * largest + 20_000
        assert most < whole * total * (0.5 if whole == 4 else 1.0)


# ---- ranks that go different ways
def branch(me, when, keep):
    """Rank 1 leaves out a block that the others run: in the first step, or later."""
    case = THREE.but(accumulate=1, stage3={"keep": keep})
    engine = engine_of(me, case)
    for step in range(3):
        skip = (1,) if me.rank == 1 and step == when else ()
        x = made((step, me.rank), 4, 5)
        engine.backward(engine(x, skip).square().mean())
        engine.step()


@pytest.mark.parametrize("keep", [LEAN, FAST])
@pytest.mark.parametrize("when", [0, 2])
def test_ranks_that_take_different_branches_hear_which(pool, when, keep):
    said = [one for one in pool.raises(3, branch, when, keep, timeout=9) if one]
    assert said
    text = " / ".join(said)
    assert "blocks.2" in text and "rank 1" in text
    assert "is about to begin gather" in text or "waited" in text
    assert "all ranks must run the same units in the same order" in text
    if when:  # those who go the known way wait for the one that does not
        assert "rank 1 waited to begin gather" in text and "never came" in text
    else:  # no way is known yet: all ask, and nobody has to wait
        assert "is about to begin gather" in text and "they took different branches" in text


def swapped(me):
    """Two units of one size in another order on rank 1: nothing waits, and all numbers are wrong.

    Both gather ahead of the known order, so that nobody asks.
    """
    engine = engine_of(me, THREE.but(accumulate=1))
    train(me, THREE.but(accumulate=1), engine, steps=range(1))
    one, two = engine.shards.units[1:3]
    for unit in (one, two) if me.rank else (two, one):
        unit.gather()
    for unit in (one, two):
        unit.free()
    loss = loss_of(THREE, engine, 1, me.rank, me.world, 0)[0]
    found = said(RuntimeError, engine.backward, loss)
    train(me, THREE.but(accumulate=1), engine, steps=range(1, 2))  # the ranks agree again
    return found


def test_units_gathered_in_another_order_are_found_before_the_step(pool):
    for rank, found in enumerate(pool.run(3, swapped)):
        assert f"rank {rank}: the ranks took different branches" in found
        assert "At gather 1 since the last backward" in found
        assert "rank 0 gathered 'blocks.1', rank 1 gathered 'blocks.0'" in found


def ended(me):
    """Rank 0 evaluates alone, while the others have gone on, or gone home."""
    engine = engine_of(me, THREE.but(accumulate=1))
    train(me, THREE.but(accumulate=1), engine, steps=range(2))
    if me.rank == 0:
        engine(made("alone", 2, 5))


def test_a_rank_that_evaluates_alone_hears_who_never_came(pool):
    (said, *_) = pool.raises(3, ended, timeout=15)
    assert "rank 0 waited in gather" in said and "of 'first'" in said
    assert "rank 1 never came, and waits in no gather" in said
    assert "rank 2 never came" in said


class Gone:
    """A message whose sender has died."""

    def wait(self):
        raise RuntimeError("connection closed by peer")


def broken_twice(me):
    """A backward breaks off while a unit that was asked for ahead will never come."""
    engine = engine_of(me, THREE)
    first = engine.shards.units[0]

    def end(grad):
        first._arriving = Gone()
        raise ValueError("what went wrong first")

    loss, _ = loss_of(THREE, engine, 0, me.rank, me.world, 0)
    loss.register_hook(end)
    told = said(ValueError, engine.backward, loss)
    return told, any(unit.whole for unit in engine.shards.units)


def test_what_went_wrong_first_is_what_is_said(pool):
    assert pool.run(1, broken_twice) == [("what went wrong first", False)]


def refused(me):
    mesh, found = ranks.mesh(me, dp=me.world, tp=1), []
    for options in ({"prefetch": -1}, {"units": [nn.Linear(1, 1)]}, {"units": "blocks"}):
        model = made_for(THREE)
        if options.get("units") == "blocks":
            options = {"units": [model.blocks]}
        optimizer, _ = optimizer_of(THREE, model)
        found.append(said(ValueError, zero.engine, model, optimizer, stage=3, mesh=mesh, **options))
    model = made_for(THREE)
    optimizer, _ = optimizer_of(THREE, model)
    found.append(said(ValueError, zero.engine, model, optimizer, stage=2, mesh=mesh, prefetch=1))
    mute = nn.ModuleList([nn.Linear(1, 1)])
    optimizer, options = torch.optim.SGD(mute.parameters()), {"units": [mute]}
    found.append(said(ValueError, zero.engine, mute, optimizer, stage=3, mesh=mesh, **options))
    return found


def test_settings_that_cannot_be_are_refused(pool):
    for found in pool.run(1, refused):
        assert "prefetch=-1 units ahead" in found[0]
        assert "units= names modules that are not the model's: Linear" in found[1]
        assert "units= names blocks, which has no forward" in found[2]
        assert "prefetch is only for stage 3, but this is stage 2" in found[3]
        assert "units= names ModuleList, which has no forward" in found[4]


def seeded_alike(me):
    """Whether an engine reads what one before it was told, where both were made after one seed,
    on one mesh."""
    stores, mesh = [], ranks.mesh(me, dp=me.world, tp=1)
    for _ in range(2):
        torch.manual_seed(5)
        stores.append(engine_of(me, THREE, mesh=mesh).shards.together._store)
    stores[0].set(f"1/{me.rank}", "gather 1, of 'first'")
    dist.barrier()
    return stores[0].check([f"1/{me.rank}"]), stores[1].check([f"1/{me.rank}"])


def test_a_seed_does_not_make_two_engines_one(pool):
    assert pool.run(2, seeded_alike) == [(True, False)] * 2


class Hidden:
    """A tensor in an object that nobody knows how to look into."""

    def __init__(self, tensor):
        self.tensor = tensor


class Hiding(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 7)

    def forward(self, x):
        return Hidden(torch.tanh(self.inner(x)))


class Unpacks(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(5, 5), Hiding()])
        self.last = nn.Linear(7, 3)

    def forward(self, x):
        return self.last(self.layers[1](self.layers[0](x)).tensor)


def test_an_output_that_hides_its_tensors_is_no_trap(pool):
    """A unit whose output no hook can be laid on stays whole for its backward."""
    pool.run(2, trains, Unpacks, 3)


def here(me):
    """The ranks are there, and what torch imports with the first optimizer."""
    engine_of(me, Case())


def killed(me, stage):
    """Rank 1's process ends in the middle of a backward."""
    case = Case(stage=stage)
    engine = engine_of(me, case)
    train(me, case, engine, steps=range(1))

    def end(grad):
        if me.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2)
        return grad

    engine.model.blocks[1].register_full_backward_hook(lambda module, i, o: end(None))
    train(me, case, engine, steps=range(1, 2))


@pytest.mark.parametrize("stage", [1, 3])
def test_a_rank_killed_in_a_step_ends_the_step_on_all(pool, stage):
    pool.run(2, here, timeout=60)  # new ranks and their imports are not what is timed
    began = time.monotonic()
    said = pool.raises(2, killed, stage, match="SIGKILL|waited in|closed|reset", timeout=9)
    assert time.monotonic() - began < 45  # on a busy machine; a step that hangs is ended by nobody
    if stage == 3 and said[0]:
        assert "rank 0 waited in" in said[0] and "rank 1 never came" in said[0]
