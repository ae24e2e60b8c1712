"""Eight DeepSpeed configs, each broken in another way, and what the author of each one meant.

DeepSpeed accepts five of them in silence and refuses three, not always where the fault is. The
faults stay, the values are drawn anew for every check. Lesson 13.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

PRINTED = 13  # the seed of the eight that the exercise prints


class Case(NamedTuple):
    """One broken config; `facts` are what its author knows beside it."""

    name: str
    config: dict
    facts: dict
    meant: str


def facts(r: Random) -> dict:
    """Numbers that no config holds: of the job, the model, the GPU and the training."""
    return {
        "world": r.choice((4, 8, 16)),  # ranks
        "hidden": 64 * r.randint(9, 60),  # the model's hidden size
        "room": 90_000_000 * r.randint(3, 12),  # bytes of GPU memory left for buckets
        "steps": 100 * r.randint(20, 90),  # optimizer steps of the whole training
    }


def _start(r: Random) -> dict:
    return {
        "train_micro_batch_size_per_gpu": r.choice((1, 2, 4)),
        "gradient_accumulation_steps": r.choice((2, 4, 8)),
        "gradient_clipping": r.choice((0.3, 0.5, 0.7)),
        "bf16": {"enabled": True},
    }


def _adamw(r: Random) -> dict:
    rate = r.choice((1e-5, 2e-5, 3e-5, 5e-5))
    return {"type": "AdamW", "params": {"lr": rate, "weight_decay": r.choice((0.01, 0.1))}}


def _bucket(r: Random) -> int:
    return 1_000_000 * r.randint(10, 50)


def stage(r: Random, facts: dict) -> dict:
    section = {"stage": r.choice((2, 3)), "overlap_comm": True, "reduce_bucket_size": _bucket(r)}
    return {**_start(r), "zero_optimisation": section}


def offload(r: Random, facts: dict) -> dict:
    return {
        **_start(r),
        "optimizer": _adamw(r),
        "zero_optimization": {"stage": r.choice((2, 3)), "reduce_bucket_size": _bucket(r)},
        "offload_optimizer": {"device": "cpu", "pin_memory": r.choice((True, False))},
    }


def precision(r: Random, facts: dict) -> dict:
    scale = {"loss_scale": 0, "initial_scale_power": r.randint(12, 18), "hysteresis": 2}
    start = _start(r)
    bf16 = start.pop("bf16")
    section = {"stage": r.choice((1, 2)), "reduce_bucket_size": _bucket(r)}
    return {**start, "fp16": {"enabled": True, **scale}, "bf16": bf16, "zero_optimization": section}


def parameters(r: Random, facts: dict) -> dict:
    pinned = r.choice((True, False))
    section = {
        "stage": 2,
        "offload_optimizer": {"device": "cpu", "pin_memory": pinned},
        "offload_param": {"device": "cpu", "pin_memory": pinned},
        "reduce_bucket_size": _bucket(r),
    }
    return {**_start(r), "optimizer": _adamw(r), "zero_optimization": section}


def batch(r: Random, facts: dict) -> dict:
    micro, accumulate = r.choice((1, 2, 4)), r.choice((2, 4, 8))
    sizes = {
        "train_batch_size": micro * accumulate * facts["world"],
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulate * r.choice((2, 4)),
    }
    section = {"stage": 2, "reduce_bucket_size": _bucket(r)}
    return {**_start(r), **sizes, "optimizer": _adamw(r), "zero_optimization": section}


AUTO = (
    "reduce_bucket_size",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
)


def auto(r: Random, facts: dict) -> dict:
    section = {
        "stage": 3,
        **dict.fromkeys(AUTO, "auto"),
        "stage3_max_live_parameters": 1_000_000 * r.randint(100, 900),
    }
    return {**_start(r), "optimizer": _adamw(r), "zero_optimization": section}


def buckets(r: Random, facts: dict) -> dict:
    size = 100_000_000 * r.randint(4, 6)
    section = {
        "stage": 2,
        "overlap_comm": True,
        "reduce_bucket_size": size,
        "allgather_bucket_size": size,
    }
    return {**_start(r), "zero_optimization": section}


def schedule(r: Random, facts: dict) -> dict:
    optimizer = _adamw(r)
    params = {
        "warmup_min_lr": 0,
        "warmup_max_lr": optimizer["params"]["lr"],
        "warmup_num_steps": 10 * r.randint(5, 30),
    }
    section = {"stage": r.choice((1, 2)), "reduce_bucket_size": _bucket(r)}
    start = {**_start(r), "optimizer": optimizer}
    scheduler = {"type": "WarmupDecayLR", "params": params}
    return {**start, "scheduler": scheduler, "zero_optimization": section}


MEANT: dict[Callable[[Random, dict], dict], str] = {
    stage: "ZeRO at the stage that the file names, with these settings.",
    offload: "ZeRO at the stage that the file names, with the optimizer's states on the host.",
    precision: "bf16. The fp16 section is left over from an older GPU.",
    parameters: "The parameters on the host while they are not used, the optimizer's states too.",
    batch: (
        "The batch size is the paper's, the micro-batch is what fits: accumulate as often as that "
        "takes on `world` ranks."
    ),
    auto: (
        "A loop of my own, without the Trainer. For `auto`: what the Trainer would put there, for "
        "a model of this `hidden` size."
    ),
    buckets: (
        "Communication under the backward, with buckets as large as `room` bytes allow: all of "
        "their memory together at most that, and at least half of it. Elements have 2 bytes."
    ),
    schedule: "Warm-up, then linearly down to zero at the last of `steps` optimizer steps.",
}
NAMES = tuple(draw.__name__ for draw in MEANT)


def drawn(seed: int) -> list[Case]:
    """All eight, with the values that belong to a seed."""
    r = Random(seed)
    made = []
    for draw, meant in MEANT.items():
        known = facts(r)
        if seed != PRINTED:  # what is printed is in round numbers
            known["room"] += 1_000_000 * (1 + seed % 8)
            known["hidden"] += 64 * (known["hidden"] % 320 == 0)  # 0.9 h² is not whole
        config = draw(r, known)
        if seed != PRINTED and draw is auto:  # one is a number that its author has chosen
            config["zero_optimization"][r.choice(AUTO[::2])] = _bucket(r)  # not the prefetch
        made.append(Case(draw.__name__, config, known, meant))
    return made


def as_text(case: Case) -> str:
    """A case as the exercise prints it."""
    about = [f"{name} = {value:,}" for name, value in case.facts.items() if name in case.meant]
    head = f"{case.name}: {case.meant}{' (' if about else ''}{', '.join(about)}{')' * bool(about)}"
    return f"{head}\n{json.dumps(case.config, indent=2)}\n"


def still_wrong(config: dict, world: int) -> list[str]:
    """What `course ds-check` calls an error or a warning in a config, by the release it ships."""
    from course_lib.deepspeed_config import (
        check,
        schema,
        source,
    )  # where it is asked, and not before

    document = source.Document(Path("config.json"))
    source.read_content(json.dumps(config).encode(), document)
    known = schema.Schema(json.loads(schema.SHIPPED.read_text(encoding="utf-8")))
    report = check.check_document(document, known, world=world)
    return [f"{item.level}: {item.message}" for item in report.findings if item.level != "hint"]
