"""Attention on shapes keeps for its backward what the same call keeps on a CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from course_lib.dry.as_on_cpu import AsOnCpu

B, S, D = 2, 7, 6
CALLS = {
    "causal": (4, {"is_causal": True}),
    "shared heads": (2, {"is_causal": True, "enable_gqa": True}),
    "a mask": (4, {"attn_mask": True}),
    "dropout": (4, {"is_causal": True, "dropout_p": 0.1}),
    "a scale": (4, {"is_causal": True, "scale": 0.5}),
}


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
