"""The random numbers of ranks: one shared stream, and private streams derived from it.

A replicated tensor needs the same dropout mask on every rank, but heads on a single rank need their
own mask. In a test mode, masks depend on the full tensor instead. Lesson 05 derives it.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

from course_lib.collectives.call import Group, size_and_rank

_LOW = 2**32 - 1  # the lower 32 bits


def seed_all(seed: int, *, replica: int = 0) -> None:
    """Seed torch's own generators, the shared stream. `seed` is the same on every rank. `replica`
    is the rank's dp index, which is equal only on the tp ranks of one replica.
    """
    seed, replica = operator.index(seed), operator.index(replica)
    if not 0 <= replica <= _LOW:
        raise ValueError(f"replica={replica} must be a rank's number on the dp axis, 0 or more")
    torch.manual_seed(mix(seed, replica))  # for the CPU and every GPU


@contextmanager
def private(
    group: Group, *, dim: int | None = None, start: int = 0, whole: int | None = None
) -> Iterator[None]:
    """Use random numbers that differ by rank, for tensors that only one rank of `group` holds.

    One number is drawn from the shared stream on all ranks and seeds this rank's numbers. No other
    state exists, so code that restores torch's generators, such as recomputation, gets the same
    private numbers again. At the end, the shared stream continues.

    `dim`, `start` and `whole` describe the tensors drawn in the body as parts of logical tensors of
    length `whole` along `dim`. Only `logical_masks()` reads them; it neither draws nor seeds.
    """
    n, rank = size_and_rank(group)
    part = PartOfWhole(dim, start, whole)
    part.check()
    mode = _logical_mode()
    if mode is not None:
        outer, mode.parts = mode.parts, (*mode.parts, *part.unless_whole(n))
        try:
            yield
        finally:
            mode.parts = outer
        return
    seed = mix(_draw(), rank)
    gpus = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(gpus):  # restores everything, even after an exception
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.default_generators[gpu].manual_seed(seed)
        yield


def in_step(group: Group) -> None:
    """Raise unless the shared stream has the same state on all ranks, which must all call this."""
    n, _ = size_and_rank(group)
    states = {"CPU": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["GPU"] = torch.cuda.get_rng_state()
    mine = {kind: hashlib.sha256(state.numpy()).hexdigest() for kind, state in states.items()}
    said: list[dict[str, str]] = [{} for _ in range(n)]
    dist.all_gather_object(said, mine, group=group)
    most = max(said, key=said.count)  # in a tie, the state that appears first
    apart = []
    for rank, one in enumerate(said):
        kinds = [kind for kind in one if one[kind] != most.get(kind)]
        if kinds:
            apart.append(f"rank {dist.get_global_rank(group, rank)} ({' and '.join(kinds)})")
    if apart:
        raise RuntimeError(
            f"the shared random stream of {', '.join(apart)} differs from that of the other ranks "
            f"of this group of {n}, so replicas would use different masks and drift apart. "
            "Seed these ranks with the same seed_all(seed), and use private(group) for numbers "
            "that only some of them draw"
        )


def logical_masks() -> LogicalMasks:
    """Return a test mode, `with logical_masks():`, in which dropout does not depend on the ranks.

    Each dropout draws one key from the shared stream. The key and an element's index in the *full*
    tensor decide if the element is kept, so a rank's mask is part of the dense model's mask. A
    backward pass with recomputation must run in the mode too, and any private() must be inside the
    recomputed code, not around it. The mode is exact, but slower than torch's dropout.
    """
    return LogicalMasks()


class PartOfWhole(NamedTuple):
    """The position of a rank's tensors in full tensors of length `whole`: `start` along `dim`."""

    dim: int | None
    start: int
    whole: int | None

    def check(self) -> None:
        if (self.dim is None) != (self.whole is None) or (self.dim is None and self.start):
            raise ValueError(
                f"private(dim={self.dim}, start={self.start}, whole={self.whole}): pass all three, "
                "the sharded dim, the start of this rank's part in it and its full length, or "
                "pass none of them"
            )
        if self.whole is not None and not 0 <= self.start <= self.whole:
            raise ValueError(
                f"private(start={self.start}) is outside of a dim of {self.whole}; a part "
                f"starts at 0 … {self.whole}"
            )

    def unless_whole(self, n: int) -> tuple[PartOfWhole, ...]:
        """Return (this part,), or () if there is one rank and no dim was declared."""
        return () if n == 1 and self.dim is None else (self,)


