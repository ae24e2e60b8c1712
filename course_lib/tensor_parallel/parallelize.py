"""The plan for sharding a full model, applied to the dense model from outside.

`plan_of` names every sharded linear layer of the blocks; the embedding table and the head are
sharded too. Parameters that their layer does not list in `sharded` are replicated, and
`check_replicas` compares them on all ranks. Lesson 05 shards a block, and lesson 08 the model.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from course_lib import collectives
from course_lib.collectives.agreement import checksum
from course_lib.collectives.call import Group, check_member, size_and_rank
from course_lib.collectives.call import device_of as own_device
from course_lib.gpt import GPT, MLP, Attention, Block
from course_lib.ranks import axis
from course_lib.tensor_parallel.attention import attention_plan, compute_own_heads, holders_of
from course_lib.tensor_parallel.embedding import (
    VocabularyParallelEmbedding,
    VocabularyParallelHead,
    check_vocabulary,
    padded_vocabulary,
)
from course_lib.tensor_parallel.linear import ColumnParallelLinear, Plan, RowParallelLinear, lay
from course_lib.tensor_parallel.mlp import mlp_plan
from course_lib.tensor_parallel.sequence import Tokens
from course_lib.tensor_parallel.sequence_plan import scatter_model


def parallelize(
    model: GPT | Block,
    mesh: DeviceMesh,
    *,
    sequence: bool = False,
    keep: bool = True,
    multiple_of: int = 1,
    overlap: bool = True,
) -> GPT | Block:
    """Shard a dense model (or one block of it) over the mesh's axis tp, in place.

    Every rank passes the full model with the same weights and keeps its part. A model on torch's
    meta device can be filled with values afterwards. `sequence` shards the tokens between the
    layers too. With it, `keep` saves the gathered inputs of the column-parallel layers for the
    backward pass; otherwise they are gathered again. `multiple_of` pads the vocabulary. A sharded
    model returns this rank's logits.

    torch.compile works for the model, with or without the loss. A graph ends at every message
    between ranks, so fullgraph=True is refused.
    """
    group = axis(mesh, "tp")
    if not isinstance(model, (GPT, Block)):
        raise TypeError(
            f"parallelize knows the plan of course_lib.gpt's GPT and Block, but this is a "
            f"{type(model).__name__}. Shard a different model layer by layer: "
            "ColumnParallelLinear(layer, group), RowParallelLinear(layer, group)"
        )
    blocks = [model] if isinstance(model, Block) else list(model.blocks)
    if any(isinstance(block.mlp.down, RowParallelLinear) for block in blocks):
        raise ValueError("this model is sharded already; apply a plan to a dense model")
    if sequence and isinstance(model, Block):
        raise ValueError(
            "sequence=True needs the full model, whose embedding knows the number of tokens; "
            "for one block see sequence_plan.scatter_block"
        )
    if isinstance(model, GPT):  # checked before any layer is sharded
        check_vocabulary(model.tokens.num_embeddings, group.size())
        padded_vocabulary(model.tokens.num_embeddings, multiple_of)
    check_replicas(model, group)
    attention = blocks[0].attention
    holders = holders_of(attention.heads, attention.kv_heads, group)
    lay(plan_of(model, group, holders), model, group, overlap=overlap)
    for block in blocks:
        compute_own_heads(block.attention, group)
    if isinstance(model, Block):
        return model
    shard_vocabulary(model, group, multiple_of=multiple_of, overlap=overlap)
    if sequence:
        scatter_model(model, Tokens(group), keep=keep)
    return model


def plan_of(model: GPT | Block, group: Group, holders: Group | None) -> Plan:
    """Return this rank's part of every sharded layer of the blocks, by path in the dense model.

    `holders` is as in `attention_plan`. Norms, positions and biases added after a sum are in no
    plan, because they are replicated.
    """
    plan: Plan = {}
    for path, module in model.named_modules():
        parts = {}
        if isinstance(module, Attention):
            parts = attention_plan(module, group, holders)  # qkv by columns, out by rows
        elif isinstance(module, MLP):
            parts = mlp_plan(module, group)  # up by columns, down by rows
        plan |= {f"{path}.{name}": part for name, part in parts.items()}
    return plan


def shard_vocabulary(
    model: GPT, group: Group, *, multiple_of: int = 1, overlap: bool = True
) -> None:
    """Shard the embedding table and the head by one rule; a tied head stays the same parameter."""
    tied = model.head.weight is model.tokens.weight
    table = VocabularyParallelEmbedding(model.tokens, group, multiple_of=multiple_of)
    if tied:
        weight = table.weight
    else:
        rows = nn.Embedding.from_pretrained(model.head.weight.detach(), freeze=False)
        rows = VocabularyParallelEmbedding(rows, group, multiple_of=multiple_of)
        weight = rows.weight.requires_grad_(model.head.weight.requires_grad)
    model.tokens = table
    model.head = VocabularyParallelHead(weight, group, overlap=overlap)


def check_replicas(model: nn.Module, group: Group) -> None:
    """Raise unless every replicated parameter is the same on all ranks of the group, and shared
    key/value rows are the same on the ranks that share them.

    Every rank must call this. Without this check, replicas that have drifted apart go unnoticed,
    because training continues and the loss still falls.
    """
    check_member(group)
    if group.size() == 1:
        return
    _compare(group, [(name, p) for name, p in replicated(model) if not p.is_meta])
    shared: dict[str, tuple[Group, list[tuple[str, Tensor]]]] = {}
    for prefix, module in model.named_modules():
        rows = getattr(module, "shared", None)
        if isinstance(module, ColumnParallelLinear) and rows is not None:
            start, stop, holders = rows
            _, named = shared.setdefault(holders.group_name, (holders, []))
            for name, parameter in module.named_parameters(prefix, recurse=False):
                if not parameter.is_meta:
                    named.append((f"{name}, rows {start} to {stop}", parameter[start:stop]))
    for holders, named in shared.values():
        _compare(holders, named)


def _compare(group: Group, named: list[tuple[str, Tensor]]) -> None:
    n, rank = size_and_rank(group)
    device = named[0][1].device if named else own_device(group)
    counts = collectives.all_gather(torch.tensor([len(named)], device=device), group)
    if len(set(counts.tolist())) > 1:
        raise RuntimeError(
            f"rank {rank}: the ranks of this group of {n} do not hold the same model, because they "
            f"have {counts.tolist()} replicated parameters. Pass the same config on every rank"
        )
    if not named:
        return
    own = torch.stack([checksum(p) for _, p in named])  # (parameters, 2)
    every = collectives.all_gather(own[None], group)  # (n, parameters, 2)
    same = (every == every[:1]).all(-1)  # (n, parameters)
    if bool(same.all()):
        return
    names = [name for i, (name, _) in enumerate(named) if not same[:, i].all()]
    ranks = [r for r in range(n) if not same[r].all()]
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    raise RuntimeError(
        f"rank {rank}: {len(names)} of {len(named)} parameters that should be the same on all {n} "
        f"ranks differ on rank {' and '.join(map(str, ranks))} from rank 0 ({shown}). Was the "
        "model made from a different seed there, or a gradient not summed, or a mask not shared?"
    )


def replicated(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the replicated parameters, which their layer does not list in `sharded`. They include
    the bias of a row-parallel layer."""
    for prefix, module in model.named_modules(remove_duplicate=True):
        for name, parameter in module.named_parameters(recurse=False):
            if name not in getattr(module, "sharded", ()):
                yield f"{prefix}.{name}" if prefix else name, parameter
