"""Implausible sizes, such as bytes instead of elements, and legal sizes that use much memory.

DeepSpeed counts buckets, thresholds and groups in elements, and blocks of files in bytes. Memory
use is reported in bytes. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.peers.deepspeed_config.config import DeepSpeedConfig, Row

ZERO = "zero_optimization"
PAGE = "the Transformers page on DeepSpeed"
HALF = 2  # bytes of an element in 16 bits
OVERLAP = 4.5  # × the bucket that overlapping uses, for reduction and gathering
PLENTY = 500_000_000  # elements of a bucket that is too big for a small GPU

# Path → (unit, smallest and largest plausible value besides 0, True if 0 is plausible).
PLAUSIBLE = {
    "zero_optimization.reduce_bucket_size": ("elements", 2_000, 5 * 10**9, False),
    "zero_optimization.allgather_bucket_size": ("elements", 2_000, 5 * 10**9, False),
    "zero_optimization.stage3_prefetch_bucket_size": ("elements", 2_000, 5 * 10**9, True),
    "zero_optimization.stage3_param_persistence_threshold": ("elements", 100, 10**9, True),
    "zero_optimization.stage3_model_persistence_threshold": ("elements", 2_000, 1 << 63, True),
    "zero_optimization.stage3_max_live_parameters": ("elements", 10_000, 10**12, True),
    "zero_optimization.stage3_max_reuse_distance": ("elements", 10_000, 10**12, True),
    "zero_optimization.sub_group_size": ("elements", 10_000, 10**13, False),
    "zero_optimization.offload_param.buffer_size": ("elements", 10_000, 10**11, False),
    "zero_optimization.offload_param.max_in_cpu": ("elements", 10_000, 10**13, True),
    "zero_optimization.offload_optimizer.buffer_count": ("buffers", 1, 1_000, False),
    "zero_optimization.offload_param.buffer_count": ("buffers", 1, 1_000, False),
    "aio.block_size": ("bytes", 4_096, 1 << 30, False),
    "aio.queue_depth": ("requests", 1, 4_096, False),
    "aio.intra_op_parallelism": ("threads", 1, 1_024, False),
    "checkpoint.writer.io_buffer_size": ("bytes", 4_096, 1 << 36, False),
    "compile.free_activation_threshold": ("bytes", 1_024, 1 << 40, True),
    "fp16.initial_scale_power": ("a power of 2", 1, 32, True),
    "gradient_clipping": ("the gradients' norm", 1e-6, 10_000, True),
    "train_batch_size": ("sequences", 1, 10**7, False),
    "train_micro_batch_size_per_gpu": ("sequences", 1, 10**5, False),
    "gradient_accumulation_steps": ("micro-batches", 1, 10**5, False),
    "optimizer.params.lr": ("a learning rate", 1e-9, 1.0, True),
    "optimizer.params.weight_decay": ("a decay", 1e-9, 1.0, True),
    "optimizer.params.eps": ("an epsilon", 1e-20, 0.1, True),
    "scheduler.params.warmup_max_lr": ("a learning rate", 1e-9, 1.0, True),
    "scheduler.params.warmup_min_lr": ("a learning rate", 1e-9, 1.0, True),
    "scheduler.params.warmup_num_steps": ("steps", 1, 10**8, True),
    "scheduler.params.total_num_steps": ("steps", 1, 10**9, False),
}


def check(config: DeepSpeedConfig) -> Iterator[Row]:
    """Yield a hint for every implausible size, and for sizes that use much memory."""
    for path, (unit, least, most, zero) in PLAUSIBLE.items():
        value = config.get(path)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
            continue  # handled by values.py and source.py
        if not (least <= value <= most or (value == 0 and zero)):
            yield _implausible(config, path, value, unit, value < least)
    yield from _buckets(config)
    yield from _dear(config)


def _implausible(config: DeepSpeedConfig, path: str, value: float, unit: str, small: bool) -> Row:
    size, default = "small" if small else "large", config.default(path)
    if unit == "elements":
        mb = _count(value * HALF / 1e6)
        many = "1 element is" if value == 1 else f"{_count(value)} elements are"
        message = f"{many} {mb} MB in 16 bits, which is implausibly {size}"
        reason = "This key counts elements, not bytes or megabytes."
        suggestion = "write elements, which is bytes / 2 in 16 bits or bytes / 4 in 32 bits"
        if small:
            suggestion = f"{_count(value)} MB is {int(value * 1e6 / HALF)} elements"
    elif unit == "bytes":
        message = f"{_count(value)} bytes is implausibly {size}"
        reason, suggestion = "This key counts bytes.", f"the default is {default}"
    else:
        message = f"{_count(value)} is implausibly {size} for {unit}"
        reason = "Probably a different unit, or a misplaced decimal point."
        suggestion = "check the value" + (f"; the default is {default}" if default else "")
    return ("hint", path, message, reason, suggestion)


def _buckets(config: DeepSpeedConfig) -> Iterator[Row]:
    """Yield hints about the GPU memory of buckets, stated or default."""
    stage = config.stage or 0
    overlap = config.get(f"{ZERO}.overlap_comm", config.default(f"{ZERO}.overlap_comm")) is True
    times, why = 1, "each bucket is stored once"
    if overlap:
        times, why = OVERLAP, f"overlap_comm uses {OVERLAP:g} × the bucket's bytes"
    for name in ("reduce_bucket_size", "allgather_bucket_size"):
        bucket = config.get(f"{ZERO}.{name}")
        dear = isinstance(bucket, int) and PLENTY <= bucket <= 5 * 10**9
        if dear and (stage in (1, 2) or (stage == 3 and name.startswith("reduce"))):
            message = f"this bucket takes {bucket * HALF * times / 1e9:.1f} GB of each GPU"
            reason = f"{_count(bucket)} elements of 2 bytes; {why}."
            suggestion = "if memory is short, write 2e8 or less"
            yield ("hint", f"{ZERO}.{name}", message, reason, suggestion, PAGE)
    default = config.default(f"{ZERO}.reduce_bucket_size")
    unsaid = not config.has(f"{ZERO}.reduce_bucket_size") and isinstance(default, int)
    if stage and unsaid and config.get(f"{ZERO}.overlap_comm") is True:
        message = f"overlapping takes {default * HALF * OVERLAP / 1e9:.1f} GB of each GPU"
        reason = f'"reduce_bucket_size" is missing, and its default is {_count(default)} '
        reason += f"elements; overlap_comm uses {OVERLAP:g} × their bytes."
        suggestion = 'if memory is short, write "reduce_bucket_size": 2e8 or less'
        yield ("hint", f"{ZERO}.overlap_comm", message, reason, suggestion, PAGE)


def _dear(config: DeepSpeedConfig) -> Iterator[Row]:
    trained = config.has("train_batch_size") or config.has("train_micro_batch_size_per_gpu")
    bound = config.default("gradient_clipping")
    if trained and not config.has("gradient_clipping") and bound:
        message = f"gradients are clipped at a norm of {bound}"
        reason = '"gradient_clipping" is missing, and this is its default.'
        suggestion = 'write a value, or 0 for no clipping ("auto" with the Trainer)'
        source = "deepspeed/runtime/constants.py"
        yield ("hint", "gradient_clipping", message, reason, suggestion, source)
    threshold = f"{ZERO}.stage3_param_persistence_threshold"
    if config.stage == 3 and config.get(threshold) == 0:
        message = "with 0 even the smallest parameters are gathered each time"
        reason = "Biases and norms are gathered one by one, and each message adds latency."
        suggestion = 'the default is 100000; the Trainer\'s "auto" is 10 × hidden size'
        yield ("hint", threshold, message, reason, suggestion, PAGE)
    scale = config.get("fp16.loss_scale")
    if isinstance(scale, (int, float)) and scale > 0 and config.get("fp16.enabled") is True:
        message, suggestion = "the loss scale is static", "write 0 for a dynamic scale"
        reason = "It is never lowered when gradients overflow, so each such step is lost."
        yield ("hint", "fp16.loss_scale", message, reason, suggestion, PAGE)


def _count(value: float) -> str:
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.3g}"
    return f"{int(value):,}" if abs(value) < 1e15 else f"{value:.3g}"
