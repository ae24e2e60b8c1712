"""Where nothing fits: the way that comes nearest, and what would make it fit.

More memory, more GPUs, shorter sequences, fewer bytes a number, a disk: each is tried, and said
only if it does. Lesson 15.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from course_lib.estimate.setting import Setting
from course_lib.estimate.time import Place
from course_lib.plan.counts import Counts, size
from course_lib.plan.search import Plan, Search
from course_lib.plan.task import Task

MOST = 64  # times as many GPUs as were asked for are looked at


@dataclass(frozen=True)
class Advice:
    """The nearest miss in words, and the remedies that were found to do."""

    nearest: str
    remedies: list[str]

    def as_dict(self) -> dict:
        return {"nearest": self.nearest, "remedies": self.remedies}


def advice(found: Search) -> Advice | None:
    """None where something fits, or where nothing was counted."""
    if found.plans or found.nearest is None:
        return None
    setting, place, needs = found.nearest
    counts = Counts(found.task)
    _, text = counts.short(needs)
    name = Plan(setting, place, needs, None).name
    return Advice(f"{name}: {text}", list(_remedies(found.task, setting, place, counts)))


def _remedies(task: Task, setting: Setting, place: Place, counts: Counts) -> Iterator[str]:
    needs, machine = counts.needs(setting, place), task.machine
    if needs.gpu * (1 + task.spare) > machine.memory:
        yield f"GPUs with {size(needs.gpu * (1 + task.spare))} or more each"
    if machine.host_memory is not None and needs.host > machine.host_memory:
        yield f"hosts with {size(needs.host)} or more"
    more = _more_gpus(setting, place, counts)
    if more is not None:
        nodes = -(-more // place.ranks)
        yield (
            f"{more} GPUs ({nodes} nodes with {place.ranks} each), and {more // place.tp} "
            "sequences a step or more"
        )
    shorter = _shorter(task, setting, place)
    if shorter is not None:
        yield f"--length {shorter}"
    if task.precision == "float32":
        half = replace(task, precision="bfloat16")
        if _fits(half, replace(setting, precision="bfloat16"), place):
            yield "--precision bfloat16"
    if machine.disk is None and machine.host is not None and setting.stage == 3:
        away = replace(setting, optimizer="nvme", parameters="nvme")
        if _fits(task, away, place):
            yield "states and parameters in files: say in the machine's file what a disk carries"


def _fits(task: Task, setting: Setting, place: Place) -> bool:
    counts = Counts(task)
    return counts.over(counts.needs(setting, place)) <= 0


def _more_gpus(setting: Setting, place: Place, counts: Counts) -> int | None:
    """How many GPUs the nearest way needs, by doubling the replicas; None where no number does."""
    if setting.stage == 0 or place.world < place.gpus:
        return None
    times = 2
    while times <= MOST:
        wider = replace(place, dp=place.dp * times)
        if counts.over(counts.needs(setting, wider)) <= 0:
            return wider.world
        times *= 2
    return None


def _shorter(task: Task, setting: Setting, place: Place) -> int | None:
    """The longest sequences, halved again and again, with which it fits."""
    length = task.length // 2
    while length and task.model.config is not None:
        possible = length >= place.tp and task.tokens % length == 0
        if possible and _fits(replace(task, length=length), setting, place):
            return length
        length //= 2
    return None
