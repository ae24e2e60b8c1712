"""Broken configs: what is wrong with each, and the suggestion that sets it right.

Each is a whole config with one mistake; `path` and `level` are the finding's, `word` stands in its
message and `right` in its suggestion.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass

TRAINING = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
}
STAGE_2 = TRAINING | {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
STAGE_3 = TRAINING | {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}


@dataclass(frozen=True)
class Broken:
    name: str
    text: str
    path: str
    level: str
    word: str
    right: str
    world: int | None = None
    arguments: dict | None = None


def changed(base: dict, *drop: str, **more: object) -> dict:
    """A copy with keys put in (`a__b` is b in a) and others taken out (`a.b`)."""
    config = copy.deepcopy(base)
    for path in drop:
        *above, name = path.split(".")
        holder = config
        for part in above:
            holder = holder[part]
        del holder[name]
    for path, value in more.items():
        *above, name = path.split("__")
        holder = config
        for part in above:
            holder = holder.setdefault(part, {})
        holder[name] = copy.deepcopy(value)
    return config


def broken(
    name: str, config: dict | str, path: str, level: str, word: str, right: str, **more: object
) -> Broken:
    text = config if isinstance(config, str) else json.dumps(config, indent=2)
    return Broken(name, text, path, level, word, right, **more)


OFFLOADED = changed(STAGE_3, zero_optimization__offload_optimizer={"device": "cpu"})
SHARDED = "zero_optimization"
BROKEN = [
    # ---- keys that no release has
    broken("british spelling", changed(TRAINING, zero_optimisation={"stage": 2}),
           "zero_optimisation", "error", "zero_optimization", "rename it to zero_optimization"),
    broken("a letter too few", changed(STAGE_2, "gradient_clipping", gradient_cliping=1.0),
           "gradient_cliping", "error", "gradient_clipping", "rename it to gradient_clipping"),
    broken("a level too high", changed(TRAINING, stage=3), "stage", "warning", "zero_optimization",
           "zero_optimization.stage"),
    broken("a level too low", changed(STAGE_2, zero_optimization__gradient_clipping=1.0),
           "zero_optimization.gradient_clipping", "error", "top level", "gradient_clipping"),
    broken("removed", changed(STAGE_2, amp={"enabled": True}), "amp", "error", "removed",
           "take the key out"),
    broken("the Trainer's word for it", changed(STAGE_2, max_grad_norm=1.0), "max_grad_norm",
           "error", "gradient_clipping", "rename it to gradient_clipping"),
    broken("the Trainer's word for the rate",
           changed(STAGE_2, "optimizer.params.lr", optimizer__params__learning_rate=1e-4),
           "optimizer.params.learning_rate", "error", '"lr"', "optimizer.params.lr"),
    # ---- values
    broken("a number as text", changed(STAGE_2, train_batch_size="16"), "train_batch_size", "error",
           "whole number", "write 16"),
    broken("bytes for elements", changed(STAGE_2, zero_optimization__reduce_bucket_size="500MB"),
           "zero_optimization.reduce_bucket_size", "error", "500MB", "250000000"),
    broken("megabytes for elements", changed(STAGE_2, zero_optimization__reduce_bucket_size=500),
           "zero_optimization.reduce_bucket_size", "hint", "too small", "250000000"),
    broken("no section", changed(STAGE_3, zero_optimization__offload_param=False),
           "zero_optimization.offload_param", "error", "an object", '"device": "none"'),
    broken("no such optimizer", changed(STAGE_2, optimizer__type="AdmaW"), "optimizer.type",
           "error", "AdmaW", "AdamW"),
    broken("a list in quotes",
           changed(STAGE_3, zero_optimization__leaf_module={"classes": "['MoE', 'MLP']"}),
           "zero_optimization.leaf_module.classes", "warning", "a list", "quotes"),
    broken("out of range", changed(STAGE_2, zero_optimization__reduce_bucket_size=0),
           "zero_optimization.reduce_bucket_size", "error", "more than 0", "more than 0"),
    # ---- without effect
    broken("of stages 1 and 2", changed(STAGE_3, zero_optimization__allgather_partitions=False),
           "zero_optimization.allgather_partitions", "warning", "stage 3", "take it out"),
    broken("of stage 3", changed(STAGE_2, zero_optimization__stage3_max_live_parameters=10**8),
           "zero_optimization.stage3_max_live_parameters", "warning", "stage 2", "set stage 3"),
    broken("a default of stage 3", changed(STAGE_2, zero_optimization__sub_group_size=1e9),
           "zero_optimization.sub_group_size", "hint", "stage 2", "set stage 3"),
    broken("pinned, and not offloaded",
           changed(STAGE_2, zero_optimization__offload_optimizer={
               "device": "none", "pin_memory": True}),
           "zero_optimization.offload_optimizer.pin_memory", "hint", "no effect", '"cpu"'),
    broken("off", changed(STAGE_2, "bf16", fp16={"loss_scale_window": 500}), "fp16", "warning",
           "enabled", "fp16.enabled"),
    broken("files, and no path", changed(OFFLOADED, aio={"block_size": 1048576}), "aio", "hint",
           "NVMe", "nvme_path"),
    # ---- contradictions
    broken("two precisions", changed(STAGE_2, fp16={"enabled": True}), "fp16.enabled", "error",
           "both", "write false"),
    broken("parameters offloaded at stage 2",
           changed(STAGE_2, zero_optimization__offload_param={"device": "cpu"}),
           "zero_optimization.offload_param", "error", "stage 2", "stage to 3"),
    broken("the triple", changed(STAGE_2, train_batch_size=32), "train_batch_size", "error",
           "4 × 4 × 4 = 64", "write 64", world=4),
    broken("the triple on any number of ranks", changed(STAGE_2, train_batch_size=24),
           "train_batch_size", "error", "multiple", "16"),
    broken("no batch at all", changed(STAGE_2, "train_batch_size", "train_micro_batch_size_per_gpu",
                                      "gradient_accumulation_steps"),
           "", "error", "train_micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu"),
    broken("untested with ZeRO", changed(STAGE_2, optimizer={"type": "SGD", "params": {"lr": 0.1}}),
           "optimizer.type", "error", "SGD", "zero_allow_untested_optimizer"),
    broken("a foreign optimizer offloaded",
           changed(OFFLOADED, zero_allow_untested_optimizer=True,
                   optimizer={"type": "SGD", "params": {"lr": 0.1}}),
           "optimizer.type", "warning", "CPU", "AdamW"),
    broken("no steps", changed(STAGE_2, scheduler={"type": "WarmupDecayLR",
                                                   "params": {"warmup_num_steps": 100}}),
           "scheduler.params", "error", "total_num_steps", "scheduler.params.total_num_steps"),
    broken("no path", changed(STAGE_3, zero_optimization__offload_param={"device": "nvme"}),
           "zero_optimization.offload_param.device", "error", "nvme_path", "nvme_path"),
    broken("clipped twice", changed(STAGE_2, optimizer__params__max_grad_norm=1.0),
           "optimizer.params.max_grad_norm", "error", "max_grad_norm", "gradient_clipping"),
    broken("no type", changed(STAGE_2, "optimizer.type"), "optimizer", "error", "type",
           "optimizer.type"),
    # ---- auto, and the Trainer
    broken("auto of no program", changed(STAGE_2, steps_per_print="auto"), "steps_per_print",
           "error", "no program", "write a value"),
    broken("auto of Accelerate", changed(STAGE_2, zero_optimization__stage="auto"),
           "zero_optimization.stage", "warning", "Accelerate", "write a value"),
    broken("auto that is a default", changed(STAGE_2, zero_optimization__overlap_comm="auto"),
           "zero_optimization.overlap_comm", "warning", "no program", "default"),
    broken("auto without the Trainer", changed(STAGE_2, gradient_clipping="auto"),
           "gradient_clipping", "hint", "Trainer", "write a value"),
    broken("the arguments say otherwise", changed(STAGE_2, optimizer__params__lr=1e-4),
           "optimizer.params.lr", "error", "learning_rate", '"auto"', world=1, arguments={
               "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "bf16": True,
               "learning_rate": 5e-5}),
    broken("two optimizers", changed(STAGE_2, optimizer__params__lr="auto"), "optimizer", "warning",
           "adafactor", "optim", world=1, arguments={
               "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "bf16": True,
               "optim": "adafactor"}),
    broken("a foreign optimizer of the Trainer's offloaded", changed(OFFLOADED, "optimizer"),
           "zero_optimization.offload_optimizer", "error", "adafactor",
           "zero_force_ds_cpu_optimizer", world=1, arguments={
               "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "bf16": True,
               "optim": "adafactor"}),
    # ---- old spellings
    broken("old offload", changed(STAGE_2, zero_optimization__cpu_offload=True),
           "zero_optimization.cpu_offload", "warning", "deprecated", "offload_optimizer"),
    broken("old and new", changed(OFFLOADED, zero_optimization__cpu_offload=True),
           "zero_optimization.cpu_offload", "error", "offload_optimizer", "offload_optimizer"),
    broken("old precision", changed(STAGE_2, "bf16", bfloat16={"enabled": True}), "bfloat16",
           "warning", "deprecated", "bf16"),
    # ---- legal, and dear
    broken("a bucket of 4.5 GB", changed(
        STAGE_2, zero_optimization__reduce_bucket_size=5e8, zero_optimization__overlap_comm=True),
           "zero_optimization.reduce_bucket_size", "hint", "4.5 GB", "2e8"),
    broken("overlapped, at the default", changed(STAGE_2, zero_optimization__overlap_comm=True),
           "zero_optimization.overlap_comm", "hint", "4.5 GB", "2e8"),
    broken("clipped unasked", changed(STAGE_2, "gradient_clipping"), "gradient_clipping", "hint",
           "1.0", "0 for none"),
    broken("a static scale", changed(STAGE_2, "bf16", fp16={"enabled": True, "loss_scale": 128}),
           "fp16.loss_scale", "hint", "static", "0 finds"),
    broken("nothing persists", changed(STAGE_3,
                                       zero_optimization__stage3_param_persistence_threshold=0),
           "zero_optimization.stage3_param_persistence_threshold", "hint", "gathered", "100000"),
    # ---- the file itself
    broken("twice", '{"train_batch_size": 8,\n "train_batch_size": 16}', "train_batch_size",
           "error", "second time", "keep one"),
    broken("a comment", '{\n  "train_batch_size": 8 // of the run\n}', "", "error", "comment",
           "take the comment out"),
    broken("a comma too many", '{"train_batch_size": 8,}', "", "error", "comma",
           "take the comma out"),
    broken("no number", '{"train_batch_size": 8, "gradient_clipping": NaN}', "gradient_clipping",
           "error", "NaN", "finite"),
]  # fmt: skip
