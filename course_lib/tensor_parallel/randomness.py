"""Which random numbers ranks share and which they do not: one shared stream, private ones of it.

A copy that every rank holds needs the same dropout mask everywhere, heads that only one rank holds
a mask of their own; a test mode ties masks to the whole tensor instead. Lesson 05 derives it.
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
    """Seed torch's own generators, the shared stream: with the same `seed` on every rank, and with
    `replica` the rank's number on the dp axis, equal on the tp ranks of a replica and on no others.
    """
    seed, replica = operator.index(seed), operator.index(replica)
    if not 0 <= replica <= _LOW:
        raise ValueError(f"replica={replica} has to be a rank's number on the dp axis, 0 or more")
    torch.manual_seed(mix(seed, replica))  # of the CPU and of every GPU


@contextmanager
def private(
    group: Group, *, dim: int | None = None, start: int = 0, whole: int | None = None
) -> Iterator[None]:
    """Random numbers that differ by rank, for what only one rank of `group` holds.

    One number is drawn from the shared stream, so that it moves alike everywhere, and makes the
    seed of this rank's numbers. Nothing else is remembered: whoever restores torch's generators, as
    recomputation does, gets the same private numbers again. On leaving, the shared stream goes on.

    `dim`, `start` and `whole` say what part the tensors drawn inside are of logical tensors that
    are `whole` long along `dim`. Only `logical_masks()` reads them; it neither draws nor seeds.
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
    with torch.random.fork_rng(gpus):  # puts everything back, after an exception too
        torch.default_generator.manual_seed(seed)
        for gpu in gpus:
            torch.cuda.default_generators[gpu].manual_seed(seed)
        yield


