"""A DeepSpeed config as FSDP2 arguments, and the keys that have no argument: the reference of
`in_fsdp2`, and the configs for its trials. Lesson 13."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import NamedTuple

from course_lessons.lesson_13.triple import MICRO
from course_lib.peers.deepspeed_config.auto import ZERO
from course_lib.peers.deepspeed_config.rules.sizes import PLAUSIBLE

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
REDUCED = "communication_data_type"
SWITCHES = ("overlap_comm", "contiguous_gradients", "round_robin_gradients")
SIZES = [path.split(".")[1] for path in PLAUSIBLE if path.startswith(ZERO) and path.count(".") == 1]
PARAM, STATES = AWAY = "offload_param", "offload_optimizer"


class Words(NamedTuple):
    """The arguments of `fully_shard` as data, and the keys without an argument."""

    reshard: bool
    parameters: str | None  # a dtype (None: the parameter's own)
    reductions: str | None
    pinned: bool | None  # None: nothing is offloaded
    unsaid: set[str]  # keys under `zero_optimization`
    off: set[str]  # existing sections whose device is none


def words(config: Mapping) -> Words | None:
    """Return the arguments for a config, or None if FSDP2 has no equivalent, as for stage 0 (which
    is DistributedDataParallel) and for offload to files."""
    section = config.get(ZERO, {})
    devices = {name: section[name]["device"] for name in AWAY if name in section}
    if not section.get("stage") or "nvme" in devices.values():
        return None
    on = [short for short in ("fp16", "bf16") if config.get(short, {}).get("enabled")]
    computed = DTYPES[on[0]] if on else None
    reduced = DTYPES.get(config.get(REDUCED, ""), computed)
    off = {name for name, device in devices.items() if device == "none"}  # as if missing
    both = [*devices.values()] == ["cpu", "cpu"]
    pinned = section[PARAM].get("pin_memory", True) if both else None
    unsaid = section.keys() - {"stage"} - off - (set(AWAY) if both else set())
    return Words(section["stage"] == 3, computed, reduced, pinned, unsaid, off)


def drawn(seed: int) -> list[dict]:
    """Draw configs of every stage and precision, with and without offload, some inexpressible."""
    r = Random(seed)
    cpu, none = {"device": "cpu"}, {"device": "none"}
    loose, tight = ({**cpu, "pin_memory": pinned} for pinned in (False, True))
    host, files = r.choice((loose, tight)), {**tight, "device": "nvme", "nvme_path": "/scratch"}
    on, off = {"enabled": True}, {"enabled": False}
    half = {"bf16": on} | r.choice(({}, {"fp16": off}))
    rows = [  # the stage, the offloaded sections, and further keys of the config
        (3, {}, {}),
        (2, {}, {}),
        (3, {}, {"bf16": on, "fp16": off}),
        (1, {}, {**half, REDUCED: "fp32"}),
        (2, {}, {"fp16": on}),
        (3, {}, {REDUCED: "fp16"}),
        (3, {STATES: tight, PARAM: loose}, {}),
        (2, {STATES: host}, half),
        (3, {PARAM: host}, {"fp16": on, "bf16": off, REDUCED: "bf16"}),
        (3, {PARAM: none, STATES: none}, {}),
        (3, {PARAM: none, STATES: host}, half),
        (3, {PARAM: host, STATES: none}, {}),
        (2, {STATES: none}, half),
        (3, {PARAM: files}, half),
        (3, {STATES: files, PARAM: host}, {}),
        (0, {}, half),
    ]
    all_said = {"stage": 3, STATES: loose, PARAM: cpu}
    return [*(_config(r, *row) for row in rows), {**half, ZERO: all_said}, {"fp16": on}]


def _config(r: Random, stage: int, away: dict, more: dict) -> dict:
    names = [name for name in SIZES if stage == 3 or not name.startswith("stage3")]
    sizes = {name: 1_000_000 * r.randint(5, 50) for name in r.sample(names, r.randint(1, 3))}
    switches = {name: r.choice((True, False)) for name in r.sample(SWITCHES, r.randint(1, 2))}
    section = {"stage": stage, **away, **sizes, **switches}
    return {MICRO: r.choice((1, 2, 4)), "gradient_clipping": 1.0, **more, ZERO: section}
