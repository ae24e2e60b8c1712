"""What each of the eight authors meant, looked for in a mended config; a wrong remedy by its name.

A remedy may touch the keys that the fault is about, and no other. What is looked at is what the
config comes to: a block switched off is as good as one taken out. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.lesson_13.broken import Case
from course_lib.classroom.checks.lesson_13.triple import TRAIN, TRIPLE, Refused, filled
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_13/mend_config")

Path = tuple[str, ...]
ZERO = "zero_optimization"
BYTES, TIMES = 2, 4.5  # of an element in a bucket; what `overlap_comm` multiplies the buckets by


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
    meant, section = case.config["zero_optimisation"], at(mended, ZERO)
    if section is None and "zero_optimisation" in mended:
        raise SAYS("still misspelt")
    if section is None or not at(section, "stage"):
        raise SAYS("silenced, not mended #1")
    if section != meant:
        raise SAYS("settings lost on the way #1")
    if "zero_optimisation" in mended:
        raise SAYS("both spellings")


def _offload(case: Case, mended: Mapping) -> None:
    name = "offload_optimizer"
    inside, outside = at(mended, ZERO, name), at(mended, name)
    if inside is None and outside is not None:
        raise SAYS("one level too high")
    if inside is None:
        elsewhere = any(name in path for path in leaves(mended))
        raise Finding(
            "in the wrong section" if elsewhere else "silenced, not mended",
            "The section belongs to ZeRO: what is sharded is what is offloaded."
            if elsewhere
            else "The misplaced section is gone, and with it the offload that its author wanted.",
        )
    if inside != case.config[name]:
        raise SAYS("settings lost on the way #2")
    if outside is not None:
        raise SAYS("on both levels")


def _precision(case: Case, mended: Mapping) -> None:
    on = {name: at(mended, name, "enabled") is True for name in ("fp16", "bf16")}
    if on == {"fp16": True, "bf16": False}:
        raise SAYS("the other precision")
    if all(on.values()):
        raise SAYS("both precisions")
    if not any(on.values()):
        text = "Both are off: it trains in float32, in twice the bytes."
        raise Finding("silenced, not mended", text)


def _parameters(case: Case, mended: Mapping) -> None:
    if at(mended, ZERO, "offload_param") is None:
        raise SAYS("silenced, not mended #2")
    if at(mended, ZERO, "stage") != 3:
        raise SAYS("not sharded, not offloaded")


def _batch(case: Case, mended: Mapping) -> None:
    world, meant = case.facts["world"], case.config
    try:
        comes_to = filled(mended, world)
    except Refused:
        sizes = {name: mended[name] for name in TRIPLE if name in mended}
        alone = filled({k: v for k, v in meant.items() if k != TRIPLE[2]}, 1)
        if at(mended, TRIPLE[2]) == alone[TRIPLE[2]]:
            raise SAYS("world size left out") from None
        raise SAYS("does not multiply", world=world, sizes=sizes) from None
    halves = [name for name in TRIPLE if isinstance(mended.get(name), float)]
    if halves:
        text = f"`{halves[0]}` is {mended[halves[0]]}, a float. It counts: divide with `//`."
        raise Finding("not a whole number", text)
    if comes_to[TRAIN] != meant[TRAIN]:
        raise SAYS("another batch", comes_to=comes_to[TRAIN], meant=meant[TRAIN])
    if comes_to[TRIPLE[1]] != meant[TRIPLE[1]]:
        raise SAYS("another micro-batch", comes_to=comes_to[TRIPLE[1]], meant=meant[TRIPLE[1]])


def _auto(case: Case, mended: Mapping) -> None:
    h = case.facts["hidden"]
    meant = dict(zip((path[-1] for path in _AUTO), (h * h, int(0.9 * h * h), 10 * h), strict=True))
    for name, value in meant.items():
        mine, was = at(mended, ZERO, name), at(case.config, ZERO, name)
        if was != "auto" and mine != was:
            raise SAYS("not auto", name=name, was=was, mine=mine)
        if was != "auto":
            continue
        if mine == "auto":
            raise SAYS("auto left", name=name)
        if mine is None or mine == _DEFAULTS[name]:
            raise SAYS("default instead #2", name=name)
        if isinstance(mine, float) and not mine.is_integer():
            raise SAYS("not a whole number", name=name)
        if mine == 2 * value:
            raise SAYS("bytes", name=name)
        if mine == value + 1 and name == _AUTO[1][-1]:
            raise SAYS("rounded up", name=name, mine=mine)
        if not isinstance(mine, (int, float)) or abs(mine - value) > 1:
            raise SAYS("another value", name=name, mine=mine)


def _buckets(case: Case, mended: Mapping) -> None:
    room = case.facts["room"]
    if at(mended, ZERO, "overlap_comm") is not True:
        raise SAYS("silenced, not mended #3")
    sizes = [at(mended, *path) for path in _BUCKETS]
    if not all(isinstance(size, (int, float)) and size > 0 for size in sizes):
        raise SAYS("default instead #1")
    elements = sum(sizes)
    takes = BYTES * TIMES * elements
    told = f"The two buckets take {takes / 1e9:.2f} GB, and {room / 1e9:.2f} GB were free."
    left = [path[-1] for path in _BUCKETS if at(mended, *path) == at(case.config, *path)]
    too_large = takes > room + BYTES * TIMES * len(sizes)  # an element rounded up is none
    if too_large and left:
        raise SAYS("a bucket left", told=told, left=left[0])
    for idea, count in (
        ("a factor of two", takes / 2),
        ("overlap costs nothing", BYTES * elements),
        ("the size alone", elements),
    ):
        if too_large and 0.98 * room <= count <= room:
            raise Finding(idea, f"{told} {_OF_BUCKETS[idea]}")
    if too_large:
        raise Finding("too large", told)
    if takes < room / 2:
        text = f"{told} Smaller buckets are more messages, and each has its latency."
        raise Finding("smaller than needed", text)


def _schedule(case: Case, mended: Mapping) -> None:
    meant, steps = case.config["scheduler"], case.facts["steps"]
    kind, params = at(mended, "scheduler", "type"), at(mended, "scheduler", "params")
    if kind is None:
        raise SAYS("silenced, not mended #4")
    if kind != meant["type"]:
        raise SAYS("another schedule", kind=kind)
    here = at(params, "total_num_steps")
    if here is None:
        name = "total_num_steps"
        strayed = any(name in path for path in leaves(mended))
        more = " It stands elsewhere, where DeepSpeed does not read it." if strayed else ""
        raise SAYS("steps missing", kind=kind, more=more)
    if here != steps:
        micro = steps * case.config["gradient_accumulation_steps"]
        if here == micro:
            raise SAYS("micro-batches counted")
        if here == steps + at(meant, "params", "warmup_num_steps"):
            raise SAYS("warm-up on top")
        raise SAYS("another end", here=here)


_DEFAULTS = {
    "reduce_bucket_size": 500_000_000,
    "stage3_prefetch_bucket_size": 50_000_000,
    "stage3_param_persistence_threshold": 100_000,
}
_AUTO = tuple((ZERO, name) for name in _DEFAULTS)
_BUCKETS = ((ZERO, "reduce_bucket_size"), (ZERO, "allgather_bucket_size"))
_OF_BUCKETS = {
    "a factor of two": "A size counts elements, which have two bytes each; and there are two "
    "buckets, one for gradients and one for parameters. You have one of these twos.",
    "overlap costs nothing": "With `overlap_comm` a bucket is there 4.5 times.",
    "the size alone": "A bucket's size counts elements, and with `overlap_comm` it is there 4.5 "
    "times.",
}
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
