"""A search in words and as one JSON document; where nothing fits, what would make it fit.

More memory, more GPUs, shorter sequences, fewer bytes a number, a disk: each is tried, and said
only if it does. Lesson 15.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from course_lib.estimate.setting import Setting
from course_lib.estimate.time import Place
from course_lib.plan.search import Counts, Plan, Search, size
from course_lib.plan.task import Task

MOST = 64  # times as many GPUs as were asked for are looked at


def title(task: Task) -> str:
    machine, nodes = task.machine, task.nodes
    where = f"{task.gpus} GPU{'s'[: task.gpus > 1]} of {machine.name}"
    where += f" on {nodes} nodes" if nodes > 1 else ""
    return (
        f"{task.model.shape.params:,} parameters, {task.tokens:,} tokens a step in "
        f"{task.rows:,} sequences of {task.length}, {task.precision}; {where}, "
        f"{machine.memory / 1e9:,.3g} GB each"
    )


def remarks(found: Search) -> list[str]:
    """What a reader has to know of the figures."""
    task, model, machine = found.task, found.task.model, found.task.machine
    rate = machine.rate(task.per_node)
    what = "DeepSpeed needs with these settings, fused attention"
    what = "our engine needs at the highest point of a step" if model.ours else what
    lines = [
        f"GPU: what {what}. comp s: with the wait for the slowest rank; tp s: its messages, which "
        "block; dp s and tier s: what the backward does not hide.",
        f"Products are taken to reach {rate.products(model.hidden) / 1e12:,.2f} TFLOP/s, a ring "
        f"{task.constants.reach:.0%} of its link; ranks differ by {task.constants.spread:.1%}.",
    ]
    if machine.runs:
        lines.append(
            f"Of {machine.runs} published runs on this GPU nine in ten are predicted to within "
            f"{machine.within:.0%} (docs/cost_model.md). Plans that are closer are a tie."
        )
    elif machine.peak:
        lines.append(
            "No published run was compared on this machine: its rates are assumptions, and the "
            "order says more than the seconds."
        )
    if not found.plans or found.plans[0].place.tp > task.per_node:
        what = "Tensor parallelism across nodes is slow" if found.plans else "Nothing fits"
        lines.append(
            f"{what}, and this command plans no pipeline parallelism, which is the usual way to "
            "spread a model over nodes."
        )
    crowd = task.machine.oversubscribed(task.per_node)
    if crowd > 1:
        lines.append(
            f"{task.per_node} ranks share {task.machine.cores} cores: each takes {crowd:g} times "
            "as long as with a core of its own."
        )
    config = model.config
    if not model.ours and model.activations_unknown:
        lines.append(
            f"The activations are not known: {model.activations_unknown}. A step needs more memory "
            "than is shown, and only plans with 1 row at a time are listed."
        )
    if config is None and not model.theirs().can_be_cut:
        lines.append(
            f"How tensor parallelism cuts a model of model_type {model.kind!r} is not known here: "
            "all plans have tp 1."
        )
    elif config is not None and config.dropout:
        lines.append(f"Its dropout of {config.dropout:g} is counted, attention's own is not.")
    return lines


def plan_dict(task: Task, plan: Plan) -> dict:
    setting, place, needs = plan.setting, plan.place, plan.needs
    found = {"name": plan.name, "tp": place.tp, "sequence": place.sequence, "dp": place.dp}
    found |= {"stage": setting.stage, "offload_optimizer": setting.optimizer or "none"}
    found |= {"offload_param": setting.parameters or "none", "recompute": setting.recompute}
    found |= {"rows": setting.rows, "accumulate": setting.accumulate}
    found |= {"precision": setting.precision, "gpu_bytes": needs.gpu}
    found |= {"activation_bytes": needs.activations, "host_bytes": needs.host}
    found |= {"disk_bytes": needs.disk, "seconds": plan.seconds.as_dict()}
    found["tokens_per_second"] = task.tokens / plan.seconds.total
    return found | {"cost_per_billion_tokens": task.cost(plan.seconds.total)}


def as_dict(found: Search, top: int, written: list[str] | None = None) -> dict:
    """What --json prints; `plans` are the first `top` of `fits`."""
    task, model, told = found.task, found.task.model, advice(found)
    plans = [plan_dict(task, plan) for plan in found.plans[:top]]
    fallen = [
        {"reason": reason, "count": one.count, "example": one.example}
        for reason, one in found.fallen.items()
    ]
    shown = {"params": model.shape.params, "model_type": model.kind}
    known = model.ours or not model.activations_unknown
    shown |= {"activations": known, "machine": task.machine.as_dict()}
    shown["constants"] = {"reach": task.constants.reach, "spread": task.constants.spread}
    shown |= {"gpus": task.gpus, "tokens": task.tokens, "length": task.length}
    shown |= {"precision": task.precision, "considered": found.considered}
    shown |= {"fits": len(found.plans), "plans": plans, "fallen": fallen}
    shown |= {"advice": None if told is None else told._asdict(), "remarks": remarks(found)}
    return shown | {"written": written or []}


# ---- where nothing fits
class Advice(NamedTuple):
    """The nearest miss in words, and the remedies that were found to do."""

    nearest: str
    remedies: list[str]


def advice(found: Search) -> Advice | None:
    """Where nothing fits: the way that comes nearest, and what would make it fit; None where
    something does, or where nothing was counted."""
    if found.plans or found.nearest is None:
        return None
    setting, place, needs = found.nearest
    _, text = found.counts.short(needs)
    name = Plan(setting, place, needs, None).name
    remedies = list(_remedies(found.task, setting, place, found.counts))
    return Advice(f"{name}: {text}", remedies)


def _remedies(task: Task, setting: Setting, place: Place, counts: Counts) -> Iterator[str]:
    needs, machine = counts.needs(setting, place), task.machine
    if needs.gpu * (1 + task.spare) > machine.memory:
        yield f"GPUs with {size(needs.gpu * (1 + task.spare))} or more each"
    if machine.host_memory is not None and needs.host > machine.host_memory:
        yield f"hosts with {size(needs.host)} or more"
    # By doubling the replicas, of nodes that are full.
    wider = [replace(place, dp=place.dp * 2**k) for k in range(1, MOST.bit_length())]
    possible = setting.stage > 0 and place.world >= place.gpus
    for there in wider if possible else ():
        if counts.over(counts.needs(setting, there)) <= 0:
            nodes = -(-there.world // place.ranks)
            yield (
                f"{there.world} GPUs ({nodes} nodes with {place.ranks} each), and {there.dp} "
                "sequences a step or more"
            )
            break
    length = task.length // 2 if needs.activations is not None else 0
    while length >= place.tp:  # halved again and again
        shorter = replace(task, length=length) if task.tokens % length == 0 else None
        if shorter is not None and _fits(shorter, setting, place):
            yield f"--length {length}"
            break
        length //= 2
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
