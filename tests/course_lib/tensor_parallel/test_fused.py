"""Head and loss in one: the numbers of the product and torch's loss, without a shard of logits."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib.ledger import ledger
from course_lib.memory import peak
from course_lib.tensor_parallel import column_products
from course_lib.tensor_parallel import cross_entropy as unfused
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from course_lib.tensor_parallel.fused_cross_entropy import head_cross_entropy
from tests.course_lib.tensor_parallel.parts import WORLDS, close, made, own, said

HIDDEN = 6


def parts(label, shape, vocabulary, padded, device, dtype=torch.float64):
    """States, the whole weight with rows of padding (large: one that counts would show), ids."""
    states = made((label, "states"), *shape, HIDDEN).to(device, dtype)
    weight = made((label, "weight"), vocabulary, HIDDEN)
    filling = torch.full((padded - vocabulary, HIDDEN), 50.0, dtype=torch.float64)
    targets = (made((label, "ids"), *shape) * 1000).long().abs() % vocabulary
    return states, torch.cat((weight, filling)).to(device, dtype), targets.to(device)


def same_as_dense(me):
    """Any number of tokens at once: losses and both gradients in float64."""
    group = dist.group.WORLD
    for vocabulary, padded in ((11, 11), (9, 9), (10, 20), (5, 5), (3, 3)):
        states, weight, targets = parts("dense", (2, 5), vocabulary, padded, me.device)
        some = targets.clone()
        some[0, 3], some[1] = -100, torch.tensor([-100, -100, -100, 1, -100])
        for at_once, ids, smoothing, reduction in (
            (None, targets, 0.0, "mean"),
            (1, some, 0.1, "mean"),
            (3, some, 0.0, "none"),
            (4, targets, 0.2, "sum"),
            (10, some, 1.0, "mean"),
            (99, some, 0.0, "sum"),
        ):
            name = f"{vocabulary} in {padded}, {at_once} at once, {smoothing}, {reduction}"
            how = {"label_smoothing": smoothing, "reduction": reduction}
            dense_x, dense_w = (t.clone().requires_grad_() for t in (states, weight[:vocabulary]))
            want = F.cross_entropy((dense_x @ dense_w.t()).flatten(0, 1), ids.flatten(), **how)
            want = want.view(ids.shape) if reduction == "none" else want
            x, w = states.clone().requires_grad_(), own(weight, group, 0).clone().requires_grad_()
            got = head_cross_entropy(
                x, w, ids, group, vocabulary=vocabulary, padded=padded, tokens_at_once=at_once,
                **how,
            )  # fmt: skip
            close(f"loss, {name}", got, want)
            owed = made("owed", *want.shape).to(me.device)
            want.backward(owed)
            got.backward(owed, retain_graph=True)
            close(f"gradient of the states, {name}", x.grad, dense_x.grad)
            lost = torch.zeros(padded - vocabulary, HIDDEN, dtype=w.dtype, device=w.device)
            whole = torch.cat((dense_w.grad, lost))
            close(f"gradient of the weight, {name}", w.grad, own(whole, group, 0))
            first = x.grad.clone(), w.grad.clone()
            got.backward(owed)  # and once more
            assert torch.equal(x.grad, 2 * first[0]) and torch.equal(w.grad, 2 * first[1])
        none = torch.full_like(targets, -100)
        x, w = states.clone().requires_grad_(), own(weight, group, 0).clone().requires_grad_()
        loss = head_cross_entropy(x, w, none, group, vocabulary=vocabulary, padded=padded)
        loss.backward()
        assert loss.item() == 0.0 and not x.grad.any() and not w.grad.any()
        empty = head_cross_entropy(x[:0], w, none[:0], group, vocabulary=vocabulary, padded=padded)
        assert empty.item() == 0.0


@pytest.mark.parametrize("world", WORLDS)
def test_head_and_loss_in_one_are_the_product_and_the_loss(pool, world):
    pool.run(world, same_as_dense)


def as_unfused(me):
    """In float32, bf16 and under autocast it computes what head and loss compute one by one."""
    group, vocabulary = dist.group.WORLD, 37
    found = {}
    for name, dtype, narrow in (
        ("float32", torch.float32, False),
        ("bfloat16", torch.bfloat16, False),
        ("autocast", torch.float32, True),
    ):
        states, weight, targets = parts(name, (3, 4), vocabulary, 37, me.device, dtype)
        results = []
        for fused in (False, True):
            x, w = states.clone().requires_grad_(), own(weight, group, 0).clone().requires_grad_()
            with torch.autocast(me.device.type, torch.bfloat16, enabled=narrow):
                if fused:
                    loss = head_cross_entropy(
                        x, w, targets, group, vocabulary=vocabulary, tokens_at_once=5
                    )
                else:
                    (logits,) = column_products(x, [w], [None], group)
                    loss = cross_entropy(logits, targets, group, vocabulary=vocabulary)
            with ledger() as book:
                loss.backward()
            (message,) = book.records  # the sum of dX, in the dtype of the product
            assert message.dtype == ("float32" if name == "float32" else "bfloat16"), message
            results.append((loss.detach(), x.grad, w.grad))
        bound = 1e-6 if name == "float32" else 2.0**-6  # a sum in bf16 in another order
        for part, got, want in zip(("loss", "states", "weight"), *results[::-1], strict=True):
            close(f"{name}: {part}", got, want, 1e-6 if part == "loss" else bound)
        assert results[1][0].dtype == torch.float32
        found[name] = results[1][0].item()
    assert found["autocast"] != found["float32"]
    return found


@pytest.mark.parametrize("world", [1, 3])
def test_narrow_numbers_are_those_of_head_and_loss_apart(pool, world):
    found = pool.run(world, as_unfused)
    assert all(one == found[0] for one in found)


def counted(me, frozen):
    group = dist.group.WORLD
    states, weight, targets = parts("counted", (4, 6), 301, 301, me.device)
    x = states.requires_grad_(frozen != "states")
    w = own(weight, group, 0).clone().requires_grad_(frozen != "weight")
    with ledger() as book:
        head_cross_entropy(x, w, targets, group, vocabulary=301, tokens_at_once=7).backward()
    assert (x.grad is None) == (frozen == "states") and (w.grad is None) == (frozen == "weight")
    return [(r.op, r.phase, r.elements) for r in book.records]


@pytest.mark.parametrize("frozen", ["nothing", "weight", "states"])
def test_two_small_sums_forward_and_one_of_the_states_backward(pool, frozen):
    want = [("all_reduce", "forward", 24), ("all_reduce", "forward", 48)]
    if frozen != "states":
        want.append(("all_reduce", "backward", 24 * HIDDEN))
    for records in pool.run(3, counted, frozen):
        assert records == want


TOKENS, WORDS = 1024, 4096  # the words of one rank


def measured(me, dtype, frozen):
    """(a shard of logits, the head's gradient, the forward's peak, the backward's) in bytes."""
    kept, unfused._CHUNK = unfused._CHUNK, 1 << 15  # or it would be most of so small a shard
    try:
        group, n = dist.group.WORLD, me.world
        x = torch.randn(TOKENS, 16).to(dtype).requires_grad_()
        w = torch.randn(WORDS, 16).to(dtype).requires_grad_(not frozen)
        ids = torch.randint(n * WORDS, (TOKENS,), generator=torch.Generator().manual_seed(2))
        how = {"vocabulary": n * WORDS}
        head_cross_entropy(x[:8], w, ids[:8], group, **how).backward()
        x.grad = w.grad = None
        with peak() as forward:
            loss = head_cross_entropy(x, w, ids, group, **how)
        with peak() as backward:
            loss.backward()
        own_gradients = x.nbytes + (0 if frozen else w.nbytes)
        return TOKENS * WORDS * x.element_size(), own_gradients, forward.bytes, backward.bytes
    finally:
        unfused._CHUNK = kept


@pytest.mark.parametrize(
    ("dtype", "frozen"), [("float32", True), ("float32", False), ("bfloat16", False)]
)
def test_the_peak_is_at_most_a_quarter_of_a_shard(pool, dtype, frozen):
    for shard, gradients, forward, backward in pool.run(2, measured, getattr(torch, dtype), frozen):
        assert gradients < shard / 32
        assert shard / 8 <= forward <= shard / 4
        assert shard / 8 + gradients <= backward <= shard / 4
        # An eighth of the logits, what was owed anyway, and small change.
        assert backward <= shard / 8 + gradients + shard / 20


def refused(me):
    group, how = dist.group.WORLD, {"vocabulary": 12}
    x, w, ids = torch.randn(5, 4), torch.randn(4, 4), torch.tensor([0, 3, 4, 11, -100])
    head_cross_entropy(x, w, ids, group, **how)
    return [
        said(ValueError, head_cross_entropy, x, torch.randn(12, 4), ids, group, **how),
        said(ValueError, head_cross_entropy, x, w[:, :3], ids, group, **how),
        said(ValueError, head_cross_entropy, x, w, ids[:4], group, **how),
        said(ValueError, head_cross_entropy, x, w, ids + 1, group, **how),
        said(ValueError, head_cross_entropy, x, w, ids, group, **how, reduction="avg"),
        said(ValueError, head_cross_entropy, x, w, ids, group, **how, label_smoothing=-0.1),
    ]


def test_what_does_not_fit_is_refused(pool):
    for rank, found in enumerate(pool.run(3, refused)):
        assert f"rank {rank} has the logits {4 * rank} to" in found[0]
        assert "but got 12. Those are all" in found[0] and "got (4, 3)" in found[1]
        assert "need targets of shape (5,), but got (4,)" in found[2]
        assert "2 targets are out of range, the first of them 12" in found[3]
        assert "'avg' is not among" in found[4] and "label_smoothing=-0.1" in found[5]
