"""Torch's collectives by the names of its operations: the verb, its arguments, what has to agree.

Whoever asks for a collective (DDP's reducer in C++, FSDP2, DTensor, DeepSpeed, a learner), torch
performs it as one of the operations of its `c10d` library. A functional collective, which compilers
and DTensor prefer, is made of them: who watches it from outside sees it here, too.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import torch.distributed as dist


class Operation(NamedTuple):
    """What is known of one operation: `inputs`, `outputs`, `root`, `peer` name its arguments."""

    verb: str  # in the course's words
    inputs: str = ""  # the tensors of this rank that go in
    outputs: str = ""  # those that the result is written to, where they are others
    agree: str = ""  # which shapes have to be the same on all ranks: "in", "out", or neither
    root: str = ""
    peer: str = ""  # the other rank of a message; none where any rank may send it


OPERATIONS: dict[str, Operation] = {
    "c10d::allreduce_": Operation("all_reduce", "tensors", agree="in"),
    "c10d::allreduce_coalesced_": Operation("all_reduce", "tensors", agree="in"),
    # Pieces may be uneven where the backend allows it: what comes out has to be the same.
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
    """The handle in what an operation returns: the last of its results, or the only one."""
    last = result[-1] if isinstance(result, (tuple, list)) and result else result
    return dist.Work.unbox(last) if isinstance(last, torch.ScriptObject) else None


@cache
def positions(func: torch._ops.OpOverload) -> dict[str, int]:
    """The names of an operation's arguments, and where each stands."""
    return {argument.name: i for i, argument in enumerate(func._schema.arguments)}


def arguments(func: torch._ops.OpOverload, args: tuple, kwargs: dict) -> dict:
    """A call's arguments by their names. Those left at a default are absent."""
    return {name: args[i] for name, i in positions(func).items() if i < len(args)} | kwargs
