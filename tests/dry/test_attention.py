"""Attention on shapes keeps for its backward what the same call keeps on a CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from course_lib.dispatch import LightMode
from course_lib.dry.attention import AsOnCpu

B, S, D = 2, 7, 6
CALLS = {
    "causal": (4, {"is_causal": True}),
    "shared heads": (2, {"is_causal": True, "enable_gqa": True}),
    "a mask": (4, {"attn_mask": True}),
    "dropout": (4, {"is_causal": True, "dropout_p": 0.1}),
    "a scale": (4, {"is_causal": True, "scale": 0.5}),
}


class Seen(LightMode):
    """The operations, with the shapes of what they make."""

    def __init__(self):
        super().__init__()
        self.operations: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if "attention" in func._schema.name or "softmax" in func._schema.name:
            self.operations.append((func._schema.name, tuple(tree_leaves(made)[0].shape)))
        return made


def recomputed(device: str, name: str) -> list[tuple]:
    """What attention is made of where it is run again in the backward."""
    kv, how = CALLS[name]
    if "attn_mask" in how:
        how = {"attn_mask": torch.ones(S, S, dtype=torch.bool, device=device)}
    q, k, v = (
        torch.empty(B, heads, S, D, device=device, requires_grad=True) for heads in (4, kv, kv)
    )

    def attend(*parts: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*parts, **how)

    with Seen() as seen:
        checkpoint(attend, q, k, v, use_reentrant=False).sum().backward()
    return seen.operations


def kept(device: str, name: str) -> tuple[list, list]:
    """Shapes of what is kept, and of the gradients."""
    kv, how = CALLS[name]
    how = dict(how)
    if "attn_mask" in how:
        how["attn_mask"] = torch.ones(S, S, dtype=torch.bool, device=device).tril()
    q, k, v = (
        torch.empty(B, S, heads, D, device=device, requires_grad=True) for heads in (4, kv, kv)
    )
    shapes: list = []

    def attend(*parts: torch.Tensor) -> torch.Tensor:
        def note(x: torch.Tensor) -> torch.Tensor:
            shapes.append((tuple(x.shape), x.dtype, x.stride()))
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            turned = (part.transpose(1, 2) for part in parts)
            return F.scaled_dot_product_attention(*turned, **how)

    attend(q, k, v).sum().backward()
    return shapes, [tuple(x.grad.shape) for x in (q, k, v)]


@pytest.mark.parametrize("name", CALLS)
def test_it_is_the_kernel_of_the_cpu(name):
    real = kept("cpu", name)
    with AsOnCpu():
        assert kept("meta", name) == real
        assert kept("cpu", name) == real  # of numbers nothing changes


@pytest.mark.parametrize("name", CALLS)
def test_so_it_is_where_it_is_recomputed(name):
    real = recomputed("cpu", name)
    assert len(real) >= 3  # forward, again, and its gradient
    with AsOnCpu():
        assert recomputed("meta", name) == real


def test_without_it_all_pairs_of_tokens_are_kept():
    pairs = (B, 4, S, S)
    assert pairs in [shape for shape, *_ in kept("meta", "causal")[0]]
    with AsOnCpu():
        assert pairs not in [shape for shape, *_ in kept("meta", "causal")[0]]
