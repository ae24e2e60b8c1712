"""DeepSpeed's batch triple: what is missing of it is filled in, what does not multiply is refused.

The reference of `fill_batch`, held to DeepSpeed's own by a test where that is installed, and the
wrong ideas of it: each is another function of the same arguments. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

TRAIN, MICRO, TIMES = TRIPLE = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
Fill = Callable[[Mapping, int], dict[str, int]]
So = Callable[[Mapping, int], bool]


class Refused(ValueError):
    """A triple that no run can have."""


def filled(config: Mapping, world: int) -> dict[str, int]:
    """All three sizes on `world` ranks, or Refused: DeepSpeed's own order of what follows."""
    train, micro, times = (sizes := guessed(config, world)).values()
    if min(sizes.values()) <= 0 or train != micro * times * world:
        raise Refused(f"{train} is not {micro} · {times} · {world}")
    return sizes


def guessed(config: Mapping, world: int) -> dict[str, int]:
    """The three before they are checked: a division may have left something over."""
    train, micro, times = sizes = [config.get(name) for name in TRIPLE]
    if not all(size is None or isinstance(size, (int, float)) for size in sizes):
        raise Refused("a size that is no number")
    if train is None and micro is None:
        raise Refused("neither a batch nor a micro-batch")
    if times is None and (train is None or micro is None):
        times = 1
    if train is None:
        train = micro * times * world
    elif micro is None:
        micro = train // world // times if times else 0
    elif times is None:
        times = train // micro // world if micro else 0
    return dict(zip(TRIPLE, (train, micro, times), strict=True))


# ---- wrong ideas: the config read differently, or taken as it is in some cases
def _read_as(change: Callable[[dict], Mapping], so: So) -> Fill:
    """Filled in rightly, after a change to the configs that are so."""
    return lambda config, world: filled(
        change(dict(config)) if so(config, world) else config, world
    )


def _taken(so: So, positive: bool = False) -> Fill:
    """Unchecked where a config is so, or checked only to be `positive`."""

    def fill(config: Mapping, world: int) -> dict[str, int]:
        if not so(config, world):
            return filled(config, world)
        sizes = guessed(config, world)
        if positive and min(sizes.values()) <= 0:
            raise Refused("not above zero")
        return sizes

    return fill


def _refused(so: So, otherwise: Fill = filled) -> Fill:
    """Refused where a config is so."""

    def fill(config: Mapping, world: int) -> dict[str, int]:
        if so(config, world):
            raise Refused("as this idea has it")
        return otherwise(config, world)

    return fill


def _without(*names: str) -> Callable[[dict], Mapping]:
    return lambda config: {key: x for key, x in config.items() if key not in names}


def _has(*names: str) -> So:
    return lambda config, world: all(name in config for name in names)


def _lacks(*names: str) -> So:
    return lambda config, world: not any(name in config for name in names)


def _any(config: Mapping, world: int) -> bool:
    return True


def above_zero(config: Mapping, world: int = 1) -> bool:
    return all(config[name] > 0 for name in TRIPLE if name in config)


def _one(config: Mapping, world: int) -> bool:
    return world == 1


def _multiple(config: Mapping, world: int) -> bool:
    """All three are there, and the batch is a multiple of their product."""
    if not (_has(*TRIPLE)(config, world) and above_zero(config)):
        return False
    return config[TRAIN] % (config[MICRO] * config[TIMES] * world) == 0


def _divided(config: Mapping, world: int) -> bool:
    """Sizes above zero, and not all three are there."""
    return above_zero(config) and not _has(*TRIPLE)(config, world)


def _product_only(config: Mapping, world: int) -> dict[str, int]:
    """The product is looked at, and no size's sign."""
    train, micro, times = (sizes := guessed(config, world)).values()
    if train != micro * times * world:
        raise Refused("does not multiply")
    return sizes


def _rounded_up(config: Mapping, world: int) -> dict[str, int]:
    if TRAIN not in config or not _divided(config, world):
        return filled(config, world)
    times = config.get(TIMES, 1)
    if MICRO in config:
        return {**config, TIMES: -(-config[TRAIN] // (config[MICRO] * world))}
    return {**config, MICRO: -(-config[TRAIN] // (times * world)), TIMES: times}


def _by_each(*divisors: str) -> Fill:
    """The batch is divided by a named size and by the world, and each is tested by itself."""

    def so(config: Mapping, world: int) -> bool:
        named = [name for name in divisors if name in config]
        return TRAIN in config and _divided(config, world) and len(named) == 1

    def left_over(config: Mapping, world: int) -> bool:
        named = [config[name] for name in divisors if name in config]
        return so(config, world) and any(config[TRAIN] % size for size in (*named, world))

    return _refused(left_over, _taken(so))


def _share_of_0(config: Mapping, world: int) -> bool:
    sizes = guessed(config, world)
    return above_zero(config) and min(sizes.values()) == 0


IDEAS: tuple[tuple[str, Fill], ...] = (  # entries of the page
    ("one rank alone", lambda config, world: filled(config, 1)),
    ("not checked #1", _taken(_any)),
    ("three are believed #1", _taken(_has(*TRIPLE))),
    ("three are believed #2", _taken(_multiple)),
    ("three are believed #3", _taken(lambda c, w: w == 1 and _has(*TRIPLE)(c, w))),
    ("not checked #2", _taken(_one, positive=True)),
    ("the batch changed in silence", _read_as(_without(TRAIN), _has(*TRIPLE))),
    (
        "accumulates by itself",
        _read_as(lambda c: {**c, MICRO: 1}, lambda c, w: TRAIN in c and _lacks(MICRO, TIMES)(c, w)),
    ),
    ("from accumulation alone", _read_as(lambda c: {**c, MICRO: 1}, _lacks(TRAIN, MICRO))),
    ("wants two of three", _refused(lambda c, w: sum(name in c for name in TRIPLE) < 2)),
    (
        "zero is not there",
        _read_as(lambda c: {key: x for key, x in c.items() if x or key not in TRIPLE}, _any),
    ),
    ("sign not looked at #1", _product_only),
    (
        "sign not looked at #2",
        _refused(lambda c, w: any(c.get(name) == 0 for name in TRIPLE), _product_only),
    ),
    ("rounded down", _taken(_divided)),
    ("rounded down", _taken(_divided, positive=True)),
    ("each divides by itself", _by_each(TIMES)),
    ("each divides by itself", _by_each(TIMES, MICRO)),
    ("a share of 0", _taken(_share_of_0)),
    ("accumulation changed in silence", _read_as(_without(TIMES), _has(TRAIN, MICRO))),
    ("accumulation always 1", _read_as(lambda c: {TIMES: 1, **c}, _any)),
    ("rounded up", _rounded_up),
)
