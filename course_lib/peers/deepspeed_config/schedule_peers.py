"""DeepSpeed's schedules as calls of transformers and torch that produce the same rates.

Linear WarmupLR and WarmupDecayLR are transformers' schedules delayed by one update, which a test
checks. `warmup_type` is "log" unless a config says "linear". Lesson 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from course_lib.peers.deepspeed_config.schedules import resolved

TORCH = "torch.optim.lr_scheduler"
NO_LOG = (
    "None: no schedule of transformers or torch rises with the logarithm like "
    'warmup_type "log", which is DeepSpeed\'s default. Write "warmup_type": "linear".'
)
LATE = "Each rate is one update late, since DeepSpeed's first two updates use the same rate."


class ScheduleSpan(NamedTuple):
    """The updates from `first` until before `end` (None: no end) in which DeepSpeed's rate of
    update n is the other schedule's rate of update n - late."""

    first: int
    end: int | None
    late: int


ALL_LATE = (ScheduleSpan(1, None, 1),)


class Equivalent(NamedTuple):
    """A `call` (or None) that creates the schedule on `optimizer`, whose rate is `lr`."""

    call: str | None
    lr: float | None
    words: str
    spans: tuple[ScheduleSpan, ...] = ()

    def __str__(self) -> str:
        return self.words if self.call is None else f"{self.call}\n  {self.words}"


def equivalent(block: Mapping[str, Any], *, lr: float | None = None) -> Equivalent:
    """Find a call without DeepSpeed that produces a `scheduler` block's rates, or explain why not.

    `lr` is the optimizer's own rate. The equivalent's optimizer keeps it if the block has no rate.
    """
    name, params = resolved(block)
    if params["last_batch_iteration"] != -1:
        middle = "None, because it begins in the middle. Remove last_batch_iteration, and load the "
        return Equivalent(None, lr, f"{middle}scheduler's state from a checkpoint instead.")
    if params.get("warmup_type", "linear") != "linear":
        return Equivalent(None, lr, NO_LOG)
    steps = max(2, params.get("warmup_num_steps", 0))
    return _OF[name](params, lr, steps)


def _warmup(params: Mapping[str, Any], lr: float | None, steps: int) -> Equivalent:
    low, high = params["warmup_min_lr"], params["warmup_max_lr"]
    high = lr if high is None else high
    if low == 0:
        call = f"get_constant_schedule_with_warmup(optimizer, num_warmup_steps={steps})"
        return Equivalent(f"transformers.{call}", high, LATE, ALL_LATE)
    if not high or not 0 < low <= high:
        return Equivalent(None, high, "None, because LinearLR does not allow a falling warm-up.")
    call = f"{TORCH}.LinearLR(optimizer, start_factor={low} / {high}, "
    return Equivalent(f"{call}end_factor=1.0, total_iters={steps})", high, LATE, ALL_LATE)


def _decay(params: Mapping[str, Any], lr: float | None, steps: int) -> Equivalent:
    high, total = params["warmup_max_lr"], params["total_num_steps"]
    high = lr if high is None else high
    if params["warmup_min_lr"] != 0:
        words = "None, because it rises from warmup_min_lr and falls back to it, but "
        words += "get_linear_schedule_with_warmup rises from 0 and falls to 0."
        return Equivalent(None, high, words)
    call = "transformers.get_linear_schedule_with_warmup"
    call += f"(optimizer, num_warmup_steps={steps}, num_training_steps={total})"
    return Equivalent(call, high, LATE, ALL_LATE)


def _cosine(params: Mapping[str, Any], lr: float | None, steps: int) -> Equivalent:
    total, end = params["total_num_steps"], params["cos_min_ratio"]
    if params["warmup_min_ratio"] != 0:
        return Equivalent(None, lr, "None, because transformers' warm-ups begin at 0.")
    call = "transformers.get_cosine_with_min_lr_schedule_with_warmup"
    call += f"(optimizer, num_warmup_steps={steps}, num_training_steps={total}, min_lr_rate={end})"
    words = "The warm-up is one update late but the decay is not, since the maximum rate is left "
    words += "out. After the last update DeepSpeed stays at the minimum, but this one rises again."
    warming, after = ScheduleSpan(1, steps + 1, 1), max(total, steps) + 1
    return Equivalent(call, lr, words, (warming, ScheduleSpan(steps + 1, after, 0)))


def _range_test(params: Mapping[str, Any], *_: object) -> Equivalent:
    size, rate = params["lr_range_test_step_size"], params["lr_range_test_step_rate"]
    done = f"n // {size}" if params["lr_range_test_staircase"] else f"n / {size}"
    call = f"{TORCH}.LambdaLR(optimizer, lambda n: 1 + {rate} * ({done}))"
    words = "None by name, because torch's LinearLR stops at a rate but this rises forever."
    return Equivalent(call, params["lr_range_test_min_lr"], words, (ScheduleSpan(0, None, 0),))


def _one_cycle(params: Mapping[str, Any], *_: object) -> Equivalent:
    up, down = params["cycle_first_step_size"], params["cycle_second_step_size"]
    down = up if down is None else down
    low, high = params["cycle_min_lr"], params["cycle_max_lr"]
    if params["cycle_first_stair_count"] or params["cycle_second_stair_count"]:
        words = "None, because torch's CyclicLR and OneCycleLR have no stairs."
        return Equivalent(None, low, words)
    if down == 0:
        return Equivalent(None, low, "None, because CyclicLR needs a falling part.")
    call = f"{TORCH}.CyclicLR(optimizer, base_lr={low}, max_lr={high}, "
    call += f"step_size_up={up}, step_size_down={down}, cycle_momentum=False)"
    words = "For one cycle; then CyclicLR starts again, but DeepSpeed stays at the minimum or "
    words += "decays from there. OneCycle also writes Adam's betas, the second one as 0.99. "
    words += "torch's OneCycleLR takes other arguments, and its default is a cosine."
    return Equivalent(call, low, words, (ScheduleSpan(0, int(up + down) + 1, 0),))


_OF = {
    "WarmupLR": _warmup,
    "WarmupDecayLR": _decay,
    "WarmupCosineLR": _cosine,
    "LRRangeTest": _range_test,
    "OneCycle": _one_cycle,
}
