"""Keys that contradict each other, and keys that require a switch, a path or a number.

The engine detects these late, some only on a GPU, but the file reveals them earlier. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.peers.deepspeed_config.config import DeepSpeedConfig, Row

CONFIG, ENGINE = "deepspeed/runtime/config.py", "deepspeed/runtime/engine.py"
SOURCES = "deepspeed/runtime/zero"
BELOW_3, STAGE_3 = f"{SOURCES}/stage_1_and_2.py", f"{SOURCES}/stage3.py"
AUTOCAST = "deepspeed/runtime/torch_autocast.py"
CHECKPOINTING = "deepspeed/runtime/activation_checkpointing/checkpointing.py"
ZERO, SAMPLING = "zero_optimization", "data_efficiency.data_sampling"
CONTIGUOUS = "activation_checkpointing.contiguous_memory_optimization"
WIDTHS = {"fp16": "fp16", "float16": "fp16", "half": "fp16", "torch.float16": "fp16"}
WIDTHS |= {"bf16": "bf16", "bfloat16": "bf16", "torch.bfloat16": "bf16"}
WIDTHS |= {"fp32": "fp32", "float32": "fp32", "float": "fp32", "torch.float32": "fp32"}
ASSERTED = "DeepSpeed asserts it."

# (True if two keys clash, path, message, reason, remedy, source)
Clash = tuple[bool, str, str, str, str, str]


def check(config: DeepSpeedConfig) -> Iterator[Row]:
    """Yield a finding for each contradictory pair, and for each missing but required key."""
    for clashes in (_precision(config), _reduction(config), _stages(config)):
        for wrong, *texts in clashes:
            if wrong:
                yield ("error", *texts)
    if config.get("torch_autocast.enabled") is True and (width := _width(config)) != "fp32":
        message = f'"torch_autocast" and "{width}" are both on'
        reason = "The weights are already in 16 bits, so autocast has no precision left to choose "
        reason += "for each operation."
        remedy = f'enable "torch_autocast" or "{width}"'
        yield ("warning", "torch_autocast.enabled", message, reason, remedy, ENGINE)
    yield from _switches(config)
    yield from _offload(config)
    yield from _needed(config)


def _on(config: DeepSpeedConfig, name: str) -> bool:
    if name == "bf16" and not isinstance(config.stated("bf16"), dict):
        name = "bfloat16"
    return config.get(f"{name}.enabled") is True


def _width(config: DeepSpeedConfig) -> str:
    return next((name for name in ("fp16", "bf16") if _on(config, name)), "fp32")


def _precision(config: DeepSpeedConfig) -> Iterator[Clash]:
    other = "bf16" if isinstance(config.stated("bf16"), dict) else "bfloat16"
    switches = ("fp16.enabled", f"{other}.enabled")
    later = max(switches, key=lambda path: config.place(config.spelled(path)))

    both = _on(config, "fp16") and _on(config, "bf16")
    message = f'"fp16" and "{other}" are both enabled'
    reason = "A run can use only one of them, and DeepSpeed asserts this."
    remedy = f'write false in one of them; most models today are trained in "{other}"'
    yield (both, later, message, reason, remedy, CONFIG)

    asked, width = config.get("data_types.param_dtype"), _width(config)
    meant = WIDTHS.get(asked, width) if isinstance(asked, str) else width
    left = any(config.stated(f"{name}.enabled") == "auto" for name in ("fp16", "bf16"))
    differ, remedy = meant != width and not left, f'enable "{meant}", or remove param_dtype'
    message = f'the parameters are in "{asked}", but the run is in {width}'
    reason = "The engine asserts that the two agree."
    yield (differ, "data_types.param_dtype", message, reason, remedy, ENGINE)

    masters, states = "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"
    for path in ("fp16.fp16_master_weights_and_grads", masters, states):
        at_0 = config.get(path) is True and config.stage == 0
        message = f'"{path.partition(".")[2]}" needs a ZeRO stage of 1 to 3'
        yield (at_0, path, message, ASSERTED, f"set {ZERO}.stage", CONFIG)
    alone = config.get(states) is True and not config.get(masters)
    message = '"bf16_optimizer_states" needs "bf16_master_weights_and_grads"'
    yield (alone, states, message, ASSERTED, f'add "{masters}": true', CONFIG)

    autocast, quantized = "torch_autocast.enabled", f"{ZERO}.zero_quantized_weights"
    both = config.get(autocast) is True and config.get(quantized) is True
    message = "autocast cannot be combined with quantized weights"
    yield (both, autocast, message, ASSERTED, "switch one of them off", AUTOCAST)

    dynamic = _on(config, "fp16") and not config.get("fp16.loss_scale")
    for name in ("loss_scale_window", "min_loss_scale"):
        path = f"fp16.{name}"
        value = config.get(path)
        low = dynamic and isinstance(value, int) and value <= 0
        message = f'"{name}" is {value} but must be at least 1'
        reason = "With a dynamic loss scale it is a divisor, or the scale's minimum."
        yield (low, path, message, reason, f"write {config.default(path)}", "")


def _reduction(config: DeepSpeedConfig) -> Iterator[Clash]:
    at_3 = config.stage == 3
    summed = str(config.get("gradient_allreduce_op", "mean")).lower() == "sum"
    wrong, message = summed and at_3, '"sum" cannot be combined with stage 3'
    reason = "DeepSpeed refuses the combination."
    yield (wrong, "gradient_allreduce_op", message, reason, 'write "mean"', CONFIG)

    scattered = at_3 and config.get(f"{ZERO}.reduce_scatter", True) is True
    wrong = scattered and config.get("prescale_gradients") is True
    message = "gradients are prescaled at stage 3"
    reason = "Stage 3's reduce-scatter asserts that they are not."
    yield (wrong, "prescale_gradients", message, reason, "write false", STAGE_3)

    wrong = scattered and config.get("gradient_predivide_factor", 1.0) != 1.0
    message = "gradients are divided before the reduction at stage 3"
    reason = "Stage 3's reduce-scatter asserts a factor of 1."
    yield (wrong, "gradient_predivide_factor", message, reason, "write 1.0", STAGE_3)


def _stages(config: DeepSpeedConfig) -> Iterator[Clash]:
    stage = config.stage
    if stage is None:
        return

    ratio = config.get(path := f"{ZERO}.offload_optimizer.ratio", 1.0)
    wrong = isinstance(ratio, (int, float)) and ratio < 1 and stage != 3
    message = f"part of the optimizer is offloaded at stage {stage}"
    reason, remedy = "Only stage 3 can offload a part.", "write 1.0, or set stage 3"
    yield (wrong, path, message, reason, remedy, f"{SOURCES}/config.py")

    path, wrong = f"{ZERO}.offload_optimizer.device", config.device("optimizer") == "nvme"
    message = f"only stage 3 supports NVMe, but this is stage {stage}"
    reason = "Stages 1 and 2 offload only to the CPU."
    yield (wrong and stage < 3, path, message, reason, 'write "cpu", or set stage 3', BELOW_3)

    wrong = config.get(path := f"{ZERO}.compute_grad_norm") is False and stage not in (1, 2)
    message = f"the gradient norm is not computed at stage {stage}"
    reason = "Only stages 1 and 2 can omit it."
    yield (wrong, path, message, reason, "remove it", "")


# ---- a key that requires a second key
def _switches(config: DeepSpeedConfig) -> Iterator[Row]:
    """Yield a warning for each section that is off because it has no "enabled"."""
    for path, key, _, value in config.entries():
        inner = config.section_of(path, key)
        if not isinstance(value, dict) or not inner or "enabled" in value:
            continue
        settings = [name for name in value if name in inner["keys"]]
        empty = not value and path in (("fp16",), ("bf16",))
        off = inner["keys"].get("enabled", {}).get("default") is False
        if off and (settings or empty):
            section, idle = ".".join(path), ", ".join(settings[:3])
            counts = f", so {idle} has no effect." if idle else ", so the run is in 32 bits."
            message = f'"{section}" is off because it has no "enabled"'
            reason = f'The default of "enabled" is false{counts}'
            remedy = f'add "{section}.enabled": true'
            yield ("warning", path, message, reason, remedy, inner.get("source", ""))


def _offload(config: DeepSpeedConfig) -> Iterator[Row]:
    zero = config.stated(ZERO)
    if isinstance(zero, dict) and zero and not config.has(f"{ZERO}.stage"):
        idle = ", ".join(list(zero)[:3])
        message, source = f'"{ZERO}" has no "stage"', f"{SOURCES}/config.py"
        reason = f"The default is 0, so nothing is sharded and {idle} has no effect."
        yield ("warning", ZERO, message, reason, f'add "{ZERO}.stage"', source)
    for what in ("optimizer", "param"):
        section = f"{ZERO}.offload_{what}"
        value = config.stated(section)
        if isinstance(value, dict) and value and "device" not in value:
            message, source = f'"offload_{what}" has no "device"', f"{SOURCES}/offload_config.py"
            reason = 'The default of "device" is "none", so nothing is offloaded.'
            remedy = f'add "{section}.device": "cpu", or remove the section'
            yield ("warning", section, message, reason, remedy, source)
    devices = config.device("optimizer"), config.device("param")
    if isinstance(config.stated("aio"), dict) and "nvme" not in devices:
        message = '"aio" has no effect, because nothing is offloaded to NVMe'
        reason = "It configures how files are read and written, but there is no nvme_path for "
        reason += "the files."
        remedy = 'remove it, or offload with "device": "nvme" and "nvme_path"'
        source = "deepspeed/runtime/swap_tensor/aio_config.py"
        yield ("hint", "aio", message, reason, remedy, source)


def _needed(config: DeepSpeedConfig) -> Iterator[Row]:
    """Yield a finding for each feature in use whose required key is missing."""
    needs = []
    for what in ("optimizer", "param"):
        path = f"{ZERO}.offload_{what}"
        needs.append((f"{path}.device", config.device(what) == "nvme", f"{path}.nvme_path"))
    for name in ("dynamic_batching.max_tokens", "curriculum_learning.curriculum_metrics"):
        path = f"{SAMPLING}.{name.partition('.')[0]}"
        needs.append((path, config.get(f"{path}.enabled") is True, f"{SAMPLING}.{name}"))
    for path, used, needed in needs:
        if used and config.get(needed) in (None, ""):
            message = f'"{path.rpartition(".")[2]}" needs "{needed}"'
            reason = "DeepSpeed stops when it uses this without that key."
            yield ("error", path, message, reason, f'add "{needed}"')
    for name in ("partition_activations", "number_checkpoints"):
        needed = f"activation_checkpointing.{name}"
        if config.get(CONTIGUOUS) is True and not config.get(needed):
            message = f'"contiguous_memory_optimization" needs "{name}"'
            reason = "DeepSpeed's own checkpointing asserts it. Hugging Face's models use torch's "
            reason += "checkpointing and do not read this section."
            yield ("warning", CONTIGUOUS, message, reason, f'add "{needed}"', CHECKPOINTING)
