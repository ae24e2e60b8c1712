"""Text from a cut model: the words of the whole one, on all ranks, for the bytes of the formula."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist

from course_lib import ranks
from course_lib.estimate import generation_bytes
from course_lib.generate import generate
from course_lib.gpt import GPT, Config
from course_lib.ledger import ledger
from course_lib.tensor_parallel import parallelize
from tests.course_lib.tensor_parallel.parts import made, randomized, said

SIZES = {"vocabulary": 10, "length": 12, "layers": 2}
GPT2 = Config.gpt2(**SIZES, hidden=20, heads=5, inner=13)  # tied
LLAMA = Config.llama(**SIZES, hidden=24, heads=6, kv_heads=3, inner=10)
FEW = Config.llama(**SIZES, hidden=24, heads=4, kv_heads=2, inner=9)
WAYS = [
    {},
    {"temperature": 0.7, "seed": 3},
    {"temperature": 1.5, "seed": 4, "top": 3},
    {"temperature": 2.0, "seed": 5, "top": 10},  # more than any rank holds
    {"temperature": 2.0, "seed": 6, "stop": 7},
    {"stop": 7, "top": 2},
]


def prompt(label, b=3, s=4):
    return (made(("prompt", label), b, s) * 999).long().abs() % SIZES["vocabulary"]


def models(me, config, dp=1, sequence=False, multiple_of=1, dtype=torch.float64):
    mesh = ranks.mesh(me, dp=dp, tp=me.world // dp)
    dense = randomized(GPT(config).to(me.device), "generate cut").to(dtype)
    cut = parallelize(copy.deepcopy(dense), mesh, sequence=sequence, multiple_of=multiple_of)
    return dense, cut, mesh


def the_same_words(me, config, sequence, multiple_of):
    dense, cut, mesh = models(me, config, sequence=sequence, multiple_of=multiple_of)
    found = []
    for number, way in enumerate(WAYS[:: 1 + sequence]):  # cut tokens are twice the messages
        s, count = (1, 5) if number % 3 == 1 else (4, 6)
        ids = prompt(number, s=s).to(me.device)
        want = generate(dense, ids, count, **way)
        got = generate(cut, ids, count, group=(None, mesh.get_group("tp"))[number % 2], **way)
        assert torch.equal(got, want), (way, got, want)
        found.append(got.tolist())
    return found


@pytest.mark.parametrize(
    ("world", "config", "sequence", "multiple_of"),
    [
        (1, GPT2, False, 1),
        (2, GPT2, False, 16),  # the second rank: two words, six rows of padding
        (2, LLAMA, True, 1),
        (3, GPT2, True, 12),
        (3, LLAMA, False, 1),  # 4, 4, 2
        (4, FEW, False, 16),  # a key/value head is held twice; the last rank has padding alone
        (4, FEW, True, 1),  # 3, 3, 3, 1; of one token, three ranks have none
    ],
)
def test_a_cut_model_takes_the_words_of_the_whole_one(pool, world, config, sequence, multiple_of):
    every = pool.run(world, the_same_words, config, sequence, multiple_of)
    assert all(one == every[0] for one in every)
    words = {word for text in every[0] for row in text for word in row}
    assert len(words) > 7  # on every rank some


def no_words(me):
    """Five words over four ranks are 2, 2, 1 and none."""
    config = FEW.changed(vocabulary=5)
    dense, cut, _ = models(me, config)
    ids = prompt("none").to(me.device) % 5
    for way in ({}, {"temperature": 2.0}, {"temperature": 2.0, "top": 4}):
        assert torch.equal(generate(cut, ids, 4, **way), generate(dense, ids, 4, **way))
    return cut.head.weight.shape[0]


def test_a_rank_without_a_word_offers_none(pool):
    assert pool.run(4, no_words) == [2, 2, 1, 0]


def no_word_of_padding(me):
    """All logits far below the zeros that padded rows give: none of those is a word."""
    _, cut, _ = models(me, LLAMA.changed(vocabulary=10), multiple_of=16)
    table = cut.tokens
    real = max(0, min(table.stop, 10) - table.start)
    with torch.no_grad():
        cut.norm.weight.fill_(0.0)
        cut.norm.weight[0] = 1e-9  # logits are as good as equal
    low = cut.head.register_forward_hook(lambda _, __, y: y - 100 * (torch.arange(8) < real))
    ids = prompt("padding").to(me.device)
    ways = ({}, {"temperature": 9}, {"temperature": 9, "top": 10})
    found = [generate(cut, ids, 8, **way) for way in ways]
    low.remove()
    return [one.max().item() for one in found], found[1].unique().numel()


def test_no_word_of_the_padding_is_ever_taken(pool):
    for highest, words in pool.run(2, no_word_of_padding):
        assert max(highest) < 10 and words == 10


def each_replica_its_own(me):
    """dp ranks ask for different texts, of different lengths, with different seeds."""
    dense, cut, mesh = models(me, LLAMA, dp=2)
    replica = mesh.get_group("dp").rank()
    ids = prompt(replica, b=2 + replica, s=3 + replica).to(me.device)
    how = {"temperature": 1.0, "seed": replica, "stop": 2 + 3 * replica}
    got = generate(cut, ids, 5 + 2 * replica, **how)
    assert torch.equal(got, generate(dense, ids, 5 + 2 * replica, **how))
    return got.tolist()


def test_replicas_may_ask_for_different_texts(pool):
    first, second, third, fourth = pool.run(4, each_replica_its_own)
    assert first == second and third == fourth and first != third


def booked(me, config, sequence, dtype):
    dense, cut, mesh = models(me, config, sequence=sequence, dtype=dtype)
    n, found = me.world, []
    widest = -(-config.vocabulary // n)
    for way, offered in (
        ({}, 1), ({"temperature": 1.0}, 1), ({"temperature": 1.0, "top": 2}, 2),
        ({"temperature": 1.0, "top": 9}, min(9, widest)),
    ):  # fmt: skip
        for b, s, count in ((3, 4, 5), (2, 6, 1), (2, 6, 0)):
            ids = prompt("booked", b, s).to(me.device)
            with ledger(mesh) as book:
                generate(cut, ids, count, **way)
            sizes = {"rows": b, "prompt": s, "count": count, "item": dtype.itemsize}
            want = generation_bytes(config, n, me.rank, **sizes, offered=offered, sequence=sequence)
            assert book.bytes() == pytest.approx(want, abs=1e-6), (way, b, s, count)
            sums = (1 + 2 * config.layers) * count
            kinds = {"all_gather": count + 1 + sums * sequence}
            kinds |= {"all_reduce": sums * (not sequence), "reduce_scatter": sums * sequence}
            assert {op: book.count(op) for op in kinds} == kinds
            assert book.count() == sum(kinds.values())
            found.append(want)
    with ledger() as book:
        generate(dense, ids, 3)
    assert not book.records
    return found


@pytest.mark.parametrize(
    ("world", "config", "sequence", "dtype"),
    [
        (1, GPT2, False, torch.float64),
        (2, LLAMA, False, torch.float32),
        (3, GPT2, False, torch.float64),
        (3, LLAMA, True, torch.float64),
        (4, FEW, True, torch.float32),
    ],
)
def test_a_text_costs_the_bytes_of_the_formula(pool, world, config, sequence, dtype):
    every = pool.run(world, booked, config, sequence, dtype)
    if sequence:  # the ranks' bytes differ, their sum is that of whole tokens
        sizes = {"rows": 3, "prompt": 4, "count": 5, "item": dtype.itemsize}
        whole = sum(generation_bytes(config, world, rank, **sizes) for rank in range(world))
        assert sum(one[0] for one in every) == pytest.approx(whole)
        assert every[0][0] != every[-1][0]
    else:
        assert all(one == every[0] for one in every)


def refused(me):
    dense, cut, mesh = models(me, LLAMA)
    tp = mesh.get_group("tp")
    ids = prompt("refused").to(me.device)
    own = ids if me.rank != 1 else ids.flip(0)
    drawn = {"temperature": 1.0, "seed": me.rank // 2}
    calls = [(cut, own, 2, {}), (cut, ids, 2, drawn), (cut, ids, 2 + 99 * (me.rank == 0), {})]
    calls += [(cut, ids, 99, {}), (dense, ids, 2, {"group": tp})]
    calls += [(cut, ids, 2, {"group": dist.group.WORLD})]
    found = [said(ValueError, generate, *call, **options) for *call, options in calls]
    with torch.no_grad():
        cut.head.weight.fill_(torch.nan if me.rank == 2 else 1.0)
    return [*found, said(ValueError, generate, cut, ids, 2)]


def test_what_differs_or_cannot_be_is_refused_on_every_rank(pool):
    for rank, found in enumerate(pool.run(3, refused)):
        assert f"rank {rank}: rank 1 of the group" in found[0]
        assert f"rank {rank}: rank 2 of the group" in found[1] and "seed" in found[1]
        assert "rank 1 and 2 of the group" in found[2]
        assert "above length=12" in found[3]
        assert "this model is not sharded" in found[4] and "3 ranks" in found[4]
        assert "over a different group" in found[5] and "NaN" in found[6]
