"""The batch triple: train batch = ranks × micro-batch × accumulation, with what is left out filled.

DeepSpeed derives one of the three from the others by whole division, and asserts the product.
Lesson 13.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.deepspeed_config.config import ABSENT, Config
from course_lib.deepspeed_config.finding import Finding

BATCH = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
SOURCE = "deepspeed/runtime/config.py"
FRAGMENT = 2  # sections at the top that a page shows as an example; a whole file has more


def check(config: Config) -> Iterator[Finding]:
    """A finding where the three do not agree, or none of them is there."""
    stated = [name for name in (BATCH, MICRO, STEPS) if config.stated(name) not in (ABSENT, None)]
    if BATCH not in stated and MICRO not in stated:
        yield from _missing(config)
        return
    batch, micro, steps = (_count(config, name) for name in (BATCH, MICRO, STEPS))
    left = [name for name in (BATCH, MICRO, STEPS) if config.stated(name) == "auto"]
    if batch is None or (left and config.world is None):
        return
    world = config.world
    if world is not None and not left:
        yield from _with_world(config, batch, micro, steps, world)
    elif micro is not None and batch % (micro * (steps or 1)) and not left:
        each = f"{micro} × {steps}" if steps else str(micro)
        yield config.finding(
            "batch", "error", BATCH, f"{BATCH} {batch} is no multiple of {each}",
            "train batch = ranks × micro-batch × accumulation, which no number of ranks makes of "
            "these.", SOURCE, f"write a multiple of {micro * (steps or 1)}, or leave it out",
            value=True,
        )  # fmt: skip
    elif steps is not None and micro is None and batch % steps and not left:
        yield config.finding(
            "batch", "error", BATCH, f"{BATCH} {batch} is no multiple of {STEPS} {steps}",
            "train batch = ranks × micro-batch × accumulation, which no number of ranks makes of "
            "these.", SOURCE, f"write a multiple of {steps}", value=True,
        )  # fmt: skip


def _count(config: Config, name: str) -> int | None:
    value = config.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _missing(config: Config) -> Iterator[Finding]:
    whole = len(config.value) > FRAGMENT
    if not whole and not config.value:
        message = "the config is empty"
    else:
        message = f'neither "{BATCH}" nor "{MICRO}" is there'
    yield config.finding(
        "batch", "error" if whole else "hint", ("",),
        message, "DeepSpeed needs one of the two to derive the others."
        + ("" if whole else " A whole config has one; a part of one, as pages show it, need not."),
        SOURCE, f'add "{MICRO}"; "auto" under the Trainer',
    )  # fmt: skip


def _with_world(
    config: Config, batch: int, micro: int | None, steps: int | None, world: int
) -> Iterator[Finding]:
    sequence = config.get("sequence_parallel_size", 1)
    ranks = world // sequence if isinstance(sequence, int) and sequence > 0 else world
    if sequence != 1 and (not isinstance(sequence, int) or world % sequence):
        yield config.finding(
            "batch", "error", "sequence_parallel_size",
            f"{world} ranks are no multiple of {sequence}",
            "Ranks that share a sequence count as one.", SOURCE, "let it divide the ranks",
            value=True,
        )  # fmt: skip
        return
    if micro is not None and steps is not None:
        made = micro * steps * ranks
        words = f"{micro} × {steps} × {ranks} = {made}"
    elif micro is not None:
        steps = batch // micro // ranks
        made = micro * steps * ranks
        words = f"{micro} × {steps} × {ranks} = {made}"
    else:
        micro = batch // ranks // (steps or 1)
        made = micro * (steps or 1) * ranks
        words = f"{micro} × {steps or 1} × {ranks} = {made}"
    if made == batch:
        return
    unit = next(x for x in (micro * ranks, ranks) if x)
    yield config.finding(
        "batch", "error", BATCH,
        f"{BATCH} is {batch}, and micro-batch × accumulation × ranks is {words}",
        "DeepSpeed asserts that the two are equal.", SOURCE,
        f"write {made}, or leave {BATCH} out" if made else f"write a multiple of {unit}",
        value=True,
    )  # fmt: skip
