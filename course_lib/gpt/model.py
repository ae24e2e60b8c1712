"""The dense decoder on one device: GPT-2 or Llama, depending on its config.

Every later lesson shards this model and compares the result with it. Products with the same input,
`qkv` and SwiGLU's `gate_up`, are fused, so that they share one message. Lesson 05 explains the
block, and lesson 08 the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from course_lib.gpt.config import Config


class RMSNorm(nn.Module):
    """x divided by its root mean square, times a weight; the mean uses float32 or float64."""

    def __init__(self, size: int, epsilon: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)  # (…, 1)
        return self.weight * (wide * scale).to(x.dtype)


def norm(config: Config) -> nn.Module:
    if config.norm == "rms":
        return RMSNorm(config.hidden, config.epsilon)
    return nn.LayerNorm(config.hidden, config.epsilon, bias=config.bias)


def rotate(x: Tensor, base: float, start: int | Tensor = 0) -> Tensor:
    """Rotate each pair of a head's elements by an angle that grows with the position.

    The pairs are elements i and i + d/2, as in Llama's published weights. `start` is the position
    of the first token in x, either one number or (b, 1, 1) for each row.
    """
    s, d = x.shape[-2:]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    exponent = torch.arange(0, d, 2, device=x.device, dtype=torch.float32) / d  # (d/2,)
    places = start + torch.arange(s, device=x.device, dtype=torch.float32)  # (s,), (b, 1, s)
    angle = places[..., None] * (1.0 / base**exponent)
    cos, sin = angle.cos().to(wide), angle.sin().to(wide)  # (s, d/2), (b, 1, s, d/2)
    first, second = x.to(wide).chunk(2, dim=-1)  # (b, heads, s, d/2) each
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


class Cache:
    """Keys and values (b, kv heads, s, d) of all tokens so far, kept so that each is computed once.

    `padding`, (b,), is the number of padded places on the left of each row; None means no padding.
    """

    def __init__(self, padding: Tensor | None = None):
        self.k: Tensor | None = None
        self.v: Tensor | None = None
        self.padding = padding

    @property
    def length(self) -> int:
        return 0 if self.k is None else self.k.shape[2]

    @property
    def first(self) -> int | Tensor:
        """The position of the next token, or (b, 1, 1) for each row; it is negative in padding."""
        return self.length if self.padding is None else self.length - self.padding[:, None, None]

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append new keys and values, and return all of them."""
        if self.k is not None:
            k, v = torch.cat((self.k, k), dim=2), torch.cat((self.v, v), dim=2)
        self.k, self.v = k, v
        return k, v


class Heads(nn.Module):
    """The computation inside attention heads, where each head reads only its own elements."""

    def __init__(self, dropout: float):
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None = None) -> Tensor:
        # q is (b, heads, s, d); k and v are (b, kv heads, s, d), each serving equally many heads
        p = self.dropout if self.training else 0.0
        shared = k.shape[1] < q.shape[1]
        new, known = q.shape[2], k.shape[2]
        if new == known and padding is None:
            return F.scaled_dot_product_attention(
                q, k, v, dropout_p=p, is_causal=True, enable_gqa=shared
            )
        # The first new token attends to all earlier tokens and to itself.
        seen = torch.ones(new, known, dtype=torch.bool, device=q.device).tril(known - new)
        if padding is not None:  # no token attends to padding, which attends only to itself
            empty = torch.arange(known, device=q.device) < padding[:, None]  # (b, known)
            alike = ~empty[:, None, :] | empty[:, known - new :, None]  # (b, new, known)
            seen = (seen & alike)[:, None]
        return F.scaled_dot_product_attention(q, k, v, seen, p, enable_gqa=shared)


