"""More broken configs: two keys that clash, a key that another one needs, a rule of one section."""

from __future__ import annotations

from tests.deepspeed_config.broken import (
    OFFLOADED,
    STAGE_2,
    STAGE_3,
    TRAINING,
    broken,
    changed,
)

FP16 = changed(STAGE_2, "bf16", fp16={"enabled": True})
LEARNING = "data_efficiency__data_sampling__curriculum_learning"
ON = {"data_efficiency__enabled": True, "data_efficiency__data_sampling__enabled": True}
AGREE = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "bf16": True}
DECAY = {"type": "WarmupDecayLR", "params": {"total_num_steps": 1000, "warmup_num_steps": 10}}
LONG = "data_efficiency.data_sampling.curriculum_learning"


MORE = [
    # ---- two keys that clash
    broken("another type of parameters", changed(STAGE_2, data_types={"param_dtype": "fp16"}),
           "data_types.param_dtype", "error", "fp16", 'enable "fp16"'),
    broken("16 bits at stage 0", changed(TRAINING, fp16={
        "enabled": True, "fp16_master_weights_and_grads": True}),
           "fp16.fp16_master_weights_and_grads", "error", "stage", "zero_optimization.stage"),
    broken("states in 16 bits alone", changed(STAGE_2, bf16__bf16_optimizer_states=True),
           "bf16.bf16_optimizer_states", "error", "bf16_master_weights_and_grads",
           "bf16_master_weights_and_grads"),
    broken("autocast of quantized weights",
           changed(STAGE_3, "bf16", torch_autocast={"enabled": True},
                   zero_optimization__zero_quantized_weights=True),
           "torch_autocast.enabled", "error", "quantized", "switch one"),
    broken("autocast of 16 bits", changed(STAGE_2, torch_autocast={"enabled": True}),
           "torch_autocast.enabled", "warning", "bf16", "enable"),
    broken("a window of none", changed(FP16, fp16__loss_scale_window=0), "fp16.loss_scale_window",
           "error", "at least 1", "1000"),
    broken("a sum at stage 3", changed(STAGE_3, gradient_allreduce_op="sum"),
           "gradient_allreduce_op", "error", "stage 3", "mean"),
    broken("a factor that is not asked for", changed(STAGE_2, prescale_gradients=True,
                                                     gradient_predivide_factor=2.0),
           "gradient_predivide_factor", "warning", "no effect", "take it out"),
    broken("a part at stage 2", changed(STAGE_2, zero_optimization__offload_optimizer={
        "device": "cpu", "ratio": 0.5}),
           "zero_optimization.offload_optimizer.ratio", "error", "stage 2", "stage 3"),
    broken("files at stage 2", changed(STAGE_2, zero_optimization__offload_optimizer={
        "device": "nvme", "nvme_path": "/nvme"}),
           "zero_optimization.offload_optimizer.device", "error", "stage 3", "cpu"),
    broken("no norm at stage 3", changed(STAGE_3, gradient_clipping=0,
                                         zero_optimization__compute_grad_norm=False),
           "zero_optimization.compute_grad_norm", "error", "stage 3", "take it out"),
    broken("both spellings", changed(STAGE_3, zero_optimization__prefetch_bucket_size=10**7,
                                     zero_optimization__stage3_prefetch_bucket_size=10**7),
           "zero_optimization.prefetch_bucket_size", "error", "twice", "stage3_prefetch"),
    broken("Lamb with a static scale",
           changed(FP16, "zero_optimization", fp16__loss_scale=128,
                   optimizer={"type": "Lamb", "params": {"lr": 1e-3}}),
           "fp16.loss_scale", "error", "dynamic", '"loss_scale": 0'),
    broken("a class that does not take it", changed(STAGE_2, optimizer__params__foreach=False),
           "optimizer.params.foreach", "error", "FusedAdam", "torch_adam"),
    # ---- keys that another needs
    broken("contiguous, of what", changed(STAGE_2, activation_checkpointing={
        "partition_activations": True, "contiguous_memory_optimization": True}),
           "activation_checkpointing.contiguous_memory_optimization", "warning",
           "number_checkpoints", "number_checkpoints"),
    broken("sharded how far", changed(STAGE_2, "zero_optimization.stage",
                                     zero_optimization__overlap_comm=True),
           "zero_optimization", "warning", "stage", "zero_optimization.stage"),
    broken("offloaded to where", changed(STAGE_3, zero_optimization__offload_param={
        "pin_memory": True}),
           "zero_optimization.offload_param", "warning", "device", '"cpu"'),
    broken("a curriculum of nothing", changed(STAGE_2, **ON, **{f"{LEARNING}__enabled": True}),
           LONG, "error", "curriculum_metrics", "curriculum_metrics"),
    broken("batches of any size", changed(STAGE_2, **ON, **{
        "data_efficiency__data_sampling__dynamic_batching__enabled": True}),
           "data_efficiency.data_sampling.dynamic_batching", "error", "max_tokens", "max_tokens"),
    # ---- optimizers and schedulers
    broken("three decays", changed(STAGE_2, optimizer__params__betas=[0.9, 0.99, 0.999]),
           "optimizer.params.betas", "error", "3 entries", "two numbers"),
    broken("uphill", changed(STAGE_2, optimizer__params__lr=-1e-4), "optimizer.params.lr", "error",
           "-0.0001", "above 0"),
    broken("a rate of ten", changed(STAGE_2, optimizer__params__lr=10), "optimizer.params.lr",
           "hint", "too large", "look at"),
    broken("nothing to unpack", changed(STAGE_2, scheduler={"type": "WarmupLR"}), "scheduler",
           "error", "params", '"params": {}'),
    broken("longer than all", changed(STAGE_2, scheduler=DECAY,
                                      scheduler__params__warmup_num_steps=2000),
           "scheduler.params.warmup_num_steps", "warning", "2000 steps of 1000", "smaller"),
    broken("no step", changed(STAGE_2, scheduler=DECAY, scheduler__params__warmup_num_steps=0),
           "scheduler.params.warmup_num_steps", "error", "at least 1", "1 or more"),
    broken("down first", changed(STAGE_2, scheduler=DECAY, scheduler__params__warmup_min_lr=0.1,
                                 scheduler__params__warmup_max_lr=0.01),
           "scheduler.params.warmup_min_lr", "warning", "falls", "exchange"),
    broken("warmed up how", changed(STAGE_2, scheduler=DECAY,
                                    scheduler__params__warmup_type="liner"),
           "scheduler.params.warmup_type", "warning", "liner", '"linear"'),
    broken("another schedule of the Trainer's", changed(
        STAGE_2, scheduler=DECAY, optimizer__params__lr="auto"), "scheduler", "warning",
           "cosine", "linear", world=1,
           arguments=AGREE | {"lr_scheduler_type": "cosine", "max_steps": 1000,
                              "warmup_steps": 10}),
    # ---- batches
    broken("three ranks share a sequence", changed(STAGE_2, sequence_parallel_size=3),
           "sequence_parallel_size", "error", "multiple", "divide", world=4),
    broken("sixteen over three", changed(STAGE_2, "train_micro_batch_size_per_gpu",
                                         "gradient_accumulation_steps"),
           "train_batch_size", "error", "5 × 1 × 3 = 15", "write 15", world=3),
    # ---- the rest
    broken("left out by null", changed(STAGE_2, steps_per_print=None), "steps_per_print", "hint",
           "null", "take it out"),
    broken("null for a number", changed(STAGE_2, gradient_clipping=None), "gradient_clipping",
           "error", "null", "leave the key out"),
    broken("of the program's own", changed(OFFLOADED, zero_optimization__zenflow={
        "topk_ratio": 0.1, "steps_per_epoch": 10}),
           "zero_optimization.zenflow.steps_per_epoch", "warning", "program", "take the key out"),
    broken("a remark", changed(STAGE_2, _comment="of the first run"), "_comment", "hint", "remark",
           "nothing"),
    broken("a mapped name", changed(STAGE_2, autotuning={
        "enabled": True, "arg_mappings": {"train_micro_batch_size_per_gqu": "--batch"}}),
           "autotuning.arg_mappings.train_micro_batch_size_per_gqu", "warning",
           "train_micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu"),
    broken("ZeRO as it was", changed(TRAINING, zero_optimization=True), "zero_optimization",
           "warning", "old form", '"stage": 1'),
    broken("a static scale's window", changed(FP16, fp16__loss_scale=128,
                                              fp16__loss_scale_window=500),
           "fp16.loss_scale_window", "warning", "static", "loss_scale to 0"),
    broken("a section for a switch", changed(STAGE_2, bf16=True), "bf16", "error", "object",
           '{"enabled": true}'),
    broken("a device for a section", changed(STAGE_3, zero_optimization__offload_param="cpu"),
           "zero_optimization.offload_param", "error", "object", '{"device": "cpu"}'),
]  # fmt: skip
