"""The loss's kernels against torch's cross_entropy of whole logits in float64, on any device.

`python -m tests.course_lib.tensor_parallel.loss_cases` runs them in Triton's interpreter, on
CPU tensors; the tests marked `gpu` run them compiled. A process decides at the import of triton
which it is to be.
"""

from __future__ import annotations

import math
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib.tensor_parallel import cross_entropy as plain
from course_lib.tensor_parallel import fused_cross_entropy as fused
from tests.course_lib.tensor_parallel.parts import chunks, close, made

INFINITY = math.inf
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # and then digits are cut off, not rounded
ROUNDED = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
# (words, logits, ranks): a part of a tile, a full one, two and a part in rows that no load of 16
# bytes fits, padding on the last rank, a rank of nothing but padding, and one without any logit.
SIZES = [(50, 50, 1), (4096, 4096, 1), (9001, 9001, 1), (8200, 8224, 2), (60, 90, 3), (3, 3, 4)]


def whole_logits(vocabulary, padded, dtype, device):
    """Four rows: a plain one, one that is to be ignored, one far above 0, and one far below."""
    x = made("logits", 4, padded) * 3
    x[2:] += torch.tensor([[1e4], [-1e4]]) if dtype != torch.float16 else 0
    x[:, vocabulary:] = 2e4  # padding that would show
    return x.to(dtype).to(device)


def one_size(kernels, vocabulary, padded, ranks, dtype, smoothing, device):
    """Every rank's numbers and gradient from its own logits."""
    whole = whole_logits(vocabulary, padded, dtype, device)
    targets = torch.tensor([0, -100, vocabulary - 1, vocabulary // 2], device=device)
    if ranks == 2:
        whole[0, padded // ranks :] = -INFINITY  # nothing but that for the second rank
    exact = whole[:, :vocabulary].double().requires_grad_()
    how = {"label_smoothing": smoothing, "reduction": "none"}
    pull = made("pull", 4).to(device)
    (F.cross_entropy(exact, targets, **how) * pull).sum().backward()
    pull = pull.masked_fill(targets == -100, 0.0).float()
    beyond = exact.grad.new_zeros(4, padded - vocabulary)
    wanted = torch.cat((exact.grad, beyond), -1)
    start = 0
    for width in chunks(padded, ranks):
        label = f"{vocabulary} of {padded}, words from {start}, {dtype}, {smoothing}"
        real = max(0, min(start + width, vocabulary) - start)
        mine = whole[:, start : start + width]
        if ranks > 1:  # cut out of longer rows, or by itself
            mine = mine.contiguous()
        words = mine[:, :real].double()
        most = words.amax(-1) if real else torch.full((4,), -INFINITY, device=device).double()
        before = mine.clone()
        own = kernels.local_statistics(mine, targets, start, real, smoothing)
        assert torch.equal(mine, before), f"{label}: the logits were written to"
        assert own[0].tolist() == most.tolist(), label
        lower = words - plain.finite(most)[:, None]
        close(f"{label}: sum", own[1].double(), lower.exp().sum(-1), 1e-6)
        local = targets - start
        here = (local >= 0) & (local < real)
        assert own[2][here].tolist() == words[here, local[here]].tolist(), label
        assert not own[2][~here].any(), label
        if smoothing:
            finite = lower.isfinite().all(-1)
            below = lower.sum(-1)
            close(f"{label}: below", own[3][finite].double(), below[finite], 1e-6)
            assert own[3][~finite].tolist() == below[~finite].tolist(), label
        ours = words.logsumexp(-1) - exact.detach().logsumexp(-1)
        share = ours.exp().masked_fill(targets == -100, 0.0).float()
        out = torch.full((4, width + 3), math.nan, dtype=dtype, device=device)[:, :width]
        for to in (out, mine):  # the last time into the logits' own memory
            where = (start, real, vocabulary, smoothing)
            kernels.gradient(before if to is out else mine, targets, own, share, pull, to, *where)
            want = wanted[:, start : start + width]
            off = (to.double() - want).abs()
            bound = want.abs() * ROUNDED[dtype] * (1 + INTERPRETED) + 3e-6
            assert (off <= bound).all(), f"{label}: gradient off by {off.max().item():.3g}"
            assert not to[1].any() and not to[:, real:].any(), label
        start += width


def every_size(kernels, device):
    for number, size in enumerate(SIZES):
        for place, dtype in enumerate(ROUNDED):
            one_size(kernels, *size, dtype, (0.0, 0.1)[(number + place) % 2], device)
    for ids, kind in (([3, 70], torch.int32), ([3, 2**32 + 4], torch.int64)):
        dead, targets = torch.full((2, 40), -INFINITY, device=device), torch.tensor(ids, dtype=kind)
        targets = targets.to(device)
        own = kernels.local_statistics(dead, targets, 0, 40, 0.0)
        assert own[:2].tolist() == [[-INFINITY] * 2, [0.0] * 2]
        share, pull = torch.zeros(2, device=device), torch.ones(2, device=device)
        kernels.gradient(dead, targets, own, share, pull, dead, 0, 40, 80, 0.0)
        assert dead.sum().item() == -1.0 and dead[0, 3].item() == -1.0  # its target, and no NaN


def whole_road(group, device, dtype=torch.float32):
    """Losses and gradients of cross_entropy and of head_cross_entropy, plain and smoothed."""
    tokens, vocabulary, padded, n = 24, 37, 40, group.size()
    start = sum(chunks(padded, n)[: group.rank()])
    stop = start + chunks(padded, n)[group.rank()]
    states, head = made("states", tokens, 8).to(dtype), made("head", padded, 8).to(dtype)
    targets = torch.arange(tokens) % vocabulary
    targets[5] = -100
    results = []
    for smoothing in (0.0, 0.1):
        how = {"vocabulary": vocabulary, "padded": padded, "label_smoothing": smoothing}
        mine = (states @ head.t())[:, start:stop].to(device).contiguous().requires_grad_()
        ids, before = targets.to(device), mine.detach().clone()
        loss = plain.cross_entropy(mine, ids, group, **how)
        first, second = (torch.autograd.grad(loss, mine, retain_graph=True)[0] for _ in range(2))
        assert torch.equal(first, second) and torch.equal(mine, before)
        x = states.to(device).requires_grad_()
        weight = head[start:stop].to(device).requires_grad_()
        whole = fused.head_cross_entropy(x, weight, ids, group, tokens_at_once=7, **how)
        whole.backward()
        results += [loss.detach(), first, whole.detach(), x.grad, weight.grad]
    return results


def interpreted() -> None:
    """All of it on CPU tensors, where triton computes with numpy."""
    from course_lib.tensor_parallel import loss_kernels

    every_size(loss_kernels, "cpu")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    without = whole_road(dist.group.WORLD, "cpu")
    plain.kernels_for = fused.kernels_for = lambda x: loss_kernels
    for got, want in zip(whole_road(dist.group.WORLD, "cpu"), without, strict=True):
        close("with kernels and without", got, want, 1e-6)
    dist.destroy_process_group()


if __name__ == "__main__":
    assert INTERPRETED
    interpreted()
