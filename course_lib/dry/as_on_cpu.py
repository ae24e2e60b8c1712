"""Two modes for a dry run that keep in memory whatever a real rank on a CPU would keep.

For attention on meta, torch falls back to plain matrix products, which keep the scores of all pairs
of tokens. torch's fake group frees a message at once, while gloo and NCCL keep it as long as its
handle is alive. Lesson 15.
"""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from course_lib.ledger.torch_calls import OPERATIONS, LightMode, handle
from course_lib.memory.storages import plain_tensors

FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


class AsOnCpu(TorchFunctionMode):
    """A mode in which `scaled_dot_product_attention` of shapes uses the kernel that torch would
    choose on a CPU, and saves the same tensors."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is F.scaled_dot_product_attention and args[0].is_meta:
            return _attention(*args, **kwargs)
        if function is Tensor.backward:  # torch disables a mode inside a call that it handles
            return self._backward(*args, **kwargs)
        return function(*args, **kwargs)

    def _backward(self, loss: Tensor, gradient: Tensor | None = None, **options: object) -> None:
        """Run the backward pass in this mode, because it may recompute attention. torch pauses a
        mode in a call with a tensor, so the loss is passed as an edge of the graph."""
        with self:
            torch.autograd.backward(get_gradient_edge(loss), grad_tensors=gradient, **options)


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    mask = None if attn_mask is None else _on_cpu(attn_mask)
    more = {"scale": scale, "enable_gqa": enable_gqa}
    chosen = torch._fused_sdp_choice(*map(_on_cpu, (q, k, v)), mask, dropout_p, is_causal, **more)
    if chosen != SDPBackend.FLASH_ATTENTION.value:
        return F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal, **more)
    if attn_mask is not None and attn_mask.dtype == torch.bool:  # the kernel adds it to the scores
        attn_mask = torch.where(attn_mask, 0.0, -math.inf).to(q.dtype)
    return FUSED(q, k, v, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]


def _on_cpu(x: Tensor) -> Tensor:
    """Return a tensor of this shape on the CPU, whose rows share one row of memory."""
    return torch.empty(x.shape[-1], dtype=x.dtype, device="cpu").expand(x.shape)


class UnderWay(LightMode):
    """A mode in which the tensors of every collective live as long as its handle."""

    def __init__(self) -> None:
        super().__init__()
        self._tensors: WeakKeyDictionary[dist.Work, list[Tensor]] = WeakKeyDictionary()
        self._newest: dist.Work | None = None  # kept until its caller has it

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._newest = None
        result = func(*args, **(kwargs or {}))
        work = handle(result) if func._schema.name in OPERATIONS else None
        if work is not None:
            self._newest = work
            self._tensors[work] = list(plain_tensors((args, kwargs or {})))
        return result
