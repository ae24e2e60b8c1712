"""What a word costs: bytes in closed form, the batch where two ways are even, seconds by rows."""

from __future__ import annotations

import math
import time

import pytest
import torch

from course_lib import inference, ranks
from course_lib.estimate import generation_bytes
from course_lib.generate import generate
from course_lib.gpt import Config
from course_lib.inference import Forward, break_even_rows, fit, meeting_rows, streamed_bytes
from course_lib.ledger import ledger
from course_lib.tensor_parallel import parallelize
from tests.course_lib.inference.parts import CONFIGS, model_of, said, streamed

BIG = Config.gpt2(vocabulary=256, length=64, hidden=256, layers=12, heads=4)


def test_the_formula_is_that_of_the_weights_and_of_each_use():
    """Ψ(N−1)/N elements a forward where N divides all units; a tied table goes twice."""
    sizes = {"vocabulary": 64, "length": 16, "hidden": 32, "layers": 3, "heads": 4}
    untied, tied = Config.gpt2(**sizes, tied=False), Config.gpt2(**sizes)
    block = 12 * 32 * 32 + 13 * 32
    psi = 2 * 64 * 32 + 16 * 32 + 3 * block + 2 * 32
    for n in (2, 4):
        for config in (untied, tied):
            got = streamed_bytes(config, n, forwards=5, synced=False)
            assert got == 5 * 4 * psi * (n - 1) / n
    assert streamed_bytes(untied, 2, forwards=3) == 3 * 2 * psi + 4 * 1
    half = streamed_bytes(untied, 2, forwards=1, synced=False, dtype=torch.bfloat16)
    assert half == psi
    assert streamed_bytes(untied, 1, forwards=7) == 0 == streamed_bytes(untied, 4, forwards=0) - 1.5
    # The smallest units first: the norm, then the positions; a block is too large.
    some = streamed_bytes(untied, 2, forwards=1, synced=False, keep=4 * (64 + 512))
    assert some == 2 * (psi - 64 - 512)
    some = streamed_bytes(untied, 2, forwards=1, synced=False, keep=4 * (64 + 512) - 1)
    assert some == 2 * (psi - 64)
    for wrong in ({"n": 0, "forwards": 1}, {"n": 2, "forwards": -1}):
        assert "1 or more" in said(ValueError, streamed_bytes, untied, **wrong)


def both(me, family, prompt, count):
    """Bytes of streamed and of cut weights, measured at the two batches around the break-even."""
    config, n = CONFIGS[family], me.world
    rows = break_even_rows(config, n, prompt=prompt, count=count, item=8)
    engine = streamed(me, family)
    cut = parallelize(model_of(family), ranks.mesh(me, dp=1, tp=n))
    found = []
    for b in (rows - 1, rows):
        ids = (torch.arange(b * prompt) % 37).view(b, prompt)
        with ledger() as book:
            own = [piece.tolist() for piece in ids.tensor_split(n)]
            inference.generate(engine, own[me.rank], count)
        with ledger() as other:
            generate(cut, ids, count)
        found.append((b, book.bytes(), other.bytes()))
    return found


@pytest.mark.parametrize(
    ("world", "family", "prompt", "count"), [(2, "gpt2", 3, 5), (3, "llama", 1, 4)]
)
def test_the_break_even_is_where_the_ledgers_change_sides(pool, world, family, prompt, count):
    for (fewer, streams, cuts), (more, streams_2, cuts_2) in pool.run(
        world, both, family, prompt, count
    ):
        assert fewer == more - 1 > 3
        assert streams == pytest.approx(streams_2) and streams >= cuts and streams_2 < cuts_2


