"""A DeepSpeed config in FSDP2's words: what `fully_shard` is given for it, and what it cannot say.

The reference of `in_fsdp2`, and the configs that an answer is tried on. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import NamedTuple

from course_lib.peers.deepspeed_config.auto import ZERO
from course_lib.peers.deepspeed_config.rules.sizes import PLAUSIBLE

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
REDUCED = "communication_data_type"
SWITCHES = ("overlap_comm", "contiguous_gradients", "round_robin_gradients")
SIZES = [path.split(".")[1] for path in PLAUSIBLE if path.startswith(ZERO) and path.count(".") == 1]
PARAM, STATES = AWAY = "offload_param", "offload_optimizer"


class Words(NamedTuple):
    """What `fully_shard` is given, as data, and the keys under `zero_optimization` it has none for.

    A dtype of None is the parameter's own; `pinned` is None where nothing is offloaded.
    """

    reshard: bool
    parameters: str | None
    reductions: str | None
    pinned: bool | None
    unsaid: frozenset[str]
    off: frozenset[str]  # sections that are there, and whose device is none


def words(config: Mapping) -> Words | None:
    """The arguments for a config; None where FSDP2 has nothing like it: at stage 0, which is
    DistributedDataParallel's, and for files."""
    section = config.get(ZERO, {})
    devices = {name: section.get(name, {}).get("device", "none") for name in AWAY}
    if not section.get("stage") or "nvme" in devices.values():
        return None
    both = set(devices.values()) == {"cpu"}
    on = [short for short in ("fp16", "bf16") if config.get(short, {}).get("enabled")]
    computed = DTYPES[on[0]] if on else None
    reduced = DTYPES.get(config.get(REDUCED, ""), computed)
    off = {name for name, device in devices.items() if device == "none"}  # as if not there
    said = {"stage"} | off | (set(AWAY) if both else set())
    pinned = section[PARAM].get("pin_memory", True) if both else None
    there = frozenset(section)
    return Words(section["stage"] == 3, computed, reduced, pinned, there - said, there & off)


def drawn(seed: int) -> list[dict]:
    """Configs of every stage and precision, with and without offload; some that have no words."""
    r = Random(seed)
    cpu, none = {"device": "cpu"}, {"device": "none"}
    loose, tight = ({**cpu, "pin_memory": pinned} for pinned in (False, True))
    host, files = r.choice((loose, tight)), {**tight, "device": "nvme", "nvme_path": "/scratch"}
    on, off = {"enabled": True}, {"enabled": False}
    half = {"bf16": on} | r.choice(({}, {"fp16": off}))
    rows = [  # the stage, the sections that offload, and what else the config says
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
    configs = [_config(r, more) | {ZERO: _section(r, stage, away)} for stage, away, more in rows]
    all_said = {"stage": 3, STATES: loose, PARAM: cpu}
    return [*configs, _config(r, half) | {ZERO: all_said}, _config(r, {"fp16": on})]


def _config(r: Random, more: dict) -> dict:
    micro, most = r.choice((1, 2, 4)), r.choice((0.5, 1.0))
    return {"train_micro_batch_size_per_gpu": micro, "gradient_clipping": most, **more}


def _section(r: Random, stage: int, away: dict) -> dict:
    names = [name for name in SIZES if stage == 3 or not name.startswith("stage3")]
    sizes = {name: 1_000_000 * r.randint(5, 50) for name in r.sample(names, r.randint(1, 3))}
    switches = {name: r.choice((True, False)) for name in r.sample(SWITCHES, r.randint(1, 2))}
    return {"stage": stage, **away, **sizes, **switches}
