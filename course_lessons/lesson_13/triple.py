"""DeepSpeed's batch triple: what is missing of it is filled in, what does not multiply is refused.

The reference of `fill_batch`, held to DeepSpeed's own by a test where that is installed, and the
wrong ideas of it: each is another function of the same sizes. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

TRAIN, MICRO, TIMES = TRIPLE = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)


class Sizes(NamedTuple):
    """The three as a config names them, or None, and the number of ranks."""

    train: int | None
    micro: int | None
    times: int | None
    world: int

    @classmethod
    def of(cls, config: Mapping, world: int) -> Sizes:
        return cls(*map(config.get, TRIPLE), world)

    def all_named(self) -> bool:
        return None not in self

    def above_zero(self) -> bool:
        return all(size is None or size > 0 for size in self)


Fill = Callable[[Sizes], Sizes | None]  # None: refused


def filled(sizes: Sizes) -> Sizes | None:
    """All three sizes, or None where no run can have them."""
    known = multiplied(sizes)
    return known and positive(known)


def guessed(sizes: Sizes) -> Sizes | None:
    """The three before they are checked, in DeepSpeed's own order: a division may have left
    something over."""
    train, micro, times, world = sizes
    numbers = all(size is None or isinstance(size, int | float) for size in sizes)
    if not numbers or train is micro is None:
        return None
    if times is None and None in (train, micro):
        times = 1
    if train is None:
        train = micro * times * world
    elif micro is None:
        micro = train // world // times if times else 0
    elif times is None:
        times = train // micro // world if micro else 0
    return Sizes(train, micro, times, world)


def multiplied(sizes: Sizes) -> Sizes | None:
    """Checked for their product alone."""
    known = guessed(sizes)
    return known if known and known.train == known.micro * known.times * known.world else None


def positive(sizes: Sizes) -> Sizes | None:
    """Checked for their signs alone."""
    known = guessed(sizes)
    return known if known and known.above_zero() else None


# ---- wrong ideas
def _refused(sizes: Sizes) -> None:
    return None


def _read_as(**other: int | None) -> Fill:
    """Filled in rightly, as if a config had said something else."""
    return lambda sizes: filled(sizes._replace(**other))


def _where(so: Callable[[Sizes], object], fill: Fill, otherwise: Fill = filled) -> Fill:
    return lambda sizes: (fill if so(sizes) else otherwise)(sizes)


def _in_part(sizes: Sizes) -> bool:
    return sizes.above_zero() and not sizes.all_named()


def _divided(sizes: Sizes) -> bool:
    """The batch and one of the two others are named."""
    return sizes.above_zero() and sizes.train is not None and sizes.count(None) == 1


def _a_multiple(sizes: Sizes) -> bool:
    """All three are there, and the batch is a multiple of their product."""
    train, micro, times, world = sizes
    return sizes.all_named() and sizes.above_zero() and train % (micro * times * world) == 0


def _by_each(sizes: Sizes) -> Sizes | None:
    """The batch is divided by the named size and by the world, and each is tested by itself."""
    train, *divisors = sizes
    return None if any(size and train % size for size in divisors) else guessed(sizes)


def _rounded_up(sizes: Sizes) -> Sizes:
    train, micro, times, world = sizes
    if micro is None:
        return Sizes(train, -(-train // ((times or 1) * world)), times or 1, world)
    return Sizes(train, micro, -(-train // (micro * world)), world)


IDEAS: tuple[tuple[str, Fill], ...] = (  # entries of the page
    ("one rank alone", _read_as(world=1)),
    ("not checked #1", guessed),
    ("three are believed #1", _where(Sizes.all_named, guessed)),
    ("three are believed #2", _where(_a_multiple, guessed)),
    ("three are believed #3", _where(lambda s: s.world == 1 and s.all_named(), guessed)),
    ("not checked #2", _where(lambda s: s.world == 1, positive)),
    ("the batch changed in silence", _where(Sizes.all_named, _read_as(train=None))),
    (
        "accumulates by itself",
        _where(lambda s: s.train is not None and s.micro is s.times is None, _read_as(micro=1)),
    ),
    ("from accumulation alone", _where(lambda s: s.train is s.micro is None, _read_as(micro=1))),
    ("wants two of three", _where(lambda s: s.count(None) > 1, _refused)),
    ("zero is not there", lambda s: filled(Sizes(*(size or None for size in s)))),
    ("sign not looked at #1", multiplied),
    ("sign not looked at #2", _where(lambda s: 0 in s, _refused, multiplied)),
    ("rounded down", _where(_in_part, guessed)),
    ("rounded down", _where(_in_part, positive)),
    ("each divides by itself", _where(lambda s: _divided(s) and s.micro is None, _by_each)),
    ("each divides by itself", _where(_divided, _by_each)),
    ("a share of 0", _where(lambda s: s.above_zero() and 0 in (guessed(s) or ()), guessed)),
    (
        "accumulation changed in silence",
        _where(lambda s: None not in (s.train, s.micro), _read_as(times=None)),
    ),
    ("accumulation always 1", _where(lambda s: s.times is None, _read_as(times=1))),
    ("rounded up", _where(lambda s: s.train is not None and _in_part(s), _rounded_up)),
)
