"""A rung of the ladder as a ready DeepSpeed config (JSON), and as the Trainer's arguments.

Every size is written as a number, or "auto" if the Trainer resolves it. Keys that have no effect at
the stage are left out. Lesson 13.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.estimate.deepspeed import HALF, OVERLAP
from course_lib.estimate.ladder import LIVE, Nodes
from course_lib.estimate.model import Model
from course_lib.estimate.setting import Setting
from course_lib.peers.deepspeed_config.auto import hidden_size, left_to_the_trainer

SHARE = 20  # overlapped reduction buckets get 1/20 of a GPU's bytes
LEAST = 1000  # minimum elements of a bucket, for the smallest GPU
ADAMW = {"lr": 5e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}  # the Trainer's
CLIP = 1.0  # its default gradient norm limit
SUB_GROUP = 10**9  # elements that the optimizer updates at a time
# Dynamic loss scale, starting at 2^16.
FP16 = {"enabled": True, "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16}
FP16 |= {"hysteresis": 2, "min_loss_scale": 1}
AIO = {"block_size": 262144, "queue_depth": 32, "intra_op_parallelism": 1}
AIO |= {"single_submit": False, "overlap_events": True}


@dataclass(frozen=True)
class Sizes:
    """A model's sizes: its hidden size (None if a config.json has none), the parameters of one
    stage 3 unit, and the parameters of its largest layer."""

    hidden: int | None
    unit: int
    largest: int

    @classmethod
    def of(cls, model: Model) -> Sizes:
        return cls(hidden_size(model.keys), model.largest_unit, max(model.numels))


def deepspeed(
    setting: Setting,
    machine: Nodes,
    sizes: Sizes,
    *,
    trainer: bool = False,
    nvme_path: str = "/local_nvme",
    tp: int = 1,
) -> dict:
    """Create the file for `deepspeed.initialize(config=…)`; with `trainer`, a file for
    TrainingArguments' `deepspeed=` with "auto" values. `tp` ranks share a model (AutoTP)."""
    zero, elements = {"stage": setting.stage}, bucket(machine, sizes)
    if setting.stage:
        zero |= {"overlap_comm": True, "contiguous_gradients": True, "reduce_bucket_size": elements}
    if setting.stage in (1, 2):
        zero |= {"reduce_scatter": True, "allgather_bucket_size": elements}
    if setting.stage == 3:
        zero |= _of_stage_3(setting, sizes)
    if setting.optimizer is not None:  # on disk: parameter, gradient, two moments
        buffers = {"buffer_count": 4, "pipeline_read": True, "pipeline_write": True}
        zero["offload_optimizer"] = _offload(setting.optimizer, nvme_path, buffers)
    if setting.parameters is not None:  # a buffer holds the largest parameter
        buffers = {"buffer_count": 5, "buffer_size": max(10**8, sizes.largest)}
        zero["offload_param"] = _offload(setting.parameters, nvme_path, buffers)
    if setting.stage in (1, 2) and setting.optimizer and machine.world > 1:
        zero["round_robin_gradients"] = True  # ranks share the copying to the host
    config: dict = {
        "train_batch_size": setting.rows * setting.accumulate * machine.world,
        "train_micro_batch_size_per_gpu": setting.rows,
        "gradient_accumulation_steps": setting.accumulate,
        "gradient_clipping": CLIP,
        **({"bf16": {"enabled": True}} if trainer or setting.precision == "bfloat16" else {}),
        **({"fp16": dict(FP16)} if trainer or setting.precision == "float16" else {}),
        "optimizer": {"type": "AdamW", "params": dict(ADAMW)},
        "zero_optimization": zero,
    }
    if "nvme" in (setting.optimizer, setting.parameters):
        config["aio"] = dict(AIO)
    if tp > 1:  # DeepSpeed would multiply by all ranks, including tp; it derives the product
        del config["train_batch_size"]
        config["tensor_parallel"] = {"autotp_size": tp}
    return left_to_the_trainer(config, sizes.hidden) if trainer else config


def training_arguments(setting: Setting, config: str) -> dict:
    """Return the rung as TrainingArguments in JSON, including those that DeepSpeed files lack."""
    return {
        "deepspeed": config,
        "per_device_train_batch_size": setting.rows,
        "gradient_accumulation_steps": setting.accumulate,
        "gradient_checkpointing": setting.recompute,
        "bf16": setting.precision == "bfloat16",
        "fp16": setting.precision == "float16",
    }


def bucket(machine: Nodes, sizes: Sizes) -> int:
    """Return a bucket's number of elements: hidden_size² as in the Trainer, or fewer if overlapping
    would need more than a twentieth of the GPU."""
    room = int(machine.gpu_bytes / SHARE / (2 * HALF * OVERLAP))
    wanted = sizes.hidden**2 if sizes.hidden else room
    return max(LEAST, min(wanted, room))


def _of_stage_3(setting: Setting, sizes: Sizes) -> dict:
    """Return the limits for gathered parameters; a lean rung allows only two units at a time."""
    hidden, live = sizes.hidden, 2 * sizes.unit if setting.lean else LIVE
    prefetch = int(0.9 * hidden * hidden) if hidden is not None else sizes.unit
    persist = 10 * (hidden or 1000)
    if setting.lean:
        prefetch, persist = max(1, prefetch // 10), max(1, persist // 10)
    return {
        "stage3_prefetch_bucket_size": prefetch,
        "stage3_param_persistence_threshold": persist,
        "stage3_max_live_parameters": live,
        "stage3_max_reuse_distance": live,
        "sub_group_size": SUB_GROUP,
        "stage3_gather_16bit_weights_on_model_save": True,
    }


def _offload(place: str, nvme_path: str, buffers: dict) -> dict:
    found: dict = {"device": place, "pin_memory": True}
    return found | {"nvme_path": nvme_path, **buffers} if place == "nvme" else found
