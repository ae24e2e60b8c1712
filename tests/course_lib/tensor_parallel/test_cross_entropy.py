"""The loss of cut logits against torch's on the whole ones: every label, every option, the edges.

And what it costs: two small all-reduces, no byte in backward, one shard of memory, no number of
the caller's touched.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib.ledger import ledger
from course_lib.memory import peak
from course_lib.tensor_parallel import cross_entropy as module
from course_lib.tensor_parallel.cross_entropy import cross_entropy, three_sums
from tests.course_lib.tensor_parallel.parts import WORLDS, close, made, own, said

INFINITY = math.inf
# (words, logits): uneven, a rank without any, more ranks than words, padding on one rank or two
VOCABULARIES = [(11, 11), (9, 9), (5, 5), (3, 3), (11, 16), (10, 20), (1, 8)]


def whole_logits(label, *shape, padded=None, dtype=torch.float64, scale=3.0, device=None):
    """Random logits; those of the padding are so large that counting one of them would show."""
    x = made(label, *shape) * scale
    missing = (padded or shape[-1]) - shape[-1]
    return torch.cat((x, torch.full((*shape[:-1], missing), 1e3)), -1).to(dtype).to(device)


def both(whole, targets, group, vocabulary, *, weight=None, **options):
    """(loss, gradient of this rank's logits) from torch on all logits, and ours on a rank's own."""
    dense = whole.detach()[..., :vocabulary].clone().requires_grad_()
    mine = own(whole, group).detach().clone().requires_grad_()
    want = F.cross_entropy(dense.flatten(0, -2), targets.flatten(), **options)
    got = cross_entropy(
        mine, targets, group, vocabulary=vocabulary, padded=whole.shape[-1], **options
    )
    if options.get("reduction") == "none":
        want = want.view(targets.shape)
    owed = torch.ones_like(want) if weight is None else weight
    want.backward(owed.to(want.dtype))
    got.backward(owed.to(got.dtype))
    lost = whole.shape[-1] - vocabulary
    whole_grad = torch.cat((dense.grad, dense.grad.new_zeros((*dense.shape[:-1], lost))), -1)
    return (got, want), (mine.grad, own(whole_grad, group))


def every_label(me, vocabularies):
    """As many tokens as words, each word a target once."""
    group = dist.group.WORLD
    for vocabulary, padded in vocabularies:
        whole = whole_logits("every", vocabulary, vocabulary, padded=padded, device=me.device)
        order = made("order", vocabulary).argsort().to(me.device)
        owed = made("owed", vocabulary).to(me.device)
        losses, grads = both(whole, order, group, vocabulary, weight=owed, reduction="none")
        close(f"losses of {vocabulary} in {padded}", *losses)
        close(f"gradients of {vocabulary} in {padded}", *grads)
        first = group.rank() * -(-padded // group.size())
        assert not grads[0][:, max(0, vocabulary - first) :].any()  # what is no word learns nothing
        if padded > vocabulary or vocabulary <= -(-vocabulary // me.world) * (me.world - 1):
            continue  # the idea alone has no padding, and an entry on every rank
        mine = own(whole, group).detach().clone().requires_grad_()
        by_idea = three_sums(mine, order, first, group)
        close(f"three sums, losses of {vocabulary}", by_idea, losses[1])
        by_idea.backward(owed)
        close(f"three sums, gradients of {vocabulary}", mine.grad, grads[1])


@pytest.mark.parametrize("world", WORLDS)
def test_every_label_on_every_rank(pool, world):
    pool.run(world, every_label, VOCABULARIES)


def options(me):
    """Ignored, smoothed, reduced: all of these together, on tokens of two dims."""
    group, generator = dist.group.WORLD, torch.Generator().manual_seed(4)
    for vocabulary, padded in ((11, 11), (9, 9), (10, 20), (7, 8)):
        whole = whole_logits("options", 3, 5, vocabulary, padded=padded, device=me.device)
        targets = torch.randint(vocabulary, (3, 5), generator=generator).to(me.device)
        for ignored in (-100, 3, vocabulary + 1):  # 3 is a word as well
            some = targets.clone()
            some[0, 1], some[2] = ignored, ignored
            for smoothing in (0.0, 0.1, 1.0):
                for reduction in ("mean", "sum", "none"):
                    losses, grads = both(
                        whole,
                        some,
                        group,
                        vocabulary,
                        ignore_index=ignored,
                        label_smoothing=smoothing,
                        reduction=reduction,
                    )
                    name = f"{vocabulary} of {padded}, {ignored}, {smoothing}, {reduction}"
                    close(f"loss: {name}", *losses)
                    close(f"grad: {name}", *grads)
                    assert not grads[0][some == ignored].any()
            # Nothing at all to learn from: 0, and not 0/0.
            none = torch.full_like(targets, ignored)
            mine = own(whole, group).requires_grad_()
            how = {"vocabulary": vocabulary, "padded": padded, "ignore_index": ignored}
            for smoothing in (0.0, 0.3):
                loss = cross_entropy(mine, none, group, label_smoothing=smoothing, **how)
                (grad,) = torch.autograd.grad(loss, mine)
                assert loss.item() == 0.0 and grad.shape == mine.shape and not grad.any()
        loss = cross_entropy(
            own(whole, group)[:0], targets[:0], group, vocabulary=vocabulary, padded=padded
        )
        assert loss.item() == 0.0  # no row either
    small = own(whole_logits("long", 40, 23, device=me.device), group)
    targets = torch.randint(23, (40,), generator=generator).to(me.device)
    found = [cross_entropy(small, targets, group, vocabulary=23, label_smoothing=0.2)]
    for step in (3 * small.shape[-1], 1):  # a few rows at a time, the last ones fewer
        kept, module._CHUNK = module._CHUNK, step
        try:
            found.append(cross_entropy(small, targets, group, vocabulary=23, label_smoothing=0.2))
        finally:
            module._CHUNK = kept
    for one in found:
        close("in smaller chunks", one, found[0])
    return found[0].item()


@pytest.mark.parametrize("world", WORLDS)
def test_ignored_smoothed_reduced_and_padded(pool, world):
    assert len(set(pool.run(world, options))) == 1  # every rank holds the same loss


def extremes(me):
    """Logits far from 0, and infinite ones, wherever they lie."""
    group, n, device = dist.group.WORLD, me.world, me.device
    vocabulary, tokens = 4 * n + 1, 9
    whole = whole_logits("extremes", tokens, vocabulary, device=device)
    targets = made("targets", tokens).argsort().to(device) % vocabulary
    for shift in (1e4, -1e4):
        for smoothing in (0.0, 0.1):
            name, how = f"shifted by {shift}", {"label_smoothing": smoothing, "reduction": "none"}
            losses, grads = both(whole + shift, targets, group, vocabulary, **how)
            close(name, *losses)
            close(name, *grads)
            # In float32 too, as exact as the logits are: they are what they are, wherever.
            narrow = (whole + shift).float()
            losses, grads = both(narrow, targets, group, vocabulary, **how)
            exact, exact_grads = both(narrow.double(), targets, group, vocabulary, **how)
            close(f"{name}, float32", losses[0].double(), exact[1], 1e-6)
            close(f"{name}, float32", grads[0].double(), exact_grads[1], 1e-6)
    for high in range(n):  # one rank's logits are far above all others'
        apart = torch.cat(
            [part + (5e3 if r == high else -5e3) for r, part in enumerate(cut(whole, n))], -1
        )
        losses, grads = both(apart, targets, group, vocabulary, reduction="sum")
        close(f"rank {high} far above", *losses)
        close(f"rank {high} far above", *grads)
        close("in float32", *both(apart.float(), targets, group, vocabulary)[0], bound=1e-5)
    for low in range(n if n > 1 else 0):  # a shard of nothing but minus infinity
        dead = torch.cat(
            [part - (INFINITY if r == low else 0.0) for r, part in enumerate(cut(whole, n))], -1
        )
        alive = torch.isfinite(dead[0]).nonzero().flatten()
        elsewhere = alive[targets % len(alive)]
        losses, grads = both(dead, elsewhere, group, vocabulary, reduction="none")
        close(f"rank {low} all -inf", *losses)
        close(f"rank {low} all -inf", *grads)
        assert torch.isfinite(losses[0]).all() and torch.isfinite(grads[0]).all()
        how = {"label_smoothing": 0.1, "reduction": "none"}  # a share of every word, of those too
        (got, want), _ = both(dead, elsewhere, group, vocabulary, **how)
        assert got.tolist() == want.tolist() == [INFINITY] * tokens
    holes = whole.masked_fill(made("holes", *whole.shape).to(device) > 0.7, -INFINITY)
    holes[torch.arange(tokens), targets] = 0.5
    holes[2, targets[2]] = -INFINITY  # the target itself: an infinite loss, as torch's
    (got, want), grads = both(holes, targets, group, vocabulary, reduction="none")
    assert got[2].item() == want[2].item() == INFINITY
    keep = torch.arange(tokens, device=device) != 2
    close("words ruled out", got[keep], want[keep])
    close("words ruled out", *grads)
    # A row of infinities that is ignored harms nobody; one that counts shows, in its own loss.
    broken, some = whole.clone(), targets.clone()
    broken[4], some[4] = -INFINITY, -100
    mine = own(broken, group).requires_grad_()
    for smoothing in (0.0, 0.1):
        loss = cross_entropy(mine, some, group, vocabulary=vocabulary, label_smoothing=smoothing)
        want = F.cross_entropy(broken, some, label_smoothing=smoothing)
        close("an ignored row of -inf", loss, want)
        (grad,) = torch.autograd.grad(loss, mine)
        assert torch.isfinite(grad).all() and not grad[4].any()
    broken[5] = math.nan
    how = {"vocabulary": vocabulary, "reduction": "none"}
    (got, want), _ = both(broken, targets, group, vocabulary, reduction="none")
    assert got.isnan().tolist() == want.isnan().tolist() == [i in (4, 5) for i in range(tokens)]
    return cross_entropy(own(whole, group), targets, group, **how).tolist()


def cut(whole, n):
    """The ranks' pieces, as torch.chunk makes them; empty ones at the end."""
    parts = list(whole.chunk(n, -1))
    return parts + [whole[..., :0]] * (n - len(parts))


@pytest.mark.parametrize("world", WORLDS)
def test_logits_far_from_zero_and_infinite_ones(pool, world):
    every = pool.run(world, extremes)
    assert all(one == every[0] for one in every)


def narrow(me):
    """bf16 logits: sums in float32, a gradient as exact as bf16 is."""
    group, vocabulary = dist.group.WORLD, 1031
    whole = whole_logits("bf16", 7, vocabulary, dtype=torch.bfloat16, device=me.device)
    targets = (made("targets", 7) * 1000).long().abs().to(me.device) % vocabulary
    for smoothing in (0.0, 0.1):
        mine = own(whole, group).requires_grad_()
        loss = cross_entropy(mine, targets, group, vocabulary=vocabulary, label_smoothing=smoothing)
        loss.backward()
        dense = whole.double().requires_grad_()
        want = F.cross_entropy(dense, targets, label_smoothing=smoothing)
        want.backward()
        assert loss.dtype == torch.float32 and mine.grad.dtype == torch.bfloat16
        close("bf16", loss.double(), want, 1e-6)
        off = (mine.grad.double() - own(dense.grad, group)).abs()
        assert (off <= own(dense.grad, group).abs() * 2**-8 + 1e-8).all()  # rounded once
    # Equal logits: in bf16 a running sum of ones would stop at 256.
    flat = torch.zeros(2, vocabulary, dtype=torch.bfloat16, device=me.device)
    loss = cross_entropy(own(flat, group), targets[:2], group, vocabulary=vocabulary)
    assert loss.item() == pytest.approx(math.log(vocabulary), rel=1e-6)
    half = whole_logits("half", 7, vocabulary, dtype=torch.float16, scale=20.0, device=me.device)
    loss = cross_entropy(own(half, group), targets, group, vocabulary=vocabulary)
    close("float16", loss.double(), F.cross_entropy(half.double(), targets), 1e-6)


@pytest.mark.parametrize("world", [1, 3])
def test_narrow_logits_are_summed_in_float32(pool, world):
    pool.run(world, narrow)


def untouched(me):
    """The caller goes on to use the logits; and goes backward twice."""
    group, vocabulary = dist.group.WORLD, 13
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        whole = whole_logits("kept", 2, 5, vocabulary, dtype=dtype, device=me.device)
        targets = made("targets", 10).argsort().view(2, 5).to(me.device)
        targets[1, 2] = -100
        leaf = own(whole, group).requires_grad_()
        logits = leaf * 1  # not a leaf: nothing protects it but us
        before, version = logits.detach().clone(), logits._version
        sibling = logits.exp()
        loss = cross_entropy(logits, targets, group, vocabulary=vocabulary, label_smoothing=0.1)
        assert logits._version == version and torch.equal(logits, before)
        grads = [
            torch.autograd.grad(loss, logits, torch.tensor(size), retain_graph=True)[0]
            for size in (1.0, 1.0, 2.0)
        ]
        assert torch.equal(grads[0], grads[1]) and torch.equal(grads[2], 2 * grads[0])
        assert grads[0].any()
        assert logits._version == version and torch.equal(logits, before)
        (alone,) = torch.autograd.grad(sibling.sum(), leaf, retain_graph=True)
        (together,) = torch.autograd.grad(sibling.sum() + loss, leaf)
        close("a sibling of the loss", together, alone + grads[0], 2.0**-7)
        with torch.no_grad():
            again = cross_entropy(
                before, targets, group, vocabulary=vocabulary, label_smoothing=0.1
            )
        assert torch.equal(again, loss) and not again.requires_grad
    # Logits that lie in memory some other way.
    whole = whole_logits("across", vocabulary, 6, device=me.device).t()
    ids = targets.flatten()[:6].clamp(min=0)
    losses, grads = both(whole, ids, group, vocabulary)
    close("transposed", *losses)
    close("transposed", *grads)


@pytest.mark.parametrize("world", [2, 3])
def test_the_callers_logits_are_untouched_and_backward_goes_twice(pool, world):
    pool.run(world, untouched)


def counted(me, dtype):
    """Its messages: (op, phase, bytes that must go) of each."""
    group, vocabulary, tokens = dist.group.WORLD, 301, (4, 6)
    mine = own(whole_logits("counted", *tokens, vocabulary, dtype=dtype), group).requires_grad_()
    targets = made("targets", 24).argsort().view(tokens)
    found = []
    for smoothing in (0.0, 0.1):
        with ledger() as book:
            cross_entropy(
                mine, targets, group, vocabulary=vocabulary, label_smoothing=smoothing
            ).backward()
        found.append([(r.op, r.phase, r.elements, r.must) for r in book.records])
    return found


@pytest.mark.parametrize(("world", "dtype"), [(2, "float64"), (3, "float32"), (4, "bfloat16")])
def test_two_small_sums_forward_and_nothing_backward(pool, world, dtype):
    tokens, item = 24, 8 if dtype == "float64" else 4
    for plain, smoothed in pool.run(world, counted, getattr(torch, dtype)):
        for records, numbers in ((plain, (1, 2)), (smoothed, (1, 3))):  # numbers a token
            want = [
                ("all_reduce", "forward", k * tokens, 2 * (world - 1) / world * k * tokens * item)
                for k in numbers
            ]
            assert [r[:3] for r in records] == [w[:3] for w in want]
            assert [r[3] for r in records] == pytest.approx([w[3] for w in want], rel=1e-12)


def measured(me, dtype, padded, smoothing):
    """(bytes of a shard, peak without a gradient, of both ways, what is left) above the logits."""
    group, vocabulary, tokens = dist.group.WORLD, 2000 * me.world - 5, 2048
    whole = vocabulary + padded
    width = -(-whole // me.world)
    mine = torch.randn(tokens, width).to(dtype)[:, : own(torch.empty(1, whole), group).shape[1]]
    mine = mine.contiguous().requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), generator=torch.Generator().manual_seed(1))
    how = {"vocabulary": vocabulary, "padded": whole, "label_smoothing": smoothing}
    cross_entropy(mine[:2], targets[:2], group, **how).backward()
    mine.grad = None
    with peak() as alone, torch.no_grad():
        cross_entropy(mine, targets, group, **how)
    with peak() as everything:
        loss = cross_entropy(mine, targets, group, **how)
        loss.backward()
    return mine.nbytes, alone.bytes, everything.bytes, everything.held_after


