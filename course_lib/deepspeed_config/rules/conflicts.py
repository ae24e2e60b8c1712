"""Keys that contradict each other: what DeepSpeed refuses when it sees both.

The engine asserts these once it is made, some only on a GPU; a file tells them before. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.deepspeed_config.config import Config
from course_lib.deepspeed_config.finding import Finding

CONFIG, ENGINE = "deepspeed/runtime/config.py", "deepspeed/runtime/engine.py"
BELOW_3, STAGE_3 = "deepspeed/runtime/zero/stage_1_and_2.py", "deepspeed/runtime/zero/stage3.py"
ZERO, MODEL = "zero_optimization", "deepspeed/runtime/zero/config.py"
SAME = {"fp16": "fp16", "float16": "fp16", "half": "fp16", "torch.float16": "fp16"}
SAME |= {"bf16": "bf16", "bfloat16": "bf16", "torch.bfloat16": "bf16"}
SAME |= {"fp32": "fp32", "float32": "fp32", "float": "fp32", "torch.float32": "fp32"}

# Whether two keys clash, the path, what is wrong, why, where that stands, what to do.
Clash = tuple[bool, str, str, str, str, str]


def check(config: Config) -> Iterator[Finding]:
    """A finding for every two keys of which one has to go."""
    for clashes in (_precision(config), _reduction(config), _stages(config)):
        for wrong, path, message, reason, source, remedy in clashes:
            if wrong:
                yield config.finding(
                    "contradiction", "error", path, message, reason, source, remedy
                )
    if config.get("torch_autocast.enabled") is True and _width(config) != "fp32":
        width = _width(config)
        yield config.finding(
            "contradiction", "warning", "torch_autocast.enabled",
            f'"torch_autocast" and "{width}" are both on',
            "The weights are already in 16 bits: what autocast would pick operation by operation "
            "has been picked for all.", ENGINE, f'enable "torch_autocast" or "{width}"',
        )  # fmt: skip


def _on(config: Config, name: str) -> bool:
    if name == "bf16" and not isinstance(config.stated("bf16"), dict):
        return config.get("bfloat16.enabled") is True
    return config.get(f"{name}.enabled") is True


def _width(config: Config) -> str:
    return next((name for name in ("fp16", "bf16") if _on(config, name)), "fp32")


def _precision(config: Config) -> Iterator[Clash]:
    stage, width = config.stage, _width(config)
    both = _on(config, "fp16") and _on(config, "bf16")
    other = "bf16" if isinstance(config.stated("bf16"), dict) else "bfloat16"
    switches = ("fp16.enabled", f"{other}.enabled")
    later = max(switches, key=lambda path: config.place(config.spelled(path)))
    yield (both, later, f'"fp16" and "{other}" are both enabled',
           "One run has one of the two; DeepSpeed asserts that not both are on.", CONFIG,
           f'write false in one of them; most models today are trained in "{other}"')  # fmt: skip
    asked = config.get("data_types.param_dtype")
    meant = SAME.get(asked, width) if isinstance(asked, str) else width
    left = any(config.stated(f"{name}.enabled") == "auto" for name in ("fp16", "bf16"))
    yield (meant != width and not left, "data_types.param_dtype",
           f'the parameters are in "{asked}", the run in {width}',
           "The engine asserts that the two agree.", ENGINE,
           f'enable "{meant}", or take param_dtype out')  # fmt: skip
    for path in ("fp16.fp16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads",
                 "bf16.bf16_optimizer_states"):  # fmt: skip
        yield (config.get(path) is True and stage == 0, path,
               f'"{path.partition(".")[2]}" needs a ZeRO stage of 1 to 3', "DeepSpeed asserts it.",
               CONFIG, f"set {ZERO}.stage")  # fmt: skip
    alone = not config.get("bf16.bf16_master_weights_and_grads")
    yield (config.get("bf16.bf16_optimizer_states") is True and alone, "bf16.bf16_optimizer_states",
           '"bf16_optimizer_states" needs "bf16_master_weights_and_grads"',
           "DeepSpeed asserts it.", CONFIG,
           'add "bf16.bf16_master_weights_and_grads": true')  # fmt: skip
    quantized = config.get(f"{ZERO}.zero_quantized_weights") is True
    yield (config.get("torch_autocast.enabled") is True and quantized, "torch_autocast.enabled",
           "autocast does not go with quantized weights", "DeepSpeed asserts it.",
           "deepspeed/runtime/torch_autocast.py", "switch one of them off")  # fmt: skip
    dynamic = _on(config, "fp16") and not config.get("fp16.loss_scale")
    for name in ("loss_scale_window", "min_loss_scale"):
        value = config.get(f"fp16.{name}")
        yield (dynamic and isinstance(value, int) and value <= 0, f"fp16.{name}",
               f'"{name}" is {value}, and has to be at least 1',
               "With a dynamic loss scale it is divided by, or is the scale's floor.",
               "deepspeed/runtime/precision_config.py",
               f"write {config.default(f'fp16.{name}')}")  # fmt: skip


def _reduction(config: Config) -> Iterator[Clash]:
    summed = str(config.get("gradient_allreduce_op", "mean")).lower() == "sum"
    yield (summed and config.stage == 3, "gradient_allreduce_op",
           '"sum" does not go with stage 3', "DeepSpeed refuses the two together.", CONFIG,
           'write "mean"')  # fmt: skip
    scattered = config.stage == 3 and config.get(f"{ZERO}.reduce_scatter", True) is True
    yield (scattered and config.get("prescale_gradients") is True, "prescale_gradients",
           "gradients are scaled first at stage 3", "Its reduce-scatter asserts that they are not.",
           STAGE_3, "write false")  # fmt: skip
    yield (scattered and config.get("gradient_predivide_factor", 1.0) != 1.0,
           "gradient_predivide_factor", "gradients are divided beforehand at stage 3",
           "Its reduce-scatter asserts a factor of 1.", STAGE_3, "write 1.0")  # fmt: skip


def _stages(config: Config) -> Iterator[Clash]:
    stage, device = config.stage, config.device("optimizer")
    if stage is None:
        return
    ratio = config.get(f"{ZERO}.offload_optimizer.ratio", 1.0)
    partly = isinstance(ratio, (int, float)) and ratio < 1
    yield (partly and stage != 3, f"{ZERO}.offload_optimizer.ratio",
           f"a part of the optimizer is offloaded at stage {stage}",
           "Only stage 3 offloads a part.", MODEL, "write 1.0, or set stage 3")  # fmt: skip
    yield (stage < 3 and device == "nvme", f"{ZERO}.offload_optimizer.device",
           f"NVMe is for stage 3 alone, and this is stage {stage}",
           "Stages 1 and 2 offload to the CPU, whatever else the file says.", BELOW_3,
           'write "cpu", or set stage 3')  # fmt: skip
    normless, path = (
        config.get(f"{ZERO}.compute_grad_norm") is False,
        f"{ZERO}.compute_grad_norm",
    )
    yield (normless and stage not in (1, 2), path, f"the norm is left out at stage {stage}",
           "Only stages 1 and 2 can do without it.", MODEL, "take it out")  # fmt: skip
