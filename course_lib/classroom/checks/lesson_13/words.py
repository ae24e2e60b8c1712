"""A DeepSpeed config in FSDP2's words: what `fully_shard` is given for it, and what it cannot say.

The reference of `in_fsdp2`, and the configs that an answer is tried on. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import NamedTuple

DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
ZERO = "zero_optimization"
SAID = {"stage"}  # of the keys under zero_optimization, always


class NoWord(ValueError):
    """A config that FSDP2 has nothing like."""


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


def words(config: Mapping) -> Words:
    """The arguments for a config, or NoWord where FSDP2 has nothing like it."""
    section = config.get(ZERO, {})
    stage = section.get("stage", 0)
    away = {name: section.get(name, {}) for name in ("offload_param", "offload_optimizer")}
    devices = {name: block.get("device", "none") for name, block in away.items()}
    if not stage:
        raise NoWord("stage 0 shards nothing: that is DistributedDataParallel")
    if "nvme" in devices.values():
        raise NoWord("FSDP2 keeps nothing in files")
    both = set(devices.values()) == {"cpu"}
    on = [short for short in ("fp16", "bf16") if config.get(short, {}).get("enabled")]
    computed = DTYPES[on[0]] if on else None
    reduced = DTYPES.get(config.get("communication_data_type", ""), computed)
    off = {name for name, device in devices.items() if device == "none"}  # as if not there
    said = SAID | off | (set(devices) if both else set())
    pinned = away["offload_param"].get("pin_memory", True) if both else None
    there = frozenset(section)
    return Words(stage == 3, computed, reduced, pinned, there - said, there & off)


def drawn(seed: int) -> list[dict]:
    """Configs of every stage and precision, with and without offload; two that have no word."""
    r = Random(seed)
    plain, none = {"device": "cpu"}, {"device": "none"}
    loose, tight = ({**plain, "pin_memory": pinned} for pinned in (False, True))
    host = {"device": "cpu", "pin_memory": r.choice((True, False))}
    files = {"device": "nvme", "nvme_path": "/scratch", "pin_memory": True}
    sections = [
        ({"stage": 3, **_of_3(r)}, {}),
        ({"stage": 2, **_of_2(r)}, {}),
        ({"stage": 3, **_of_3(r)}, {**_half(r, "bf16"), "fp16": {"enabled": False}}),
        ({"stage": 1, **_of_2(r)}, {**_half(r, "bf16"), "communication_data_type": "fp32"}),
        ({"stage": 2, **_of_2(r)}, _on("fp16")),
        ({"stage": 3, **_of_3(r)}, {"communication_data_type": "fp16"}),
        ({"stage": 3, "offload_optimizer": tight, "offload_param": loose, **_of_3(r)}, {}),
        ({"stage": 3, "offload_optimizer": loose, "offload_param": plain}, _half(r, "bf16")),
        ({"stage": 2, "offload_optimizer": host, **_of_2(r)}, _half(r, "bf16")),
        (
            {"stage": 3, "offload_param": host, **_of_3(r)},
            {**_on("fp16"), "bf16": {"enabled": False}, "communication_data_type": "bf16"},
        ),
        ({"stage": 3, "offload_param": none, "offload_optimizer": none, **_of_3(r)}, {}),
        ({"stage": 3, "offload_param": none, "offload_optimizer": host}, _half(r, "bf16")),
        ({"stage": 3, "offload_param": host, "offload_optimizer": none, **_of_3(r)}, {}),
        ({"stage": 2, "offload_optimizer": none, **_of_2(r)}, _half(r, "bf16")),
        ({"stage": 3, "offload_param": files, **_of_3(r)}, _half(r, "bf16")),
        ({"stage": 3, "offload_optimizer": files, "offload_param": host}, {}),
        ({"stage": 0, "reduce_bucket_size": _size(r)}, _half(r, "bf16")),
        (None, _half(r, "fp16")),
    ]
    return [_config(r, section, beside) for section, beside in sections]


def _config(r: Random, section: dict | None, beside: dict) -> dict:
    config = {
        "train_micro_batch_size_per_gpu": r.choice((1, 2, 4)),
        "gradient_clipping": r.choice((0.5, 1.0)),
        **beside,
    }
    return config if section is None else {**config, ZERO: section}


def _on(name: str) -> dict:
    return {name: {"enabled": True}}


def _half(r: Random, name: str) -> dict:
    """One 16-bit type on; at times the other one is there and off."""
    other = {"bf16": "fp16", "fp16": "bf16"}[name]
    return _on(name) | ({other: {"enabled": False}} if r.random() < 0.5 else {})


def _size(r: Random) -> int:
    return 1_000_000 * r.randint(5, 50)


def _some(r: Random, values: dict) -> dict:
    names = r.sample(list(values), r.randint(2, len(values)))
    return {name: values[name] for name in names}


def _of_3(r: Random) -> dict:
    return _some(
        r,
        {
            "overlap_comm": r.choice((True, False)),
            "stage3_prefetch_bucket_size": _size(r),
            "stage3_param_persistence_threshold": 1000 * r.randint(1, 90),
            "stage3_max_live_parameters": 10 * _size(r),
            "stage3_max_reuse_distance": 10 * _size(r),
            "sub_group_size": 10 * _size(r),
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    )


def _of_2(r: Random) -> dict:
    return _some(
        r,
        {
            "overlap_comm": r.choice((True, False)),
            "reduce_bucket_size": _size(r),
            "allgather_bucket_size": _size(r),
            "contiguous_gradients": True,
            "round_robin_gradients": r.choice((True, False)),
        },
    )
