"""Keys without effect: at this ZeRO stage, without an offload, in a section that is off.

A key that states the default states what happens anyway: a hint, as is one that a switch beside it
turns off. One that states something else is a warning, since it does not happen. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.deepspeed_config.config import Config
from course_lib.deepspeed_config.finding import Finding

ZERO = "zero_optimization"
ENGINE = "deepspeed/runtime/engine.py"
OFFLOAD = "deepspeed/runtime/zero/offload_config.py"
FP16 = "deepspeed/runtime/precision_config.py"
# Handed to the stage 3 optimizer alone, beside whatever begins with stage3_.
AT_3 = ("sub_group_size", "zero_hpz_partition_size", "zero_quantized_weights", "leaf_module",
        "zero_quantized_nontrainable_weights", "memory_efficient_linear", "override_module_apply",
        "pipeline_loading_checkpoint", "log_trace_cache_warnings", "enable_sanity_checks",
        "save_muon_momentum_buffer_in_memory")  # fmt: skip
# Handed to the optimizer of stages 1 and 2 alone.
BELOW_3 = ("allgather_partitions", "allgather_bucket_size", "round_robin_gradients",
           "use_multi_rank_bucket_allreduce", "ignore_unused_parameters", "parameter_alignment",
           "elastic_checkpoint", "legacy_stage1")  # fmt: skip
DYNAMIC = ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale",
           "consecutive_hysteresis")  # fmt: skip
TO_FILES = {"optimizer": ("nvme_path", "pipeline_read", "pipeline_write", "fast_init",
                          "buffer_count"),
            "param": ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu")}  # fmt: skip


def check(config: Config) -> Iterator[Finding]:
    """A finding for every key that changes nothing in this file."""
    zero = config.stated(ZERO)
    if isinstance(zero, dict) and config.stage is not None:
        yield from _stages(config, zero, config.stage)
        yield from _offloads(config)
    yield from _precision(config)


def _stages(config: Config, zero: dict, stage: int) -> Iterator[Finding]:
    twins = {name: alias for alias, name in config.twins((ZERO,)).items()}
    for name, value in zero.items():
        spelled = twins.get(name, name)
        path = f"{ZERO}.{name}"
        if stage == 0 and name != "stage":
            if not _deprecated(config, path) and config.schema.find((ZERO, name)):
                yield _idle(config, path, value, "at stage 0", "nothing is sharded there",
                            "take it out, or set a stage", switch=True)  # fmt: skip
        elif stage < 3 and (spelled.startswith("stage3_") or spelled in AT_3):
            if not _deprecated(config, path):
                yield _idle(config, path, value, f"at stage {stage}", "only stage 3 reads it",
                            "take it out, or set stage 3")  # fmt: skip
        elif stage == 3 and spelled in BELOW_3:
            yield _idle(config, path, value, "at stage 3", "only stages 1 and 2 read it",
                        "take it out")  # fmt: skip
    if stage == 3 and "reduce_scatter" in zero:
        yield config.finding(
            "effect", "hint", f"{ZERO}.reduce_scatter",
            '"reduce_scatter" does not choose the collective at stage 3',
            "Stage 3 always scatters its sums; the key switches checks.",
            "deepspeed/runtime/zero/stage3.py", "take it out",
        )  # fmt: skip
    if stage < 3 and config.device("param") in ("cpu", "nvme"):
        old = "cpu_offload_param" if config.get(f"{ZERO}.cpu_offload_param") else "offload_param"
        path = f"{ZERO}.{old}"
        yield config.finding(
            "contradiction", "error", path,
            f"parameters are offloaded, and stage {stage} has them whole on every GPU",
            "Only stage 3 shards parameters, and only there are they offloaded; elsewhere the "
            "section is read and nothing of it happens.", OFFLOAD,
            f"set {ZERO}.stage to 3, or take {old} out",
        )  # fmt: skip


def _offloads(config: Config) -> Iterator[Finding]:
    for what in ("optimizer", "param"):
        section = config.stated(f"{ZERO}.offload_{what}")
        if not isinstance(section, dict):
            continue
        if section.get("device", "none") not in ("none", "cpu", "nvme"):
            continue  # left to the Trainer, or wrong: values.py
        device = config.device(what)
        for name, value in section.items():
            path = f"{ZERO}.offload_{what}.{name}"
            if name == "device" or config.schema.find(tuple(path.split("."))) is None:
                continue
            if device == "none" and "device" in section:
                yield _idle(config, path, value, "without an offload", 'the device is "none"',
                            'take it out, or set "device" to "cpu" or "nvme"',
                            switch=True)  # fmt: skip
            elif device == "cpu" and name in TO_FILES[what]:
                yield _idle(config, path, value, "without NVMe", 'the device is "cpu"',
                            'take it out, or set "device" to "nvme"', switch=True)  # fmt: skip
    path = f"{ZERO}.offload_optimizer.cpuadam_cores_perc"
    if config.has(path) and not config.get(f"{ZERO}.offload_optimizer.super_offload"):
        yield _idle(config, path, config.get(path), 'without "super_offload"',
                    "only that reads it", "take it out")  # fmt: skip


def _precision(config: Config) -> Iterator[Finding]:
    fp16 = config.stated("fp16")
    if isinstance(fp16, dict) and fp16.get("enabled") is True and config.get("fp16.loss_scale"):
        for name in (name for name in fp16 if name in DYNAMIC):
            path = f"fp16.{name}"
            yield _idle(config, path, fp16[name], "with a static loss scale",
                        f'"loss_scale" is {config.get("fp16.loss_scale")}',
                        "take it out, or set loss_scale to 0", FP16)  # fmt: skip
    if config.get("prescale_gradients") is True and config.has("gradient_predivide_factor"):
        path = "gradient_predivide_factor"
        yield _idle(
            config, path, config.get(path), 'with "prescale_gradients"',
            "gradients are divided by the number of ranks at once", "take it out",
        )  # fmt: skip


def _idle(
    config: Config, path: str, value: object, where: str, why: str, remedy: str,
    source: str = ENGINE, *, switch: bool = False,
) -> Finding:  # fmt: skip
    """`switch`: one key of the file switches this one off, with what stands beside it."""
    names = tuple(path.split("."))
    default = (config.schema.find(names) or {}).get("default")
    same = value == default or value in ("auto", None) or value == {"device": "none"}
    same = same or (value is False and default is None)
    level = "hint" if same or switch else "warning"
    return config.finding(
        "effect", level, names, f'"{names[-1]}" has no effect {where}',
        f"{why[0].upper()}{why[1:]}.", source, remedy,
    )  # fmt: skip


def _deprecated(config: Config, path: str) -> bool:
    return "deprecated" in (config.schema.find(tuple(path.split("."))) or {})