class Attention(nn.Module):
    """Causal attention, in which query head i reads key/value head i // (heads / kv heads).

    A rank that holds some of the heads runs this same code, with smaller `heads` and `kv_heads`.
    """

    def __init__(self, config: Config):
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        self.head_size, self.rotary = config.head_size, config.position == "rotary"
        self.rotary_base = config.rotary_base
        wide = (config.heads + 2 * config.kv_heads) * config.head_size
        self.qkv = nn.Linear(config.hidden, wide, bias=config.bias)  # rows: all q, all k, all v
        self.core = Heads(config.attention_dropout)
        self.out = nn.Linear(config.heads * config.head_size, config.hidden, bias=config.bias)

    def forward(self, x: Tensor, past: Cache | None = None) -> Tensor:
        sizes = [self.heads * self.head_size] + 2 * [self.kv_heads * self.head_size]
        joined = self.qkv(x)  # (b, s, heads·d + 2·kv heads·d)
        b, s = joined.shape[:2]
        parts = joined.split(sizes, dim=-1)
        d = self.head_size  # explicit instead of -1, because a rank may have no rows
        q, k, v = (part.view(b, s, part.shape[-1] // d, d).transpose(1, 2) for part in parts)
        if self.rotary:
            first = 0 if past is None else past.first
            q, k = rotate(q, self.rotary_base, first), rotate(k, self.rotary_base, first)
        if past is not None:
            k, v = past.extend(k, v)
        padded = () if past is None or past.padding is None else (past.padding,)
        y = self.core(q, k, v, *padded)  # (b, heads, s, d)
        return self.out(y.transpose(1, 2).flatten(2))  # (b, s, heads·d)


class MLP(nn.Module):
    """The MLP of GPT-2 with GELU, or of Llama with SwiGLU, where gate and up are one product."""

    def __init__(self, config: Config):
        super().__init__()
        self.activation = config.activation
        if self.activation == "swiglu":  # rows: all of gate, all of up
            self.gate_up = nn.Linear(config.hidden, 2 * config.inner, bias=config.bias)
        else:
            self.up = nn.Linear(config.hidden, config.inner, bias=config.bias)
        self.down = nn.Linear(config.inner, config.hidden, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.activation == "swiglu":
            gate, up = self.gate_up(x).chunk(2, dim=-1)  # (b, s, inner) each
            return self.down(F.silu(gate) * up)
        approximate = "tanh" if self.activation == "gelu_tanh" else "none"
        return self.down(F.gelu(self.up(x), approximate=approximate))


class Block(nn.Module):
    """A pre-norm block: x + attention(norm(x)), followed by x + MLP(norm(x))."""

    def __init__(self, config: Config):
        super().__init__()
        self.norm_1, self.attention = norm(config), Attention(config)
        self.norm_2, self.mlp = norm(config), MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, past: Cache | None = None) -> Tensor:  # (b, s, h)
        x = x + self.dropout(self.attention(self.norm_1(x), past))
        return x + self.dropout(self.mlp(self.norm_2(x)))


class GPT(nn.Module):
    """The decoder, which computes logits over the vocabulary from token ids."""

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.hidden)
        learned = config.position == "learned"
        self.positions = nn.Embedding(config.length, config.hidden) if learned else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = norm(config)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.start()

    @torch.no_grad()
    def start(self) -> None:
        """Set initial weights as in GPT-2: normal, smaller where a branch joins the residual."""
        for name, parameter in self.named_parameters():
            self.start_one(name, parameter)
        if self.config.tied:
            self.head.weight = self.tokens.weight

    @torch.no_grad()
    def start_one(self, name: str, parameter: Tensor) -> None:
        """Set the initial values of one parameter, in place, by its name."""
        if name.endswith("bias"):
            parameter.zero_()
        elif parameter.dim() > 1:
            joins = name.endswith(("out.weight", "down.weight"))
            scale = (2 * self.config.layers) ** -0.5 if joins else 1.0
            parameter.normal_(0.0, 0.02 * scale)
        else:  # a norm's
            parameter.fill_(1.0)

    def embed(self, ids: Tensor, first: int = 0, padding: Tensor | None = None) -> Tensor:
        """(b, s) token ids, starting at position `first` -> (b, s, h). Learned positions count from
        each row's first token after its `padding`, (b,)."""
        stop, longest = first + ids.shape[-1], self.config.length
        if stop > longest:
            raise ValueError(
                f"a sequence of {stop} tokens is longer than length={longest} in the config; cut "
                "it, or make the model with a greater length"
            )
        x = self.tokens(ids)
        if self.positions is not None:
            places = torch.arange(first, stop, device=ids.device)  # (s,)
            if padding is not None:
                places = (places - padding[:, None]).clamp(min=0)  # (b, s)
            x = x + self.positions(places)
        return self.dropout(x)

    def states(self, ids: Tensor, past: Sequence[Cache] | None = None) -> Tensor:
        """(b, s) token ids -> (b, s, h), the last hidden states, normalized for the head.

        `past` has one cache for each block, with the keys and values of earlier tokens.
        """
        before = past[0] if past else Cache()
        x = self.embed(ids, before.length, before.padding)
        for i, block in enumerate(self.blocks):
            if self.config.recompute and torch.is_grad_enabled() and past is None:
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x, past[i] if past else None)
        return self.norm(x)

    def forward(
        self,
        ids: Tensor,
        past: Sequence[Cache] | None = None,
        head: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """(b, s) token ids -> (b, s, v) logits, or the result of a different `head`."""
        return (head or self.head)(self.states(ids, past))
