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
        raise Finding(
            "still misspelt",
            "DeepSpeed's keys are in American spelling, and one that it does not know at the top "
            "level is ignored: stage 0.",
        )
    if section is None or not at(section, "stage"):
        raise Finding(
            "silenced, not mended",
            "The misspelt key is gone, and so is what its author wanted: nothing is sharded.",
        )
    if section != meant:
        raise Finding(
            "settings lost on the way",
            "The section has its name, and not all of its settings as they were.",
        )
    if "zero_optimisation" in mended:
        raise Finding(
            "both spellings",
            "Both spellings are there. DeepSpeed reads one of them and ignores the other, and the "
            "next author changes the wrong one.",
        )


def _offload(case: Case, mended: Mapping) -> None:
    name = "offload_optimizer"
    inside, outside = at(mended, ZERO, name), at(mended, name)
    if inside is None and outside is not None:
        raise Finding(
            "one level too high",
            "The section still stands at the top level, where DeepSpeed ignores it: the states "
            "are on the GPU.",
        )
    if inside is None:
        elsewhere = any(name in path for path in leaves(mended))
        raise Finding(
            "in the wrong section" if elsewhere else "silenced, not mended",
            "The section belongs to ZeRO: what is sharded is what is offloaded."
            if elsewhere
            else "The misplaced section is gone, and with it the offload that its author wanted.",
        )
    if inside != case.config[name]:
        raise Finding("settings lost on the way", "The section came to another place changed.")
    if outside is not None:
        raise Finding("on both levels", "It stands on both levels: the upper one is ignored.")


def _precision(case: Case, mended: Mapping) -> None:
    on = {name: at(mended, name, "enabled") is True for name in ("fp16", "bf16")}
    if on == {"fp16": True, "bf16": False}:
        raise Finding(
            "the other precision",
            "fp16 is left, and bf16 was meant. Activations beyond 65,504 overflow in fp16.",
        )
    if all(on.values()):
        raise Finding("both precisions", "Both are on, and DeepSpeed refuses to choose.")
    if not any(on.values()):
        text = "Both are off: it trains in float32, in twice the bytes."
        raise Finding("silenced, not mended", text)


def _parameters(case: Case, mended: Mapping) -> None:
    if at(mended, ZERO, "offload_param") is None:
        raise Finding(
            "silenced, not mended",
            "`offload_param` is gone, and with it what was wanted: the parameters stay on the GPU.",
        )
    if at(mended, ZERO, "stage") != 3:
        raise Finding(
            "not sharded, not offloaded",
            "Below stage 3 parameters are replicated on every GPU, and `offload_param` does "
            "nothing. Which stage shards them?",
        )


def _batch(case: Case, mended: Mapping) -> None:
    world, meant = case.facts["world"], case.config
    try:
        comes_to = filled(mended, world)
    except Refused:
        sizes = {name: mended[name] for name in TRIPLE if name in mended}
        alone = filled({k: v for k, v in meant.items() if k != TRIPLE[2]}, 1)
        if at(mended, TRIPLE[2]) == alone[TRIPLE[2]]:
            raise Finding(
                "world size left out",
                "That multiplies on one rank. Each rank of the job brings its own micro-batches.",
            ) from None
        raise Finding("does not multiply", f"On {world} ranks DeepSpeed refuses {sizes}.") from None
    halves = [name for name in TRIPLE if isinstance(mended.get(name), float)]
    if halves:
        text = f"`{halves[0]}` is {mended[halves[0]]}, a float. It counts: divide with `//`."
        raise Finding("not a whole number", text)
    if comes_to[TRAIN] != meant[TRAIN]:
        raise Finding(
            "another batch",
            f"It starts, and trains with a batch of {comes_to[TRAIN]}, not of {meant[TRAIN]}: "
            "another training than the paper's, and no message says so.",
        )
    if comes_to[TRIPLE[1]] != meant[TRIPLE[1]]:
        raise Finding(
            "another micro-batch",
            f"It multiplies with micro-batches of {comes_to[TRIPLE[1]]}. What fits the GPU was "
            f"{meant[TRIPLE[1]]}: accumulation is what is free.",
        )