def test_the_break_even_of_a_large_model_is_about_three_hidden_sizes():
    """12 L h² elements over (1 + 2 L)·2 h of a row, as 12 L h² of a gradient over 8 b s h."""
    rows = break_even_rows(BIG, 8, prompt=1, count=100, item=2)
    assert 2.4 * 256 < rows < 3.6 * 256
    assert break_even_rows(BIG, 8, prompt=9, count=4, item=2) < rows / 2.5  # of tokens, not rows
    assert break_even_rows(BIG, 1, prompt=1, count=4, item=2) is None
    assert break_even_rows(BIG, 2, prompt=1, count=0, item=2) is None
    assert break_even_rows(BIG, 2, prompt=1, count=4, item=2, keep=1 << 40) == 1
    # By trying: the first batch for which a cut model sends more.
    small = Config.gpt2(vocabulary=8, length=8, hidden=4, layers=1, heads=1)
    for n, prompt, count, item in ((2, 1, 1, 2), (3, 2, 4, 4), (4, 1, 2, 8)):
        rows = break_even_rows(small, n, prompt=prompt, count=count, item=item)
        sizes = {"prompt": prompt, "count": count, "item": item}
        dtype = {2: torch.bfloat16, 4: torch.float32, 8: torch.float64}[item]
        streams = streamed_bytes(small, n, forwards=count, dtype=dtype)
        cuts = [generation_bytes(small, n, 0, rows=b, **sizes) for b in range(rows + 1)]
        assert next(b for b, nbytes in enumerate(cuts) if nbytes > streams) == rows > 1


def test_two_constants_are_found_again():
    true = Forward(0.04, 0.0025)
    found = fit({b: true.seconds(b) for b in (1, 4, 16, 64)})
    assert math.isclose(found.fixed, 0.04, rel_tol=1e-9)
    assert math.isclose(found.row, 0.0025, rel_tol=1e-9)
    assert true.seconds(16) == 0.08
    assert math.isclose(true.tokens_per_second(16, ranks=3), 3 * 16 / 0.08)
    # an error of a tenth counts as much in a short time as in a long one
    off = fit({1: 1.1, 2: 1.1, 100: 1.1, 1000: 0.9 * 1})
    assert off.row == 0.0 and 0.9 < off.fixed < 1.1
    assert fit({1: 0.1, 10: 1.2}).fixed == 0.0
    assert "at least two batches" in said(ValueError, fit, {4: 1.0})
    assert "a time above 0" in said(ValueError, fit, {4: 1.0, 8: 0.0})


def test_two_ways_meet_where_their_tokens_per_second_are_equal():
    stream, cut, n = Forward(0.05, 0.002), Forward(0.01, 0.004), 2
    rows = meeting_rows(stream, cut, n)
    assert math.isclose(
        stream.tokens_per_second(rows / n, ranks=n), cut.tokens_per_second(rows), rel_tol=1e-12
    )
    assert math.isclose(rows, 0.04 / 0.003)
    # 24 MB streamed, or 2 MB for each row, over a link of 1 GB/s; computing is equally fast.
    sent = meeting_rows(Forward(0.024, 0.006), Forward(0.0, 0.006 / 3 + 0.002), 3)
    assert math.isclose(sent, 12, rel_tol=1e-9)
    assert meeting_rows(cut, stream, n) is None  # less of both: faster at every batch
    assert meeting_rows(Forward(0.05, 0.02), cut, n) is None  # more of both


def timed(me):
    group = ranks.mesh(me, dp=me.world, tp=1).get_group("dp")
    calls = []

    def write(b):
        calls.append(b)
        if me.rank == me.world - 1:
            time.sleep(0.03 * b * (1 + (len(calls) in (1, 6))))  # once slow, and not counted

    found = inference.seconds_by_rows(write, [1, 2], forwards=3, group=group, repeat=3)
    return calls, found


def test_seconds_are_those_of_the_slowest_rank_and_a_first_run_is_not_counted(pool):
    for calls, found in pool.run(2, timed):
        assert calls == [1] * 4 + [2] * 4
        assert found[1] >= 0.03 / 3 and found[2] >= 0.06 / 3
        assert list(found) == [1, 2]
    first, second = pool.run(2, timed)
    assert first[1] == second[1]
    assert "1 or more" in said(
        ValueError, inference.seconds_by_rows, print, [1], forwards=0, group=None
    )
