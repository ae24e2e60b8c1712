"""DeepSpeed's batch triple, filled in or refused: the reference of `fill_batch` and `mend_config`,
which a test compares with DeepSpeed if that is installed. Lesson 13."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from course_lib.peers.deepspeed_config.rules import batch

TRAIN, MICRO, TIMES = TRIPLE = (batch.BATCH, batch.MICRO, batch.STEPS)


class Sizes(NamedTuple):
    """The three sizes of a config, each None if missing, and the number of ranks."""

    train: int | None
    micro: int | None
    times: int | None
    world: int

    @classmethod
    def of(cls, config: Mapping, world: int) -> Sizes:
        return cls(*map(config.get, TRIPLE), world)

    def above_zero(self) -> bool:
        return all(size is None or size > 0 for size in self)


def filled(sizes: Sizes, product: bool = True, signs: bool = True) -> Sizes | None:
    """Fill in all three sizes in DeepSpeed's order, or return None if no run can have them. Without
    `product`, the product of the sizes is not checked, so a division may leave a remainder."""
    train, micro, times, world = sizes
    numbers = all(size is None or isinstance(size, int | float) for size in sizes)
    if not numbers or train is micro is None:
        return None
    if times is None:
        times = 1 if None in (train, micro) else micro and train // micro // world
    if micro is None:
        micro = times and train // world // times
    if train is None:
        train = micro * times * world
    known = Sizes(train, micro, times, world)
    multiplies = train == micro * times * world or not product
    return known if multiplies and (known.above_zero() or not signs) else None
