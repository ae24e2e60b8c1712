"""The cut table of words and the head that shares it: lookups, gradients, padding, ties, errors."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.tensor_parallel.embedding import (
    VocabularyParallelEmbedding,
    VocabularyParallelHead,
    padded_vocabulary,
)
from tests.course_lib.tensor_parallel.parts import WORLDS, close, made, own, said

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
        cut = VocabularyParallelEmbedding(dense, group, multiple_of=multiple)
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


def started(me):
    """The rows are the dense table's, in memory of their own; so are dtype, mode and device."""
    group = dist.group.WORLD
    for vocabulary, multiple in ((11, 1), (10, 16)):
        dense = nn.Embedding(vocabulary, HIDDEN, device=me.device)
        cut = VocabularyParallelEmbedding(dense, group, multiple_of=multiple)
        whole = with_padding(dense.weight.detach(), cut.padded)
        assert torch.equal(cut.weight, own(whole, group, 0)) and cut.weight.requires_grad
        narrow = VocabularyParallelEmbedding(dense.bfloat16().eval(), group)
        assert narrow.weight.dtype == torch.bfloat16 and not narrow.training
    frozen = VocabularyParallelEmbedding(dense.requires_grad_(False), group)
    assert not frozen.weight.requires_grad
    before = frozen.weight.clone()
    with torch.no_grad():
        dense.weight.zero_()
    assert torch.equal(frozen.weight, before)  # its own memory, the dense table can go
    nowhere = VocabularyParallelEmbedding(nn.Embedding(11, HIDDEN, device="meta"), group)
    assert (
        nowhere.weight.is_meta and nowhere.weight.shape == own(torch.empty(11, 5), group, 0).shape
    )
    assert [padded_vocabulary(50257, m) for m in (1, 2, 128)] == [50257, 50258, 50304]


def test_the_table_starts_as_the_dense_one(pool):
    pool.run(3, started)


def refused(me):
    group = dist.group.WORLD
    dense = dense_table("refused", 10, me.device)
    cut = VocabularyParallelEmbedding(dense, group, multiple_of=4)
    ids = torch.tensor([3, 10, 9, -1], device=me.device)  # 10 is a row, and no word
    found = [said(ValueError, cut, ids), said(ValueError, cut, ids[2:])]
    quiet = VocabularyParallelEmbedding(dense, group, check=False)
    assert not quiet(ids)[[1, 3]].any() and quiet(ids)[[0, 2]].any()
    few = dense_table("few", 2, me.device)
    found += [
        said(ValueError, VocabularyParallelEmbedding, few, group),
        said(ValueError, VocabularyParallelEmbedding, dense, group, multiple_of=0),
        said(ValueError, VocabularyParallelEmbedding, cut, group),
        said(ValueError, VocabularyParallelEmbedding, dense, None),
        said(ValueError, VocabularyParallelHead, cut.weight, None),
    ]
    return found


def test_what_is_no_word_or_cannot_be_cut_is_refused(pool):
    for rank, found in enumerate(pool.run(3, refused)):
        assert (
            f"rank {rank}: 2 ids are out of range, the first of them 10, but entries are 0 to 9"
            in (found[0])
        )
        assert "1 ids are out of range, the first of them -1" in found[1]
        assert (
            "a vocabulary of 2 entries cannot be sharded over 3 ranks, because 1 would" in found[2]
        )
        assert "multiple_of=0" in found[3] and "sharded already" in found[4]
        assert "not in the group" in found[5] and "not in the group" in found[6]