class LogicalMasks(TorchFunctionMode):
    """The mode behind `logical_masks()`, which replaces torch's dropout and attention."""

    parts: tuple[PartOfWhole, ...] = ()  # of the open private() contexts

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is _logical_mode:
            return self
        if func in _NOT_ANSWERED:
            raise RuntimeError(
                f"logical_masks() supports F.dropout and F.scaled_dot_product_attention, but not "
                f"{func.__name__}; write the model with those two, or test it without this mode"
            )
        if func is F.dropout:
            func = self.dropout
        elif func is F.scaled_dot_product_attention:
            func = self.attention
        elif func in (torch.autograd.backward, torch.autograd.grad, Tensor.backward):
            func = functools.partial(self.backward, func)
        return func(*args, **(kwargs or {}))

    def backward(self, func, outputs, *inputs, gradient=None, **options):
        """Run the backward pass with the mode active, because it may recompute dropouts.

        torch pauses a mode in a call that it handles, but not in calls with edges of the graph.
        """
        if func is Tensor.backward:
            func, options["grad_tensors"] = torch.autograd.backward, gradient
        if options.get("inputs") is not None:
            options["inputs"] = _edges(options["inputs"])
        with self:
            return func(_edges(outputs), *map(_edges, inputs), **options)

    def dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or not 0 < p <= 1:  # nothing to draw, or an invalid p
            return F.dropout(input, p, training, inplace)
        kept = self.kept(input, p)
        return input.mul_(kept) if inplace else input * kept

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Compute attention with dropout in steps, because fused kernels draw their own masks."""
        if dropout_p == 0 or (is_causal and attn_mask is not None):  # torch refuses the latter
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal,
                scale=scale, enable_gqa=enable_gqa,
            )  # fmt: skip
        if enable_gqa:
            key, value = (
                x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value)
            )
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scores = query @ key.transpose(-2, -1) * scale  # (b, heads, s, s)
        hidden = torch.zeros((), dtype=torch.bool, device=scores.device)
        if is_causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        elif attn_mask is not None and attn_mask.dtype == torch.bool:
            hidden = ~attn_mask
        elif attn_mask is not None:
            scores, hidden = scores + attn_mask, attn_mask == -torch.inf
        # Masked twice, so that a query without keys gets zeros, as in torch, instead of NaN.
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1).masked_fill(hidden, 0.0)
        return self.dropout(weights, dropout_p) @ value

    def kept(self, x: Tensor, p: float) -> Tensor:
        """Return a mask by elements' logical indices: 0 with probability p, otherwise 1/(1-p)."""
        shape, first = list(x.shape), [0] * x.dim()
        for dim, start, whole in self.parts:
            if dim is None:
                raise ValueError(
                    "inside logical_masks(), private(group) must state which part of the full "
                    "tensor this rank holds: private(group, dim=, start=, whole=)"
                )
            fits = -x.dim() <= dim < x.dim() and start + x.shape[dim] <= whole
            if not fits or shape[dim] != x.shape[dim]:  # or two parts along one dim
                raise ValueError(
                    f"private(dim={dim}, start={start}, whole={whole}) does not fit a tensor of "
                    f"shape {tuple(x.shape)}"
                )
            shape[dim], first[dim] = whole, start
        index = torch.zeros((), dtype=torch.int64, device=x.device)
        for dim, long in enumerate(x.shape):
            along = torch.arange(first[dim], first[dim] + long, device=x.device)
            index = index[..., None] * shape[dim] + along  # adds one dim
        chance = mix(_draw(), index)  # below 2³², repeated in larger tensors
        return (chance >= round(p * 2**32)).to(x.dtype) / (1 - p if p < 1 else 1)


# These functions draw their own masks, or hide a dropout from the mode.
_NOT_ANSWERED = frozenset(
    {torch.dropout, torch.dropout_, torch.native_dropout, F.alpha_dropout, F.feature_alpha_dropout}
    | {F.dropout1d, F.dropout2d, F.dropout3d, F.multi_head_attention_forward, F.rrelu}
)


def _edges(tensors):
    """Return the edge of autograd's graph at which each tensor's gradient is computed."""
    if isinstance(tensors, Tensor):
        return get_gradient_edge(tensors)
    if isinstance(tensors, dict):
        return {name: _edges(one) for name, one in tensors.items()}
    return [_edges(one) if isinstance(one, Tensor) else one for one in tensors]


def mix(key: int, number):
    """Mix two integers into one below 2³²; for a fixed key, numbers below 2³² never collide.

    `number` may be a tensor of int64. Results of neighbouring numbers are unrelated. They have 32
    bits because the CPU's generator uses only 32 bits of a seed, so larger seeds would collide.
    """
    first, second = _scramble(key & _LOW), (key >> 32) & _LOW
    return _scramble((_scramble((number + first) & _LOW) + second) & _LOW)


def _scramble(x):
    """Permute the integers below 2³²; every product fits in int64."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _LOW
    x = ((x ^ (x >> 15)) * (0x846CA68B - 2**32)) & _LOW
    return x ^ (x >> 16)


def _draw() -> int:
    """Draw the next number of the shared stream, always from the CPU's generator."""
    return int(torch.randint(2**62, (), device="cpu"))


def _logical_mode() -> LogicalMasks | None:
    """Return the innermost active `logical_masks()`; torch carries modes to autograd's threads."""
    asked = has_torch_function((None,))  # True if any mode is active
    return handle_torch_function(_logical_mode, (None,)) if asked else None
