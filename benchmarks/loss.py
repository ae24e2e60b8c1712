"""The loss of logits sharded over the vocabulary, compared with peers: `course bench loss`.

Forward and backward from the same logits by four methods. They are ours, torch's on gathered
logits, DTensor under `loss_parallel`, and Megatron-core's with a copy, since it overwrites the
logits. `course_lib-fused` also computes the logits, from states and head, a few tokens at a time.
Compare it with `course_lib-head`, which computes the product and then the loss.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent))

import _dtensor
import _each
import _megatron
import _progress
import _ranks

from course_lib import ranks
from course_lib.layout import span
from course_lib.tensor_parallel.conjugates import REPLICATED, gather
from course_lib.tensor_parallel.cross_entropy import cross_entropy
from course_lib.tensor_parallel.fused_cross_entropy import head_cross_entropy
from course_lib.tensor_parallel.products import column_products

WORKLOAD = {"ranks": 2, "tokens": 2048, "vocabulary": 50304, "hidden": 128, "dtype": "float32"}
RUNS = 15
# One forward pass on the same inputs; sums over the vocabulary in a different order.
BOUNDS = {"float64": 1e-12, "float32": 2e-6, "bfloat16": 1e-2}
as_text = _ranks.as_text


def measure(workload: dict | None = None, runs: int = RUNS, limit: float = _ranks.LIMIT) -> dict:
    workload = {**WORKLOAD, **(workload or {})}
    _ranks.check_even(workload, "vocabulary")
    return _each.document("loss", __file__, workload, runs, limit, **_megatron.note())


def steps(
    me: ranks.Me, workload: dict, runs: int, without: Sequence[str], measured: Sequence[str]
) -> None:
    group, mesh = dist.group.WORLD, ranks.mesh(me, dp=1, tp=me.world)["tp"]
    tokens, vocabulary = workload["tokens"], workload["vocabulary"]
    dtype = getattr(torch, workload["dtype"])
    start, stop = span(vocabulary, me.world, me.rank)
    drawn = torch.Generator().manual_seed(1)  # the same on every rank
    states = torch.randn(tokens, workload["hidden"], generator=drawn).to(me.device, dtype)
    head = torch.randn(vocabulary, workload["hidden"], generator=drawn) * 0.2
    head = head[start:stop].to(me.device, dtype, copy=True)
    targets = torch.randint(vocabulary, (tokens,), generator=drawn).to(me.device)
    logits = states @ head.t()  # (t, v/tp)
    logits.requires_grad_()

    def of_logits(loss, around=nullcontext) -> _ranks.Method:
        def step() -> float:
            with around():
                value = loss()
                value.backward()
            logits.grad = None
            return value.item()

        return _ranks.Method(step, holds=(logits, targets))

    def of_states(loss) -> _ranks.Method:
        x, weight = states.clone().requires_grad_(), head.clone().requires_grad_()

        def step() -> float:
            value = loss(x, weight)
            value.backward()
            x.grad = weight.grad = None
            return value.item()

        return _ranks.Method(step, holds=(x, weight, targets))

    def ours():
        return cross_entropy(logits, targets, group, vocabulary=vocabulary)

    def gathered():
        sizes = [b - a for a, b in (span(vocabulary, me.world, r) for r in range(me.world))]
        return F.cross_entropy(gather(logits, group, -1, sizes, after=REPLICATED).float(), targets)

    def product_then_loss(x, weight):
        (made,) = column_products(x, [weight], [None], group)
        return cross_entropy(made, targets, group, vocabulary=vocabulary)

    def fused(x, weight):
        return head_cross_entropy(x, weight, targets, group, vocabulary=vocabulary)

    makers = {
        "course_lib": lambda: of_logits(ours),
        "gather": lambda: of_logits(gathered),
        "dtensor": lambda: of_logits(
            lambda: _dtensor.loss(logits, targets, mesh), around=_dtensor.loss_parallel
        ),
        "megatron-core": lambda: of_logits(lambda: _megatron.loss(logits, targets)),
        "course_lib-head": lambda: of_states(product_then_loss),
        "course_lib-fused": lambda: of_states(fused),
    }
    with ExitStack() as stack:
        without = _megatron.joined(me, stack, without)
        methods = _progress.made(makers, without)
        bound = BOUNDS[workload["dtype"]]
        rows = _ranks.compare(me, methods, runs, bound=bound, main="course_lib", limit=70)
        _progress.finished(rows)
