"""A setting as a DeepSpeed config file for `deepspeed.initialize`.

`for_trainer` writes `auto` for the values that the Trainer fills in. Lesson 13.
"""

from __future__ import annotations

from torch import nn

from course_lib.peers.deepspeed_config.auto import left_to_the_trainer
from course_lib.peers.ways.setting import WaySetting
from course_lib.peers.ways.workload import Workload

BUCKET = 20_000  # elements; the defaults are 5e8, which reserve gigabytes


def ds_config(workload: Workload, setting: WaySetting) -> dict:
    """Build a complete config, without defaults that a reader would have to know."""
    zero: dict = {"stage": setting.stage}
    if setting.stage:
        zero |= {"reduce_bucket_size": BUCKET, "overlap_comm": False}
    if setting.stage in (1, 2):
        zero["allgather_bucket_size"] = BUCKET
    if setting.stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": 0,
            "stage3_param_persistence_threshold": 0,
            "stage3_max_live_parameters": 0,
            "stage3_max_reuse_distance": 0,
        }
    if setting.offload is not None:
        place = "nvme" if setting.offload == "nvme" else "cpu"
        zero |= offload_sections(place, setting.folder, workload.model())
        if setting.offload == "optimizer":
            del zero["offload_param"]
    config = {
        "train_micro_batch_size_per_gpu": workload.batch,
        "gradient_accumulation_steps": setting.accumulate,
        "gradient_clipping": 0.0 if setting.clip is None else setting.clip,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": workload.lr,
                "betas": [0.9, 0.999],
                "eps": 1e-8,
                "weight_decay": workload.weight_decay,
                **({} if setting.compiled else {"torch_adam": True}),
            },
        },
        "zero_optimization": zero,
    }
    if setting.offload is not None and not setting.compiled:
        config["zero_force_ds_cpu_optimizer"] = False
    if setting.precision == "bfloat16":
        config["bf16"] = {"enabled": True}
    if setting.precision == "float16":  # the same first scale as ours, so no step is lost
        config["fp16"] = {"enabled": True, "initial_scale_power": 8}
    return config


def for_trainer(workload: Workload, setting: WaySetting) -> dict:
    """Build the same config with `auto` wherever the Trainer knows the value from its arguments."""
    return left_to_the_trainer(ds_config(workload, setting))


def offload_sections(place: str, folder: str | None, model: nn.Module) -> dict:
    """Build the sections that move optimizer states and parameters to the host or into files."""
    where: dict = {"device": place}
    if place == "cpu":
        return {"offload_optimizer": where, "offload_param": dict(where)}
    where["nvme_path"] = folder
    buffers = {"buffer_size": max(p.numel() for p in model.parameters()), "buffer_count": 5}
    return {"offload_optimizer": where, "offload_param": {**where, **buffers}}
