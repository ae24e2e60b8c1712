"""Wrong ideas of DeepSpeed's batch triple, each another function of the same arguments.

`fill_batch` recognises an answer by what an idea makes of all drawn configs. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from course_lib.classroom.checks.lesson_13.triple import (
    MICRO,
    TIMES,
    TRAIN,
    TRIPLE,
    Refused,
    filled,
    guessed,
)


def _one_rank(config: Mapping, world: int) -> dict[str, int]:
    return filled(config, 1)


def _unchecked(config: Mapping, world: int) -> dict[str, int]:
    return dict(zip(TRIPLE, guessed(config, world), strict=True))


def _believed(config: Mapping, world: int) -> dict[str, int]:
    if all(name in config for name in TRIPLE):
        return {name: config[name] for name in TRIPLE}
    return filled(config, world)


def _multiple_believed(config: Mapping, world: int) -> dict[str, int]:
    """All three are there: the batch may be any multiple of their product."""
    train, micro, times = (config.get(name, 0) for name in TRIPLE)
    if min(train, micro, times) > 0 and train % (micro * times * world) == 0:
        return {name: config[name] for name in TRIPLE}
    return filled(config, world)


def _one_rank_believed(config: Mapping, world: int) -> dict[str, int]:
    return _believed(config, world) if world == 1 else filled(config, world)


def _one_rank_unchecked(config: Mapping, world: int) -> dict[str, int]:
    if world != 1:
        return filled(config, world)
    sizes = _unchecked(config, world)
    if min(sizes.values()) <= 0:
        raise Refused("not above zero")
    return sizes


def _product(config: Mapping, world: int) -> dict[str, int]:
    """All three are there: the batch is made to be their product."""
    if all(name in config for name in TRIPLE):
        return filled({k: v for k, v in config.items() if k != TRAIN}, world)
    return filled(config, world)


def _accumulates(config: Mapping, world: int) -> dict[str, int]:
    if [config.get(name) is None for name in TRIPLE] == [False, True, True]:
        return filled({MICRO: 1, **config}, world)
    return filled(config, world)


def _from_nothing(config: Mapping, world: int) -> dict[str, int]:
    if config.get(TRAIN) is None and config.get(MICRO) is None:
        return filled({MICRO: 1, **config}, world)
    return filled(config, world)


def _needs_two(config: Mapping, world: int) -> dict[str, int]:
    if sum(config.get(name) is not None for name in TRIPLE) < 2:
        raise Refused("one of three")
    return filled(config, world)


def _zero_is_nothing(config: Mapping, world: int) -> dict[str, int]:
    return filled({k: v for k, v in config.items() if v or k not in TRIPLE}, world)


def _sign_unseen(config: Mapping, world: int) -> dict[str, int]:
    train, micro, times = guessed(config, world)
    if train != micro * times * world:
        raise Refused("does not multiply")
    return dict(zip(TRIPLE, (train, micro, times), strict=True))


def _zero_seen(config: Mapping, world: int) -> dict[str, int]:
    """As the one before, of an author who thought of nought."""
    if any(config.get(name) == 0 for name in TRIPLE):
        raise Refused("a size of 0")
    return _sign_unseen(config, world)


def _rounds_up(config: Mapping, world: int) -> dict[str, int]:
    if config.get(TRAIN) is None or all(name in config for name in TRIPLE):
        return filled(config, world)
    train, micro, times = (config.get(name) for name in TRIPLE)
    if min(value for value in (train, micro, times) if value is not None) <= 0:
        raise Refused("not above zero")
    if micro is not None:
        return dict(zip(TRIPLE, (train, micro, -(-train // (micro * world))), strict=True))
    times = 1 if times is None else times
    return dict(zip(TRIPLE, (train, -(-train // (times * world)), times), strict=True))


def _rounds_down(config: Mapping, world: int) -> dict[str, int]:
    if any(config.get(name, 1) <= 0 for name in TRIPLE) or all(name in config for name in TRIPLE):
        return filled(config, world)
    return dict(zip(TRIPLE, guessed(config, world), strict=True))


def _rounds_down_seen(config: Mapping, world: int) -> dict[str, int]:
    """As the one before, and what comes to 0 is refused."""
    sizes = _rounds_down(config, world)
    if min(sizes.values()) <= 0:
        raise Refused("a share of 0")
    return sizes


def _by_each(config: Mapping, world: int, divisors: tuple[str, ...] = (TIMES,)) -> dict[str, int]:
    """The batch is divided by a named size and by the world, and each is tested by itself."""
    named = [name for name in divisors if name in config]
    three = all(name in config for name in TRIPLE)
    if TRAIN not in config or three or any(config.get(name, 1) <= 0 for name in TRIPLE):
        return filled(config, world)
    if len(named) != 1:
        return filled(config, world)
    if config[TRAIN] % config[named[0]] or config[TRAIN] % world:
        raise Refused("something is left over")
    return dict(zip(TRIPLE, guessed(config, world), strict=True))


def _by_each_of_both(config: Mapping, world: int) -> dict[str, int]:
    return _by_each(config, world, (TIMES, MICRO))


def _nothing_is_fine(config: Mapping, world: int) -> dict[str, int]:
    """A share of 0, where there are fewer samples than ranks take at once."""
    sizes = dict(zip(TRIPLE, guessed(config, world), strict=True))
    if all(config.get(name, 1) > 0 for name in TRIPLE) and min(sizes.values()) == 0:
        return sizes
    return filled(config, world)


def _recounts(config: Mapping, world: int) -> dict[str, int]:
    """All three are there: accumulation is worked out anew."""
    if config.get(TRAIN) is not None and config.get(MICRO) is not None:
        return filled({k: v for k, v in config.items() if k != TIMES}, world)
    return filled(config, world)


def _never_accumulates(config: Mapping, world: int) -> dict[str, int]:
    return filled({TIMES: 1, **config}, world)


Fill = Callable[[Mapping, int], dict[str, int]]
IDEAS: tuple[tuple[str, str, Fill], ...] = (
    (
        "one rank alone",
        "That is the triple of one rank. `train_batch_size` counts the samples of all ranks.",
        _one_rank,
    ),
    (
        "not checked",
        "What is missing is worked out, and what comes of it is not held against the "
        "product: a division that leaves something over trains another batch than the file names.",
        _unchecked,
    ),
    (
        "three are believed",
        "Where all three are there you take them as they are. They may "
        "contradict each other, and DeepSpeed says so.",
        _believed,
    ),
    (
        "three are believed",
        "Where all three are there and the batch is a multiple of the product, you take them. "
        "The batch is exactly their product, or it is refused.",
        _multiple_believed,
    ),
    (
        "three are believed",
        "On one rank you take all three as they are. They may contradict each other there too.",
        _one_rank_believed,
    ),
    (
        "not checked",
        "On one rank nothing is held against the product. Sizes may contradict each other, and a "
        "division may leave something over, there too.",
        _one_rank_unchecked,
    ),
    (
        "the batch changed in silence",
        "Where all three are there and do not multiply, you make "
        "the batch fit. Its author asked for another one: refuse.",
        _product,
    ),
    (
        "accumulates by itself",
        "With `train_batch_size` alone you accumulate. DeepSpeed does not: "
        "it gives each rank its whole share at once, which may not fit.",
        _accumulates,
    ),
    (
        "from accumulation alone",
        "Accumulation says how many micro-batches there are, and not how "
        "large: DeepSpeed refuses where that is all there is.",
        _from_nothing,
    ),
    (
        "wants two of three",
        "One of the two sizes is enough: what is not said of accumulation is 1.",
        _needs_two,
    ),
    (
        "zero is not there",
        "A size of 0 was taken for one that is missing. It is there, and it is wrong.",
        _zero_is_nothing,
    ),
    (
        "sign not looked at",
        "The product is right and a size is not above zero: two negative "
        "sizes multiply to a positive batch.",
        _sign_unseen,
    ),
    (
        "sign not looked at",
        "The product is right and a size is below zero: two negative sizes "
        "multiply to a positive batch.",
        _zero_seen,
    ),
    (
        "rounded down",
        "A division that leaves something over was rounded down. That trains less "
        "than the file names; refuse it.",
        _rounds_down,
    ),
    (
        "rounded down",
        "A division that leaves something over was rounded down. That trains less "
        "than the file names; refuse it.",
        _rounds_down_seen,
    ),
    (
        "each divides by itself",
        "A batch may divide by a size and by the world size, and not by "
        "their product: 40 divides by 4 and by 8, and not by 32.",
        _by_each,
    ),
    (
        "each divides by itself",
        "A batch may divide by a size and by the world size, and not by "
        "their product: 40 divides by 4 and by 8, and not by 32.",
        _by_each_of_both,
    ),
    (
        "a share of 0",
        "There are fewer samples than the ranks take at once, and a size of 0 came "
        "of it. A size that is worked out has to be above zero too.",
        _nothing_is_fine,
    ),
    (
        "accumulation changed in silence",
        "Where all three are there you work accumulation out "
        "anew. They contradict each other: refuse, and let the author say which one is wrong.",
        _recounts,
    ),
    (
        "accumulation always 1",
        "Where the batch and the micro-batch are there, accumulation "
        "follows from them. It is 1 where nothing else says how much it is.",
        _never_accumulates,
    ),
    (
        "rounded up",
        "A division that leaves something over was rounded up. That trains more than "
        "the file names; refuse it.",
        _rounds_up,
    ),
)
