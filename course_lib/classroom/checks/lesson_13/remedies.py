"""What each of the eight authors meant, looked for in a mended config; a wrong remedy by its name.

A remedy may touch the keys that the fault is about, and no other. What is looked at is what the
config comes to: a block switched off is as good as one taken out. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from course_lib.classroom.checks.lesson_13.broken import Case
from course_lib.classroom.checks.lesson_13.triple import (
    MICRO,
    TIMES,
    TRAIN,
    TRIPLE,
    Refused,
    filled,
)
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_13/mend_config")

Path = tuple[str, ...]
ZERO = "zero_optimization"
BYTES, OVERLAP = 2, 4.5  # of an element in a bucket; what `overlap_comm` multiplies the buckets by


class Remedy(NamedTuple):
    """The keys that a mend is about, and a look for what was meant: a Finding, or nothing."""

    about: tuple[Path, ...]
    look: Callable[[Case, Mapping], None]


def at(config: object, *path: str) -> object:
    """What stands at a path of keys, or None."""
    for key in path:
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def leaves(config: Mapping, above: Path = ()) -> dict[Path, object]:
    """Every value by its path of keys; an empty section is a value too."""
    found: dict[Path, object] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= leaves(value, (*above, key))
        else:
            found[(*above, key)] = value
    return found


def changes(case: Case, mended: Mapping) -> dict[Path, str]:
    """What was "lost", "added" or "changed" beside the keys that the mend is about."""
    about = REMEDIES[case.name].about
    before, after = leaves(case.config), leaves(mended)
    words = {}
    for path in [*before, *after]:
        if any(path[: len(part)] == part for part in about):
            continue
        if path not in after:
            words[path] = "lost"
        elif path not in before:
            words[path] = "added"
        elif before[path] != after[path]:
            words[path] = "changed"
    return words


def _stage(case: Case, mended: Mapping) -> None:
    section, old = at(mended, ZERO), "zero_optimisation"
    looks = {
        "still misspelt": section is None and old in mended,
        "silenced, not mended #1": not at(section, "stage"),
        "settings lost on the way #1": section != case.config[old],
        "both spellings": old in mended,
    }
    SAYS.refuse(looks)


def _offload(case: Case, mended: Mapping) -> None:
    name = "offload_optimizer"
    inside, outside = at(mended, ZERO, name), at(mended, name)
    looks = {
        "one level too high": inside is None and outside is not None,
        "in the wrong section": inside is None and any(name in path for path in leaves(mended)),
        "silenced, not mended #5": inside is None,
        "settings lost on the way #2": inside != case.config[name],
        "on both levels": outside is not None,
    }
    SAYS.refuse(looks)


def _precision(case: Case, mended: Mapping) -> None:
    on = [at(mended, name, "enabled") is True for name in ("fp16", "bf16")]
    looks = {
        "the other precision": on == [True, False],
        "both precisions": all(on),
        "silenced, not mended #6": not any(on),
    }
    SAYS.refuse(looks)


def _parameters(case: Case, mended: Mapping) -> None:
    looks = {
        "silenced, not mended #2": at(mended, ZERO, "offload_param") is None,
        "not sharded, not offloaded": at(mended, ZERO, "stage") != 3,
    }
    SAYS.refuse(looks)


def _batch(case: Case, mended: Mapping) -> None:
    world, meant = case.facts["world"], case.config
    sizes = {name: mended[name] for name in TRIPLE if name in mended}
    try:
        comes_to = filled(mended, world)
    except Refused:
        alone = filled({TRAIN: meant[TRAIN], MICRO: meant[MICRO]}, 1)[TIMES]
        looks = {"world size left out": sizes.get(TIMES) == alone, "does not multiply": True}
        SAYS.refuse(looks, world=world, sizes=sizes)
    floats = [name for name, size in sizes.items() if isinstance(size, float)]
    about = {"name": floats[0], "value": sizes[floats[0]]} if floats else {}
    SAYS.refuse({"not a whole number #2": floats}, **about)
    for entry, name in (("another batch", TRAIN), ("another micro-batch", MICRO)):
        other = comes_to[name] != meant[name]
        SAYS.refuse({entry: other}, comes_to=comes_to[name], meant=meant[name])


def _auto(case: Case, mended: Mapping) -> None:
    h = case.facts["hidden"]
    for name, value in zip(_DEFAULTS, (h * h, int(0.9 * h * h), 10 * h), strict=True):
        mine, was = at(mended, ZERO, name), at(case.config, ZERO, name)
        if was != "auto":
            SAYS.refuse({"not auto": mine != was}, name=name, was=was, mine=mine)
            continue
        number = isinstance(mine, (int, float))
        looks = {
            "auto left": mine == "auto",
            "default instead #2": mine is None or mine == _DEFAULTS[name],
            "not a whole number #1": isinstance(mine, float) and not mine.is_integer(),
            "bytes": mine == 2 * value,
            "rounded up": mine == value + 1 and name == "stage3_prefetch_bucket_size",
            "another value": not number or abs(mine - value) > 1,
        }
        SAYS.refuse(looks, name=name, mine=mine)


def _buckets(case: Case, mended: Mapping) -> None:
    room = case.facts["room"]
    sizes = [at(mended, *path) for path in _BUCKETS]
    given = all(isinstance(size, (int, float)) and size > 0 for size in sizes)
    overlaps = at(mended, ZERO, "overlap_comm") is True
    SAYS.refuse({"silenced, not mended #3": not overlaps, "default instead #1": not given})
    takes = BYTES * OVERLAP * sum(sizes)
    told = f"The two buckets take {takes / 1e9:.2f} GB, and {room / 1e9:.2f} GB were free."
    left = [path[-1] for path in _BUCKETS if at(mended, *path) == at(case.config, *path)]
    too_large = takes > room + BYTES * OVERLAP * len(sizes)  # an element rounded up is none

    def fits(count: float) -> bool:
        return too_large and 0.98 * room <= count <= room

    looks = {
        "a bucket left": too_large and left,
        "a factor of two": fits(takes / 2),
        "overlap costs nothing": fits(BYTES * sum(sizes)),
        "the size alone": fits(sum(sizes)),
        "too large": too_large,
        "smaller than needed": takes < room / 2,
    }
    SAYS.refuse(looks, told=told, left=left[0] if left else "")


def _schedule(case: Case, mended: Mapping) -> None:
    meant, steps, name = case.config["scheduler"], case.facts["steps"], "total_num_steps"
    kind, here = at(mended, "scheduler", "type"), at(mended, "scheduler", "params", name)
    strayed = here is None and any(name in path for path in leaves(mended))
    looks = {
        "silenced, not mended #4": kind is None,
        "another schedule": kind != meant["type"],
        "steps missing": here is None,
        "micro-batches counted": here == steps * case.config[TIMES],
        "warm-up on top": here == steps + at(meant, "params", "warmup_num_steps"),
        "another end": here != steps,
    }
    more = " It stands elsewhere, where DeepSpeed does not read it." if strayed else ""
    SAYS.refuse(looks, kind=kind, more=more, here=here)


_DEFAULTS = {
    "reduce_bucket_size": 500_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 100_000,
}
_AUTO = tuple((ZERO, name) for name in _DEFAULTS)
_BUCKETS = ((ZERO, "reduce_bucket_size"), (ZERO, "allgather_bucket_size"))
REMEDIES = {
    "stage": Remedy((("zero_optimisation",), (ZERO,)), _stage),
    "offload": Remedy((("offload_optimizer",), (ZERO, "offload_optimizer")), _offload),
    "precision": Remedy((("fp16",), ("bf16",)), _precision),
    "parameters": Remedy(((ZERO, "stage"),), _parameters),
    "batch": Remedy(tuple((name,) for name in TRIPLE), _batch),
    "auto": Remedy(_AUTO, _auto),
    "buckets": Remedy(_BUCKETS, _buckets),
    "schedule": Remedy((("scheduler", "params", "total_num_steps"),), _schedule),
}
