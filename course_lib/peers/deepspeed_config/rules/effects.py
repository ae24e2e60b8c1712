"""Keys without effect: at this ZeRO stage, without an offload, in a section that is off.

Such a key is a hint if it states the default, or if a switch next to it turns it off. Otherwise it
is a warning, because its value has no effect. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.peers.deepspeed_config.config import DeepSpeedConfig, Row

ZERO = "zero_optimization"
ENGINE = "deepspeed/runtime/engine.py"
# Passed only to the stage 3 optimizer, in addition to keys that begin with stage3_.
AT_3 = ("sub_group_size", "zero_hpz_partition_size", "zero_quantized_weights", "leaf_module")
AT_3 += ("zero_quantized_nontrainable_weights", "memory_efficient_linear", "override_module_apply")
AT_3 += ("pipeline_loading_checkpoint", "log_trace_cache_warnings", "enable_sanity_checks")
AT_3 += ("save_muon_momentum_buffer_in_memory",)
# Passed only to the optimizer of stages 1 and 2.
BELOW_3 = ("allgather_partitions", "allgather_bucket_size", "round_robin_gradients")
BELOW_3 += ("use_multi_rank_bucket_allreduce", "ignore_unused_parameters", "parameter_alignment")
BELOW_3 += ("elastic_checkpoint", "legacy_stage1")
DYNAMIC = ("initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")
DYNAMIC += ("consecutive_hysteresis",)
TO_FILES = {
    "optimizer": ("nvme_path", "pipeline_read", "pipeline_write", "fast_init", "buffer_count"),
    "param": ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu"),
}
OUT = "remove it"


def check(config: DeepSpeedConfig) -> Iterator[Row]:
    """Yield a finding for every key that changes nothing in this file."""
    if isinstance(config.stated(ZERO), dict) and config.stage is not None:
        yield from _stages(config, config.stage)
        yield from _offloads(config)
    fp16, scale = config.stated("fp16"), config.get("fp16.loss_scale")
    if isinstance(fp16, dict) and fp16.get("enabled") is True and scale:
        for name in (name for name in fp16 if name in DYNAMIC):
            where, why = "with a static loss scale", f'"loss_scale" is {scale}'
            yield _idle(config, f"fp16.{name}", where, why, f"{OUT}, or set loss_scale to 0")
    factor = "gradient_predivide_factor"
    if config.get("prescale_gradients") is True and config.has(factor):
        why = "gradients are then divided by the number of ranks in one step"
        yield _idle(config, factor, 'with "prescale_gradients"', why, OUT)


def _stages(config: DeepSpeedConfig, stage: int) -> Iterator[Row]:
    for name in config.stated(ZERO):
        path = f"{ZERO}.{name}"
        key = config.schema.find((ZERO, name)) or {}
        spelled, old = key.get("same_as", name), "deprecated" in key
        of_stage_3 = spelled.startswith("stage3_") or spelled in AT_3
        if stage == 0 and name != "stage" and key and not old:
            remedy, why = f"{OUT}, or set a stage", "stage 0 shards nothing"
            yield _idle(config, path, "at stage 0", why, remedy, switch=True)
        elif stage in (1, 2) and of_stage_3 and not old:
            remedy = f"{OUT}, or set stage 3"
            yield _idle(config, path, f"at stage {stage}", "only stage 3 reads it", remedy)
        elif stage == 3 and spelled in BELOW_3:
            yield _idle(config, path, "at stage 3", "only stages 1 and 2 read it", OUT)
    if stage == 3 and config.has(path := f"{ZERO}.reduce_scatter"):
        message = '"reduce_scatter" does not select the collective at stage 3'
        reason = "Stage 3 always uses reduce-scatter; the key only controls checks."
        yield ("hint", path, message, reason, OUT, "deepspeed/runtime/zero/stage3.py")
    if stage < 3 and config.device("param") in ("cpu", "nvme"):
        old = "cpu_offload_param" if config.get(f"{ZERO}.cpu_offload_param") else "offload_param"
        message = f"parameters are offloaded, but stage {stage} replicates them on every GPU"
        reason = "Only stage 3 shards and offloads parameters; at other stages the section is "
        reason += "read but has no effect."
        remedy, source = f"set {ZERO}.stage to 3, or remove {old}", "zero/offload_config.py"
        yield ("error", f"{ZERO}.{old}", message, reason, remedy, f"deepspeed/runtime/{source}")


def _offloads(config: DeepSpeedConfig) -> Iterator[Row]:
    for what in ("optimizer", "param"):
        path, device = f"{ZERO}.offload_{what}", config.device(what)
        section = config.stated(path)
        if not isinstance(section, dict) or section.get("device") not in ("none", "cpu"):
            continue  # not idle, or resolved by the Trainer, or wrong (values.py)
        for name in section:
            at = f"{path}.{name}"
            if name == "device" or config.schema.find(at) is None:
                continue
            if device == "none":
                why, remedy = 'the device is "none"', f'{OUT}, or set "device" to "cpu" or "nvme"'
                yield _idle(config, at, "without an offload", why, remedy, switch=True)
            elif name in TO_FILES[what]:
                why, remedy = 'the device is "cpu"', f'{OUT}, or set "device" to "nvme"'
                yield _idle(config, at, "without NVMe", why, remedy, switch=True)
    path = f"{ZERO}.offload_optimizer.cpuadam_cores_perc"
    if config.has(path) and not config.get(f"{ZERO}.offload_optimizer.super_offload"):
        yield _idle(config, path, 'without "super_offload"', "only that reads it", OUT)


def _idle(
    config: DeepSpeedConfig, path: str, where: str, why: str, remedy: str, switch: bool = False
) -> Row:
    """Return the row of a key without effect. With `switch`, a key next to it turns it off."""
    value, default = config.stated(path), config.default(path)
    same = value == default or value in ("auto", None) or value == {"device": "none"}
    same = same or (value is False and default is None)
    message = f'"{path.rpartition(".")[2]}" has no effect {where}'
    source = "" if path.startswith("fp16.") else ENGINE  # fp16 has a separate reader
    level = "hint" if same or switch else "warning"
    return (level, path, message, f"{why[0].upper()}{why[1:]}.", remedy, source)
