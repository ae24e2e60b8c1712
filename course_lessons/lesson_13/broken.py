"""Eight DeepSpeed configs, each broken differently, with their authors' intentions. DeepSpeed
silently accepts five and refuses three, not always with the cause. The faults are always the same,
but the values are drawn for every check. Lesson 13."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import NamedTuple

from course_lessons.lesson_13.triple import MICRO, TIMES, TRAIN
from course_lib.peers.deepspeed_config.auto import SIZES, ZERO

PRINTED = 13  # the seed of the printed eight
BUCKETS = "reduce_bucket_size", "allgather_bucket_size"
AUTO = tuple(path.removeprefix(f"{ZERO}.") for path in SIZES)  # values that the Trainer computes
MEANT = {  # in the author's words; the facts named there are printed too
    "stage": "ZeRO at the stage that the file names, with these settings.",
    "offload": "ZeRO at the stage that the file names, with the optimizer's states on the host.",
    "precision": "bf16. The fp16 section is left over from an older GPU.",
    "parameters": "Parameters on the host while they are not used, and the optimizer's states too.",
    "batch": "The batch size is the paper's, and the micro-batch is the one that fits: accumulate "
    "as often as that takes on `world` ranks.",
    "auto": "My own loop, without the Trainer. Replace `auto` by the Trainer's values for a model "
    "of this `hidden` size.",
    "buckets": "Communication during the backward, with buckets as large as `room` bytes allow: "
    "their total memory is at most that, but at least half. Elements have 2 bytes.",
    "schedule": "Warm-up, then linear decay to zero at the last of `steps` optimizer steps.",
}


class Case(NamedTuple):
    """A broken config; `facts` are additional facts that its author knows."""

    name: str
    config: dict
    facts: dict
    meant: str


def drawn(seed: int) -> list[Case]:
    """Return all eight cases, with values drawn from a seed."""
    r, fresh = Random(seed), seed != PRINTED  # the printed ones have round numbers
    facts = {  # numbers outside the config: of the job, the model, the GPU and the training
        "world": r.choice((4, 8, 16)),  # ranks
        # 0.9 h² is not an integer; never the printed value, which an answer may contain
        "hidden": 64 * r.choice([n for n in range(9 + fresh, 60, 2) if n % 5]),
        "room": 90_000_000 * r.randint(3, 12) + 1_000_000 * r.randint(1, 8) * fresh,  # bytes
        "steps": 100 * r.randint(20, 90),  # optimizer steps of the full training
    }
    configs = json.loads(json.dumps(_configs(r, facts["world"])))  # without shared parts
    if fresh:  # one value to compute, not the prefetch, is the author's number
        configs["auto"][ZERO][r.choice(AUTO[::2])] = 1_000_000 * r.randint(10, 50)
    return [Case(name, configs[name], dict(facts), meant) for name, meant in MEANT.items()]


def _configs(r: Random, world: int) -> dict[str, dict]:
    """Return all eight configs by name."""
    micro, times, rate = r.choice((2, 4, 8)), r.choice((2, 4, 8)), r.choice((1e-5, 2e-5, 5e-5))
    start = {MICRO: micro, TIMES: times, "gradient_clipping": 0.3, "bf16": {"enabled": True}}
    params = {"lr": rate, "weight_decay": r.choice((0.01, 0.1))}
    trained = {**start, "optimizer": {"type": "AdamW", "params": params}}
    sizes = {TRAIN: micro * times * world, TIMES: times * r.choice((2, 4))}
    fp16 = {"enabled": True, "loss_scale": 0, "initial_scale_power": r.randint(12, 18)}
    bucket, overlap = {BUCKETS[0]: 1_000_000 * r.randint(10, 50)}, {"overlap_comm": True}
    low, high = {"stage": 2, **bucket}, {"stage": r.choice((2, 3)), **bucket}
    large = dict.fromkeys(BUCKETS, 100_000_000 * r.randint(4, 6))
    third = {"stage": 3, "stage3_max_live_parameters": 1_000_000 * r.randint(100, 900)}
    host = {"device": "cpu", "pin_memory": r.choice((True, False))}
    away = {"offload_optimizer": host, "offload_param": host}
    ends = {"warmup_min_lr": 0, "warmup_max_lr": rate, "warmup_num_steps": 10 * r.randint(5, 30)}
    scheduler = {"type": "WarmupDecayLR", "params": ends}
    return {
        "stage": {**start, "zero_optimisation": {**high, **overlap}},
        "offload": {**trained, ZERO: high, "offload_optimizer": host},
        "precision": {**start, "fp16": fp16, ZERO: low},
        "parameters": {**trained, ZERO: {**low, **away}},
        "batch": {**trained, **sizes, ZERO: low},
        "auto": {**trained, ZERO: {**third, **dict.fromkeys(AUTO, "auto")}},
        "buckets": {**start, ZERO: {**low, **overlap, **large}},
        "schedule": {**trained, "scheduler": scheduler, ZERO: low},
    }


def as_text(case: Case) -> str:
    """Format a case as the exercise prints it."""
    about = [f"{name} = {value:,}" for name, value in case.facts.items() if name in case.meant]
    head = f"{case.name}: {case.meant}{' (' if about else ''}{', '.join(about)}{')' * bool(about)}"
    return f"{head}\n{json.dumps(case.config, indent=2)}\n"


def still_wrong(config: dict, world: int) -> list[str]:
    """Return `course ds-check`'s errors and warnings for a config, by the shipped release."""
    from course_lib.peers.deepspeed_config import check, schema, source  # imported only when needed

    document = source.Document(Path("config.json"))
    source.read_content(json.dumps(config).encode(), document)
    known = schema.Schema(json.loads(schema.SHIPPED.read_text(encoding="utf-8")))
    report = check.check_document(document, known, world=world)
    return [f"{item.level}: {item.message}" for item in report.findings if item.level != "hint"]
