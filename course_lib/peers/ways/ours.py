"""The engine of lessons 09 to 12 around a Transformers model. Lesson 13."""

from __future__ import annotations

import torch

from course_lib import ranks, zero
from course_lib.memory.storages import plain_tensors, storages
from course_lib.meta import memory_key
from course_lib.peers.ways.evidence import Before, RunEvidence, held_by
from course_lib.peers.ways.loop import adamw, of_engine
from course_lib.peers.ways.loop import train as train_by
from course_lib.peers.ways.setting import WaySetting
from course_lib.peers.ways.workload import Workload


def offload(setting: WaySetting) -> dict | None:
    """Translate the setting's offload for `zero.engine`."""
    if setting.offload is None:
        return None
    place = "nvme" if setting.offload == "nvme" else "cpu"
    plan = {"optimizer": place}
    if setting.offload in ("all", "nvme"):
        plan["parameters"] = place
    if place == "nvme":
        plan["folder"] = setting.folder
    return plan


def held_by_engine(before: Before, engine: zero.Engine, copied: bool) -> dict[str, int]:
    """Count the engine's bytes. At stage 3 parameters are placeholders for shards, and with
    `copied` the optimizer updates copies. Below stage 3 gradients have permanent buckets."""
    shards: list = []
    if engine.stage == 3:
        shards = list(plain_tensors(engine.shards.memory()))
        if copied:
            updated = [p for group in engine.optimizer.param_groups for p in group["params"]]
            masters = {memory_key(storage) for storage in storages(updated)}
            shards = [t for t in shards if memory_key(t.untyped_storage()) not in masters]
    kinds = {"parameters": shards, "gradients": plain_tensors(engine.gradients.buffers)}
    return held_by(before, engine.model, engine.optimizer, kinds)


def train(me: ranks.Me, workload: Workload, setting: WaySetting) -> RunEvidence:
    before = Before()
    model = workload.model().to(me.device)
    copied = setting.precision != "float32" or setting.offload == "optimizer"
    precision = "as is" if setting.precision == "float32" else setting.precision
    if precision == "float16":
        precision = zero.Precision(torch.float16, True, zero.LossScale(2.0**8))
    with zero.engine(
        model,
        adamw(model.parameters(), workload),
        stage=setting.stage,
        mesh=ranks.mesh(me, dp=me.world, tp=1),
        accumulate=setting.accumulate,
        clip=setting.clip,
        precision=precision,
        offload=offload(setting),
        **({"persist": 0} if setting.stage == 3 else {}),
    ) as engine:
        verbs = of_engine(
            engine,
            norm=lambda: engine.norm,
            held=lambda before: held_by_engine(before, engine, copied),
        )
        return train_by("course_lib", me, workload, setting, before, verbs)
