"""A rung of the ladder in FSDP2's words and in Accelerate's, and what FSDP2 has no word for.

FSDP2 shards parameters, gradients and states together, and keeps parameters whole from forward to
backward or does not; it offloads all of them or none, and knows no files. Lesson 13.
"""

from __future__ import annotations

from course_lib.estimate.ladder import Nodes
from course_lib.estimate.setting import Setting

# model_type to where the list of blocks is, and the class of one.
BLOCKS = {
    "gpt2": ("model.transformer.h", "GPT2Block"),
    "llama": ("model.model.layers", "LlamaDecoderLayer"),
}
MIXED = {"bfloat16": "bf16", "float16": "fp16", "float32": "no"}


def python(setting: Setting, kind: str | None = None) -> str:
    """The lines that shard a model as the rung does; `kind` is its model_type."""
    imports, body = lines(setting, kind)
    return "\n".join([*imports, "", *body]) + "\n"


def lines(
    setting: Setting, kind: str | None = None, *, mesh: str | None = None
) -> tuple[list[str], list[str]]:
    """The same as imports and as what follows them; `mesh` names the one to shard over, where it
    is not the whole world."""
    rows = f"{setting.rows} sequence{'s'[: setting.rows != 1]} a micro-batch"
    rows += f", {setting.accumulate} of them a step" if setting.accumulate > 1 else ""
    optimizer = f"optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)  # {rows}"
    again = "model.gradient_checkpointing_enable()  # of Transformers; elsewhere each block's own"
    before = [again] if setting.recompute else []
    if setting.stage == 0:
        over = f"device_mesh={mesh}, " if mesh else ""
        ddp = f"model = DistributedDataParallel(model, {over}gradient_as_bucket_view=True)"
        inside = f"# each forward inside: torch.autocast('cuda', torch.{setting.precision})"
        imports = ["import torch", "from torch.nn.parallel import DistributedDataParallel"]
        return imports, [*before, ddp, optimizer, *([inside] if setting.master else [])]
    blocks, _ = BLOCKS.get(kind, ("model.model.layers", None))
    names = ["fully_shard"]
    options = [f"mesh={mesh}"] if mesh else []
    options.append(f"reshard_after_forward={setting.stage == 3}")
    if setting.master:
        names.append("MixedPrecisionPolicy")
        dtypes = f"param_dtype=torch.{setting.precision}, reduce_dtype=torch.float32"
        before.append(f"precision = MixedPrecisionPolicy({dtypes})")
        options.append("mp_policy=precision")
    if setting.optimizer or setting.parameters:
        names.append("CPUOffloadPolicy")
        before.append("offload = CPUOffloadPolicy(pin_memory=True)")
        options.append("offload_policy=offload")
    words = ", ".join(options)
    imports = ["import torch", f"from torch.distributed.fsdp import {', '.join(sorted(names))}"]
    return imports, [
        *before,
        f"for block in {blocks}:  # the list of your model's blocks",
        f"    fully_shard(block, {words})",
        f"fully_shard(model, {words})",
        optimizer,
    ]


def notes(setting: Setting) -> list[str]:
    """Where FSDP2 differs from the rung, or has no equivalent of it."""
    stage, optimizer, parameters = setting.stage, setting.optimizer, setting.parameters
    found = {
        "FSDP2 shards always: with nothing sharded this is DistributedDataParallel": stage == 0,
        "FSDP2 has no equivalent of stage 1, whose gradients stay whole until the update: "
        "reshard_after_forward=False comes nearest, and shards the gradients too": stage == 1,
        "FSDP2 has no stage 2: reshard_after_forward=False keeps parameters whole from the forward "
        "to the backward as stage 2 does, and shards them between steps as well": stage == 2,
        "FSDP2 does not offload the optimizer alone: CPUOffloadPolicy moves the shards of the "
        "parameters, gradients and states together": optimizer == "cpu" and parameters is None,
        "FSDP2 does not offload the parameters alone: CPUOffloadPolicy moves gradients and "
        "states too, and the update runs on the host": parameters == "cpu" and optimizer is None,
        "FSDP2 has no equivalent of files (NVMe): CPUOffloadPolicy, which is written here, needs "
        "all of it in the host's memory": "nvme" in (optimizer, parameters),
        "FSDP2 frees a block after its forward and has no stage3_max_live_parameters: it needs no "
        "more than the rung, and gathers each block twice": stage == 3 and not setting.lean,
        "load the model in float32: FSDP2's shards are the master weights, and "
        f"MixedPrecisionPolicy computes in {setting.precision}": setting.master and stage > 0,
    }
    return [note for note, true in found.items() if true]


def accelerate_fsdp2(
    setting: Setting, machine: Nodes, kind: str | None = None, *, tp: int = 1
) -> str:
    """`accelerate launch --config_file` for FSDP2, over replicas of `tp` ranks each."""
    if setting.stage == 0:
        return _yaml(_launch("MULTI_GPU" if machine.world > 1 else "NO", setting, machine))
    config = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": setting.stage == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_offload_params": bool(setting.optimizer or setting.parameters),
        "fsdp_activation_checkpointing": setting.recompute,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": True,
    }
    if kind in BLOCKS:  # else Accelerate asks the model which class is not to be split
        config["fsdp_transformer_layer_cls_to_wrap"] = BLOCKS[kind][1]
    found = {**_launch("FSDP", setting, machine), "fsdp_config": config}
    if tp > 1:
        sizes = {"dp_replicate_size": 1, "dp_shard_size": machine.world // tp, "tp_size": tp}
        sizes |= {"cp_size": 1, "sp_size": 1}
        found["parallelism_config"] = {f"parallelism_config_{k}": n for k, n in sizes.items()}
    return _yaml(found)


def accelerate_deepspeed(setting: Setting, machine: Nodes, config: str) -> str:
    """`accelerate launch --config_file` with a DeepSpeed file, which says all else."""
    launch = _launch("DEEPSPEED", setting, machine)
    del launch["mixed_precision"]  # a DeepSpeed file says it, and both at once are refused
    section = {"deepspeed_config_file": config, "zero3_init_flag": setting.stage == 3}
    if machine.nodes > 1:
        section["deepspeed_multinode_launcher"] = "standard"
    return _yaml({**launch, "deepspeed_config": section})


def _launch(kind: str, setting: Setting, machine: Nodes) -> dict:
    found = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": kind,
        "mixed_precision": MIXED[setting.precision],
        "num_machines": machine.nodes,
        "num_processes": machine.world,
        "machine_rank": 0,
        "main_training_function": "main",
    }
    if machine.nodes > 1:
        found |= {"main_process_ip": "ADDRESS OF THE FIRST NODE", "main_process_port": 29500}
    return found


def _yaml(found: dict, above: str = "") -> str:
    """Plain keys and values, and one level of sections: no library is needed for that."""
    lines = []
    for key, value in found.items():
        if isinstance(value, dict):
            lines.append(f"{above}{key}:\n{_yaml(value, above + '  ')}")
        else:
            word = str(value).lower() if isinstance(value, bool) else value
            word = f"'{word}'" if word in ("no", "NO") or " " in str(word) else word
            lines.append(f"{above}{key}: {word}\n")
    return "".join(lines)
