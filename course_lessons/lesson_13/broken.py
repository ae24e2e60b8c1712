"""Eight DeepSpeed configs, each broken in another way, and what the author of each one meant.

DeepSpeed accepts five of them in silence and refuses three, not always where the fault is. The
faults stay, the values are drawn anew for every check. Lesson 13.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import NamedTuple

from course_lessons.lesson_13.triple import MICRO, TIMES, TRAIN
from course_lib.peers.deepspeed_config.auto import SIZES, ZERO

PRINTED = 13  # the seed of the eight that the exercise prints
BUCKETS = "reduce_bucket_size", "allgather_bucket_size"
AUTO = tuple(path.removeprefix(f"{ZERO}.") for path in SIZES)  # what the Trainer works out


class Case(NamedTuple):
    """One broken config; `facts` are what its author knows beside it."""

    name: str
    config: dict
    facts: dict
    meant: str


def _facts(r: Random) -> dict:
    """Numbers that no config holds: of the job, the model, the GPU and the training."""
    return {
        "world": r.choice((4, 8, 16)),  # ranks
        "hidden": 64 * r.randint(9, 60),  # the model's hidden size
        "room": 90_000_000 * r.randint(3, 12),  # bytes of GPU memory left for buckets
        "steps": 100 * r.randint(20, 90),  # optimizer steps of the whole training
    }


def _start(r: Random, **more: dict) -> dict:
    return {
        MICRO: r.choice((1, 2, 4)),
        TIMES: r.choice((2, 4, 8)),
        "gradient_clipping": r.choice((0.3, 0.5, 0.7)),
        **more,
        "bf16": {"enabled": True},
    }


def _adamw(r: Random) -> dict:
    rate = r.choice((1e-5, 2e-5, 3e-5, 5e-5))
    return {"type": "AdamW", "params": {"lr": rate, "weight_decay": r.choice((0.01, 0.1))}}


def _bucket(r: Random) -> int:
    return 1_000_000 * r.randint(10, 50)


# ---- the eight, with their authors' words
def stage(r: Random, facts: dict) -> dict:
    """ZeRO at the stage that the file names, with these settings."""
    section = {"stage": r.choice((2, 3)), "overlap_comm": True, BUCKETS[0]: _bucket(r)}
    return {**_start(r), "zero_optimisation": section}


def offload(r: Random, facts: dict) -> dict:
    """ZeRO at the stage that the file names, with the optimizer's states on the host."""
    return {
        **_start(r),
        "optimizer": _adamw(r),
        ZERO: {"stage": r.choice((2, 3)), BUCKETS[0]: _bucket(r)},
        "offload_optimizer": {"device": "cpu", "pin_memory": r.choice((True, False))},
    }


def precision(r: Random, facts: dict) -> dict:
    """bf16. The fp16 section is left over from an older GPU."""
    scale = {"loss_scale": 0, "initial_scale_power": r.randint(12, 18), "hysteresis": 2}
    start = _start(r, fp16={"enabled": True, **scale})
    return {**start, ZERO: {"stage": r.choice((1, 2)), BUCKETS[0]: _bucket(r)}}


def parameters(r: Random, facts: dict) -> dict:
    """The parameters on the host while they are not used, the optimizer's states too."""
    host = {"device": "cpu", "pin_memory": r.choice((True, False))}
    away = {"offload_optimizer": host, "offload_param": {**host}}
    section = {"stage": 2, **away, BUCKETS[0]: _bucket(r)}
    return {**_start(r), "optimizer": _adamw(r), ZERO: section}


def batch(r: Random, facts: dict) -> dict:
    """The batch size is the paper's, the micro-batch is what fits: accumulate as often as that
    takes on `world` ranks."""
    micro, times = r.choice((1, 2, 4)), r.choice((2, 4, 8))
    more = {TRAIN: micro * times * facts["world"], MICRO: micro, TIMES: times * r.choice((2, 4))}
    section = {"stage": 2, BUCKETS[0]: _bucket(r)}
    return {**_start(r), **more, "optimizer": _adamw(r), ZERO: section}


def auto(r: Random, facts: dict) -> dict:
    """A loop of my own, without the Trainer. For `auto`: what the Trainer would put there, for a
    model of this `hidden` size."""
    most = {"stage3_max_live_parameters": 1_000_000 * r.randint(100, 900)}
    section = {"stage": 3, **dict.fromkeys(AUTO, "auto"), **most}
    return {**_start(r), "optimizer": _adamw(r), ZERO: section}


def buckets(r: Random, facts: dict) -> dict:
    """Communication under the backward, with buckets as large as `room` bytes allow: all of their
    memory together at most that, and at least half of it. Elements have 2 bytes."""
    sizes = dict.fromkeys(BUCKETS, 100_000_000 * r.randint(4, 6))
    return {**_start(r), ZERO: {"stage": 2, "overlap_comm": True, **sizes}}


def schedule(r: Random, facts: dict) -> dict:
    """Warm-up, then linearly down to zero at the last of `steps` optimizer steps."""
    adamw = _adamw(r)
    rates = {"warmup_min_lr": 0, "warmup_max_lr": adamw["params"]["lr"]}
    params = {**rates, "warmup_num_steps": 10 * r.randint(5, 30)}
    section = {"stage": r.choice((1, 2)), BUCKETS[0]: _bucket(r)}
    scheduler = {"type": "WarmupDecayLR", "params": params}
    return {**_start(r), "optimizer": adamw, "scheduler": scheduler, ZERO: section}


BROKEN = (stage, offload, precision, parameters, batch, auto, buckets, schedule)


def drawn(seed: int) -> list[Case]:
    """All eight, with the values that belong to a seed."""
    r, made = Random(seed), []
    for draw in BROKEN:
        known = _facts(r)
        if seed != PRINTED:  # what is printed is in round numbers
            known["room"] += 1_000_000 * (1 + seed % 8)
            known["hidden"] += 64 * (known["hidden"] % 320 == 0)  # 0.9 h² is not whole
        config = draw(r, known)
        if seed != PRINTED and draw is auto:  # one is a number that its author has chosen
            config[ZERO][r.choice(AUTO[::2])] = _bucket(r)  # not the prefetch
        made.append(Case(draw.__name__, config, known, " ".join(draw.__doc__.split())))
    return made


def as_text(case: Case) -> str:
    """A case as the exercise prints it."""
    about = [f"{name} = {value:,}" for name, value in case.facts.items() if name in case.meant]
    head = f"{case.name}: {case.meant}{' (' if about else ''}{', '.join(about)}{')' * bool(about)}"
    return f"{head}\n{json.dumps(case.config, indent=2)}\n"


def still_wrong(config: dict, world: int) -> list[str]:
    """What `course ds-check` calls an error or a warning in a config, by the release it ships."""
    from course_lib.peers.deepspeed_config import check, schema, source  # where it is asked

    document = source.Document(Path("config.json"))
    source.read_content(json.dumps(config).encode(), document)
    known = schema.Schema(json.loads(schema.SHIPPED.read_text(encoding="utf-8")))
    report = check.check_document(document, known, world=world)
    return [f"{item.level}: {item.message}" for item in report.findings if item.level != "hint"]
