"""A step of a small model for `in_fsdp2`, sharded by FSDP2 on the judge's ranks, under a ledger.
FSDP2 takes a second to import, so it is imported only when a check runs. Lesson 13."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from course_lessons.lesson_13.words import Words, words
from course_lib.ledger import ledger
from course_lib.peers.deepspeed_config.auto import ZERO

SIZES = (7, 11, 5, 3)  # of the layers: a dim that no number of ranks divides


def warm() -> None:
    """Import FSDP2 and take a first step, on all ranks together."""
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu", mesh_dim_names=("dp",))
    measured(mesh, arguments(words({"bf16": {"enabled": True}, ZERO: {"stage": 3}})))


def arguments(said: Words) -> dict:
    """Return the keyword arguments of `fully_shard` that the reference's words describe."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    kinds = [None if t is None else getattr(torch, t) for t in (said.parameters, said.reductions)]
    keywords = {"reshard_after_forward": said.reshard, "mp_policy": MixedPrecisionPolicy(*kinds)}
    if said.pinned is not None:
        keywords["offload_policy"] = CPUOffloadPolicy(pin_memory=said.pinned)
    return keywords


def measured(mesh: DeviceMesh, keywords: Mapping) -> dict:
    """Run a small model's step with these arguments; return its traffic and the memory after the
    step. A CPU has no memory to pin, so the policy only reports pinning."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    policy = keywords.get("offload_policy")
    pinned = bool(policy.pin_memory) if isinstance(policy, CPUOffloadPolicy) else None
    if pinned:
        keywords = {**keywords, "offload_policy": CPUOffloadPolicy(pin_memory=False)}
    torch.manual_seed(13)
    blocks = (nn.Sequential(nn.Linear(*pair), nn.Tanh()) for pair in pairwise(SIZES[:-1]))
    model = nn.Sequential(*blocks, nn.Linear(*SIZES[-2:]))
    for part in (*model[:-1], model):
        fully_shard(part, mesh=mesh, **keywords)
    with ledger() as book:
        out = model(torch.ones(4, SIZES[0]))
        own = (p.to_local() if hasattr(p, "to_local") else p for p in model.parameters())
        held = sum(part.untyped_storage().nbytes() for part in own)  # their full storage
        out.float().square().sum().backward()

    def types(op: str) -> list[str]:
        return sorted({record.dtype for record in book.records if record.op == op})

    return {
        "again": book.count("all_gather", phase="backward"),
        "gathered": types("all_gather"),
        "reduced": types("reduce_scatter"),
        "held": held,
        "pinned": pinned,
        "output": str(out.dtype).removeprefix("torch."),
    }
