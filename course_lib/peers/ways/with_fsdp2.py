"""torch's fully_shard (FSDP2) around the same model.

FSDP2 has two of the four stages: parameters are freed after the forward pass (ZeRO-3) or kept
(ZeRO-2). Lesson 13.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from course_lib import ranks
from course_lib.peers.ways.evidence import Before, RunEvidence, held_by
from course_lib.peers.ways.loop import EngineVerbs, adamw
from course_lib.peers.ways.loop import train as train_by
from course_lib.peers.ways.setting import NotThere, WaySetting
from course_lib.peers.ways.workload import Workload


def check_can(setting: WaySetting) -> None:
    """Refuse settings that FSDP2 does not support."""
    if setting.stage == 0:
        raise NotThere("FSDP2 always shards the states; torch's unsharded way is DDP")
    if setting.stage == 1:
        raise NotThere(
            "FSDP2 has no stage with replicated gradients; reshard_after_forward=False, which "
            "keeps gathered parameters from forward to backward, is ZeRO-2"
        )
    if setting.precision == "float16":
        raise NotThere("FSDP2 has no loss scale; for fp16 combine it with torch.amp.GradScaler")
    if setting.offload == "nvme":
        raise NotThere("FSDP2 offloads to the host (CPUOffloadPolicy), not to files")
    if setting.offload == "optimizer":
        raise NotThere("CPUOffloadPolicy always moves parameters, gradients and states together")


def blocks(model: nn.Module, workload: Workload) -> list[nn.Module]:
    return [module for module in model.modules() if type(module).__name__ == workload.block]


def sharded(model: nn.Module, mesh, workload: Workload, setting: WaySetting) -> nn.Module:
    """Shard the model with each layer, and the rest of the model, as an FSDP unit."""
    options: dict = {"mesh": mesh, "reshard_after_forward": setting.stage == 3}
    if setting.offload is not None:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
    if setting.precision == "bfloat16":
        options["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        )
    for block in blocks(model, workload):
        fully_shard(block, **options)
    return fully_shard(model, **options)


def train(me: ranks.Me, workload: Workload, setting: WaySetting) -> RunEvidence:
    check_can(setting)
    before = Before()
    mesh = ranks.mesh(me, dp=me.world, tp=1)["dp"]
    model = sharded(workload.model().to(me.device), mesh, workload, setting)
    optimizer = adamw(model.parameters(), workload)
    clip = float("inf") if setting.clip is None else setting.clip

    def call(**batch):
        return model(**batch)

    def backward(loss, last: bool) -> None:
        model.set_is_last_backward(last)
        (loss / setting.accumulate).backward()

    def step(last: bool) -> float | None:
        if not last:
            return None
        norm = nn.utils.clip_grad_norm_(model.parameters(), clip).full_tensor().item()
        optimizer.step()
        optimizer.zero_grad()
        return norm

    def held(before: Before) -> dict[str, int]:
        return held_by(before, model, optimizer)

    verbs = EngineVerbs(call, backward, step, held, model, optimizer)
    return train_by("fsdp2", me, workload, setting, before, verbs)
