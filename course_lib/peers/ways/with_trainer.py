"""Transformers' Trainer over DeepSpeed, and over FSDP2.

On GPUs `fsdp=True` hands the model to Accelerate. On a CPU Accelerate has no FSDP (see `asked`), so
`fully_shard` shards the model first, and Accelerate must not wrap it. Lesson 13.
"""

from __future__ import annotations

from course_lib import ranks
from course_lib.peers.ways.ds_config import for_trainer
from course_lib.peers.ways.evidence import RunEvidence
from course_lib.peers.ways.setting import WaySetting
from course_lib.peers.ways.trainer_run import trained
from course_lib.peers.ways.with_deepspeed import check_can
from course_lib.peers.ways.with_fsdp2 import check_can as check_fsdp2
from course_lib.peers.ways.with_fsdp2 import sharded
from course_lib.peers.ways.workload import Workload


def over_deepspeed(me: ranks.Me, workload: Workload, setting: WaySetting) -> RunEvidence:
    """Train with a DeepSpeed config whose values are `auto` where the Trainer can fill them in."""
    check_can(setting)
    config = for_trainer(workload, setting)
    return trained("trainer+deepspeed", me, workload, setting, deepspeed=config)


def over_fsdp(me: ranks.Me, workload: Workload, setting: WaySetting) -> RunEvidence:
    """Train over FSDP2: Accelerate's on GPUs, torch's `fully_shard` on a CPU."""
    check_fsdp2(setting)
    if me.device.type != "cpu":
        more = {"fsdp": True, "fsdp_config": fsdp_config(workload, setting)}
        return trained("trainer+fsdp", me, workload, setting, **more)

    def model():
        mesh = ranks.mesh(me, dp=me.world, tp=1)["dp"]
        model = sharded(workload.model(), mesh, workload, setting)
        # Accelerate's mark for a prepared model; otherwise it would wrap it in DDP.
        model._is_accelerate_prepared = True
        return model

    return trained("trainer+fsdp", me, workload, setting, model)


def fsdp_config(workload: Workload, setting: WaySetting) -> dict:
    """Return the current options for `TrainingArguments(fsdp=True, fsdp_config=…)` (version 2)."""
    return {
        "version": 2,
        "reshard_after_forward": setting.stage == 3,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": [workload.block],
        "cpu_offload": setting.offload is not None,
    }
