"""One call of a verb: its name, group, payload and the sizes of its pieces.

A ledger finds the call in progress in `current` and books it once, however many torch operations
implement it. The checks of a call's arguments are here too. Lesson 01.
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
    """One call of a verb. Calls are compared by identity, so two equal calls stay distinct."""

    op: str
    group: Group
    elements: int
    payload: int  # bytes of the tensor passed to the call
    sizes: tuple[int, ...] | None = None  # bytes of each rank's piece, if the verb splits a tensor
    root: int | None = None  # rank in the group
    label: str = ""  # the caller's name for it, used to find it or to leave it out


current: ContextVar[Verb | None] = ContextVar("current_verb", default=None)
_label: ContextVar[str] = ContextVar("label", default="")


@contextmanager
def labelled(name: str) -> Iterator[None]:
    """Label the verbs called in the body for the ledger, such as "scalars" for norms and flags."""
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
    """Make a call available in `current` while its torch operations are issued."""
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
    """Return (number of ranks, this rank's number in the group), or raise with a clear message."""
    if group is None or group is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError(
            "this rank is not in the group that it passed. Only members may call, and a group "
            "is always required; for all ranks, pass torch.distributed.group.WORLD"
        )
    try:
        n, rank = group.size(), group.rank()
    except (AttributeError, TypeError):
        raise TypeError(
            f"a group of ranks must be a torch.distributed.ProcessGroup, but this is a "
            f"{type(group).__name__}. For a mesh, pass one axis: mesh.get_group('tp')"
        ) from None
    if root is not None and not 0 <= root < n:
        raise ValueError(f"{name}={root} is not in a group of {n}; its ranks are 0 … {n - 1}")
    return n, rank


def check_member(group: Group) -> None:
    """Raise unless `group` is a process group that contains this rank."""
    size_and_rank(group)


def device_of(*groups: Group) -> torch.device:
    """Return the device on which a rank of these groups keeps its tensors."""
    nccl = any(kind.type == "cuda" for group in groups for kind in group._device_types)
    own_gpu = nccl and torch.cuda.is_available()
    return torch.device("cuda", torch.cuda.current_device()) if own_gpu else torch.device("cpu")


def computes_on(*groups: Group) -> torch.device:
    """Return the device on which a rank of these groups computes: the device of its messages, or
    meta if a group carries only shapes, as in a dry run."""
    shapes = any(kind.type == "meta" for group in groups for kind in group._device_types)
    return torch.device("meta") if shapes else device_of(*groups)


def without_history(x: Tensor, op: str) -> Tensor:
    """Detach x from autograd, or raise if this would silently lose a gradient."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{op} takes a tensor, but got a {type(x).__name__}")
    if x.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(
            f"{op} has no backward, but this tensor requires a gradient: autograd would treat the "
            "call as the identity. Use the conjugate pairs of lesson 03, or pass x.detach()"
        )
    return x.detach()


def with_dims(x: Tensor, op: str) -> Tensor:
    """Detach x from autograd, or raise if it has no dim along which pieces could be joined."""
    x = without_history(x, op)
    if x.dim() == 0:
        raise ValueError(f"{op} works along a dim, but this tensor has none; pass x.reshape(1)")
    return x


def check_peer(group: Group, peer: int, name: str) -> None:
    """Raise if the peer is this rank itself, because the call would wait forever."""
    _, rank = size_and_rank(group, peer, name)
    if peer == rank:
        raise ValueError(f"{name}={peer} is this rank itself; a message needs a different rank")


def chunk_sizes(total: int, n: int) -> list[int]:
    """Return torch.chunk's piece lengths: ceil(total/n) each, then the remainder, then zeros."""
    step = -(-total // n)
    return [max(0, min(step, total - r * step)) for r in range(n)]


def piece_sizes(sizes: Sequence[int] | None, default: list[int], op: str) -> list[int]:
    if sizes is None:
        return default
    sizes, n = [int(s) for s in sizes], len(default)
    if len(sizes) != n or min(sizes) < 0:
        raise ValueError(
            f"{op}: sizes={sizes} must contain one length, 0 or more, for each of {n} ranks"
        )
    return sizes


def check_own_piece(piece: Tensor, sizes: list[int], rank: int, op: str, dim: int) -> None:
    if piece.shape[0] != sizes[rank]:
        raise ValueError(
            f"{op}: rank {rank} holds {piece.shape[0]} along dim {dim}, but sizes={sizes} "
            f"gives it {sizes[rank]}"
        )


def check_into(into: Tensor, piece: Tensor, sizes: list[int], dim: int) -> None:
    """Raise if an all_gather's result does not fit into `into`, or if `into` is its input."""
    shape = (sum(sizes), *piece.shape[1:])
    if dim != 0 or len(set(sizes)) > 1:
        raise ValueError("all_gather: into= only takes equal pieces joined along dim 0")
    if tuple(into.shape) != shape or into.dtype != piece.dtype or not into.is_contiguous():
        raise ValueError(
            f"all_gather: into= must be contiguous, of shape {shape} and {piece.dtype}, but it is "
            f"of shape {tuple(into.shape)} and {into.dtype}"
        )
    if into.numel() and memory_key(into.untyped_storage()) == memory_key(piece.untyped_storage()):
        raise ValueError("all_gather: into= is x's own memory. Pass separate memory for the result")


def check_whole(x: Tensor, sizes: list[int], op: str, dim: int) -> None:
    if x.shape[0] != sum(sizes):
        raise ValueError(
            f"{op}: the tensor has {x.shape[0]} along dim {dim}, "
            f"but sizes={sizes} add up to {sum(sizes)}"
        )


def timeout_of(group: Group) -> timedelta:
    """Return the timeout of the group."""
    for backend in group._device_types:
        options = group._get_backend(backend).options
        if options is not None:  # torch's fake group has none
            return options._timeout
    return dist.distributed_c10d.default_pg_timeout
