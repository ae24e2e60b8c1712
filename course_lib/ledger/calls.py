"""From a torch operation to a collective: its verb, its group and its payload.

The table of operations is in `torch_calls/operations.py`. Lesson 01 introduces their names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.ledger.forms import Bytes, must
from course_lib.ledger.torch_calls import OPERATIONS, Operation, arguments


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


# Functional collectives consist of c10d operations, which are booked instead.
FUNCTIONAL = ("_c10d_functional::", "_dtensor::")
NO_COLLECTIVES = ("_c10d_functional::_wrap_tensor_autograd",)


def read(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> Call:
    """Describe the collective that a c10d operation performs, for the ledger."""
    operation, by_name = OPERATIONS[func._schema.name], arguments(func, args, kwargs)
    op, group = operation.verb, dist.ProcessGroup.unbox(by_name["process_group"])
    handed_over, own_bytes = _handed_over(operation, by_name, group)
    payload, root = total_bytes(handed_over), by_name.get(operation.root, 0)
    touched = [t for value in by_name.values() for t in tensors_in(value)]
    first = touched[0] if touched else None
    return Call(
        op=op,
        group=group,
        elements=sum(t.numel() for t in handed_over),
        dtype="" if first is None or op == "barrier" else str(first.dtype).removeprefix("torch."),
        payload=payload,
        must=must(op, group.size(), group.rank(), payload, own_bytes, root),
        device=torch.device("cpu") if first is None else first.device,
        wants_gradient=any(t.requires_grad for t in touched),
    )


def tensors_in(value: object) -> Iterable[Tensor]:
    """Yield all tensors in an argument, which may be a tensor or nested lists of tensors."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def total_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def backend_of(group: dist.ProcessGroup, device: torch.device) -> str:
    """Return the backend that carries tensors of this device in this group."""
    try:
        return group._get_backend(device).name().lower()
    except RuntimeError:  # the group carries no tensors of that device by itself
        return group.name().lower()


def _handed_over(
    operation: Operation, by_name: dict, group: dist.ProcessGroup
) -> tuple[list[Tensor], int]:
    """Return (this rank's input tensors, bytes of the piece that it keeps). The list is empty if
    the rank only receives, or in a barrier."""
    if operation.verb in ("recv", "barrier"):
        return [], 0
    tensors = list(tensors_in(by_name[operation.inputs]))
    if operation.verb in ("reduce_scatter", "scatter"):  # its own piece has the size of the output
        return tensors, total_bytes(tensors_in(by_name[operation.outputs]))
    if operation.verb != "all_to_all":
        return tensors, 0
    rows = by_name.get("input_split_sizes")
    if rows is None:  # a list of pieces instead of one tensor
        return tensors, total_bytes([tensors[group.rank()]])
    payload = total_bytes(tensors)
    if not rows:  # no sizes means equal sizes
        return tensors, payload // group.size()
    row = payload // max(1, tensors[0].shape[0])
    return tensors, rows[group.rank()] * row
