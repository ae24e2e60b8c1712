"""A collective from torch's dispatcher, described in words that ranks can compare.

The words give the group, operation, shapes, dtypes, and the parts that must agree between ranks. A
sum and a maximum disagree, although gloo would silently compute wrong numbers.
"""

from __future__ import annotations

import sys
import zlib
from dataclasses import dataclass

import torch
import torch.distributed as dist

from course_lib.ledger.torch_calls.operations import OPERATIONS, arguments, positions

_REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")


class DeadGroup(RuntimeError):
    """An error for the use of a group that was made before a failure."""


@dataclass(frozen=True)
class Call:
    group_name: str
    members: list[int]  # global ranks
    text: str  # "all_reduce(sum) of float32[3]"
    compare: str  # must be the same text on all members
    asynchronous: bool
    from_python: bool  # or from torch's C++ code, as DDP's are
    exchange: list[list[int]] | None = None  # rows sent to and expected from each member
    # (sender, receiver), global ranks; sender None for a receive from any rank.
    peer: tuple[int | None, int] | None = None

    @property
    def from_any(self) -> bool:
        return self.peer is not None and self.peer[0] is None

    def bounded(self, func, args, seconds: float) -> tuple:
        """Return the call's arguments with a timeout that ends before the cell's deadline."""
        at = positions(func).get("timeout")
        if at is None or (len(args) > at and args[at] not in (-1, None)):
            return args
        defaults = [a.default_value for a in func._schema.arguments]
        filled = list(args) + defaults[len(args) : at]
        return (*filled[:at], max(500, int(seconds * 1000)), *args[at + 1 :])


def read_call(func, args, kwargs, dead: dict[str, str]) -> Call | None:
    """Return the call of a dispatched operation, or None if it sends no data, as in a wait.

    `dead` maps groups that did not survive a failure to sentences about that failure.
    """
    operation = OPERATIONS.get(func._schema.name)
    if operation is None:
        return None
    op, agree, given = operation.verb, operation.agree, arguments(func, args, kwargs)
    caller = _caller_in_torch()
    group = _group_of(given, dead)
    members = dist.get_process_group_ranks(group)
    before, after = _tensors(given.get(operation.inputs)), _tensors(given.get(operation.outputs))
    reduction, root = _reduction_name(given.get("reduce_op"), caller), given.get(operation.root)
    if root is not None:
        root = members[root] if func.namespace == "c10d" else root
    words = op + (f"({reduction})" if reduction else f"(root {root})" if root is not None else "")
    subject = after if op in ("recv", "scatter") and after else before
    text = words if op == "barrier" else f"{words} of {_shapes(subject)}"
    peer = exchange = None
    if op in ("send", "recv"):
        here = dist.get_rank()
        there = members[given[operation.peer]] if operation.peer else None
        peer = (here, there) if op == "send" else (there, here)
        whom = "any rank" if there is None else f"rank {there}"
        text = f"{op}({'to' if op == 'send' else 'from'} {whom}) of {_shapes(before)}"
    compare = words
    if peer:
        compare = _shapes(before)
    elif agree:
        agreed = before if agree == "in" else after
        # Long lists of shapes are shortened in the text, but the checksum includes all of them.
        compare += f" {_shapes(agreed)} {zlib.crc32(repr([t.shape for t in agreed]).encode()):x}"
    elif op == "all_to_all":
        exchange = _exchange(given, before, after, len(members))
        compare += " " + (str(before[0].dtype) if before else "")
    # The dispatcher omits arguments with default values; the default of this one is True.
    asynchronous = bool(given.get("async_op", True)) and op != "barrier"
    from_python = caller is not None and func.namespace == "c10d"
    return Call(group.group_name, members, text, compare, asynchronous, from_python, exchange, peer)


def _group_of(given, dead: dict[str, str]) -> dist.ProcessGroup:
    group = given.get("process_group", given.get("group_name"))
    if isinstance(group, torch.ScriptObject):
        group = dist.ProcessGroup.unbox(group)
    name = group if isinstance(group, str) else group.group_name
    if name in dead:
        raise DeadGroup(dead[name])
    if isinstance(group, str):
        return dist.distributed_c10d._resolve_process_group(group)
    return group


def _tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [t for item in value for t in _tensors(item)]
    return []


def _shapes(tensors: list[torch.Tensor]) -> str:
    shown = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors[:3]]
    return ", ".join(shown) + (f" and {len(tensors) - 3} more" if len(tensors) > 3 else "")


def _caller_in_torch():
    """Return the frame of the torch.distributed Python function that made this call, if any."""
    frame = sys._getframe(3)
    for _ in range(12):  # an open ledger has frames in between
        if frame is None or frame.f_code.co_filename == dist.distributed_c10d.__file__:
            return frame
        frame = frame.f_back
    return None


def _reduction_name(value, caller) -> str:
    """Return the reduction's name, which torch hides but its Python caller knows."""
    if value is None or isinstance(value, str):
        return value or ""
    if caller is None or "op" not in caller.f_locals:
        return "sum"  # issued from C++: DDP's reducer adds
    op = caller.f_locals["op"]
    return next((n for n in _REDUCTIONS if op == getattr(dist.ReduceOp, n.upper())), "")


def _exchange(given, before, after, n: int) -> list[list[int]] | None:
    if "input_split_sizes" in given:
        sent, expected = given["input_split_sizes"], given["output_split_sizes"]
        rows_in = before[0].shape[0]
        rows_out = after[0].shape[0] if after else rows_in
        return [list(sent) or [rows_in // n] * n, list(expected) or [rows_out // n] * n]
    return [[t.numel() for t in before], [t.numel() for t in after]]
