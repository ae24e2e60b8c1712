"""The decoder of `pay_sums`: attention and a readout, with sharded tokens and ten parameters.

The exercise prints `forward` for the learner to read. Lesson 06.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.collectives.call import Group
from course_lib.layout import cut, heads
from course_lib.tensor_parallel.conjugates import gather, reduce_scatter

HIDDEN, HEADS, SIZE, LONGEST, CLASSES = 6, 5, 3, 9, 4
SHAPES = {
    "positions": (LONGEST, HIDDEN),
    "norm.weight": (HIDDEN,),
    "norm.bias": (HIDDEN,),
    "qkv.weight": (3, HEADS, SIZE, HIDDEN),
    "qkv.bias": (3, HEADS, SIZE),
    "q_norm.weight": (SIZE,),
    "out.weight": (HIDDEN, HEADS, SIZE),
    "out.bias": (HIDDEN,),
    "readout.weight": (CLASSES, HIDDEN),
    "readout.bias": (CLASSES,),
}
CUT = {"qkv.weight": 1, "qkv.bias": 1, "out.weight": 1}  # parameter → the dim of heads


def forward(x: Tensor, p: dict[str, Tensor], length: int, group: Group) -> Tensor:
    """x (b, s/tp, h) of `length` tokens in total → logits of all tokens, (b, s, c)."""
    n, rank = group.size(), group.rank()
    sizes = cut(length, n)
    first = sum(sizes[:rank])

    x = x + p["positions"][first : first + sizes[rank]]  # (b, s/tp, h)
    normed = F.layer_norm(x, (HIDDEN,), p["norm.weight"], p["norm.bias"])  # (b, s/tp, h)
    every = gather(normed, group, 1, sizes, after="sharded")  # (b, s, h)

    # qkv.weight: (3, heads/tp, d, h), the rows of this rank's heads
    qkv = torch.einsum("bsh,kndh->kbnsd", every, p["qkv.weight"])  # (3, b, heads/tp, s, d)
    q, k, v = qkv + p["qkv.bias"][:, None, :, None]
    q = F.rms_norm(q, (SIZE,), p["q_norm.weight"], 1e-5)  # one weight for the queries of all heads
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (b, heads/tp, s, d)

    partial = torch.einsum("bnsd,hnd->bsh", y, p["out.weight"])  # (b, s, h), a partial sum
    x = x + reduce_scatter(partial, group, 1, sizes) + p["out.bias"]  # (b, s/tp, h)

    every = gather(x, group, 1, sizes, after="replicated")  # (b, s, h): all ranks continue alike
    return every @ p["readout.weight"].t() + p["readout.bias"]  # (b, s, c)


def dense(x: Tensor, p: dict[str, Tensor]) -> Tensor:
    """x (b, s, h) → logits (b, s, c) in one process, without messages."""
    x = x + p["positions"][: x.shape[1]]
    normed = F.layer_norm(x, x.shape[-1:], p["norm.weight"], p["norm.bias"])
    wide = normed @ p["qkv.weight"].flatten(0, 2).t() + p["qkv.bias"].flatten()
    q, k, v = wide.unflatten(-1, (3, -1, SIZE)).permute(2, 0, 3, 1, 4)  # (b, heads, s, d) each
    q = F.rms_norm(q, (SIZE,), p["q_norm.weight"], 1e-5)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    x = x + y @ p["out.weight"].flatten(1).t() + p["out.bias"]
    return x @ p["readout.weight"].t() + p["readout.bias"]


def own(name: str, whole: Tensor, n: int, rank: int) -> Tensor:
    """Return this rank's part of a parameter."""
    return whole.split(heads(HEADS, n), CUT[name])[rank] if name in CUT else whole
