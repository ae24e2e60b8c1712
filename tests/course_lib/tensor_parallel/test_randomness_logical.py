"""The test mode in which dropout follows the logical index: parts of ranks make the dense mask.

What is done to single elements is made of products and sums alone, so that parts and the whole
agree bit by bit; attention, whose matrix products are of other shapes, to 1e-10 in float64.
"""

from __future__ import annotations

import itertools
import threading

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib.layout import cut, heads
from course_lib.tensor_parallel.randomness import logical_masks, private, seed_all
from tests.course_lib.tensor_parallel.parts import made, said

BOUND = 5.0  # standard deviations; a fair mask lies beyond with probability 5.7e-7
SHAPES = [(5, 7, 4), (2, 1, 9), (3, 6, 8)]  # uneven at 2, 3 and 4 ranks; some ranks get nothing


def part_of(x, me, dim, sizes):
    return x.detach().narrow(dim, sum(sizes[: me.rank]), sizes[me.rank]).clone()


def placed(me, dim, sizes):
    """The words by which private() learns where this rank's part lies."""
    return {"dim": dim, "start": sum(sizes[: me.rank]), "whole": sum(sizes)}


def twice(x):
    """Two dropouts in one forward, one of them as a module."""
    return F.dropout(x * x, 0.4) + nn.Dropout(0.3)(x)


def parts_of_a_tensor(me):
    """Dropouts of a part against those of the whole tensor, forward, backward and afterwards."""
    group = dist.group.WORLD
    compared = 0
    for shape in SHAPES:
        for dim in (0, 1, 2, -1):
            sizes = cut(shape[dim], me.world)
            x, weight = (made((k, dim), *shape, device=me.device) for k in ("x", "weight"))
            part = part_of(x, me, dim, sizes).requires_grad_()
            x.requires_grad_()
            with logical_masks():
                seed_all(3)
                dense = twice(x)
                after = torch.rand(3)
                seed_all(3)
                with private(group, **placed(me, dim, sizes)):
                    ours = twice(part)
                assert torch.equal(after, torch.rand(3))
            (dense * weight).sum().backward()
            (ours * part_of(weight, me, dim, sizes)).sum().backward()
            assert torch.equal(ours, part_of(dense, me, dim, sizes)), (shape, dim)
            assert torch.equal(part.grad, part_of(x.grad, me, dim, sizes)), (shape, dim)
            compared += ours.numel()
    if me.world == 1:  # who holds everything need not say so
        with logical_masks(), private(group):
            F.dropout(torch.ones(3), 0.5)
    return compared


@pytest.mark.parametrize("world", [1, 3])
def test_a_part_is_dropped_out_as_that_part_of_the_whole(pool, world):
    compared = pool.run(world, parts_of_a_tensor)
    assert sum(compared) == sum(4 * torch.Size(shape).numel() for shape in SHAPES)