# A chunk of logits in float32, the one before it, and 64 numbers a token.
SLACK = 2 * 4 * module._CHUNK + 64 * 8 * 2048


@pytest.mark.parametrize(
    ("dtype", "padded", "smoothing"),
    [("float32", 0, 0.0), ("float32", 5, 0.1), ("bfloat16", 0, 0.0)],
)
def test_the_peak_is_one_shard_of_logits(pool, dtype, padded, smoothing):
    for shard, alone, everything, left in pool.run(
        2, measured, getattr(torch, dtype), padded, smoothing
    ):
        assert shard > 0.9 * 2000 * 2048 * (2 if dtype == "bfloat16" else 4)
        assert alone <= SLACK - (4 * module._CHUNK if dtype == "float32" and not smoothing else 0)
        assert shard <= everything <= shard + SLACK
        assert shard - 64 * 8 * 2048 <= left <= shard + 64 * 8 * 2048  # the gradient, and no more


def padded_in_one_piece(me):
    """(bytes of a shard, the forward's peak) where all its logits fit one piece, as on a GPU."""
    kept, module._CHUNK = module._CHUNK, 1 << 26
    try:
        group, vocabulary = dist.group.WORLD, 500 * me.world - 5
        mine = torch.randn(1024, 500).requires_grad_()
        targets = torch.arange(1024) % vocabulary
        how = {"vocabulary": vocabulary, "padded": 500 * me.world}
        cross_entropy(mine, targets, group, **how)
        with peak() as forward:
            cross_entropy(mine, targets, group, **how)
        return mine.nbytes, forward.bytes
    finally:
        module._CHUNK = kept


