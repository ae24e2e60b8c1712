"""A rung of the ladder in DeepSpeed's words, ready to use: its JSON, and the Trainer's arguments.

Every size is written out, or left "auto" where the Trainer is to resolve it; no key stands there
that has no effect at its stage. Lesson 13.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.estimate.deepspeed import HALF, OVERLAP
from course_lib.estimate.ladder import LIVE, Machine
from course_lib.estimate.setting import Setting

AUTO = "auto"
SHARE = 20  # the buckets of an overlapped reduction get a GPU's bytes by this
LEAST = 1000  # elements of a bucket, of the smallest GPU that is spoken of
LR, BETAS, EPS, DECAY, CLIP = 5e-5, [0.9, 0.999], 1e-8, 0.0, 1.0  # the Trainer's own defaults
SUB_GROUP = 10**9  # elements that the optimizer updates at a time
FP16 = {  # a scale that is looked for, from 2^16 on
    "enabled": True, "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16,
    "hysteresis": 2, "min_loss_scale": 1,
}  # fmt: skip
AIO = {
    "block_size": 262144, "queue_depth": 32, "intra_op_parallelism": 1, "single_submit": False,
    "overlap_events": True,
}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """Of a model: its hidden size, None where a config.json says none, the parameters of one unit
    of stage 3, and those of its largest layer."""

    hidden: int | None
    unit: int
    largest: int


def deepspeed(
    setting: Setting,
    machine: Machine,
    sizes: Sizes,
    *,
    trainer: bool = False,
    nvme_path: str = "/local_nvme",
    tp: int = 1,
) -> dict:
    """The file that `deepspeed.initialize(config=…)` takes; with `trainer`, for TrainingArguments'
    `deepspeed=`, "auto" where that resolves it. `tp` ranks share a model (AutoTP)."""

    def known(value: object) -> object:
        return AUTO if trainer else value

    config: dict = {
        "train_batch_size": known(setting.rows * setting.accumulate * machine.world),
        "train_micro_batch_size_per_gpu": known(setting.rows),
        "gradient_accumulation_steps": known(setting.accumulate),
        "gradient_clipping": known(CLIP),
    }
    config |= _precision(setting, trainer)
    params = {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": DECAY}
    params = {key: known(value) for key, value in params.items()}
    config["optimizer"] = {"type": "AdamW", "params": params}
    zero: dict = {"stage": setting.stage}
    if setting.stage:
        zero |= _buckets(setting, machine, sizes, trainer)
    if setting.stage == 3:
        zero |= _of_stage_3(setting, sizes, trainer)
    for section, place in (
        ("offload_optimizer", setting.optimizer),
        ("offload_param", setting.parameters),
    ):
        if place is not None:
            zero[section] = _offload(section, place, sizes, nvme_path)
    if setting.stage in (1, 2) and setting.optimizer and machine.world > 1:
        zero["round_robin_gradients"] = True  # ranks share the copying to the host
    config["zero_optimization"] = zero
    if "nvme" in (setting.optimizer, setting.parameters):
        config["aio"] = dict(AIO)
    if tp > 1:  # DeepSpeed multiplies by all ranks, those of one model too: it derives the product
        del config["train_batch_size"]
        config["tensor_parallel"] = {"autotp_size": tp}
    return config


def training_arguments(setting: Setting, config: str) -> dict:
    """The rung as TrainingArguments, as JSON: what a DeepSpeed file does not say is here too."""
    return {
        "deepspeed": config,
        "per_device_train_batch_size": setting.rows,
        "gradient_accumulation_steps": setting.accumulate,
        "gradient_checkpointing": setting.recompute,
        "bf16": setting.precision == "bfloat16",
        "fp16": setting.precision == "float16",
    }


def bucket(machine: Machine, sizes: Sizes) -> int:
    """Elements of a bucket: hidden_size², as the Trainer takes, or fewer where overlapping would
    set aside more than a twentieth of the GPU."""
    room = int(machine.gpu_bytes / SHARE / (2 * HALF * OVERLAP))
    wanted = sizes.hidden**2 if sizes.hidden else room
    return max(LEAST, min(wanted, room))


def _precision(setting: Setting, trainer: bool) -> dict:
    if trainer:
        return {"bf16": {"enabled": AUTO}, "fp16": {**FP16, "enabled": AUTO}}
    if setting.precision == "float16":
        return {"fp16": dict(FP16)}
    return {"bf16": {"enabled": True}} if setting.precision == "bfloat16" else {}


def _buckets(setting: Setting, machine: Machine, sizes: Sizes, trainer: bool) -> dict:
    elements = bucket(machine, sizes)
    same = trainer and sizes.hidden is not None and elements == sizes.hidden**2
    found: dict = {
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": AUTO if same else elements,
    }
    if setting.stage < 3:
        found |= {"reduce_scatter": True, "allgather_bucket_size": elements}
    return found


def _of_stage_3(setting: Setting, sizes: Sizes, trainer: bool) -> dict:
    """What is whole when. Lean: the unit in use and the one ahead, and nothing for later."""
    live = 2 * sizes.unit if setting.lean else LIVE
    prefetch, persist = sizes.unit, 10 * (sizes.hidden or 1000)
    if sizes.hidden is not None:
        prefetch = int(0.9 * sizes.hidden * sizes.hidden)
    if setting.lean:
        prefetch, persist = max(1, prefetch // 10), max(1, persist // 10)
    same = trainer and sizes.hidden is not None and not setting.lean
    return {
        "stage3_prefetch_bucket_size": AUTO if same else prefetch,
        "stage3_param_persistence_threshold": AUTO if same else persist,
        "stage3_max_live_parameters": live,
        "stage3_max_reuse_distance": live,
        "sub_group_size": SUB_GROUP,
        "stage3_gather_16bit_weights_on_model_save": True,
    }


def _offload(section: str, place: str, sizes: Sizes, nvme_path: str) -> dict:
    found: dict = {"device": place, "pin_memory": True}
    if place == "nvme":
        found["nvme_path"] = nvme_path
        if section == "offload_param":  # a buffer takes the largest parameter
            found |= {"buffer_count": 5, "buffer_size": max(10**8, sizes.largest)}
        else:  # parameter, gradient and two moments
            found |= {"buffer_count": 4, "pipeline_read": True, "pipeline_write": True}
    return found
