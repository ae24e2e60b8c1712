"""Buckets, shards, pieces and boxes: against what a marked tensor says, with no rank started."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from course_lib.zero import partition
from course_lib.zero.partition import end_to_end, through

pytestmark = pytest.mark.cpu("arithmetic of the cut")

SHAPES = [(5, 7), (7,), (1,), (), (3, 2, 4), (11,), (2, 9)]


def named(shapes=SHAPES, dtypes=(torch.float32,)):
    kinds = itertools.cycle(dtypes)
    return [
        (f"p{i}", nn.Parameter(torch.zeros(s, dtype=next(kinds)))) for i, s in enumerate(shapes)
    ]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 50])
@pytest.mark.parametrize("most", [1, 40, 100, 1 << 20])
@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.float32, torch.float64)])
def test_every_number_lies_in_one_place(n, most, dtypes):
    ps = named(dtypes=dtypes)
    cut = partition(ps, n, most_bytes=most)
    assert cut.numel == sum(p.numel() for _, p in ps)
    names = [slot.name for bucket in cut.buckets for slot in bucket.slots]
    assert sorted(names) == sorted(name for name, _ in ps)
    if len(dtypes) == 1:
        assert names == [name for name, _ in reversed(ps)]
    for bucket in cut.buckets:
        size = bucket.dtype.itemsize
        assert bucket.cut.total * size <= most or len(bucket.slots) == 1
        assert {slot.parameter.dtype for slot in bucket.slots} == {bucket.dtype}
        assert bucket.padded % n == 0 and bucket.padded - bucket.cut.total < n
        # Written into the parameters' places of a buffer, read out of the ranks' shards.
        buffer = bucket.buffer()
        for slot in bucket.slots:
            bucket.view(buffer, slot).copy_(
                torch.arange(1, slot.numel + 1, dtype=bucket.dtype).view(slot.shape)
            )
        seen: dict = {}
        for rank in range(n):
            shard = bucket.shard(buffer, rank)
            assert shard.numel() == bucket.padded // n
            real = 0
            for piece in bucket.pieces(rank):
                want = torch.arange(piece.start + 1, piece.stop + 1, dtype=bucket.dtype)
                assert torch.equal(piece.of(shard), want)
                seen.setdefault(piece.slot.name, []).extend(range(piece.start, piece.stop))
                real += piece.numel
            assert not shard[real:].any()
        for slot in bucket.slots:
            assert seen[slot.name] == list(range(slot.numel))
    assert cut.padded == sum(bucket.padded for bucket in cut.buckets)


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize(
    "spans", [[(0, 4)], [(2, 6)], [(1, 3), (5, 7)], [(4, 6), (0, 1), (7, 8)], [(3, 3), (0, 2)]]
)
def test_boxes_go_through_a_cut_by_tensor_parallelism(dim, spans):
    """What a rank holds of a tensor of which it has some ranges of a dim: any cut of its own."""
    shape = [3, 2, 4]
    logical_shape = shape[:dim] + [9] + shape[dim + 1 :]
    logical = torch.arange(math.prod(logical_shape)).view(logical_shape)
    local = torch.cat([logical.narrow(dim, a, b - a) for a, b in spans], dim)
    p = nn.Parameter(torch.zeros(local.shape))
    for n in (1, 2, 3, 5):
        cut = partition([("x", nn.Parameter(torch.zeros(5))), ("p", p)], n)
        bucket, slot = cut.where[p]
        for rank in range(n):
            got = []
            for box in (b for own in cut.boxes(p, rank) for b in through(own, dim, spans)):
                where = tuple(slice(o, o + s) for o, s in zip(box.offset, box.size, strict=True))
                got += logical[where].reshape(-1).tolist()
            want = [
                local.reshape(-1)[i].item()
                for piece in bucket.pieces(rank)
                if piece.slot is slot
                for i in range(piece.start, piece.stop)
            ]
            assert got == want


def test_a_box_within_one_span_stays_one():
    from course_lib.layout import Box

    assert through(Box((0, 1), (2, 2)), 1, [(4, 8), (9, 12)]) == [Box((0, 5), (2, 2))]


def test_frozen_tied_and_empty_parameters_have_no_place_or_one():
    ps = named([(2, 3), (4,), (0, 3)])
    ps[1][1].requires_grad_(False)
    ps.append(("tied", ps[0][1]))
    cut = partition(ps, 2)
    assert [slot.name for bucket in cut.buckets for slot in bucket.slots] == ["tied"]
    assert cut.numel == 6
    assert partition(ps[1:3], 2).buckets == ()


def test_end_to_end_keeps_kinds_apart():
    kinds = end_to_end(named(dtypes=(torch.float32, torch.float64)))
    assert [[slot.name for slot in slots] for slots in kinds] == [
        ["p0", "p2", "p4", "p6"],
        ["p1", "p3", "p5"],
    ]
    for slots in kinds:
        assert [slot.start for slot in slots[1:]] == [slot.stop for slot in slots[:-1]]