def test_padding_costs_no_second_shard(pool):
    for shard, forward in pool.run(2, padded_in_one_piece):
        assert shard <= forward <= 1.25 * shard  # 3 times where torch fills all rows at once


def refused(me):
    """Each mistake before anything is sent: all ranks say so and go on."""
    group, v, n = dist.group.WORLD, 12, me.world
    whole, mine = torch.randn(5, v), torch.randn(5, 4)
    targets = torch.tensor([0, 3, 4, 11, -100])
    how = {"vocabulary": v}
    with ledger() as book:
        found = [
            said(ValueError, cross_entropy, whole, targets, group, **how),
            said(ValueError, cross_entropy, torch.randn(5, 14), targets, group, **how, padded=14),
            said(ValueError, cross_entropy, mine[:, :3], targets, group, **how),
            said(ValueError, cross_entropy, mine, targets[:4], group, **how),
            said(ValueError, cross_entropy, mine, targets, group, **how, padded=11),
            said(ValueError, cross_entropy, mine, targets, group, **how, reduction="avg"),
            said(ValueError, cross_entropy, mine, targets, group, **how, label_smoothing=1.5),
            said(ValueError, cross_entropy, mine, targets, None, **how),
            said(ValueError, cross_entropy, mine, targets, group, **how, ignore_index=-1),
        ]
        for wrong in (12, -1, 10**12):
            bad = targets.clone()
            bad[1], bad[3] = wrong, wrong
            found.append(said(ValueError, cross_entropy, mine, bad, group, **how))
        padding = targets.clone()
        padding[0] = 12  # one of the logits, but no word
        wide = torch.randn(5, 5)
        found.append(said(ValueError, cross_entropy, wide, padding, group, **how, padded=15))
    sent = len(book.records)
    loss = cross_entropy(mine, targets, group, **how)
    assert torch.equal(loss, cross_entropy(mine, targets, group, **how, check=False))
    assert torch.isfinite(loss) and n == 3
    return found, sent


def test_what_would_be_a_wrong_number_is_an_error(pool):
    for rank, (found, sent) in enumerate(pool.run(3, refused)):
        assert sent == 0
        assert f"rank {rank} has the logits {4 * rank} to" in found[0]
        assert "is 4, but got 12. Those are all" in found[0]
        assert "too high by log 3" in found[0] and "torch's cross_entropy" in found[0]
        assert "Those are all" in found[1]
        assert "got 3. Was the head sharded by a different rule" in found[2]
        assert "need targets of shape (5,), but got (4,)" in found[3]
        assert "padded=11 must be at least vocabulary=12" in found[4]
        assert "reduction='avg' is not among mean, sum, none" in found[5]
        assert "label_smoothing=1.5 must be from 0 to 1" in found[6]
        assert "not in the group" in found[7]
        assert "1 targets are out of range, the first of them -100" in found[8]
        for one, wrong in zip(found[9:12], (12, -1, 10**12), strict=True):
            assert f"2 targets are out of range, the first of them {wrong}. Entries are 0" in one
            assert "to 11, and ignore_index is -100" in one
        assert "the first of them 12" in found[12]
