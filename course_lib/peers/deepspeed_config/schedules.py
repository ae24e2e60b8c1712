"""A config's `scheduler` block → the learning rate of every update, for DeepSpeed's five schedules.

Update n uses the rate that the scheduler set after update n - 1, and update 0 uses the rate from
its creation. So WarmupLR's first two updates have the same rate. Lesson 13.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

REQUIRED = object()
_WARMUP = {"warmup_num_steps": 1000, "warmup_type": "log", "last_batch_iteration": -1}
_RANGE = {"lr_range_test_min_lr": 1e-3, "lr_range_test_step_size": 2000}
_RANGE |= {"lr_range_test_step_rate": 1.0, "lr_range_test_staircase": False}
_CYCLE = {"cycle_min_lr": REQUIRED, "cycle_max_lr": REQUIRED, "decay_lr_rate": 0.0}
_CYCLE |= {"cycle_first_step_size": 2000, "cycle_second_step_size": None}
_CYCLE |= {"cycle_first_stair_count": 0, "cycle_second_stair_count": None, "decay_step_size": 0}
_CYCLE |= {"cycle_momentum": True, "cycle_min_mom": 0.8, "cycle_max_mom": 0.9}
_TOTAL = {"total_num_steps": REQUIRED}
PARAMETERS: Mapping[str, Mapping[str, Any]] = {  # with DeepSpeed's defaults
    "WarmupLR": {"warmup_min_lr": 0.0, "warmup_max_lr": None, **_WARMUP},
    "WarmupDecayLR": {**_TOTAL, "warmup_min_lr": 0.0, "warmup_max_lr": 0.001, **_WARMUP},
    "WarmupCosineLR": {**_TOTAL, "warmup_min_ratio": 0.0, "cos_min_ratio": 0.0001, **_WARMUP},
    "LRRangeTest": {**_RANGE, "last_batch_iteration": -1},
    "OneCycle": {**_CYCLE, "decay_mom_rate": 0.0, "last_batch_iteration": -1},
}

_FIRST = {"LRRangeTest": "lr_range_test_min_lr", "OneCycle": "cycle_min_lr"}


def rates(block: Mapping[str, Any], updates: int, *, lr: float | None = None) -> list[float]:
    """`scheduler` block -> (updates,) learning rates. `lr` is the optimizer's own rate, which
    some schedules need."""
    name, params = resolved(block)
    last = params["last_batch_iteration"]
    if last != -1:
        first = _own(lr, name, "last_batch_iteration is given, so update 0 needs the rate")
    else:  # set when the scheduler is created; 0, whatever warmup_min_ratio is
        first = 0.0 if name == "WarmupCosineLR" else params[_FIRST.get(name, "warmup_min_lr")]
    after = _AFTER[name](params, lr, name)
    return [first, *(after(last + n) for n in range(1, updates))][:updates]


def where_skipped(of_updates: Sequence[float], skipped: Sequence[bool]) -> list[float]:
    """Return the rate at each step of a run; the scheduler does not advance at skipped steps."""
    made, by_step = 0, []
    for skip in skipped:
        by_step.append(of_updates[made])
        made += not skip
    return by_step


def resolved(block: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a block's type and all its parameters, with DeepSpeed's defaults."""
    name, written = block.get("type"), block.get("params") or {}
    if name not in PARAMETERS:
        raise ValueError(f"{name!r} is not one of DeepSpeed's schedules: {', '.join(PARAMETERS)}")
    known = PARAMETERS[name]
    for key, value in written.items():
        if key not in known:
            raise ValueError(f"{name} has no parameter {key!r}; it has {', '.join(known)}")
        if value == "auto":
            raise ValueError(f"{key} is 'auto', which the Trainer resolves, so write a number here")
        if isinstance(value, list):
            raise ValueError(f"{key} is a list, one value per parameter group, so use one of them")
    params = {key: written.get(key, default) for key, default in known.items()}
    missing = [key for key, value in params.items() if value is REQUIRED]
    if missing:
        raise ValueError(f"{name} needs {' and '.join(missing)}: write it under scheduler.params")
    return name, params


def _own(lr: float | None, name: str, why: str) -> float:
    if lr is None:
        raise ValueError(f"{name}: {why}. Give the optimizer's rate with lr=")
    return lr


def _risen(params: Mapping[str, Any]) -> tuple[int, Callable[[int], float]]:
    """Return the length of a warm-up (at least 2) and the completed fraction at an iteration."""
    steps = max(2, params["warmup_num_steps"])
    if params["warmup_type"] == "linear":
        return steps, lambda i: i / steps
    return steps, lambda i: 1.0 / math.log(steps) * math.log(i + 1)  # "log", and any other word


def _warmup(params: Mapping[str, Any], lr: float | None, name: str) -> Callable[[int], float]:
    """Return the rate function of WarmupLR, or of WarmupDecayLR, which also decays."""
    steps, risen = _risen(params)
    low, high = params["warmup_min_lr"], params["warmup_max_lr"]
    total = params.get("total_num_steps")
    if high is None:
        high = _own(lr, name, "without warmup_max_lr it rises to the optimizer's rate")

    def after(i: int) -> float:
        if i < steps:
            return low + (high - low) * risen(i)
        left = 1.0 if total is None else max(0.0, (total - i) / max(1.0, total - steps))
        return low + (high - low) * left

    return after


def _warmup_cosine(
    params: Mapping[str, Any], lr: float | None, name: str
) -> Callable[[int], float]:
    steps, risen = _risen(params)
    lr = _own(lr, name, "it scales the optimizer's rate")
    start, end = params["warmup_min_ratio"], params["cos_min_ratio"]
    length = max(1, params["total_num_steps"] - steps)

    def after(i: int) -> float:
        if i < steps:
            return lr * (start + risen(i) * (1.0 - start))
        done = min(1.0, (i - steps + 1) / length)
        return lr * max(0.0, end + (1.0 - end) * (1 + math.cos(math.pi * done)) / 2)

    return after


def _range_test(params: Mapping[str, Any], *_: object) -> Callable[[int], float]:
    low, size = params["lr_range_test_min_lr"], params["lr_range_test_step_size"]
    rate, stairs = params["lr_range_test_step_rate"], params["lr_range_test_staircase"]
    return lambda i: low * (1 + rate * ((i + 1) // size if stairs else (i + 1) / size))


def _one_cycle(params: Mapping[str, Any], *_: object) -> Callable[[int], float]:
    low, high = params["cycle_min_lr"], params["cycle_max_lr"]
    size, fall = params["decay_step_size"], params["decay_lr_rate"]
    still = math.isclose(size, 0) or math.isclose(fall, 0)
    up, down = params["cycle_first_step_size"], params["cycle_second_step_size"]
    down = up if down is None else down
    first, second = params["cycle_first_stair_count"], params["cycle_second_stair_count"]
    total = float(up) + float(down)

    def scale(batch: int) -> float:
        """Return the position at a batch, from 0 (lowest rate) to 1 (highest rate)."""
        at = batch % total
        rising = at <= up
        way, length = (at, up) if rising else (total - at, down)
        count = first if rising or second is None else second
        return math.floor(way * count / length) / count if count > 0 else way / length

    def after(i: int) -> float:
        if i < total:
            return low + (high - low) * scale(i + 1)
        return low if still else low / (1 + fall * ((i - total + 1) / size))

    return after


_AFTER = {
    "WarmupLR": _warmup,
    "WarmupDecayLR": _warmup,
    "WarmupCosineLR": _warmup_cosine,
    "LRRangeTest": _range_test,
    "OneCycle": _one_cycle,
}
