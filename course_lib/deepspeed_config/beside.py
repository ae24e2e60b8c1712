"""What DeepSpeed reads outside its config models, and what its code says of those keys' values.

A default of None says nothing of a type, and some sections are handed on unread. Each entry names
a file of DeepSpeed's; one whose key that file does not have is left out of a release's keys.
Lesson 13.
"""

from __future__ import annotations

CONFIG, CONSTANTS = "runtime/config.py", "runtime/constants.py"
DATA = "runtime/data_pipeline/constants.py"
TUNING, TUNER = "autotuning/constants.py", "autotuning/autotuner.py"
POINTS = "runtime/model_checkpointing/constants.py"
CUT = "module_inject/autotp_config.py"
LEAVES = "runtime/zero/leaf_module_config.py"
PRECISION, FLOW = "runtime/precision_config.py", "runtime/zenflow/zenflow_config.py"
EXPERTS = "module_inject/auto_ep_config.py"

COUNT = {"type": "integer", "minimum": 1}
WHOLE = {"type": "integer"}
MANY = {"type": "integer", "minimum": 0}
NUMBER = {"type": "number"}
YES = {"type": "boolean"}
TEXT = {"type": "text"}
PATH = {"type": "text", "null": True}
LIST = {"type": "list"}
NUMBERS = {"type": "list", "items": {"type": "integer"}}
SECTION = {"type": "object"}
TEXTS = {"type": "union", "of": [{"type": "list", "items": TEXT}, TEXT]}  # one, or several
FREE = {"type": "object", "section": {"open": True, "keys": {}}}
# Which argument of a script sets which key; a user may name others.
MAPPED = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
NAMES = {"type": "object", "null": True,
         "section": {"open": True, "keys": dict.fromkeys((*MAPPED, "*"), TEXT)}}  # fmt: skip
ANY = {"type": "any"}
WIDTH = {"type": "choice", "choices": ["fp32", "fp16", "bf16"], "fold": True, "null": True}
DTYPES = {
    "type": "choice", "null": True,
    "choices": ["torch.float16", "fp16", "float16", "half", "torch.float32", "fp32", "float32",
                "float", "torch.int8", "int8", "torch.bfloat16", "bf16", "bfloat16"],
}  # fmt: skip


def choice(*values: str, fold: bool = False, null: bool = False) -> dict:
    kind = {"type": "choice", "choices": list(values)}
    return kind | ({"fold": True} if fold else {}) | ({"null": True} if null else {})