def heads_of_an_attention(me):
    """SDPA on some heads against all, plain and with grouped queries, causal and not."""
    group = dist.group.WORLD
    for grouped, causal in itertools.product((False, True), repeat=2):
        groups = heads(5, me.world)  # of three queries; [2, 1, 1, 1] on four ranks
        queries = [3 * count for count in groups]
        sizes = [queries] + 2 * [groups if grouped else queries]
        whole = [made(i, 2, sum(cuts), 6, 4, device=me.device) for i, cuts in enumerate(sizes)]
        parts = [part_of(x, me, 1, cuts) for x, cuts in zip(whole, sizes, strict=True)]
        for x in whole + parts:
            x.requires_grad_()
        options = {"dropout_p": 0.35, "is_causal": causal, "enable_gqa": grouped}
        with logical_masks():
            seed_all(3)
            dense = [F.scaled_dot_product_attention(*whole, **options) for _ in range(2)]
            seed_all(3)
            with private(group, **placed(me, 1, queries)):
                ours = [F.scaled_dot_product_attention(*parts, **options) for _ in range(2)]
        assert not torch.equal(*dense)
        wants = torch.autograd.grad(dense[0].square().sum() + dense[1].sum(), whole)
        gots = torch.autograd.grad(ours[0].square().sum() + ours[1].sum(), parts)
        for got, want, cuts in zip(
            [*ours, *gots], [*dense, *wants], [queries, queries, *sizes], strict=True
        ):
            want = part_of(want, me, 1, cuts)
            torch.testing.assert_close(got, want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("world", [3, 4])
def test_heads_of_a_rank_are_dropped_out_as_in_the_whole_attention(pool, world):
    pool.run(world, heads_of_an_attention)


def piece(x, group, words):
    with private(group, **words):
        return F.dropout(x * x * F.dropout(x * x, 0.4), 0.3) * x


def by_backward(loss, x):
    loss.backward()
    return x.grad


def by_the_function(loss, x):
    quarter = torch.full_like(loss, 0.25)
    torch.autograd.backward([loss, loss], [quarter, 1 - quarter])
    return x.grad


def by_its_inputs(loss, x):
    named = torch.__version__ >= "2.13"  # since when they may have names
    loss.backward(torch.ones_like(loss), inputs={"x": x} if named else [x])
    return x.grad


def by_grad(loss, x):
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    loss.backward(inputs=[x])
    assert torch.equal(x.grad, grad)
    return grad.detach()


def recomputed(me):
    """A part, stored and recomputed in both forms, against the whole, stored."""
    ends = [by_backward, by_the_function, by_its_inputs, by_grad]
    sizes = cut(7, me.world)
    x = made("x", 4, 7, device=me.device)
    part, words = part_of(x, me, 1, sizes), placed(me, 1, sizes)
    x.requires_grad_()
    with logical_masks():
        seed_all(3)
        dense = piece(x, dist.group.WORLD, {"dim": 1, "start": 0, "whole": 7})
        dense.square().sum().backward()
        for form, end in ((None, ends[0]), (True, ends[0]), *((False, end) for end in ends)):
            mine = part.clone().requires_grad_()
            seed_all(3)
            if form is None:
                ours = piece(mine, dist.group.WORLD, words)
            else:
                ours = checkpoint(piece, mine, dist.group.WORLD, words, use_reentrant=form)
            torch.rand(2)
            grad = end(ours.square().sum(), mine)
            assert torch.equal(ours, part_of(dense, me, 1, sizes)), form
            assert torch.equal(grad, part_of(x.grad, me, 1, sizes)), (form, end)
            F.dropout(torch.ones(9, 9), 0.5)  # no part of 7 is left over from the recomputation


def test_recomputed_parts_are_parts_of_the_whole(pool):
    # Torch's checkpoint brings the compiler along, and a busy machine takes its time over that.
    pool.run(3, recomputed, timeout=90)


def deep(x, depth, seen):
    seen.add(threading.get_ident())
    if depth == 0:
        return F.dropout(x * x, 0.4)
    return checkpoint(deep, x, depth - 1, seen, use_reentrant=True)


def test_the_mode_follows_a_backward_into_another_thread():
    # As on a GPU, whose backward has a thread of its own; here one nested so deep needs a second.
    start = torch.randn(50, dtype=torch.float64)
    got, threads = [], []
    with logical_masks():
        for depth in (0, 80):
            x, seen = start.clone().requires_grad_(), set()
            seed_all(3)
            deep(x, depth, seen).sum().backward()
            got.append(x.grad)
            threads.append(len(seen))
    assert threads[0] == 1 < threads[1]
    assert torch.equal(*got)


def test_masks_are_fair_and_no_two_alike():
    n = 60_000
    x = torch.rand(n // 100, 100, dtype=torch.float64) + 1
    for p in (0.07, 0.5, 0.8):
        seed_all(4)
        with logical_masks():
            got = [F.dropout(x, p) for _ in range(4)]
        masks = torch.stack([(one != 0).double().flatten() for one in got])
        for one, mask in zip(got, masks, strict=True):
            want = x * mask.view_as(x) / (1 - p)
            torch.testing.assert_close(one, want, rtol=1e-15, atol=0)
        scaled = (masks - (1 - p)) / (p * (1 - p)) ** 0.5
        assert (scaled.mean(1) * n**0.5).abs().max() < BOUND
        for lag in (0, 1, 2, 3, 99, 100, 101, 64, 4096):
            near = scaled[:, lag:] @ scaled[:, : n - lag].t() / n**0.5
            if lag == 0:
                near.fill_diagonal_(0.0)
            assert near.abs().max() < BOUND, (p, lag)


@pytest.mark.parametrize("grouped", [False, True], ids=["plain", "grouped"])
def test_attention_with_logical_masks_is_torchs_attention(grouped):
    # With a p so small that nothing is dropped, only the way of computing differs.
    kv = 2 if grouped else 6
    q, k, v = (
        torch.randn(2, n, s, 4, dtype=torch.float64, requires_grad=True)
        for n, s in ((6, 5), (kv, 7), (kv, 7))
    )
    seen = torch.rand(2, 6, 5, 7) > 0.4
    seen[:, :, 2] = False  # a query that sees nothing
    numbers = torch.randn(5, 7, dtype=torch.float64)
    hard = numbers.masked_fill(~seen, -torch.inf)
    cases = [{}, {"is_causal": True}, {"scale": 0.3}, {"attn_mask": seen}, {"attn_mask": numbers}]
    for options in [*cases, {"attn_mask": hard}, {"attn_mask": seen, "scale": 0.7}]:
        want = F.scaled_dot_product_attention(q, k, v, enable_gqa=grouped, **options)
        with logical_masks():
            got = F.scaled_dot_product_attention(
                q, k, v, dropout_p=1e-13, enable_gqa=grouped, **options
            )
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
        wants = torch.autograd.grad(want.square().sum(), (q, k, v))
        gots = torch.autograd.grad(got.square().sum(), (q, k, v))
        for one, other in zip(gots, wants, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_without_dropout_nothing_is_drawn_and_p_1_drops_all():
    x = torch.randn(3, 5, requires_grad=True)
    q = torch.randn(1, 2, 3, 4)
    state = torch.get_rng_state()
    with logical_masks():
        for y in (F.dropout(x, 0.4, training=False), F.dropout(x, 0.0), nn.Dropout(0.9).eval()(x)):
            assert torch.equal(y, x)
        F.scaled_dot_product_attention(q, q, q)
        assert torch.equal(state, torch.get_rng_state())
        y = F.dropout(x, 1.0)
        assert torch.equal(y, torch.zeros(3, 5))
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.zeros(3, 5))
        own = torch.ones(50)
        assert F.dropout(own, 0.5, inplace=True) is own and 0 < own.count_nonzero() < 50
    assert F.dropout(torch.ones(50), 0.5).dtype == torch.float32  # and torch's own is back


def wrong_calls(me):
    group = dist.group.WORLD
    x, q = torch.ones(4, 3), torch.ones(1, 2, 3, 4)
    refusals, found = (ValueError, RuntimeError, NotImplementedError), []
    with logical_masks():
        with private(group):
            found.append(said(refusals, F.dropout, x, 0.5))
        with private(group, dim=1, start=2, whole=4):
            found.append(said(refusals, F.dropout, x, 0.5))
        with private(group, dim=2, start=0, whole=4):
            found.append(said(refusals, F.dropout, x, 0.5))
        with private(group, dim=1, start=0, whole=4), private(group, dim=-1, start=0, whole=9):
            found.append(said(refusals, F.dropout, x, 0.5))
        for other in (F.alpha_dropout, F.dropout2d, nn.AlphaDropout()):
            found.append(said(refusals, other, x))
        found.append(said(refusals, F.dropout, x, 1.5))
        found.append(
            said(
                refusals, F.scaled_dot_product_attention, q, q, q, dropout_p=0.1, is_causal=True,
                attn_mask=torch.ones(3, 3, dtype=torch.bool),
            )
        )  # fmt: skip
        with pytest.raises(KeyError), private(group, dim=0, start=0, whole=1):
            raise KeyError("in the middle")
        F.dropout(x, 0.5)  # 4 long, and the part of 1 is forgotten
    return found


def test_calls_that_are_refused(pool):
    for found in pool.run(2, wrong_calls):
        assert "must state which part" in found[0]
        assert all("does not fit a tensor of shape (4, 3)" in one for one in found[1:4])
        assert all("logical_masks() supports F.dropout" in one for one in found[4:7])
        assert "probability" in found[7]  # torch's own words
        assert "is_causal" in found[8]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_makes_the_masks_of_the_cpu():
    x, q = torch.ones(7, 1000), torch.randn(2, 4, 33, 8, dtype=torch.float64)
    got = []
    for device in ("cpu", "cuda"):
        seed_all(6)
        with logical_masks():
            y = F.dropout(x.to(device), 0.3)
            z = F.scaled_dot_product_attention(*3 * [q.to(device)], dropout_p=0.3, is_causal=True)
        got.append((y.cpu(), z.cpu(), torch.rand(3)))
    assert torch.equal(got[0][0], got[1][0]) and torch.equal(got[0][2], got[1][2])
    torch.testing.assert_close(got[0][1], got[1][1], rtol=0, atol=1e-10)
