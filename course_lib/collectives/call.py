"""What one call of a verb is: its name, its group, what was handed over and how it is cut.

A ledger finds the call under way in `current` and books it once, whatever torch operations it is
made of. The checks of a call's arguments live here too. Lesson 01.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.meta import memory_key

Group = dist.ProcessGroup


@dataclass(frozen=True, eq=False)
class Verb:
    """One call of a verb; compared by identity, so that two equal calls stay two."""

    op: str
    group: Group
    elements: int
    payload: int  # bytes handed over
    sizes: tuple[int, ...] | None = None  # bytes of each rank's piece, where the verb cuts
    root: int | None = None  # rank in the group
    label: str = ""  # what a caller calls it, to find it again or to leave it out


current: ContextVar[Verb | None] = ContextVar("current_verb", default=None)
_label: ContextVar[str] = ContextVar("label", default="")


@contextmanager
def labelled(name: str) -> Iterator[None]:
    """Verbs in here bear a label in the ledger: "scalars", say, for a norm and for flags."""
    token = _label.set(name)
    try:
        yield
    finally:
        _label.reset(token)


@contextmanager
def verb(
    op: str,
    x: Tensor | None,
    group: Group,
    *,
    sizes: Sequence[int] | None = None,
    root: int | None = None,
) -> Iterator[Verb]:
    """Announce a call for as long as its torch operations are being issued."""
    elements = 0 if x is None else x.numel()
    payload = 0 if x is None else elements * x.element_size()
    sizes = None if sizes is None else tuple(sizes)
    call = Verb(op, group, elements, payload, sizes, root, _label.get())
    token = current.set(call)
    try:
        yield call
    finally:
        current.reset(token)


def size_and_rank(group: Group, root: int | None = None, name: str = "src") -> tuple[int, int]:
    """(number of ranks, this rank's number in the group), or a clear refusal."""
    if group is None or group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(
            "this rank is not in the group it was given; only members may call, "
            "and a group is always passed (for all ranks: torch.distributed.group.WORLD)"
        )
    try:
        n, rank = group.size(), group.rank()
    except (AttributeError, TypeError):
        raise TypeError(
            f"a group of ranks is a torch.distributed.ProcessGroup, and this is a "
            f"{type(group).__name__}; of a mesh, pass one axis: mesh.get_group('tp')"
        ) from None
    if root is not None and not 0 <= root < n:
        raise ValueError(f"{name}={root} is not in a group of {n}: its ranks are 0 … {n - 1}")
    return n, rank


def check_member(group: Group) -> None:
    """Refuse what is no group of ranks, or one that this rank is not in."""
    size_and_rank(group)


def device_of(*groups: Group) -> torch.device:
    """The device on which a rank of these groups keeps its tensors."""
    nccl = any(kind.type == "cuda" for group in groups for kind in group._device_types)
    own_gpu = nccl and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if own_gpu else torch.device("cpu")


def computes_on(*groups: Group) -> torch.device:
    """The device on which a rank of these groups computes: that of its messages, or meta where a
    group carries shapes alone, as in a dry run."""
    shapes = any(kind.type == "meta" for group in groups for kind in group._device_types)
    return torch.device("meta") if shapes else device_of(*groups)


def without_history(x: Tensor, op: str) -> Tensor:
    """x cut off from autograd, refused where that would lose a gradient without a word."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{op} takes a tensor, and got a {type(x).__name__}")
    if x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            f"{op} has no backward, and this tensor wants a gradient: autograd would take the call "
            "for the identity. Use the conjugate pairs of lesson 03, or pass x.detach()"
        )
    return x.detach()


def with_dims(x: Tensor, op: str) -> Tensor:
    """x cut off from autograd, refused where it has no dim that pieces could lie along."""
    x = without_history(x, op)
    if x.dim() == 0:
        raise ValueError(f"{op} works along a dim, and this tensor has none; pass x.reshape(1)")
    return x


def check_peer(group: Group, peer: int, name: str) -> None:
    """Refuse a message from a rank to itself: it would wait for itself forever."""
    _, rank = size_and_rank(group, peer, name)
    if peer == rank:
        raise ValueError(f"{name}={peer} is this rank itself; a message needs another rank")


def chunk_sizes(total: int, n: int) -> list[int]:
    """Lengths as torch.chunk cuts them: ceil(total/n) until nothing is left."""
    step = -(-total // n)
    return [max(0, min(step, total - r * step)) for r in range(n)]


def piece_sizes(sizes: Sequence[int] | None, default: list[int], op: str) -> list[int]:
    if sizes is None:
        return default
    sizes, n = [int(s) for s in sizes], len(default)
    if len(sizes) != n or min(sizes) < 0:
        raise ValueError(
            f"{op}: sizes={sizes} has to give one length, 0 or more, to each of {n} ranks"
        )
    return sizes


def check_own_piece(piece: Tensor, sizes: list[int], rank: int, op: str, dim: int) -> None:
    if piece.shape[0] != sizes[rank]:
        raise ValueError(
            f"{op}: rank {rank} holds {piece.shape[0]} along dim {dim}, but sizes={sizes} "
            f"gives it {sizes[rank]}"
        )


def check_into(into: Tensor, piece: Tensor, sizes: list[int], dim: int) -> None:
    """Refuse memory for an all_gather's result that the result does not fit, or that is x's."""
    shape = (sum(sizes), *piece.shape[1:])
    if dim != 0 or len(set(sizes)) > 1:
        raise ValueError("all_gather: into= takes equal pieces joined along dim 0, and no others")
    if tuple(into.shape) != shape or into.dtype != piece.dtype or not into.is_contiguous():
        raise ValueError(
            f"all_gather: into= has to be contiguous, of shape {shape} and {piece.dtype}, and is "
            f"of shape {tuple(into.shape)} and {into.dtype}"
        )
    if into.numel() and memory_key(into.untyped_storage()) == memory_key(piece.untyped_storage()):
        raise ValueError("all_gather: into= is x's own memory, which would be read while written")


def check_whole(x: Tensor, sizes: list[int], op: str, dim: int) -> None:
    if x.shape[0] != sum(sizes):
        raise ValueError(
            f"{op}: the tensor has {x.shape[0]} along dim {dim}, "
            f"but sizes={sizes} add up to {sum(sizes)}"
        )


def timeout_of(group: Group) -> timedelta:
    """How long the group waits."""
    for backend in group._device_types:
        options = group._get_backend(backend).options
        if options is not None:  # torch's fake group has none
            return options._timeout
    return dist.distributed_c10d.default_pg_timeout