def _auto(case: Case, mended: Mapping) -> None:
    h = case.facts["hidden"]
    meant = dict(zip((path[-1] for path in _AUTO), (h * h, int(0.9 * h * h), 10 * h), strict=True))
    for name, value in meant.items():
        mine = at(mended, ZERO, name)
        if mine == "auto":
            raise Finding(
                "auto left",
                f"`{name}` is still `auto`, and no Trainer is there to resolve it: DeepSpeed takes "
                "its default.",
            )
        if mine is None or mine == _DEFAULTS[name]:
            raise Finding(
                "default instead",
                f"`{name}` is now DeepSpeed's default, as it was with `auto`. The Trainer works it "
                "out from the model's hidden size.",
            )
        if isinstance(mine, float) and not mine.is_integer():
            raise Finding(
                "not a whole number",
                f"`{name}` counts elements, and DeepSpeed refuses one with a fraction.",
            )
        if mine == 2 * value:
            raise Finding("bytes", f"`{name}` is in elements, not in bytes.")
        if mine == value + 1 and name == _AUTO[1][-1]:
            raise Finding("rounded up", f"`{name}` is {mine}: the Trainer rounds down.")
        if not isinstance(mine, (int, float)) or abs(mine - value) > 1:
            raise Finding(
                "another value",
                f"`{name}` is {mine}, which is not what the Trainer puts there at this hidden "
                "size. Two of the three go with its square.",
            )


def _buckets(case: Case, mended: Mapping) -> None:
    room = case.facts["room"]
    if at(mended, ZERO, "overlap_comm") is not True:
        raise Finding(
            "silenced, not mended",
            "The memory is spared by giving up the overlap, which was wanted.",
        )
    sizes = [at(mended, *path) for path in _BUCKETS]
    if not all(isinstance(size, (int, float)) and size > 0 for size in sizes):
        raise Finding(
            "default instead", "A bucket without a size has DeepSpeed's default of 5e8 elements."
        )
    elements = sum(sizes)
    takes = BYTES * TIMES * elements
    told = f"The two buckets take {takes / 1e9:.2f} GB, and {room / 1e9:.2f} GB were free."
    left = [path[-1] for path in _BUCKETS if at(mended, *path) == at(case.config, *path)]
    if takes > room and left:
        raise Finding("a bucket left", f"{told} `{left[0]}` is as large as it was.")
    for idea, count in (
        ("a factor of two", takes / 2),
        ("overlap costs nothing", BYTES * elements),
        ("the size alone", elements),
    ):
        if takes > room and 0.98 * room <= count <= room:
            raise Finding(idea, f"{told} {_OF_BUCKETS[idea]}")
    if takes > room:
        raise Finding("too large", told)
    if takes < room / 2:
        text = f"{told} Smaller buckets are more messages, and each has its latency."
        raise Finding("smaller than needed", text)


def _schedule(case: Case, mended: Mapping) -> None:
    meant, steps = case.config["scheduler"], case.facts["steps"]
    kind, params = at(mended, "scheduler", "type"), at(mended, "scheduler", "params")
    if kind is None:
        raise Finding("silenced, not mended", "Without a scheduler the rate is constant.")
    if kind != meant["type"]:
        raise Finding(
            "another schedule",
            f"`{kind}` starts without the missing parameter. After the warm-up the author wanted "
            "the rate to fall in a straight line.",
        )
    here = at(params, "total_num_steps")
    if here is None:
        name = "total_num_steps"
        strayed = any(name in path for path in leaves(mended))
        more = " It stands elsewhere, where DeepSpeed does not read it." if strayed else ""
        raise Finding(
            "steps missing",
            f"`{kind}` has to know when it ends, as a parameter of its own: it raises a TypeError "
            f"when the engine is made.{more}",
        )
    if here != steps:
        micro = steps * case.config["gradient_accumulation_steps"]
        if here == micro:
            raise Finding(
                "micro-batches counted",
                "The schedule takes a step where the optimizer does, not at each micro-batch.",
            )
        if here == steps + at(meant, "params", "warmup_num_steps"):
            raise Finding("warm-up on top", "The warm-up is a part of all steps, not before them.")
        raise Finding("another end", f"The rate reaches zero at step {here}, which was not meant.")


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
