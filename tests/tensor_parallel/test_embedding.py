"""The cut table of words and the head that shares it: lookups, gradients, padding, ties, errors."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib.ledger import ledger
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from course_lib.tensor_parallel.embedding import (
    VocabularyParallelEmbedding,
    VocabularyParallelHead,
    padded_vocabulary,
)
from tests.tensor_parallel.parts import WORLDS, close, made, own, said

HIDDEN = 5
# (words, multiple_of): uneven, a rank without any, one with nothing but padding, padding on two
TABLES = [(11, 1), (9, 1), (5, 1), (4, 1), (11, 4), (10, 16), (17, 20)]


def dense_table(label, vocabulary, device):
    table = nn.Embedding(vocabulary, HIDDEN, device=device, dtype=torch.float64)
    with torch.no_grad():
        table.weight.copy_(made(label, vocabulary, HIDDEN))
    return table


def with_padding(whole, padded):
    """The table with rows of zeros beneath."""
    return torch.cat((whole, whole.new_zeros((padded - len(whole), *whole.shape[1:]))))


def lookups(me):
    group = dist.group.WORLD
    for vocabulary, multiple in TABLES:
        name = f"{vocabulary} words in multiples of {multiple}"
        dense = dense_table("table", vocabulary, me.device)
        cut = VocabularyParallelEmbedding.from_dense(dense, group, multiple_of=multiple)
        padded = -(-vocabulary // multiple) * multiple
        rows = own(torch.arange(padded), group)
        assert (cut.padded, cut.stop - cut.start) == (padded, len(rows))
        assert cut.start == (rows[0] if len(rows) else padded)
        assert torch.equal(cut.weight, own(with_padding(dense.weight.detach(), padded), group, 0))
        every = torch.arange(vocabulary, device=me.device)
        for ids in (every, every.flip(0)[None], every[:4].view(2, 2), every[-1], every[:0]):
            ids = torch.cat((ids, ids)) if ids.dim() else ids  # words that come twice
            dense.weight.grad = cut.weight.grad = None
            want, got = dense(ids), cut(ids)
            close(name, got, want)
            owed = made(name, *want.shape).to(me.device)
            want.backward(owed)
            got.backward(owed)
            whole = with_padding(dense.weight.grad, padded)
            close(f"gradient: {name}", cut.weight.grad, own(whole, group, 0))
    return cut.weight.shape[0]


@pytest.mark.parametrize("world", WORLDS)
def test_every_word_is_found_and_taught_once(pool, world):
    assert sum(pool.run(world, lookups)) == 20


def worked_example(me):
    """Ids 0, 212, 7 and 9 of 300 words on two ranks: who finds what."""
    dense = dense_table("worked", 300, me.device)
    cut = VocabularyParallelEmbedding.from_dense(dense, dist.group.WORLD)
    ids = torch.tensor([0, 212, 7, 9], device=me.device)
    with ledger() as book:
        found = cut(ids)
        found.sum().backward()
    close("the rows", found, dense(ids))
    mine = cut.own_rows(ids)
    for place in range(4):  # a rank's row is the word's, or nothing but zeros
        assert torch.equal(mine[place], found[place]) or not mine[place].any()
    messages = [(r.op, r.phase, r.elements) for r in book.records]
    return mine.any(-1).tolist(), (cut.start, cut.stop), messages


def test_the_worked_example_of_two_ranks_and_one_sum(pool):
    first, second = pool.run(2, worked_example)
    assert first[0] == [True, False, True, True] and first[1] == (0, 150)
    assert second[0] == [False, True, False, False] and second[1] == (150, 300)
    assert first[2] == second[2] == [("all_reduce", "forward", 4 * HIDDEN)]


def started(me):
    """The initial numbers are nn.Embedding's with that seed; options are the dense table's."""
    group = dist.group.WORLD
    for vocabulary, multiple in ((11, 1), (10, 16)):
        how = {"device": me.device, "dtype": torch.float32}
        torch.manual_seed(5)
        dense = nn.Embedding(vocabulary, HIDDEN, **how)
        torch.manual_seed(5)
        cut = VocabularyParallelEmbedding(vocabulary, HIDDEN, group, multiple_of=multiple, **how)
        whole = with_padding(dense.weight.detach(), cut.padded)
        assert torch.equal(cut.weight, own(whole, group, 0)) and cut.weight.requires_grad
        narrow = VocabularyParallelEmbedding.from_dense(dense.bfloat16().eval(), group)
        assert narrow.weight.dtype == torch.bfloat16 and not narrow.training
    frozen = VocabularyParallelEmbedding.from_dense(dense.requires_grad_(False), group)
    assert not frozen.weight.requires_grad
    before = frozen.weight.clone()
    with torch.no_grad():
        dense.weight.zero_()
    assert torch.equal(frozen.weight, before)  # its own memory, the dense table can go
    nowhere = VocabularyParallelEmbedding(11, HIDDEN, group, device="meta")
    assert (
        nowhere.weight.is_meta and nowhere.weight.shape == own(torch.empty(11, 5), group, 0).shape
    )
    assert [padded_vocabulary(50257, m) for m in (1, 2, 128)] == [50257, 50258, 50304]


def test_the_table_starts_as_the_dense_one(pool):
    pool.run(3, started)


def tied(me):
    """One table, two uses: the sum of both gradients, one parameter after a copy and a load."""
    group, vocabulary = dist.group.WORLD, 11
    for multiple in (1, 8):
        dense = dense_table("tied", vocabulary, me.device)
        cut = nn.ModuleDict(
            {"table": VocabularyParallelEmbedding.from_dense(dense, group, multiple_of=multiple)}
        )
        cut["head"] = VocabularyParallelHead(cut["table"].weight, group)
        again = copy.deepcopy(cut)
        assert again["head"].weight is again["table"].weight is not cut["table"].weight
        state = {name: made(name, *p.shape).to(p.device) for name, p in cut.state_dict().items()}
        state["head.weight"] = state["table.weight"]
        again.load_state_dict(state)
        assert again["head"].weight is again["table"].weight
        assert torch.equal(again["head"].weight, state["table.weight"])
        assert len(list(again.parameters())) == 1
        ids, targets = (torch.tensor(t, device=me.device) for t in ([[1, 4, 9]], [[4, 10, 0]]))
        padded = cut["table"].padded
        uses = {}
        for use in ("both", "table", "head"):
            x = cut["table"](ids)
            x = x if use != "head" else x.detach()
            head = cut["head"]
            if use == "table":
                head = VocabularyParallelHead(nn.Parameter(head.weight.detach()), group)
            loss = cross_entropy(
                head(x.tanh()), targets, group, vocabulary=vocabulary, padded=padded
            )
            (uses[use],) = torch.autograd.grad(loss, cut["table"].weight)
            y = dense(ids)
            y = (y if use != "head" else y.detach()).tanh()
            weight = dense.weight if use != "table" else dense.weight.detach()
            want = F.cross_entropy((y @ weight.t()).flatten(0, 1), targets.flatten())
            close(f"loss of {use}", loss, want)
            (whole,) = torch.autograd.grad(want, dense.weight)
            close(f"gradient of {use}", uses[use], own(with_padding(whole, padded), group, 0))
        close("both", uses["both"], uses["table"] + uses["head"])
        assert cut["head"].weight is cut["table"].weight


@pytest.mark.parametrize("world", [2, 3])
def test_a_tied_table_is_one_parameter_and_its_gradient_the_sum_of_two(pool, world):
    pool.run(world, tied)


def padding_stays_zero(me):
    """Three steps of AdamW with decay, on rows that are words and rows that are none."""
    group, vocabulary = dist.group.WORLD, 10
    dense = dense_table("padding", vocabulary, me.device)
    cut = VocabularyParallelEmbedding.from_dense(dense, group, multiple_of=16)
    head = VocabularyParallelHead(cut.weight, group)
    steps = [torch.optim.AdamW([m.weight], lr=0.1, weight_decay=0.3) for m in (dense, cut)]
    real = max(0, min(cut.stop, vocabulary) - cut.start)
    for step in range(3):
        ids, targets = (made((step, k), 2, 6).long().abs() % vocabulary for k in ("ids", "to"))
        ids, targets = ids.to(me.device), targets.to(me.device)
        for adamw in steps:
            adamw.zero_grad()
        logits = dense(ids) @ dense.weight.t()
        F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1).backward()
        how = {"vocabulary": vocabulary, "padded": 16, "label_smoothing": 0.1}
        cross_entropy(head(cut(ids)), targets, group, **how).backward()
        for adamw in steps:
            adamw.step()
        whole = with_padding(dense.weight.detach(), 16)
        close(f"step {step}", cut.weight, own(whole, group, 0), 1e-8)
        assert not cut.weight[real:].any()
    return cut.weight.shape[0] - real


@pytest.mark.parametrize("world", [2, 3])
def test_rows_that_are_no_words_stay_zero(pool, world):
    assert sum(pool.run(world, padding_stays_zero)) == 6


def refused(me):
    group = dist.group.WORLD
    dense = dense_table("refused", 10, me.device)
    cut = VocabularyParallelEmbedding.from_dense(dense, group, multiple_of=4)
    ids = torch.tensor([3, 10, 9, -1], device=me.device)  # 10 is a row, and no word
    found = [said(ValueError, cut, ids), said(ValueError, cut, ids[2:])]
    quiet = VocabularyParallelEmbedding.from_dense(dense, group, check=False)
    assert not quiet(ids)[[1, 3]].any() and quiet(ids)[[0, 2]].any()
    few = dense_table("few", 2, me.device)
    found += [
        said(ValueError, VocabularyParallelEmbedding.from_dense, few, group),
        said(ValueError, VocabularyParallelEmbedding, 2, HIDDEN, group),
        said(ValueError, VocabularyParallelEmbedding, 10, HIDDEN, group, multiple_of=0),
        said(ValueError, VocabularyParallelEmbedding.from_dense, cut, group),
        said(ValueError, VocabularyParallelEmbedding, 10, HIDDEN, None),
        said(ValueError, VocabularyParallelHead, cut.weight, None),
    ]
    return found


def test_what_is_no_word_or_cannot_be_cut_is_refused(pool):
    for rank, found in enumerate(pool.run(3, refused)):
        assert (
            f"rank {rank}: 2 ids are out of range, the first of them 10: words are 0 to 9"
            in (found[0])
        )
        assert "1 ids are out of range, the first of them -1" in found[1]
        for one in found[2:4]:
            assert "a vocabulary of 2 words cannot be cut over 3 ranks: 1 of them would" in one
        assert "multiple_of=0" in found[4] and "cut already" in found[5]
        assert "not in the group" in found[6] and "not in the group" in found[7]
