"""torch's collectives by operation name: the verb and the names of the operation's arguments.

For every caller (DDP's reducer in C++, FSDP2, DTensor, DeepSpeed, a learner), torch performs a
collective as one of the operations of its `c10d` library. A functional collective, which compilers
and DTensor prefer, consists of these operations too, so it is observed here as well.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import torch.distributed as dist


class Operation(NamedTuple):
    """A torch operation's verb; `inputs`, `outputs`, `root` and `peer` name its arguments."""

    verb: str  # as in `verbs.py`
    inputs: str = ""  # this rank's input tensors
    outputs: str = ""  # the tensors for the result, if they differ from the inputs
    agree: str = ""  # the shapes that must be the same on all ranks: "in", "out", or neither
    root: str = ""
    peer: str = ""  # the other rank of a message; empty if any rank may send it


OPERATIONS: dict[str, Operation] = {
    "c10d::allreduce_": Operation("all_reduce", "tensors", agree="in"),
    "c10d::allreduce_coalesced_": Operation("all_reduce", "tensors", agree="in"),
    # Pieces may be uneven if the backend allows it, but the outputs must be the same.
    "c10d::allgather_": Operation("all_gather", "input_tensors", "output_tensors", "out"),
    "c10d::_allgather_base_": Operation("all_gather", "input_tensor", "output_tensor", "in"),
    "c10d::allgather_coalesced_": Operation("all_gather", "input_list", "output_lists", "in"),
    "c10d::allgather_into_tensor_coalesced_": Operation("all_gather", "inputs", "outputs", "in"),
    "c10d::reduce_scatter_": Operation("reduce_scatter", "input_tensors", "output_tensors", "in"),
    "c10d::_reduce_scatter_base_": Operation(
        "reduce_scatter", "input_tensor", "output_tensor", "out"
    ),
    "c10d::reduce_scatter_tensor_coalesced_": Operation(
        "reduce_scatter", "inputs", "outputs", "out"
    ),
    "c10d::alltoall_": Operation("all_to_all", "input_tensors", "output_tensors"),
    "c10d::alltoall_base_": Operation("all_to_all", "input", "output"),
    "c10d::broadcast_": Operation("broadcast", "tensors", agree="in", root="root_rank"),
    "c10d::reduce_": Operation("reduce", "tensors", agree="in", root="root_rank"),
    "c10d::gather_": Operation("gather", "input_tensors", "output_tensors", "in", "root_rank"),
    "c10d::scatter_": Operation("scatter", "input_tensors", "output_tensors", "out", "root_rank"),
    "c10d::send": Operation("send", "tensors", peer="dst"),
    "c10d::recv_": Operation("recv", "tensors", peer="src"),
    "c10d::recv_any_source_": Operation("recv", "tensors"),
    "c10d::barrier": Operation("barrier"),
    "c10d::monitored_barrier_": Operation("barrier"),
    "_c10d_functional::all_reduce": Operation("all_reduce", "input", agree="in"),
    "_c10d_functional::all_reduce_": Operation("all_reduce", "input", agree="in"),
    "_c10d_functional::all_reduce_coalesced": Operation("all_reduce", "inputs", agree="in"),
    "_c10d_functional::all_reduce_coalesced_": Operation("all_reduce", "inputs", agree="in"),
    "_c10d_functional::all_gather_into_tensor": Operation("all_gather", "input", agree="in"),
    "_c10d_functional::all_gather_into_tensor_out": Operation("all_gather", "input", agree="in"),
    "_c10d_functional::all_gather_into_tensor_coalesced": Operation(
        "all_gather", "inputs", agree="in"
    ),
    "_c10d_functional::reduce_scatter_tensor": Operation("reduce_scatter", "input", agree="in"),
    "_c10d_functional::reduce_scatter_tensor_out": Operation("reduce_scatter", "input", agree="in"),
    "_c10d_functional::reduce_scatter_tensor_coalesced": Operation(
        "reduce_scatter", "inputs", agree="in"
    ),
    "_c10d_functional::all_to_all_single": Operation("all_to_all", "input"),
    "_c10d_functional::broadcast": Operation("broadcast", "input", agree="in", root="src"),
    "_c10d_functional::broadcast_": Operation("broadcast", "input", agree="in", root="src"),
}
NAMESPACES = {name.partition("::")[0] for name in OPERATIONS}


def handle(result: object) -> dist.Work | None:
    """Return the handle in an operation's result: its last element, or the result itself."""
    last = result[-1] if isinstance(result, (tuple, list)) and result else result
    return dist.Work.unbox(last) if isinstance(last, torch.ScriptObject) else None


@cache
def positions(func: torch._ops.OpOverload) -> dict[str, int]:
    """Return the names and positions of an operation's arguments."""
    return {argument.name: i for i, argument in enumerate(func._schema.arguments)}


def arguments(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> dict:
    """Return a call's arguments by name, without arguments that keep their default."""
    return {name: args[i] for name, i in positions(func).items() if i < len(args)} | kwargs
