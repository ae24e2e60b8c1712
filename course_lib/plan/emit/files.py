"""The files of a plan, name to text, for the program that was asked for.

Lesson 15.
"""

from __future__ import annotations

import json
from textwrap import wrap

from course_lib.deepspeed_config import fsdp2, settings
from course_lib.estimate.ladder import Machine
from course_lib.plan.emit import scripts
from course_lib.plan.emit.able import cannot, words_of
from course_lib.plan.emit.fsdp2 import python
from course_lib.plan.search import Plan
from course_lib.plan.task import Task


def files_of(kind: str, plan: Plan, task: Task) -> dict[str, str]:
    """Refuses a plan that the program has no words for."""
    why = cannot(kind, plan, task.model, task.length)
    if why is not None:
        raise ValueError(why)
    of = {"deepspeed": _deepspeed, "fsdp2": _fsdp2, "accelerate": _accelerate}
    if kind in of:
        return of[kind](plan, task)
    words = words_of(plan, task.model, task.length)
    words = [word for i, word in enumerate(words) if "--ranks" not in words[max(0, i - 1) : i + 1]]
    nodes, gpus = task.nodes, task.per_node
    if kind == "torchrun":
        return {"run.sh": scripts.torchrun(nodes, gpus, words, comments(plan, task))}
    shared = ["--out", "runs/plan"] if nodes > 1 else []  # a folder that all nodes see
    return {"job.sh": scripts.batch(nodes, gpus, [*words, *shared], comments(plan, task))}


def comments(plan: Plan, task: Task) -> list[str]:
    """What a file is for, in its first lines."""
    seconds, gpu = plan.seconds.total, plan.needs.gpu / 1e9
    text = (
        f"{plan.name}: {task.gpus} GPUs of {task.machine.name}, {task.tokens:,} tokens a step. "
        f"Predicted: {seconds:.3g} s a step, {gpu:.3g} GB on each GPU."
    )
    config = task.model.config
    if config is not None and config.dropout:
        text += f" The dropout of {config.dropout:g} is left out of the command: --dropout has it."
    return wrap(text, 96)


def _ladders(task: Task) -> Machine:
    machine = task.machine
    return Machine(machine.memory, task.per_node, task.nodes, machine.host_memory)


def _deepspeed(plan: Plan, task: Task) -> dict[str, str]:
    name = "ds_config.json"
    config = settings.deepspeed(
        plan.setting, _ladders(task), task.model.sizes, nvme_path="/local_nvme", tp=plan.place.tp
    )
    arguments = settings.training_arguments(plan.setting, name)
    files = {name: config, "training_arguments.json": arguments}
    return {name: json.dumps(values, indent=2) + "\n" for name, values in files.items()}


def _fsdp2(plan: Plan, task: Task) -> dict[str, str]:
    notes = [line for note in fsdp2.notes(plan.setting) for line in wrap(f"{note}.", 96)]
    above = [*comments(plan, task), *notes]
    return {"fsdp2.py": python(plan, task.model, task.length, above)}


def _accelerate(plan: Plan, task: Task) -> dict[str, str]:
    text = fsdp2.accelerate_fsdp2(plan.setting, _ladders(task), task.model.kind, tp=plan.place.tp)
    above = "".join(f"# {line}\n" for line in comments(plan, task))
    return {"accelerate.yaml": above + text}
