"""Keys that contradict each other, and keys that need another one: a switch, a path, a number.

The engine asserts these once it is made, some only on a GPU; a file tells them before. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.peers.deepspeed_config.config import DeepSpeedConfig, Row

CONFIG, ENGINE = "deepspeed/runtime/config.py", "deepspeed/runtime/engine.py"
BELOW_3, STAGE_3 = "deepspeed/runtime/zero/stage_1_and_2.py", "deepspeed/runtime/zero/stage3.py"
ZERO, SAMPLING = "zero_optimization", "data_efficiency.data_sampling"
CONTIGUOUS = "activation_checkpointing.contiguous_memory_optimization"
WIDTHS = {"fp16": "fp16", "float16": "fp16", "half": "fp16", "torch.float16": "fp16"}
WIDTHS |= {"bf16": "bf16", "bfloat16": "bf16", "torch.bfloat16": "bf16"}
WIDTHS |= {"fp32": "fp32", "float32": "fp32", "float": "fp32", "torch.float32": "fp32"}
ASSERTED = "DeepSpeed asserts it."

# Whether two keys clash, the path, what is wrong, why, what to do, where that stands.
Clash = tuple[bool, str, str, str, str, str]


def check(config: DeepSpeedConfig) -> Iterator[Row]:
    """A finding for every two keys of which one has to go, and for one that waits for another."""
    for clashes in (_precision(config), _reduction(config), _stages(config)):
        for wrong, *texts in clashes:
            if wrong:
                yield ("error", *texts)
    if config.get("torch_autocast.enabled") is True and (width := _width(config)) != "fp32":
        yield ("warning", "torch_autocast.enabled", f'"torch_autocast" and "{width}" are both on',
               "The weights are already in 16 bits: what autocast would pick operation by "
               "operation has been picked for all.", f'enable "torch_autocast" or "{width}"',
               ENGINE)  # fmt: skip
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
    yield (_on(config, "fp16") and _on(config, "bf16"), later,
           f'"fp16" and "{other}" are both enabled',
           "One run has one of the two; DeepSpeed asserts that not both are on.",
           f'write false in one of them; most models today are trained in "{other}"',
           CONFIG)  # fmt: skip
    asked, width = config.get("data_types.param_dtype"), _width(config)
    meant = WIDTHS.get(asked, width) if isinstance(asked, str) else width
    left = any(config.stated(f"{name}.enabled") == "auto" for name in ("fp16", "bf16"))
    yield (meant != width and not left, "data_types.param_dtype",
           f'the parameters are in "{asked}", the run in {width}',
           "The engine asserts that the two agree.",
           f'enable "{meant}", or take param_dtype out', ENGINE)  # fmt: skip
    for path in ("fp16.fp16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads",
                 "bf16.bf16_optimizer_states"):  # fmt: skip
        yield (config.get(path) is True and config.stage == 0, path,
               f'"{path.partition(".")[2]}" needs a ZeRO stage of 1 to 3', ASSERTED,
               f"set {ZERO}.stage", CONFIG)  # fmt: skip
    alone = not config.get("bf16.bf16_master_weights_and_grads")
    yield (config.get("bf16.bf16_optimizer_states") is True and alone, "bf16.bf16_optimizer_states",
           '"bf16_optimizer_states" needs "bf16_master_weights_and_grads"', ASSERTED,
           'add "bf16.bf16_master_weights_and_grads": true', CONFIG)  # fmt: skip
    quantized = config.get(f"{ZERO}.zero_quantized_weights") is True
    yield (config.get("torch_autocast.enabled") is True and quantized, "torch_autocast.enabled",
           "autocast does not go with quantized weights", ASSERTED, "switch one of them off",
           "deepspeed/runtime/torch_autocast.py")  # fmt: skip
    dynamic = _on(config, "fp16") and not config.get("fp16.loss_scale")
    for name in ("loss_scale_window", "min_loss_scale"):
        value = config.get(f"fp16.{name}")
        yield (dynamic and isinstance(value, int) and value <= 0, f"fp16.{name}",
               f'"{name}" is {value}, and has to be at least 1',
               "With a dynamic loss scale it is divided by, or is the scale's floor.",
               f"write {config.default(f'fp16.{name}')}", "")  # fmt: skip


def _reduction(config: DeepSpeedConfig) -> Iterator[Clash]:
    at_3 = config.stage == 3
    summed = str(config.get("gradient_allreduce_op", "mean")).lower() == "sum"
    yield (summed and at_3, "gradient_allreduce_op", '"sum" does not go with stage 3',
           "DeepSpeed refuses the two together.", 'write "mean"', CONFIG)  # fmt: skip
    scattered = at_3 and config.get(f"{ZERO}.reduce_scatter", True) is True
    yield (scattered and config.get("prescale_gradients") is True, "prescale_gradients",
           "gradients are scaled first at stage 3", "Its reduce-scatter asserts that they are not.",
           "write false", STAGE_3)  # fmt: skip
    factor = config.get("gradient_predivide_factor", 1.0)
    yield (scattered and factor != 1.0, "gradient_predivide_factor",
           "gradients are divided beforehand at stage 3", "Its reduce-scatter asserts a factor of "
           "1.", "write 1.0", STAGE_3)  # fmt: skip


def _stages(config: DeepSpeedConfig) -> Iterator[Clash]:
    stage = config.stage
    if stage is None:
        return
    ratio = config.get(f"{ZERO}.offload_optimizer.ratio", 1.0)
    partly = isinstance(ratio, (int, float)) and ratio < 1
    yield (partly and stage != 3, f"{ZERO}.offload_optimizer.ratio",
           f"a part of the optimizer is offloaded at stage {stage}", "Only stage 3 offloads a "
           "part.", "write 1.0, or set stage 3", "deepspeed/runtime/zero/config.py")  # fmt: skip
    yield (stage < 3 and config.device("optimizer") == "nvme", f"{ZERO}.offload_optimizer.device",
           f"NVMe is for stage 3 alone, and this is stage {stage}",
           "Stages 1 and 2 offload to the CPU, whatever else the file says.",
           'write "cpu", or set stage 3', BELOW_3)  # fmt: skip
    normless = config.get(f"{ZERO}.compute_grad_norm") is False
    yield (normless and stage not in (1, 2), f"{ZERO}.compute_grad_norm",
           f"the norm is left out at stage {stage}", "Only stages 1 and 2 can do without it.",
           "take it out", "")  # fmt: skip


# ---- a key that waits for another
def _switches(config: DeepSpeedConfig) -> Iterator[Row]:
    """Sections that are off unless they say that they are on."""
    for path, key, _, value in config.entries():
        inner = config.section_of(path, key)
        if not isinstance(value, dict) or not inner or "enabled" in value:
            continue
        settings = [name for name in value if name in inner["keys"]]
        empty = not value and path in (("fp16",), ("bf16",))
        off = inner["keys"].get("enabled", {}).get("default") is False
        if off and (settings or empty):
            section, idle = ".".join(path), ", ".join(settings[:3])
            counts = f", and nothing of {idle} counts." if idle else ": the run is in 32 bits."
            yield ("warning", path, f'"{section}" is off: it has no "enabled"',
                   f'The default of "enabled" is false{counts}', f'add "{section}.enabled": true',
                   inner.get("source", ""))  # fmt: skip


def _offload(config: DeepSpeedConfig) -> Iterator[Row]:
    zero = config.stated(ZERO)
    if isinstance(zero, dict) and zero and not config.has(f"{ZERO}.stage"):
        idle = ", ".join(list(zero)[:3])
        yield ("warning", ZERO, f'"{ZERO}" has no "stage"',
               f"By default it is 0: nothing is sharded, and nothing of {idle} counts.",
               f'add "{ZERO}.stage"', "deepspeed/runtime/zero/config.py")  # fmt: skip
    for what in ("optimizer", "param"):
        section = f"{ZERO}.offload_{what}"
        value = config.stated(section)
        if isinstance(value, dict) and value and "device" not in value:
            yield ("warning", section, f'"offload_{what}" has no "device"',
                   'The default of "device" is "none": nothing is offloaded.',
                   f'add "{section}.device": "cpu", or take the section out',
                   "deepspeed/runtime/zero/offload_config.py")  # fmt: skip
    devices = config.device("optimizer"), config.device("param")
    if isinstance(config.stated("aio"), dict) and "nvme" not in devices:
        yield ("hint", "aio", '"aio" does nothing: nothing is offloaded to NVMe',
               "It sets how files are read and written, and there is no nvme_path that says where.",
               'take it out, or offload with "device": "nvme" and "nvme_path"',
               "deepspeed/runtime/swap_tensor/aio_config.py")  # fmt: skip


def _needed(config: DeepSpeedConfig) -> Iterator[Row]:
    """Settings that are asserted where they are used."""
    needs = [(f"{ZERO}.offload_{what}.device", config.device(what) == "nvme",
              f"{ZERO}.offload_{what}.nvme_path") for what in ("optimizer", "param")]  # fmt: skip
    for name, needed in (("dynamic_batching", "max_tokens"),
                         ("curriculum_learning", "curriculum_metrics")):  # fmt: skip
        path = f"{SAMPLING}.{name}"
        needs.append((path, config.get(f"{path}.enabled") is True, f"{path}.{needed}"))
    for path, used, needed in needs:
        if used and config.get(needed) in (None, ""):
            yield ("error", path, f'"{path.rpartition(".")[2]}" needs "{needed}"',
                   "DeepSpeed asks for it where this is used, and stops.",
                   f'add "{needed}"')  # fmt: skip
    for name in ("partition_activations", "number_checkpoints"):
        needed = f"activation_checkpointing.{name}"
        if config.get(CONTIGUOUS) is True and not config.get(needed):
            yield ("warning", CONTIGUOUS, f'"contiguous_memory_optimization" needs "{name}"',
                   "It is asserted where DeepSpeed's own checkpointing is used; Hugging Face's "
                   "models use torch's, and read nothing of this section.", f'add "{needed}"',
                   "deepspeed/runtime/activation_checkpointing/checkpointing.py")  # fmt: skip
