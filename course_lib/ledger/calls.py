"""Reading a torch operation: which collective it is, in which group, and what it was handed.

Whoever asks for a collective (DDP's reducer in C++, FSDP2, DTensor, DeepSpeed, a learner), torch
performs it as one of these operations of its `c10d` library. Lesson 01 meets them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.ledger.forms import Bytes, must


@dataclass(frozen=True)
class Call:
    """One collective as a ledger books it."""

    op: str
    group: dist.ProcessGroup
    elements: int
    dtype: str
    payload: int
    must: Bytes
    device: torch.device
    wants_gradient: bool


@dataclass(frozen=True)
class HandedOver:
    """The tensors that a rank gives away in a call, its own piece in bytes, and the root."""

    tensors: list[Tensor]
    own: int = 0
    root: int = 0


Reader = Callable[[dict, dist.ProcessGroup], HandedOver]


def read(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Call | None:
    """The collective that this torch operation performs; None if it performs none."""
    op, reader = READERS.get(func._schema.name, (None, None))
    if op is None:
        return None
    given = _by_name(func, args, kwargs)
    group = dist.ProcessGroup.unbox(given["process_group"])
    handed = reader(given, group)
    payload = total_bytes(handed.tensors)
    touched = [t for value in given.values() for t in tensors_in(value)]
    first = touched[0] if touched else None
    return Call(
        op=op,
        group=group,
        elements=sum(t.numel() for t in handed.tensors),
        dtype="" if first is None or op == "barrier" else dtype_name(first),
        payload=payload,
        must=must(op, group.size(), group.rank(), payload, handed.own, handed.root),
        device=torch.device("cpu") if first is None else first.device,
        wants_gradient=any(t.requires_grad for t in touched),
    )


def tensors_in(value: object) -> Iterable[Tensor]:
    """All tensors in an argument, which may be a tensor or nested lists of them."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def total_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def dtype_name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def backend_of(group: dist.ProcessGroup, device: torch.device) -> str:
    """The backend that carries tensors of this device in this group."""
    try:
        return group._get_backend(device).name().lower()
    except RuntimeError:  # the group carries no tensors of that device by itself
        return group.name().lower()


def _by_name(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> dict:
    """The call's arguments under the names of its schema. Those left at a default are absent."""
    names = (argument.name for argument in func._schema.arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _whole(*, of: str, root: str | None = None) -> Reader:
    """Everything under one name is handed over."""

    def read_whole(given: dict, group: dist.ProcessGroup) -> HandedOver:
        return HandedOver(list(tensors_in(given[of])), root=given.get(root, 0) if root else 0)

    return read_whole


def _cut(*, of: str, own: str, root: str | None = None) -> Reader:
    """Everything under one name is handed over; this rank's own piece has the size of another."""

    def read_cut(given: dict, group: dist.ProcessGroup) -> HandedOver:
        mine = total_bytes(tensors_in(given[own]))
        return HandedOver(list(tensors_in(given[of])), mine, given.get(root, 0) if root else 0)

    return read_cut


def _all_to_all_of_pieces(given: dict, group: dist.ProcessGroup) -> HandedOver:
    pieces = given["input_tensors"]
    return HandedOver(pieces, own=total_bytes([pieces[group.rank()]]))


def _all_to_all_of_one(given: dict, group: dist.ProcessGroup) -> HandedOver:
    whole, rows = given["input"], given["input_split_sizes"]
    payload = total_bytes([whole])
    if not rows:  # no sizes mean equal ones
        return HandedOver([whole], own=payload // group.size())
    row = payload // max(1, whole.shape[0])
    return HandedOver([whole], own=rows[group.rank()] * row)


def _nothing(given: dict, group: dist.ProcessGroup) -> HandedOver:
    return HandedOver([])


# Functional collectives, which compilers and DTensor prefer, are made of the operations below.
FUNCTIONAL = ("_c10d_functional::", "_dtensor::")
NO_COLLECTIVES = ("_c10d_functional::_wrap_tensor_autograd",)

READERS: dict[str, tuple[str, Reader]] = {
    "c10d::allreduce_": ("all_reduce", _whole(of="tensors")),
    "c10d::allreduce_coalesced_": ("all_reduce", _whole(of="tensors")),
    "c10d::allgather_": ("all_gather", _whole(of="input_tensors")),
    "c10d::_allgather_base_": ("all_gather", _whole(of="input_tensor")),
    "c10d::allgather_coalesced_": ("all_gather", _whole(of="input_list")),
    "c10d::allgather_into_tensor_coalesced_": ("all_gather", _whole(of="inputs")),
    "c10d::reduce_scatter_": ("reduce_scatter", _cut(of="input_tensors", own="output_tensors")),
    "c10d::_reduce_scatter_base_": (
        "reduce_scatter",
        _cut(of="input_tensor", own="output_tensor"),
    ),
    "c10d::reduce_scatter_tensor_coalesced_": (
        "reduce_scatter",
        _cut(of="inputs", own="outputs"),
    ),
    "c10d::alltoall_": ("all_to_all", _all_to_all_of_pieces),
    "c10d::alltoall_base_": ("all_to_all", _all_to_all_of_one),
    "c10d::broadcast_": ("broadcast", _whole(of="tensors", root="root_rank")),
    "c10d::reduce_": ("reduce", _whole(of="tensors", root="root_rank")),
    "c10d::gather_": ("gather", _whole(of="input_tensors", root="root_rank")),
    "c10d::scatter_": (
        "scatter",
        _cut(of="input_tensors", own="output_tensors", root="root_rank"),
    ),
    "c10d::send": ("send", _whole(of="tensors")),
    "c10d::recv_": ("recv", _nothing),
    "c10d::recv_any_source_": ("recv", _nothing),
    "c10d::barrier": ("barrier", _nothing),
    "c10d::monitored_barrier_": ("barrier", _nothing),
}