# Path → (the file that knows the key, its kind). Sections stand before what is in them.
KINDS: dict[str, tuple[str, dict]] = {
    "train_batch_size": (CONSTANTS, COUNT),
    "train_micro_batch_size_per_gpu": (CONSTANTS, COUNT),
    "gradient_accumulation_steps": (CONSTANTS, COUNT),
    "steps_per_print": (CONSTANTS, {"type": "integer", "null": True}),
    "communication_data_type": (CONSTANTS, WIDTH),
    "seq_parallel_communication_data_type": (CONSTANTS, WIDTH),
    "gradient_allreduce_op": (CONSTANTS, choice("mean", "sum", fold=True)),
    "gradient_clipping": (CONSTANTS, {"type": "number", "minimum": 0}),
    "gradient_predivide_factor": (CONSTANTS, {"type": "number", "above": 0}),
    "vocabulary_size": (CONSTANTS, {**COUNT, "null": True}),
    "sequence_parallel_size": (CONFIG, COUNT),
    "allgather_size": ("runtime/zero/config.py", MANY),
    "log_level": (CONSTANTS, choice(
        "debug", "info", "warning", "error", "critical", fold=True, null=True)),
    "aio": ("runtime/swap_tensor/constants.py", {"type": "object", "null": True}),
    "bf16": (PRECISION, {"type": "object", "null": True}),
    "expert_parallel": (CONFIG, {"type": "object", "null": True}),
    "optimizer": (CONSTANTS, SECTION),
    "optimizer.type": (CONSTANTS, TEXT),
    "optimizer.params": (CONSTANTS, SECTION),
    "optimizer.legacy_fusion": (CONSTANTS, YES),
    "scheduler": (CONSTANTS, SECTION),
    "scheduler.type": (CONSTANTS, TEXT),
    "scheduler.params": (CONSTANTS, SECTION),
    "torch_autocast.dtype": (CONSTANTS, DTYPES),
    "torch_autocast.lower_precision_safe_modules": (CONSTANTS, {
        "type": "list", "items": TEXT, "null": True}),
    "activation_checkpointing.number_checkpoints": (
        "runtime/activation_checkpointing/config.py", {**COUNT, "null": True}),
    "flops_profiler.output_file": ("profiling/constants.py", PATH),
    "pipeline.stages": (CONFIG, {"type": "union", "of": [WHOLE, choice("auto")]}),
    "data_types.grad_accum_dtype": (CONSTANTS, DTYPES),
    "data_types.param_dtype": (CONSTANTS, DTYPES),
    "data_types.buffer_dtype": (CONSTANTS, DTYPES),
    "data_types.keep_in_fp32_modules": (CONSTANTS, {
        "type": "union", "of": [choice("auto"), {"type": "list", "items": TEXT}]}),
    "checkpoint.tag_validation": (CONSTANTS, choice("Warn", "Ignore", "Fail", fold=True)),
    "checkpoint.writer": (POINTS, {"type": "object", "null": True}),
    "checkpoint.writer.type": (POINTS, choice("MOCK", "PYTHON", "FAST", fold=True, null=True)),
    "checkpoint.writer.data_parallel": (POINTS, choice(
        "REPLICA", "SOCKET", "MACHINE", fold=True, null=True)),
    "datastates_ckpt": ("datastates/config.py", ANY | FREE),
    "autotuning.metric": (TUNING, choice("latency", "throughput", "flops", "forward", "step")),
    "autotuning.tuner_type": (TUNING, choice("gridsearch", "random", "model_based")),
    "autotuning.metric_path": (TUNING, PATH),
    "autotuning.model_info_path": (TUNING, PATH),
    "autotuning.max_train_batch_size": (TUNING, {**COUNT, "null": True}),
    "autotuning.arg_mappings": (TUNING, NAMES),
    "autotuning.model_info": (TUNING, {"type": "object", "null": True}),
    "autotuning.model_info.num_params": (TUNING, {**COUNT, "null": True}),
    "autotuning.model_info.hidden_size": (TUNING, {**COUNT, "null": True}),
    "autotuning.model_info.num_layers": (TUNING, {**COUNT, "null": True}),
    # Null is no false where the two are joined with |.
    "wall_clock_breakdown": (CONSTANTS, {"type": "boolean", "no_null": True}),
    "flops_profiler.enabled": ("profiling/constants.py", {"type": "boolean", "no_null": True}),
    "checkpoint.parallel_write.pipeline_stage": (CONSTANTS, {"type": "boolean", "no_null": True}),
    # What validators add to a model's own types.
    "fp16.loss_scale": (PRECISION, {"type": "number", "minimum": 0, "no_bool": True}),
    "fp16.loss_scale_window": (PRECISION, {"type": "integer", "no_bool": True}),
    "fp16.min_loss_scale": (PRECISION, {"type": "integer", "no_bool": True}),
    "zero_optimization.leaf_module": ("runtime/zero/config.py", {"type": "object", "null": True}),
    "zero_optimization.leaf_module.classes": (LEAVES, TEXTS),
    "zero_optimization.leaf_module.names": (LEAVES, TEXTS),
    "zero_optimization.leaf_module.name_suffixes": (LEAVES, TEXTS),
    "zero_optimization.zenflow.select_strategy": (FLOW, choice("auto", "step", "epoch")),
    "zero_optimization.zenflow.select_interval": (FLOW, {
        "type": "union", "exact": True, "of": [choice("auto"), WHOLE]}),
    "zero_optimization.zenflow.update_interval": (FLOW, {
        "type": "union", "exact": True, "of": [choice("auto"), WHOLE], "minimum": 1}),
    "expert_parallel.preset_model": (EXPERTS, PATH),
    "expert_parallel.moe_layer_pattern": (EXPERTS, PATH),
    "expert_parallel.expert_pattern": (EXPERTS, PATH),
    "expert_parallel.router_pattern": (EXPERTS, PATH),
    "expert_parallel.expert_w1": (EXPERTS, PATH),
    "expert_parallel.expert_w2": (EXPERTS, PATH),
    "expert_parallel.expert_w3": (EXPERTS, PATH),
    "expert_parallel.num_experts_attr": (EXPERTS, PATH),
    "expert_parallel.top_k_attr": (EXPERTS, PATH),
    "expert_parallel.shared_experts_pattern": (EXPERTS, PATH),
    "expert_parallel.shared_experts_gate_pattern": (EXPERTS, PATH),
    "expert_parallel.expert_activation": (EXPERTS, PATH),
    "expert_parallel.top_k": (EXPERTS, {"type": "union", "of": [WHOLE, choice("auto")]}),
    "expert_parallel.routed_scaling_factor": (EXPERTS, {
        "type": "union", "of": [NUMBER, choice("auto")]}),
    "expert_parallel.route_norm": (EXPERTS, {"type": "boolean", "null": True}),
    "expert_parallel.has_shared_experts": (EXPERTS, {"type": "boolean", "null": True}),
    "expert_parallel.num_expert_groups": (EXPERTS, {**COUNT, "null": True}),
    "expert_parallel.num_limited_groups": (EXPERTS, {**COUNT, "null": True}),
    "expert_parallel.score_apply": (EXPERTS, choice("auto", "pre", "post")),
    "expert_parallel.score_func": (EXPERTS, choice("auto", "softmax", "sigmoid")),
    "expert_parallel.comm_backend": (EXPERTS, choice("comm", "deepep")),
    "expert_parallel.gate_up_impl": (EXPERTS, choice("separate", "fused")),
    "expert_parallel.row_weighting_impl": (EXPERTS, choice("auto", "eager", "fused")),
    "expert_parallel.combine_impl": (EXPERTS, choice(
        "auto", "weighted_sum", "fused_weighted_sum", "legacy_bmm")),
    "expert_parallel.load_balance_coeff": (EXPERTS, {"type": "any", "null": True}),
    "tensor_parallel.partition_config": (CUT, {"type": "object", "null": True}),
    "tensor_parallel.partition_config.use_default_specs": (CUT, YES),
    "tensor_parallel.partition_config.strict_mode": (CUT, YES),
    "tensor_parallel.partition_config.tp_size": (CUT, COUNT),
    "tensor_parallel.partition_config.embedding_partition_dim": (CUT, WHOLE),
    "tensor_parallel.partition_config.lm_head_patterns": (CUT, LIST),
    "tensor_parallel.partition_config.layer_specs": (CUT, LIST),
    "weight_quantization.quantized_initialization": ("inference/config.py", FREE),
    "weight_quantization.post_init_quant": ("inference/config.py", FREE),
    "pipeline.partition": (CONFIG, TEXT),
}  # fmt: skip

