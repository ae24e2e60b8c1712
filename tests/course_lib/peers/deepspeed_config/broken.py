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


def zero(base: dict, **more: object) -> dict:
    """A copy with keys put into its section "zero_optimization"."""
    return changed(base, **{f"zero_optimization__{name}": value for name, value in more.items()})


def broken(
    name: str, config: dict | str, path: str, level: str, word: str, right: str, **more: object
) -> Broken:
    text = config if isinstance(config, str) else json.dumps(config, indent=2)
    return Broken(name, text, path, level, word, right, **more)


FP16 = changed(STAGE_2, "bf16", fp16={"enabled": True})
LEARNING = "data_efficiency__data_sampling__curriculum_learning"
ON = {"data_efficiency__enabled": True, "data_efficiency__data_sampling__enabled": True}
AGREE = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "bf16": True}
DECAY = {"type": "WarmupDecayLR", "params": {"total_num_steps": 1000, "warmup_num_steps": 10}}
LONG = "data_efficiency.data_sampling.curriculum_learning"
OFFLOADED = changed(STAGE_3, zero_optimization__offload_optimizer={"device": "cpu"})
BROKEN = [
    # ---- keys that no release has
    broken("british spelling", changed(TRAINING, zero_optimisation={"stage": 2}),
           "zero_optimisation", "error", "zero_optimization", "rename it to zero_optimization"),
    broken("a letter too few", changed(STAGE_2, "gradient_clipping", gradient_cliping=1.0),
           "gradient_cliping", "error", "gradient_clipping", "rename it to gradient_clipping"),
    broken("a level too high", changed(TRAINING, stage=3), "stage", "warning", "zero_optimization",
           "zero_optimization.stage"),
    broken("a level too low", zero(STAGE_2, gradient_clipping=1.0),
           "zero_optimization.gradient_clipping", "error", "top level", "gradient_clipping"),
    broken("removed", changed(STAGE_2, amp={"enabled": True}), "amp", "error", "removed",
           "remove the key"),
    broken("the Trainer's word for it", changed(STAGE_2, max_grad_norm=1.0), "max_grad_norm",
           "error", "gradient_clipping", "rename it to gradient_clipping"),
    broken("the Trainer's word for the rate",
           changed(STAGE_2, "optimizer.params.lr", optimizer__params__learning_rate=1e-4),
           "optimizer.params.learning_rate", "error", '"lr"', "optimizer.params.lr"),
    # ---- values
    broken("a number as text", changed(STAGE_2, train_batch_size="16"), "train_batch_size", "error",
           "whole number", "write 16"),
    broken("bytes for elements", zero(STAGE_2, reduce_bucket_size="500MB"),
           "zero_optimization.reduce_bucket_size", "error", "500MB", "250000000"),
    broken("megabytes for elements", zero(STAGE_2, reduce_bucket_size=500),
           "zero_optimization.reduce_bucket_size", "hint", "implausibly small", "250000000"),
    broken("no section", zero(STAGE_3, offload_param=False), "zero_optimization.offload_param",
           "error", "an object", '"device": "none"'),
    broken("no such optimizer", changed(STAGE_2, optimizer__type="AdmaW"), "optimizer.type",
           "error", "AdmaW", "AdamW"),
    broken("a list in quotes", zero(STAGE_3, leaf_module={"classes": "['MoE', 'MLP']"}),
           "zero_optimization.leaf_module.classes", "warning", "a list", "quotes"),
    broken("out of range", zero(STAGE_2, reduce_bucket_size=0),
           "zero_optimization.reduce_bucket_size", "error", "more than 0", "more than 0"),
    # ---- without effect
    broken("of stages 1 and 2", zero(STAGE_3, allgather_partitions=False),
           "zero_optimization.allgather_partitions", "warning", "stage 3", "remove it"),
    broken("of stage 3", zero(STAGE_2, stage3_max_live_parameters=10**8),
           "zero_optimization.stage3_max_live_parameters", "warning", "stage 2", "set stage 3"),
    broken("a default of stage 3", zero(STAGE_2, sub_group_size=1e9),
           "zero_optimization.sub_group_size", "hint", "stage 2", "set stage 3"),
    broken("pinned, and not offloaded",
           zero(STAGE_2, offload_optimizer={"device": "none", "pin_memory": True}),
           "zero_optimization.offload_optimizer.pin_memory", "hint", "no effect", '"cpu"'),
    broken("off", changed(STAGE_2, "bf16", fp16={"loss_scale_window": 500}), "fp16", "warning",
           "enabled", "fp16.enabled"),
    broken("files, and no path", changed(OFFLOADED, aio={"block_size": 1048576}), "aio", "hint",
           "NVMe", "nvme_path"),
    # ---- contradictions
    broken("two precisions", changed(STAGE_2, fp16={"enabled": True}), "fp16.enabled", "error",
           "both", "write false"),
    broken("parameters offloaded at stage 2", zero(STAGE_2, offload_param={"device": "cpu"}),
           "zero_optimization.offload_param", "error", "stage 2", "stage to 3"),
    broken("the triple", changed(STAGE_2, train_batch_size=32), "train_batch_size", "error",
           "4 × 4 × 4 = 64", "write 64", world=4),
    broken("the triple on any number of ranks", changed(STAGE_2, train_batch_size=24),
           "train_batch_size", "error", "multiple", "16"),
    broken("no batch at all",
           changed(STAGE_2, "train_batch_size", "train_micro_batch_size_per_gpu",
               "gradient_accumulation_steps"), "", "error", "train_micro_batch_size_per_gpu",
           "train_micro_batch_size_per_gpu"),
    broken("untested with ZeRO", changed(STAGE_2, optimizer={"type": "SGD", "params": {"lr": 0.1}}),
           "optimizer.type", "error", "SGD", "zero_allow_untested_optimizer"),
    broken("a foreign optimizer offloaded",
           changed(OFFLOADED, zero_allow_untested_optimizer=True, optimizer={"type": "SGD",
               "params": {"lr": 0.1}}), "optimizer.type", "warning", "CPU", "AdamW"),
    broken("no steps",
           changed(STAGE_2, scheduler={"type": "WarmupDecayLR",
               "params": {"warmup_num_steps": 100}}), "scheduler.params", "error",
           "total_num_steps", "scheduler.params.total_num_steps"),
    broken("no path", zero(STAGE_3, offload_param={"device": "nvme"}),
           "zero_optimization.offload_param.device", "error", "nvme_path", "nvme_path"),
    broken("clipped twice", changed(STAGE_2, optimizer__params__max_grad_norm=1.0),
           "optimizer.params.max_grad_norm", "error", "max_grad_norm", "gradient_clipping"),
    broken("no type", changed(STAGE_2, "optimizer.type"), "optimizer", "error", "type",
           "optimizer.type"),
    # ---- auto, and the Trainer
    broken("auto of no program", changed(STAGE_2, steps_per_print="auto"), "steps_per_print",
           "error", "no program", "write a value"),
    broken("auto of Accelerate", zero(STAGE_2, stage="auto"), "zero_optimization.stage", "warning",
           "Accelerate", "write a value"),
    broken("auto that is a default", zero(STAGE_2, overlap_comm="auto"),
           "zero_optimization.overlap_comm", "warning", "no program", "default"),
    broken("auto without the Trainer", changed(STAGE_2, gradient_clipping="auto"),
           "gradient_clipping", "hint", "Trainer", "write a value"),
    broken("the arguments say otherwise", changed(STAGE_2, optimizer__params__lr=1e-4),
           "optimizer.params.lr", "error", "learning_rate", '"auto"', world=1,
           arguments=AGREE | {"learning_rate": 5e-5}),
    broken("two optimizers", changed(STAGE_2, optimizer__params__lr="auto"), "optimizer", "warning",
           "adafactor", "optim", world=1, arguments=AGREE | {"optim": "adafactor"}),
    broken("a foreign optimizer of the Trainer's offloaded", changed(OFFLOADED, "optimizer"),
           "zero_optimization.offload_optimizer", "error", "adafactor",
           "zero_force_ds_cpu_optimizer", world=1, arguments=AGREE | {"optim": "adafactor"}),
    # ---- old spellings
    broken("old offload", zero(STAGE_2, cpu_offload=True), "zero_optimization.cpu_offload",
           "warning", "deprecated", "offload_optimizer"),
    broken("old and new", zero(OFFLOADED, cpu_offload=True), "zero_optimization.cpu_offload",
           "error", "offload_optimizer", "offload_optimizer"),
    broken("old precision", changed(STAGE_2, "bf16", bfloat16={"enabled": True}), "bfloat16",
           "warning", "deprecated", "bf16"),
    # ---- legal, and dear
    broken("a bucket of 4.5 GB", zero(STAGE_2, reduce_bucket_size=5e8, overlap_comm=True),
           "zero_optimization.reduce_bucket_size", "hint", "4.5 GB", "2e8"),
    broken("overlapped, at the default", zero(STAGE_2, overlap_comm=True),
           "zero_optimization.overlap_comm", "hint", "4.5 GB", "2e8"),
    broken("clipped unasked", changed(STAGE_2, "gradient_clipping"), "gradient_clipping", "hint",
           "1.0", "0 for no clipping"),
    broken("a static scale", changed(STAGE_2, "bf16", fp16={"enabled": True, "loss_scale": 128}),
           "fp16.loss_scale", "hint", "static", "0 for a dynamic"),
    broken("nothing persists", zero(STAGE_3, stage3_param_persistence_threshold=0),
           "zero_optimization.stage3_param_persistence_threshold", "hint", "gathered", "100000"),
    # ---- the file itself
    broken("twice", '{"train_batch_size": 8,\n "train_batch_size": 16}', "train_batch_size",
           "error", "second time", "keep one"),
    broken("a comment", '{\n  "train_batch_size": 8 // of the run\n}', "", "error", "comment",
           "remove the comment"),
    broken("a comma too many", '{"train_batch_size": 8,}', "", "error", "comma",
           "remove the comma"),
    broken("no number", '{"train_batch_size": 8, "gradient_clipping": NaN}', "gradient_clipping",
           "error", "NaN", "finite"),
    # ---- two keys that clash
    broken("another type of parameters", changed(STAGE_2, data_types={"param_dtype": "fp16"}),
           "data_types.param_dtype", "error", "fp16", 'enable "fp16"'),
    broken("16 bits at stage 0",
           changed(TRAINING, fp16={"enabled": True, "fp16_master_weights_and_grads": True}),
           "fp16.fp16_master_weights_and_grads", "error", "stage", "zero_optimization.stage"),
    broken("states in 16 bits alone", changed(STAGE_2, bf16__bf16_optimizer_states=True),
           "bf16.bf16_optimizer_states", "error", "bf16_master_weights_and_grads",
           "bf16_master_weights_and_grads"),
    broken("autocast of quantized weights",
           changed(STAGE_3, "bf16", torch_autocast={"enabled": True},
               zero_optimization__zero_quantized_weights=True), "torch_autocast.enabled", "error",
           "quantized", "switch one"),
    broken("autocast of 16 bits", changed(STAGE_2, torch_autocast={"enabled": True}),
           "torch_autocast.enabled", "warning", "bf16", "enable"),
    broken("a window of none", changed(FP16, fp16__loss_scale_window=0), "fp16.loss_scale_window",
           "error", "at least 1", "1000"),
    broken("a sum at stage 3", changed(STAGE_3, gradient_allreduce_op="sum"),
           "gradient_allreduce_op", "error", "stage 3", "mean"),
    broken("a factor that is not asked for",
           changed(STAGE_2, prescale_gradients=True, gradient_predivide_factor=2.0),
           "gradient_predivide_factor", "warning", "no effect", "remove it"),
    broken("a part at stage 2", zero(STAGE_2, offload_optimizer={"device": "cpu", "ratio": 0.5}),
           "zero_optimization.offload_optimizer.ratio", "error", "stage 2", "stage 3"),
    broken("files at stage 2",
           zero(STAGE_2, offload_optimizer={"device": "nvme", "nvme_path": "/nvme"}),
           "zero_optimization.offload_optimizer.device", "error", "stage 3", "cpu"),
    broken("no norm at stage 3",
           changed(STAGE_3, gradient_clipping=0, zero_optimization__compute_grad_norm=False),
           "zero_optimization.compute_grad_norm", "error", "stage 3", "remove it"),
    broken("both spellings",
           zero(STAGE_3, prefetch_bucket_size=10**7, stage3_prefetch_bucket_size=10**7),
           "zero_optimization.prefetch_bucket_size", "error", "twice", "stage3_prefetch"),
    broken("Lamb with a static scale",
           changed(FP16, "zero_optimization", fp16__loss_scale=128, optimizer={"type": "Lamb",
               "params": {"lr": 1e-3}}), "fp16.loss_scale", "error", "dynamic", '"loss_scale": 0'),
    broken("a class that does not take it", changed(STAGE_2, optimizer__params__foreach=False),
           "optimizer.params.foreach", "error", "FusedAdam", "torch_adam"),
    # ---- keys that another needs
    broken("contiguous, of what",
           changed(STAGE_2, activation_checkpointing={"partition_activations": True,
               "contiguous_memory_optimization": True}),
           "activation_checkpointing.contiguous_memory_optimization", "warning",
           "number_checkpoints", "number_checkpoints"),
    broken("sharded how far",
           changed(STAGE_2, "zero_optimization.stage", zero_optimization__overlap_comm=True),
           "zero_optimization", "warning", "stage", "zero_optimization.stage"),
    broken("offloaded to where", zero(STAGE_3, offload_param={"pin_memory": True}),
           "zero_optimization.offload_param", "warning", "device", '"cpu"'),
    broken("a curriculum of nothing", changed(STAGE_2, **ON, **{f"{LEARNING}__enabled": True}),
           LONG, "error", "curriculum_metrics", "curriculum_metrics"),
    broken("batches of any size",
           changed(STAGE_2, **ON,
               **{"data_efficiency__data_sampling__dynamic_batching__enabled": True}),
           "data_efficiency.data_sampling.dynamic_batching", "error", "max_tokens", "max_tokens"),
    # ---- optimizers and schedulers
    broken("three decays", changed(STAGE_2, optimizer__params__betas=[0.9, 0.99, 0.999]),
           "optimizer.params.betas", "error", "3 entries", "two numbers"),
    broken("uphill", changed(STAGE_2, optimizer__params__lr=-1e-4), "optimizer.params.lr", "error",
           "-0.0001", "a positive"),
    broken("a rate of ten", changed(STAGE_2, optimizer__params__lr=10), "optimizer.params.lr",
           "hint", "implausibly large", "check"),
    broken("nothing to unpack", changed(STAGE_2, scheduler={"type": "WarmupLR"}), "scheduler",
           "error", "params", '"params": {}'),
    broken("longer than all",
           changed(STAGE_2, scheduler=DECAY, scheduler__params__warmup_num_steps=2000),
           "scheduler.params.warmup_num_steps", "warning", "the run has 1000", "smaller"),
    broken("no step", changed(STAGE_2, scheduler=DECAY, scheduler__params__warmup_num_steps=0),
           "scheduler.params.warmup_num_steps", "error", "at least 1", "1 or more"),
    broken("down first",
           changed(STAGE_2, scheduler=DECAY, scheduler__params__warmup_min_lr=0.1,
               scheduler__params__warmup_max_lr=0.01), "scheduler.params.warmup_min_lr", "warning",
           "falls", "exchange"),
    broken("warmed up how",
           changed(STAGE_2, scheduler=DECAY, scheduler__params__warmup_type="liner"),
           "scheduler.params.warmup_type", "warning", "liner", '"linear"'),
    broken("another schedule of the Trainer's",
           changed(STAGE_2, scheduler=DECAY, optimizer__params__lr="auto"), "scheduler", "warning",
           "cosine", "linear", world=1,
           arguments=AGREE | {"lr_scheduler_type": "cosine", "max_steps": 1000,
               "warmup_steps": 10}),
    # ---- batches
    broken("three ranks share a sequence", changed(STAGE_2, sequence_parallel_size=3),
           "sequence_parallel_size", "error", "multiple", "divisor", world=4),
    broken("no rank has a sequence", changed(STAGE_2, sequence_parallel_size=0),
           "sequence_parallel_size", "error", "at least 1", "at least 1", world=4),
    broken("sixteen over three",
           changed(STAGE_2, "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
           "train_batch_size", "error", "5 × 1 × 3 = 15", "write 15", world=3),
    # ---- the rest
    broken("left out by null", changed(STAGE_2, steps_per_print=None), "steps_per_print", "hint",
           "null", "remove it"),
    broken("null for a number", changed(STAGE_2, gradient_clipping=None), "gradient_clipping",
           "error", "null", "remove the key"),
    broken("of the program's own",
           zero(OFFLOADED, zenflow={"topk_ratio": 0.1, "steps_per_epoch": 10}),
           "zero_optimization.zenflow.steps_per_epoch", "warning", "program", "remove the key"),
    broken("a remark", changed(STAGE_2, _comment="of the first run"), "_comment", "hint", "remark",
           "nothing"),
    broken("a mapped name",
           changed(STAGE_2, autotuning={"enabled": True,
               "arg_mappings": {"train_micro_batch_size_per_gqu": "--batch"}}),
           "autotuning.arg_mappings.train_micro_batch_size_per_gqu", "warning",
           "train_micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu"),
    broken("ZeRO as it was", changed(TRAINING, zero_optimization=True), "zero_optimization",
           "warning", "old form", '"stage": 1'),
    broken("a static scale's window",
           changed(FP16, fp16__loss_scale=128, fp16__loss_scale_window=500),
           "fp16.loss_scale_window", "warning", "static", "loss_scale to 0"),
    broken("a section for a switch", changed(STAGE_2, bf16=True), "bf16", "error", "object",
           '{"enabled": true}'),
    broken("a device for a section", zero(STAGE_3, offload_param="cpu"),
           "zero_optimization.offload_param", "error", "object", '{"device": "cpu"}'),
]  # fmt: skip
