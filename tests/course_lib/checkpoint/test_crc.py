"""The CRC-32 of a whole out of shares of its parts, and the runs of bytes that a box fills."""

from __future__ import annotations

import itertools
import math
import random
import runpy
import sys
from zlib import crc32

import pytest
import torch

from course_lib.checkpoint import crc
from course_lib.checkpoint.crc import Shares, combined, power, times
from course_lib.checkpoint.files import runs
from course_lib.layout import Box

pytestmark = pytest.mark.cpu("checksums of bytes")


def drawn() -> random.Random:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed={seed}")  # shown where it fails
    return random.Random(seed)


def test_shares_of_any_parts_make_the_crc_of_the_whole():
    dice = drawn()
    for _ in range(40):
        content = memoryview(dice.randbytes(dice.choice((0, 1, 7, 300, 4000))))
        total = len(content)
        edges = sorted({0, total, *(dice.randrange(total + 1) for _ in range(dice.randrange(60)))})
        cuts = [(a, content[a:b]) for a, b in itertools.pairwise(edges)]
        ranks: list[list] = [[] for _ in range(dice.randrange(1, 5))]
        for piece in cuts:
            dice.choice(ranks).append(piece)  # in the order of their starts
        ranks[0] = [(0, content[:0]), *ranks[0]]  # an empty part counts nothing
        shares = Shares()  # one keeps its tables over all of them
        assert combined(shares.of(own, total) for own in ranks) == crc32(content)
    assert Shares().of([], 10) == 0


def test_zlib_gives_the_same_number_where_zlib_ng_is_not_installed(monkeypatch):
    from zlib_ng import zlib_ng

    assert crc.crc32 is zlib_ng.crc32  # what make installs
    monkeypatch.setitem(sys.modules, "zlib_ng.zlib_ng", None)
    without = runpy.run_path(crc.__file__)
    assert without["crc32"] is crc32
    content = bytes(range(256)) * 33
    runs = [(0, content[:5000]), (5000, content[5000:])]
    assert without["Shares"]().of(runs, len(content)) == Shares().of(runs, len(content))


@pytest.mark.parametrize(("length", "stride"), [(1, 2), (3, 64), (8, 8), (16, 100)])
def test_many_runs_at_one_distance(length, stride):
    content = memoryview(drawn().randbytes(stride * 90))
    starts = range(0, len(content), stride)
    own = [(at, content[at : at + length]) for at in starts]
    others = [(at + length, content[at + length : at + stride]) for at in starts]
    shares = Shares()
    assert shares.of(own, len(content)) ^ shares.of(others, len(content)) == crc32(content)


def test_zeros_that_follow_however_many():
    dice = drawn()
    for count in (0, 1, 2, 255, 1000, 123_457):
        content = dice.randbytes(20)
        crc = crc32(content) ^ crc32(bytes(20))  # the linear part of it
        want = crc32(content + bytes(count)) ^ crc32(bytes(20 + count))
        assert times(power(count), crc) == want
    far, near = 10**15 + 7, 10**14 + 3  # no bytes are made for that
    assert times(power(far), power(near)) == power(far + near)


def brute(shape: tuple, box: Box) -> list[int]:
    """The elements of a box, in order, by their places in a row-major tensor."""
    places = torch.arange(math.prod(shape)).reshape(shape)
    return places[box.slices].reshape(-1).tolist()


def test_the_runs_of_a_box_are_its_elements_in_order():
    dice = drawn()
    for _ in range(300):
        shape = tuple(dice.randrange(1, 6) for _ in range(dice.randrange(5)))
        offset = tuple(dice.randrange(n) for n in shape)
        size = tuple(dice.randrange(0, n - o + 1) for n, o in zip(shape, offset, strict=True))
        if dice.random() < 0.3:  # dims that are whole join a run
            offset, size = (*offset[:1], *(0,) * len(shape[1:])), (*size[:1], *shape[1:])
        box = Box(offset, size)
        found = list(runs(shape, box))
        elements = [place for start, length in found for place in range(start, start + length)]
        assert elements == brute(shape, box), (shape, box)
        assert sum(length for _, length in found) == box.numel
        ends = [start + length for start, length in found]
        if box.numel and len(box.size) > 1 and box.size[1:] == shape[1:]:
            assert len(found) == 1, (shape, box)
        assert all(a <= b for a, b in zip(ends, [s for s, _ in found[1:]], strict=False))