_SAMPLING = "data_efficiency.data_sampling"
_ROUTING = "data_efficiency.data_routing.random_ltd"
_METRIC = f"{_SAMPLING}.curriculum_learning.curriculum_metrics.*"

# `*` stands for a name that the user chooses.
DATA_EFFICIENCY: dict[str, dict] = {
    f"{_SAMPLING}.curriculum_learning.data_cluster_path": TEXT,
    f"{_SAMPLING}.curriculum_learning.curriculum_metrics": SECTION,
    _METRIC: SECTION,
    f"{_METRIC}.index_to_sample_path": TEXT,
    f"{_METRIC}.index_to_metric_path": TEXT,
    f"{_METRIC}.difficulty_type": choice("value", "percentile"),
    f"{_METRIC}.clustering_type": choice("single_cluster", "schedule_based"),
    f"{_METRIC}.min_difficulty": WHOLE,
    f"{_METRIC}.max_difficulty": WHOLE,
    f"{_METRIC}.schedule_type": choice("fixed_linear", "fixed_root", "fixed_discrete", "custom"),
    f"{_METRIC}.schedule_config": SECTION,
    f"{_METRIC}.schedule_config.total_curriculum_step": COUNT,
    f"{_METRIC}.schedule_config.difficulty_step": COUNT,
    f"{_METRIC}.schedule_config.root_degree": NUMBER,
    f"{_METRIC}.schedule_config.difficulty": LIST,
    f"{_METRIC}.schedule_config.max_step": LIST,
    f"{_SAMPLING}.dynamic_batching.metrics_path": TEXT,
    f"{_SAMPLING}.dynamic_batching.max_tokens": COUNT,
    f"{_SAMPLING}.dynamic_batching.verbose": YES,
    f"{_SAMPLING}.dynamic_batching.min_batch_size": COUNT,
    f"{_SAMPLING}.dynamic_batching.max_batch_size": {**COUNT, "null": True},
    f"{_SAMPLING}.dynamic_batching.lr_scaling_method": choice("linear", "sqrt", "none"),
    f"{_SAMPLING}.dynamic_batching.sequence_picking_order": choice(
        "random", "seqlen", "dataloader"
    ),
    f"{_ROUTING}.total_layer_num": COUNT,
    f"{_ROUTING}.random_ltd_layer_num": COUNT,
    f"{_ROUTING}.random_ltd_layer_id": NUMBERS,
    f"{_ROUTING}.model_mask_name": PATH,
    f"{_ROUTING}.model_type": TEXT,
    f"{_ROUTING}.hidden_state_order": TEXT,
    f"{_ROUTING}.micro_batch_size": COUNT,
    f"{_ROUTING}.global_batch_size": COUNT,
    f"{_ROUTING}.random_ltd_schedule": SECTION,
    f"{_ROUTING}.random_ltd_schedule.min_value": COUNT,
    f"{_ROUTING}.random_ltd_schedule.max_value": COUNT,
    f"{_ROUTING}.random_ltd_schedule.schedule_type": choice("fixed_linear"),
    f"{_ROUTING}.random_ltd_schedule.schedule_config": SECTION,
    f"{_ROUTING}.random_ltd_schedule.schedule_config.require_steps": COUNT,
    f"{_ROUTING}.random_ltd_schedule.schedule_config.seq_per_step": COUNT,
    f"{_ROUTING}.layer_token_lr_schedule": SECTION,
    f"{_ROUTING}.layer_token_lr_schedule.enabled": YES,
    f"{_ROUTING}.layer_token_lr_schedule.total_layer_tokens": WHOLE,
    f"{_ROUTING}.layer_token_lr_schedule.warmup_type": TEXT,
    f"{_ROUTING}.layer_token_lr_schedule.warmup_layer_tokens": WHOLE,
}