def in_step(group: Group) -> None:
    """Check that the shared stream stands at the same number on all ranks; every rank calls it."""
    n, _ = size_and_rank(group)
    states = {"CPU": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["GPU"] = torch.cuda.get_rng_state()
    mine = {kind: hashlib.sha256(state.numpy()).hexdigest() for kind, state in states.items()}
    said: list[dict[str, str]] = [{} for _ in range(n)]
    dist.all_gather_object(said, mine, group=group)
    most = max(said, key=said.count)  # of equally many, those with the first rank
    apart = []
    for rank, one in enumerate(said):
        kinds = [kind for kind in one if one[kind] != most.get(kind)]
        if kinds:
            apart.append(f"rank {dist.get_global_rank(group, rank)} ({' and '.join(kinds)})")
    if apart:
        raise RuntimeError(
            f"the shared random stream of {', '.join(apart)} is not where that of the other ranks "
            f"of this group of {n} is, so copies would be dropped out differently and drift apart. "
            "Seed with seed_all(seed), the same on these ranks, and draw what only some of them "
            "draw inside private(group)"
        )


def logical_masks() -> LogicalMasks:
    """A test mode, `with logical_masks():`, in which dropout does not depend on the ranks.

    Each dropout draws one key from the shared stream, and whether an element is kept follows from
    the key and its index in the *whole* tensor: a rank's mask is its part of the dense model's.
    A backward that recomputes has to run inside too, and a private() has to stand inside what is
    recomputed, not around it. Slower than torch's dropout, and exact.
    """
    return LogicalMasks()


class PartOfWhole(NamedTuple):
    """Where a rank's tensors lie in the whole ones: from `start` along `dim`, of `whole`."""

    dim: int | None
    start: int
    whole: int | None

    def check(self) -> None:
        if (self.dim is None) != (self.whole is None) or (self.dim is None and self.start):
            raise ValueError(
                f"private(dim={self.dim}, start={self.start}, whole={self.whole}): say all three, "
                "the dim that is cut, where this rank's part of it starts and how long it is in "
                "whole; or none of them"
            )
        if self.whole is not None and not 0 <= self.start <= self.whole:
            raise ValueError(
                f"private(start={self.start}): a dim of {self.whole} has no such place; a part "
                f"starts at 0 … {self.whole}"
            )

    def unless_whole(self, n: int) -> tuple[PartOfWhole, ...]:
        """Itself; nothing where one rank holds everything and so did not have to say."""
        return () if n == 1 and self.dim is None else (self,)


class LogicalMasks(TorchFunctionMode):
    """The mode behind `logical_masks()`: it answers torch's dropout and attention by itself."""

    parts: tuple[PartOfWhole, ...] = ()  # of the private() contexts that are open

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is _logical_mode:
            return self
        if func in _NOT_ANSWERED:
            raise RuntimeError(
                f"logical_masks() knows F.dropout and F.scaled_dot_product_attention, and not "
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
        """Torch lets a mode rest in a call that it answers, and a backward may recompute dropouts.

        Handed over as edges of the graph, tensors are no longer such a call, and the mode stays.
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
        if not training or not 0 < p <= 1:  # nothing to draw, or nothing valid
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
        """With dropout: in plain steps, since the fused forms draw their masks themselves."""
        if dropout_p == 0 or (is_causal and attn_mask is not None):  # the latter torch refuses
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
        # Hidden twice: a query that sees nothing gets zeros, as torch has it, and not NaN.
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1).masked_fill(hidden, 0.0)
        return self.dropout(weights, dropout_p) @ value

    def kept(self, x: Tensor, p: float) -> Tensor:
        """0 with probability p and 1/(1-p) elsewhere, by the logical index of each element."""
        shape, first = list(x.shape), [0] * x.dim()
        for dim, start, whole in self.parts:
            if dim is None:
                raise ValueError(
                    "inside logical_masks(), private(group) has to say which part of the whole "
                    "tensor this rank holds: private(group, dim=, start=, whole=)"
                )
            fits = -x.dim() <= dim < x.dim() and start + x.shape[dim] <= whole
            if not fits or shape[dim] != x.shape[dim]:  # or two parts along one dim
                raise ValueError(
                    f"private(dim={dim}, start={start}, whole={whole}): a tensor of shape "
                    f"{tuple(x.shape)} does not fit in there"
                )
            shape[dim], first[dim] = whole, start
        index = torch.zeros((), dtype=torch.int64, device=x.device)
        for dim, long in enumerate(x.shape):
            along = torch.arange(first[dim], first[dim] + long, device=x.device)
            index = index[..., None] * shape[dim] + along  # one dim more each time
        chance = mix(_draw(), index)  # below 2³², repeating where a tensor has more elements
        return (chance >= round(p * 2**32)).to(x.dtype) / (1 - p if p < 1 else 1)


# They draw masks of their own, or hide a dropout from the mode.
_NOT_ANSWERED = frozenset(
    {torch.dropout, torch.dropout_, torch.native_dropout, F.alpha_dropout, F.feature_alpha_dropout}
    | {F.dropout1d, F.dropout2d, F.dropout3d, F.multi_head_attention_forward, F.rrelu}
)


def _edges(tensors):
    """Where in autograd's graph the gradient of each tensor is made."""
    if isinstance(tensors, Tensor):
        return get_gradient_edge(tensors)
    if isinstance(tensors, dict):
        return {name: _edges(one) for name, one in tensors.items()}
    return [_edges(one) if isinstance(one, Tensor) else one for one in tensors]


def mix(key: int, number):
    """A number below 2³² from two: of one key and another `number` always another (below 2³²).

    `number` may be a tensor of int64. Two neighbours give results that have nothing in common. 32
    bits, because the CPU's generator takes no more of a seed: above them seeds would fall together.
    """
    first, second = _scramble(key & _LOW), (key >> 32) & _LOW
    return _scramble((_scramble((number + first) & _LOW) + second) & _LOW)


def _scramble(x):
    """Every number below 2³² to another one of them, none twice; no product leaves int64."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _LOW
    x = ((x ^ (x >> 15)) * (0x846CA68B - 2**32)) & _LOW
    return x ^ (x >> 16)


def _draw() -> int:
    """The next number of the shared stream, from the CPU's generator whatever device computes."""
    return int(torch.randint(2**62, (), device="cpu"))


def _logical_mode() -> LogicalMasks | None:
    """The innermost `logical_masks()` that is active; torch carries modes to backward's threads."""
    asked = has_torch_function((None,))  # whether any mode is there to be asked
    return handle_torch_function(_logical_mode, (None,)) if asked else None
