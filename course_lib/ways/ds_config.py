"""A setting in DeepSpeed's words: the config file that `deepspeed.initialize` is given.

`for_trainer` leaves to the Trainer what it fills in (`auto`). Lesson 13.
"""

from __future__ import annotations

from course_lib.ways.setting import Setting
from course_lib.ways.workload import Workload

BUCKET = 20_000  # elements; the defaults are 5e8, which reserve gigabytes


def ds_config(workload: Workload, setting: Setting) -> dict:
    """A whole config: nothing is left to a default that a reader would have to know."""
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
        place: dict = {"device": "nvme" if setting.offload == "nvme" else "cpu"}
        if setting.offload == "nvme":
            place["nvme_path"] = setting.folder
        zero["offload_optimizer"] = dict(place)
        if setting.offload in ("all", "nvme"):
            zero["offload_param"] = dict(place)
            if setting.offload == "nvme":
                zero["offload_param"] |= {"buffer_size": _largest(workload), "buffer_count": 5}
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
    if setting.precision == "float16":  # the same first scale as ours, and no step is lost to it
        config["fp16"] = {"enabled": True, "initial_scale_power": 8}
    return config


def for_trainer(workload: Workload, setting: Setting) -> dict:
    """The same with `auto` wherever the Trainer knows the value from its arguments."""
    config = ds_config(workload, setting)
    for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        config[name] = "auto"
    config["gradient_clipping"] = "auto"
    for name in ("lr", "betas", "eps", "weight_decay"):
        config["optimizer"]["params"][name] = "auto"
    for name in ("bf16", "fp16"):
        if name in config:
            config[name]["enabled"] = "auto"
    return config


def _largest(workload: Workload) -> int:
    return max(p.numel() for p in workload.model().parameters())