# Spellings of earlier releases that the parser still asks for, without a word about it.
OLD = {"bfloat16": ("runtime/precision_config.py", "bf16")}
# Spellings that a release has dropped: it asks for them no more. Path → what takes their place.
DROPPED = {
    "aio.thread_count": "aio.intra_op_parallelism",
    "zero_optimization.cpu_offload_params": "zero_optimization.offload_param",
    "fp32_allreduce": "communication_data_type",
    "allreduce_always_fp32": "communication_data_type",
}
# What other programs call a key: the name → the path, or the name in its own section.
ELSEWHERE = {
    "learning_rate": "optimizer.params.lr",
    "max_grad_norm": "gradient_clipping",
    "clip_grad": "gradient_clipping",
    "clip_grad_norm": "gradient_clipping",
    "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu",
    "global_batch_size": "train_batch_size",
    "logging_steps": "steps_per_print",
    "log_interval": "steps_per_print",
    "warmup_steps": "scheduler.params.warmup_num_steps",
    "num_warmup_steps": "scheduler.params.warmup_num_steps",
    "max_steps": "scheduler.params.total_num_steps",
    "num_training_steps": "scheduler.params.total_num_steps",
    "lr_scheduler": "scheduler",
    "comms_config": "comms_logger",
    "lr_scheduler_type": "scheduler.type",
    "optim": "optimizer.type",
    "mixed_precision": "bf16.enabled",
    "zero_stage": "zero_optimization.stage",
    "optimizer_name": "optimizer.type",
    "wd": "optimizer.params.weight_decay",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
}


def entries() -> list[tuple[str, str, dict]]:
    """(path, file, kind) of all of it."""
    listed = [(path, file, kind) for path, (file, kind) in KINDS.items()]
    return listed + [(path, DATA, kind) for path, kind in DATA_EFFICIENCY.items()]
