"""torch's own tensor parallelism as a peer: DTensor's plans for our dense decoder.

A plan cannot shard the fused qkv directly. So its rows are reordered such that torch.chunk gives
each rank its heads' q, k and v.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from course_lib.gpt import GPT

__all__ = ["cut", "loss", "loss_parallel"]


def cut(model: GPT, mesh: DeviceMesh, *, sequence: bool) -> GPT:
    """Apply the plan of torch's tutorial to a dense GPT-2 in place."""
    n = mesh.size()
    for block in model.blocks:
        attention = block.attention
        with torch.no_grad():
            for name, whole in attention.qkv.named_parameters():
                parts = whole.view(3, n, -1, *whole.shape[1:]).transpose(0, 1)
                getattr(attention.qkv, name).copy_(parts.reshape(whole.shape).clone())
        attention.heads, attention.kv_heads = attention.heads // n, attention.kv_heads // n
    # The residual between the layers: replicated, or each rank's own tokens of it.
    between = Shard(1) if sequence else Replicate()
    into, out_of = (
        {"input_layouts": between, "use_local_output": True},
        {"output_layouts": between, "use_local_output": not sequence},
    )
    plan = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), **out_of),
        "head": ColwiseParallel(
            input_layouts=between, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    for name, _ in model.named_modules():
        if name.endswith(("attention.qkv", "mlp.up")):
            plan[name] = ColwiseParallel(**into)
        elif name.endswith(("attention.out", "mlp.down")):
            plan[name] = RowwiseParallel(**out_of)
        elif sequence and name.rpartition(".")[2] in ("norm", "norm_1", "norm_2"):
            plan[name] = SequenceParallel(use_local_output=False)
    if sequence:
        plan["positions"] = PrepareModuleOutput(
            output_layouts=Replicate(), desired_output_layouts=Shard(0), use_local_output=False
        )
    return parallelize_module(model, mesh, plan)


def loss(logits: Tensor, targets: Tensor, mesh: DeviceMesh) -> Tensor:
    """Compute torch's cross_entropy of logits (t, v/tp) that remain sharded; call it and its
    backward under `loss_parallel`."""
    whole = logits
    if not isinstance(logits, DTensor):
        whole = DTensor.from_local(logits, mesh, [Shard(-1)], run_check=False)
    return F.cross_entropy(whole.float(), targets)
