"""A report of a search, in words and as one JSON document, with remedies if nothing fits.

More memory, more GPUs, shorter sequences, fewer bytes per element and a disk are tried as remedies,
and a remedy is named only if it helps. Lesson 15.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from course_lib.estimate.setting import Setting
from course_lib.estimate.time import Place
from course_lib.plan.search import Counts, Plan, Search, size
from course_lib.plan.task import Task

MOST = 64  # largest multiple of the requested GPUs that is tried


def title(task: Task) -> str:
    machine, nodes = task.machine, task.nodes
    where = f"{task.gpus} GPU{'s'[: task.gpus > 1]} of {machine.name}"
    where += f" on {nodes} nodes" if nodes > 1 else ""
    return (
        f"{task.model.shape.params:,} parameters, {task.tokens:,} tokens per step in "
        f"{task.rows:,} sequences of {task.length}, {task.precision}; {where}, "
        f"{machine.memory / 1e9:,.3g} GB each"
    )


def remarks(found: Search) -> list[str]:
    """List the remarks that a reader needs to understand the figures."""
    task, model, machine = found.task, found.task.model, found.task.machine
    rate = machine.rate(task.per_node)
    what = "DeepSpeed needs with these settings and fused attention"
    what = "our engine needs at the peak of a step" if model.ours else what
    lines = [
        f"GPU GB is the memory that {what}. Seconds: comp s includes the wait for the slowest "
        "rank, tp s is its blocking messages, and the backward pass does not hide dp s and tier s.",
        f"Assumed: products reach {rate.products(model.hidden) / 1e12:,.2f} TFLOP/s, rings reach "
        f"{task.constants.reach:.0%} of a link, and ranks differ by {task.constants.spread:.1%}.",
    ]
    if machine.runs:
        lines.append(
            f"Nine in ten of {machine.runs} published runs on this GPU are predicted to within "
            f"{machine.within:.0%} (docs/cost_model.md). Plans that differ by less are a tie."
        )
    elif machine.peak:
        lines.append(
            "No published run was compared on this machine, so its rates are assumptions, and the "
            "order is more reliable than the seconds."
        )
    if not found.plans or found.plans[0].place.tp > task.per_node:
        what = "Tensor parallelism across nodes is slow" if found.plans else "Nothing fits"
        lines.append(
            f"{what}, and this command plans no pipeline parallelism, which is the usual way to "
            "distribute a model over nodes."
        )
    crowd = task.machine.oversubscribed(task.per_node)
    if crowd > 1:
        lines.append(
            f"{task.per_node} ranks share {task.machine.cores} cores, so each takes {crowd:g} "
            "times as long as on its own core."
        )
    config = model.config
    if not model.ours and model.activations_unknown:
        lines.append(
            f"The activations are not known, because {model.activations_unknown}. A step needs "
            "more memory than shown, and only plans with 1 row at a time are listed."
        )
    if config is None and not model.theirs().can_be_cut:
        lines.append(
            f"The tensor-parallel layout of model_type {model.kind!r} is not known here, so all "
            "plans have tp 1."
        )
    elif config is not None and config.dropout:
        lines.append(f"The dropout of {config.dropout:g} is counted, but attention dropout is not.")
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
    """Make the document for --json; its `plans` are the `top` fastest plans that fit."""
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


# ---- if nothing fits
class Advice(NamedTuple):
    """The nearest plan in words, and the remedies that make it fit."""

    nearest: str
    remedies: list[str]


def advice(found: Search) -> Advice | None:
    """Describe the plan that is nearest to fitting, and the changes that make it fit. Return None
    if a plan fits, or if nothing was counted."""
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
    # By doubling the replicas, on full nodes.
    wider = [replace(place, dp=place.dp * 2**k) for k in range(1, MOST.bit_length())]
    possible = setting.stage > 0 and place.world >= place.gpus
    for there in wider if possible else ():
        if counts.over(counts.needs(setting, there)) <= 0:
            nodes = -(-there.world // place.ranks)
            yield (
                f"{there.world} GPUs ({nodes} nodes with {place.ranks} each), and {there.dp} "
                "or more sequences per step"
            )
            break
    length = task.length // 2 if needs.activations is not None else 0
    while length >= place.tp:  # halved repeatedly
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
            yield "states and parameters in files (add disk to the machine's file)"


def _fits(task: Task, setting: Setting, place: Place) -> bool:
    counts = Counts(task)
    return counts.over(counts.needs(setting, place)) <= 0
