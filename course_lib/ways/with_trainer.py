"""Transformers' Trainer over DeepSpeed, and over FSDP2.

On GPUs `fsdp=True` hands the model to Accelerate. On a CPU Accelerate has no FSDP (see asked), so
there `fully_shard` shards the model first and Accelerate is told to leave it alone. Lesson 13.
"""

from __future__ import annotations

import tempfile

from course_lib import ranks
from course_lib.ways.ds_config import for_trainer
from course_lib.ways.evidence import Before, Run
from course_lib.ways.launched import launched, quiet
from course_lib.ways.setting import Setting
from course_lib.ways.trainer_run import arguments, recorder_class, run, trainer
from course_lib.ways.with_deepspeed import check_can
from course_lib.ways.with_fsdp2 import check_can as check_fsdp2
from course_lib.ways.with_fsdp2 import sharded
from course_lib.ways.workload import Workload


def over_deepspeed(me: ranks.Me, workload: Workload, setting: Setting) -> Run:
    """The Trainer with a DeepSpeed config whose values are `auto` where it can fill them in."""
    check_can(setting)
    with launched(me), quiet(), tempfile.TemporaryDirectory() as folder:
        before = Before()
        config = for_trainer(workload, setting)
        given = arguments(me, workload, setting, folder, deepspeed=config)
        made = trainer(workload, setting, me.world, workload.model, given)
        try:
            return run("trainer+deepspeed", made, recorder_class()(before))
        finally:
            if made.model_wrapped is not made.model:
                made.model_wrapped.destroy()


def over_fsdp(me: ranks.Me, workload: Workload, setting: Setting) -> Run:
    """The Trainer over FSDP2: Accelerate's where there are GPUs, torch's `fully_shard` on a CPU."""
    check_fsdp2(setting)
    on_cpu = me.device.type == "cpu"

    def model():
        model = workload.model()
        if on_cpu:
            mesh = ranks.mesh(me, dp=me.world, tp=1)["dp"]
            model = sharded(model, mesh, workload, setting)
            # Accelerate's own mark of a model that it has prepared: it would wrap it in DDP.
            model._is_accelerate_prepared = True
        return model

    with launched(me), quiet(), tempfile.TemporaryDirectory() as folder:
        before = Before()
        more = {} if on_cpu else {"fsdp": True, "fsdp_config": fsdp_config(workload, setting)}
        given = arguments(me, workload, setting, folder, **more)
        made = trainer(workload, setting, me.world, model, given)
        return run("trainer+fsdp", made, recorder_class()(before))


def fsdp_config(workload: Workload, setting: Setting) -> dict:
    """What `TrainingArguments(fsdp=True, fsdp_config=…)` takes today (version 2)."""
    return {
        "version": 2,
        "reshard_after_forward": setting.stage == 3,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": [workload.block],
        "cpu_offload": setting.offload is not None,
    }
