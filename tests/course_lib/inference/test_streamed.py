"""Text from weights that are sharded over dp: the dense words, what is held, sent and whole."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import inference, ranks, zero
from course_lib.generate import generate
from course_lib.gpt import GPT
from course_lib.ledger import ledger
from course_lib.memory import peak
from course_lib.zero.offload.files import ALIGN, aligned
from tests.course_lib.inference.parts import (
    CONFIGS,
    alone,
    folder_of,
    lists,
    model_of,
    prompts_of,
    said,
    streamed,
)

NVME = "nvme"


def shares(units, n: int) -> list[int]:
    """Bytes of a rank's part of each unit, by ceiling division; of float64."""
    return [8 * -(-sum(slot.numel for slot in unit.bucket.slots) // n) for unit in units]


def words(me, family, offload, tmp):
    """Other prompts and other counts on each rank; the last of three has no row at all."""
    dense, engine = model_of(family), streamed(me, family, offload=folder_of(tmp, offload))
    prompts = [] if me.rank == 2 else prompts_of(me.rank)
    texts = inference.generate(engine, prompts, 6 + 2 * me.rank)
    assert lists(texts) == alone(dense, prompts, 6 + 2 * me.rank)
    parts = shares(engine.shards.units, me.world)
    held = zero.holdings(engine)
    if offload == NVME:
        files = [aligned(8 * sum(p.numel for p in u.bucket.pieces(me.rank)))
                 for u in engine.shards.units]  # fmt: skip
        assert held["device"] == 0 and held["disk"] == sum(files)
        assert len(os.listdir(tmp)) > me.world  # more than their locks
        # what files are read into, and one number that stands for each parameter there
        assert held["host"] == 2 * (aligned(max(files)) + ALIGN) + 8
        shard = sum(parts)
    else:
        tier, other = ("host", "device") if offload else ("device", "host")
        assert held == {tier: sum(parts), other: 0, "disk": 0}
        shard = held[tier]
    ways = {"temperature": 1.5, "top": 6, "seed": 4 + me.rank}
    texts = inference.generate(engine, prompts, 5, **ways)
    want = generate(dense, prompts, 5, **ways) if prompts else []
    assert lists(texts) == lists(want)
    engine.close()
    dist.barrier()
    assert not os.listdir(tmp)
    return shard, sum(p.numel() * 8 for p in dense.parameters())


@pytest.mark.parametrize(
    ("world", "family", "offload"),
    [
        (1, "gpt2", None),
        (2, "llama", "cpu"),
        (2, "gpt2", NVME),
        (3, "gpt2", None),
        (3, "llama", NVME),
        *(
            pytest.param(world, family, offload, marks=pytest.mark.slow)
            for world, family, offload in [
                (1, "llama", NVME), (1, "gpt2", "cpu"), (2, "gpt2", None), (2, "llama", NVME),
                (3, "gpt2", "cpu"), (3, "llama", None), (3, "gpt2", NVME),
            ]
        ),
    ],
)  # fmt: skip
def test_every_rank_has_the_dense_words_from_its_part_of_the_weights(
    pool, world, family, offload, tmp_path
):
    tmp = str(tmp_path)
    for held, whole in pool.run(world, words, family, offload, tmp):
        assert whole / world <= held < whole / world + 8 * world * 7


def ends_apart(me, family):
    """Rows end at different words on each rank; those that are done take part to the end."""
    dense, engine = model_of(family), streamed(me, family)
    free = alone(dense, prompts_of(0), 9)
    stop = free[0][len(prompts_of(0)[0]) + 1]
    prompts = prompts_of(me.rank)[: 1 + me.rank]
    forwards = []
    engine.model.norm.register_forward_hook(lambda *_: forwards.append(1))
    with ledger() as book:
        texts = inference.generate(engine, prompts, 9, stop=stop)
    assert lists(texts) == alone(dense, prompts, 9, stop=stop)
    own = max((t.tolist()[len(p) :] + [stop]).index(stop) + 1
              for t, p in zip(texts, prompts, strict=True))  # fmt: skip
    return min(9, own), len(forwards), book.count(label="scalars")


@pytest.mark.parametrize(("world", "family"), [(2, "gpt2"), (3, "llama")])
def test_ranks_that_are_done_take_part_until_all_are(pool, world, family):
    found = pool.run(world, ends_apart, family)
    own = [one for one, _, _ in found]
    assert min(own) < max(own), "all ranks ended at one word, and nothing was tested"
    for _, forwards, flags in found:
        assert forwards == max(own) and flags == max(own) + 1


def sent(me, family, keep, prefetch, units):
    dense = model_of(family)
    options = {"keep": keep, "prefetch": prefetch}
    config = dense.config
    chosen = [dense.blocks[0]] if units else None
    engine = zero.inference(dense, mesh=ranks.mesh(me, dp=me.world, tp=1), units=chosen, **options)
    found = []
    for rows, count, synced in ((1, 4, True), (3, 4, False), (3, 2 + me.rank, True)):
        prompts = [[1 + i, *range(2 + 2 * i)] for i in range(rows)]
        with ledger() as book:
            generate(engine.model, prompts, count, synced=engine.group if synced else None)
        found.append((book.bytes(), 4 if count == 4 else 1 + me.world, synced))
    model = GPT(config).double()
    want = [
        inference.streamed_bytes(
            model, me.world, forwards=forwards, synced=synced, keep=keep,
            units=[model.blocks[0]] if units else None,
        )
        for _, forwards, synced in found
    ]  # fmt: skip
    return [one[0] for one in found], want


@pytest.mark.parametrize(
    ("world", "family", "keep", "prefetch", "units"),
    [(1, "gpt2", 0, 1, False), (2, "gpt2", 0, 1, False), (3, "llama", 0, 0, True),
     (3, "gpt2", 7000, 2, False), (2, "llama", 1 << 40, 1, False)],
)  # fmt: skip
def test_a_forward_sends_its_formula_whatever_the_batch(pool, world, family, keep, prefetch, units):
    for got, want in pool.run(world, sent, family, keep, prefetch, units):
        assert got == pytest.approx(want, abs=1e-6)
        if world > 1 and keep == 0:
            whole = sum(p.numel() for p in model_of(family).parameters()) * 8
            assert want[0] >= 4 * whole * (world - 1) / world


def whole_at_once(me, family, keep):
    """The most that is held beside the shards, and the same of the whole model."""
    dense, engine = model_of(family), streamed(me, family, keep=keep, prefetch=0)
    prompts = [[1, 2], [3]]
    most = []
    views = []  # of weights, put aside: their memory goes all the same
    engine.model.blocks[0].mlp.register_forward_hook(
        lambda module, *_: views.append(module.down.weight.view(-1))
    )
    for model in (dense, engine.model):
        with peak() as p:
            generate(model, prompts, 5)
        most.append(p.bytes)
    assert len(views) == 5 and not any(view.untyped_storage().nbytes() for view in views)
    largest = max(u.nbytes for u in engine.shards.units if not u.persistent)
    return most, largest, sum(p.numel() * 8 for p in dense.parameters())


@pytest.mark.parametrize(("world", "family", "keep"), [(2, "gpt2", 0), (3, "llama", 9000)])
def test_one_unit_is_whole_at_a_time(pool, world, family, keep):
    for (dense, stream), largest, whole in pool.run(world, whole_at_once, family, keep):
        assert largest < stream <= largest + dense + 200 < whole


def between_steps(me, offload, tmp):
    """A training engine writes text between two steps, and trains on as if it had not."""
    config = CONFIGS["llama"]
    found = []
    for writes in (False, True):
        model = model_of("llama")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, foreach=False)
        engine = zero.engine(
            model, optimizer, stage=3, mesh=ranks.mesh(me, dp=me.world, tp=1), persist=0,
            offload={"optimizer": NVME, "parameters": NVME, "folder": tmp} if offload else None,
        )  # fmt: skip
        losses = []
        for step in range(4):
            ids = (torch.arange(12).view(2, 6) * (3 + me.rank) + step) % 37
            loss = F.cross_entropy(engine(ids).flatten(0, 1), ids.roll(-1, 1).flatten())
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
            if writes and step == 1:
                text = inference.generate(engine, prompts_of(me.rank), 5 + me.rank)
                now = GPT(config).double()
                now.load_state_dict(engine.state_dict())
                assert lists(text) == alone(now, prompts_of(me.rank), 5 + me.rank)
                assert engine.training
        found.append(losses)
        engine.close()
    assert found[0] == found[1] and found[0][3] != found[0][1]


@pytest.mark.parametrize(
    ("world", "offload"), [(2, False), pytest.param(3, True, marks=pytest.mark.slow)]
)
def test_a_training_engine_writes_between_two_steps(pool, world, offload, tmp_path):
    pool.run(world, between_steps, offload, str(tmp_path))


def together_with_tp(me):
    """2 × 2: the layers cut over tp, what is left of them sharded over dp."""
    from course_lib.tensor_parallel import parallelize

    mesh = ranks.mesh(me, dp=2, tp=2)
    dense = model_of("llama")
    engine = zero.inference(parallelize(model_of("llama"), mesh), mesh=mesh)
    replica = mesh.get_group("dp").rank()
    texts = inference.generate(engine, prompts_of(replica), 4 + replica)
    assert lists(texts) == alone(dense, prompts_of(replica), 4 + replica)
    # One replica's ranks were given different prompts: the other's hear of it.
    prompts = [[1 + me.rank]] if replica else [[1]]
    return said(ValueError, inference.generate, engine, prompts, 2)


@pytest.mark.slow
def test_weights_cut_over_tp_are_sharded_over_dp(pool):
    for words in pool.run(4, together_with_tp):
        assert "rank 3 of the group that holds this model got prompts or settings" in words


def given_back(me, tmp):
    model = model_of("llama")
    model.train()
    model.blocks[1].eval()
    model.norm.weight.requires_grad_(False)
    modes = [module.training for module in model.modules()]
    trained = [p.requires_grad for p in model.parameters()]
    before = {name: x.clone() for name, x in model.state_dict().items()}
    offload = {"parameters": NVME, "folder": tmp}
    with zero.inference(model, mesh=ranks.mesh(me, dp=me.world, tp=1), offload=offload) as engine:
        ids = torch.tensor([[1, 2, 3]])
        assert not engine(ids).requires_grad and not engine.training
        assert all(p.numel() == 0 and not p.requires_grad for p in model.parameters())
        state = engine.state_dict()
        assert all(torch.equal(state[name], x) for name, x in before.items())
        with engine.gathered(model.head):
            assert torch.equal(model.head.weight, before["head.weight"])
        changed = {name: x + 0.25 for name, x in before.items()}
        engine.load_state_dict(changed)
    dist.barrier()
    assert not os.listdir(tmp)
    words = said(RuntimeError, engine, ids)
    want = GPT(model.config).double()
    want.load_state_dict(changed)
    text = inference.generate(engine, [[1, 2, 3]], 3)  # the shards are there still
    assert lists(text) == alone(want, [[1, 2, 3]], 3)
    engine.close(whole=True)
    assert [module.training for module in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == trained
    assert all(torch.equal(x, changed[name]) for name, x in model.state_dict().items())
    return words


def test_a_model_is_given_back_as_it_was(pool, tmp_path):
    for words in pool.run(2, given_back, str(tmp_path)):
        assert "it was closed" in words
