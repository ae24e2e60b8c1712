"""The batch triple: train batch = ranks × micro-batch × accumulation, with missing values derived.

DeepSpeed derives one of the three from the others by integer division and asserts the product.
Lesson 13.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.peers.deepspeed_config.config import ABSENT, DeepSpeedConfig, Row

BATCH = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
FRAGMENT = 2  # top-level sections of an example on a page; a full file has more


def check(config: DeepSpeedConfig) -> Iterator[Row]:
    """Yield a finding if the three values disagree, or if both batch sizes are missing."""
    stated = {name: config.stated(name) for name in (BATCH, MICRO, STEPS)}
    if all(stated[name] in (ABSENT, None) for name in (BATCH, MICRO)):
        yield _missing(config)
        return
    batch, micro, steps = (_count(config, name) for name in stated)
    left = "auto" in stated.values()
    if batch is None or (left and config.world is None):
        return
    if config.world is not None and not left:
        yield from _with_world(config, batch, micro, steps, config.world)
        return
    divisor = (micro or 1) * (steps or 1)
    if batch % divisor and not left:
        words = " × ".join(str(x) for x in (micro, steps) if x)
        words = words if micro else f"{STEPS} {words}"
        instead = ", or leave it out" if micro else ""
        message = f"{BATCH} {batch} is not a multiple of {words}"
        product = "train batch = ranks × micro-batch × accumulation"
        reason = f"{product}, but no number of ranks fits these values."
        yield ("error", BATCH, message, reason, f"write a multiple of {divisor}{instead}")


def _count(config: DeepSpeedConfig, name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _missing(config: DeepSpeedConfig) -> Row:
    whole = len(config.value) > FRAGMENT
    message = f'neither "{BATCH}" nor "{MICRO}" is there' if config.value else "the config is empty"
    part = "" if whole else " A full config needs one, but an excerpt on a page does not."
    reason = f"DeepSpeed needs one of them to derive the others.{part}"
    remedy = f'add "{MICRO}" ("auto" with the Trainer)'
    return ("error" if whole else "hint", "", message, reason, remedy)


def _with_world(
    config: DeepSpeedConfig, batch: int, micro: int | None, steps: int | None, world: int
) -> Iterator[Row]:
    sequence = config.get("sequence_parallel_size", 1)
    if not isinstance(sequence, int) or sequence < 1:
        return  # handled by values.py
    if world % sequence:
        message = f"{world} ranks are not a multiple of {sequence}"
        reason = "Ranks that share a sequence count as one."
        yield ("error", "sequence_parallel_size", message, reason, "choose a divisor of the ranks")
        return
    ranks = world // sequence
    if micro is None:
        steps = steps or 1
        micro = batch // ranks // steps
    elif steps is None:
        steps = batch // micro // ranks
    made = micro * steps * ranks
    if made != batch:
        unit = micro * ranks or ranks
        right = f"write {made}, or leave {BATCH} out" if made else f"write a multiple of {unit}"
        product = f"{micro} × {steps} × {ranks} = {made}"
        message = f"{BATCH} is {batch}, but micro-batch × accumulation × ranks is {product}"
        yield ("error", BATCH, message, "DeepSpeed asserts that the two are equal.", right)
