"""DeepSpeed's batch triple: what is missing of it is filled in, what does not multiply is refused.

The reference of `fill_batch`, held to DeepSpeed's own by a test where that is installed. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Mapping

TRAIN, MICRO, TIMES = TRIPLE = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)


class Refused(ValueError):
    """A triple that no run can have."""


def filled(config: Mapping, world: int) -> dict[str, int]:
    """All three sizes on `world` ranks, or Refused: DeepSpeed's own order of what follows."""
    train, micro, times = guessed(config, world)
    if min(train, micro, times) <= 0 or train != micro * times * world:
        raise Refused(f"{train} is not {micro} · {times} · {world}")
    return dict(zip(TRIPLE, (train, micro, times), strict=True))


def guessed(config: Mapping, world: int) -> tuple[int, int, int]:
    """The three before they are checked: a division may have left something over."""
    train, micro, times = sizes = [config.get(name) for name in TRIPLE]
    if not all(size is None or isinstance(size, (int, float)) for size in sizes):
        raise Refused("a size that is no number")
    if train is None and micro is None:
        raise Refused("neither a batch nor a micro-batch")
    if train is None:
        times = 1 if times is None else times
        return micro * times * world, micro, times
    if micro is not None and times is not None:
        return train, micro, times
    if micro is not None:
        return train, micro, train // micro // world if micro else 0
    times = 1 if times is None else times
    return train, train // world // times if times else 0, times
