"""A rung of the ladder for FSDP2 and for Accelerate, and the options that FSDP2 lacks.

FSDP2 shards parameters, gradients and states together. It either keeps gathered parameters until
the backward pass or frees them. It offloads all three or none, and never to files. Lesson 13.
"""

from __future__ import annotations

from course_lib.estimate.ladder import Nodes
from course_lib.estimate.setting import Setting

# model_type → the list of blocks, and the class of a block
BLOCKS = {
    "gpt2": ("model.transformer.h", "GPT2Block"),
    "llama": ("model.model.layers", "LlamaDecoderLayer"),
}
MIXED = {"bfloat16": "bf16", "float16": "fp16", "float32": "no"}


def python(setting: Setting, kind: str | None = None) -> str:
    """Return the lines that shard a model as the rung does; `kind` is its model_type."""
    imports, body = lines(setting, kind)
    return "\n".join([*imports, "", *body]) + "\n"


def lines(
    setting: Setting, kind: str | None = None, *, mesh: str | None = None
) -> tuple[list[str], list[str]]:
    """Return the lines of `python` as imports and body. `mesh` names the mesh to shard over; the
    default is the world."""
    rows = f"{setting.rows} sequence{'s'[: setting.rows != 1]} a micro-batch"
    rows += f", {setting.accumulate} of them a step" if setting.accumulate > 1 else ""
    optimizer = f"optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)  # {rows}"
    again = "model.gradient_checkpointing_enable()  # of Transformers; otherwise wrap each block"
    before = [again] if setting.recompute else []
    if setting.stage == 0:
        over = f"device_mesh={mesh}, " if mesh else ""
        ddp = f"model = DistributedDataParallel(model, {over}gradient_as_bucket_view=True)"
        inside = f"# run each forward pass inside torch.autocast('cuda', torch.{setting.precision})"
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
    """List FSDP2's differences from the rung, and the options that it lacks."""
    stage, optimizer, parameters = setting.stage, setting.optimizer, setting.parameters
    found = {
        "FSDP2 always shards, so with nothing sharded this is DistributedDataParallel": stage == 0,
        "FSDP2 has no equivalent of stage 1, which replicates gradients until the update. The "
        "nearest option, reshard_after_forward=False, shards the gradients too": stage == 1,
        "FSDP2 has no stage 2. reshard_after_forward=False keeps gathered parameters from the "
        "forward to the backward pass like stage 2, but shards them between steps": stage == 2,
        "FSDP2 cannot offload only the optimizer, because CPUOffloadPolicy moves the shards of "
        "parameters, gradients and states together": optimizer == "cpu" and parameters is None,
        "FSDP2 cannot offload only the parameters, because CPUOffloadPolicy moves gradients and "
        "states too, and the update runs on the host": parameters == "cpu" and optimizer is None,
        "FSDP2 has no equivalent of files (NVMe). The CPUOffloadPolicy written here needs "
        "host memory for everything": "nvme" in (optimizer, parameters),
        "FSDP2 frees a block after its forward pass (no stage3_max_live_parameters), so it needs "
        "no more memory than the rung, but gathers a block twice": stage == 3 and not setting.lean,
        "load the model in float32, because FSDP2's shards are the master weights, and "
        f"MixedPrecisionPolicy computes in {setting.precision}": setting.master and stage > 0,
    }
    return [note for note, true in found.items() if true]


def accelerate_fsdp2(
    setting: Setting, machine: Nodes, kind: str | None = None, *, tp: int = 1
) -> str:
    """Return a config file of `accelerate launch` for FSDP2, with replicas of `tp` ranks."""
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
    if kind in BLOCKS:  # otherwise Accelerate asks the model for the block class
        config["fsdp_transformer_layer_cls_to_wrap"] = BLOCKS[kind][1]
    found = {**_launch("FSDP", setting, machine), "fsdp_config": config}
    if tp > 1:
        sizes = {"dp_replicate_size": 1, "dp_shard_size": machine.world // tp, "tp_size": tp}
        sizes |= {"cp_size": 1, "sp_size": 1}
        found["parallelism_config"] = {f"parallelism_config_{k}": n for k, n in sizes.items()}
    return _yaml(found)


def accelerate_deepspeed(setting: Setting, machine: Nodes, config: str) -> str:
    """Return a config file of `accelerate launch` that refers to a DeepSpeed config file."""
    launch = _launch("DEEPSPEED", setting, machine)
    del launch["mixed_precision"]  # stated by the DeepSpeed file, and both at once are refused
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
    """Format plain keys and values with one level of sections, without a YAML library."""
    lines = []
    for key, value in found.items():
        if isinstance(value, dict):
            lines.append(f"{above}{key}:\n{_yaml(value, above + '  ')}")
        else:
            word = str(value).lower() if isinstance(value, bool) else value
            word = f"'{word}'" if word in ("no", "NO") or " " in str(word) else word
            lines.append(f"{above}{key}: {word}\n")
    return "".join(lines)
