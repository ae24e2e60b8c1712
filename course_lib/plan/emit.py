"""A plan as files that other programs read: DeepSpeed, FSDP2, Accelerate, torchrun, SLURM.

The course's own program runs every plan, DeepSpeed, FSDP2 and Accelerate some of them: what one has
no word for is said before a file is written. Lesson 15.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from textwrap import wrap

from course_lib.estimate.ladder import Nodes
from course_lib.estimate.model import Model
from course_lib.peers.deepspeed_config import fsdp2, ours, settings
from course_lib.peers.launchers import slurm
from course_lib.plan.fsdp2_file import python
from course_lib.plan.search import Plan
from course_lib.plan.task import Task

MOST_WORDS = 60_000  # entries of a tokenizer, of all of Python's library
FEW_WORDS, ALL_BYTES = 16_000, 10**8  # so many are in the text that is read where nothing is said
KINDS = ("deepspeed", "fsdp2", "accelerate", "torchrun", "slurm")
ONE_NODE = """\
torchrun --standalone --nproc-per-node {gpus} \\
  -m course_lib.train {words} "$@"
"""
MANY = """\
# On every node: NODE_RANK is 0 on the first, whose address is MASTER_ADDR.
torchrun --nnodes {nodes} --nproc-per-node {gpus} \\
  --node-rank "${{NODE_RANK:?which of the {nodes} nodes is this, from 0 on}}" \\
  --master-addr "${{MASTER_ADDR:?the address of the first node}}" \\
  --master-port "${{MASTER_PORT:-29500}}" \\
  -m course_lib.train {words} "$@"
"""


def cannot(kind: str, plan: Plan, model: Model, length: int) -> str | None:
    """Why a kind of file cannot say this plan, None where it can."""
    if kind not in KINDS:
        raise ValueError(f"--emit {kind} is none of {', '.join(KINDS)}")
    return next((why for so, why in _reasons(kind, plan, model, length) if so), None)


def _reasons(kind: str, plan: Plan, model: Model, length: int) -> Iterator[tuple[bool, str]]:
    """Each reason against a plan, and whether it holds."""
    setting, tp, config = plan.setting, plan.place.tp, model.config
    away = sorted({setting.optimizer, setting.parameters} - {None})
    if kind in ("torchrun", "slurm"):
        yield len(away) > 1, f"course train has one place for what it offloads, and this is {away}"
        if config is not None:
            yield (
                config.vocabulary > MOST_WORDS,
                f"course train makes its tokenizer of Python's own library, which gives some "
                f"{MOST_WORDS:,} entries, and the model has {config.vocabulary:,}",
            )
        new = words_of(plan, model, length)
        why = f"course train makes no new model of this shape (model_type {model.kind!r})"
        yield new is None, why
        return
    yield plan.place.sequence, f"sequence parallelism has no setting in what --emit {kind} writes"
    if kind == "deepspeed":
        files = setting.optimizer == "nvme" and setting.stage < 3
        yield files, "DeepSpeed has states in files (NVMe) at stage 3 alone"
        why = "DeepSpeed trains with tensor parallelism (AutoTP) up to stage 2, not at stage 3"
        yield tp > 1 and setting.stage == 3, why
        return
    scaled = setting.precision == "float16" and setting.stage > 0
    yield scaled, "FSDP2 has no loss scale for float16; --emit deepspeed has one"
    why = "FSDP2 keeps no states in files; --emit deepspeed and --emit torchrun do"
    yield "nvme" in away, why
    why = "FSDP2 offloads parameters, gradients and states together, or none of them"
    yield (setting.optimizer == "cpu") != (setting.parameters == "cpu"), why
    why = "FSDP2 has no stage 1, whose gradients stay whole until the update"
    yield setting.stage == 1, why
    if tp > 1:
        why = "replicas that are tensor parallel themselves are no model for "
        yield setting.stage == 0, why + "DistributedDataParallel"
        yield (
            model.kind != "llama" or config is None,
            "the plan by which torch cuts a Transformers model over tp is written here for Llama; "
            "GPT-2's q, k and v are one layer there, which it does not cut by heads",
        )
        why = f"DTensor does not share {config.kv_heads} key/value heads among {tp} ranks"
        yield config.kv_heads % tp > 0, why


def first_that_can(kind: str, plans: Sequence[Plan], model: Model, length: int) -> int | None:
    """The place of the fastest plan that a kind of file can say, from 1 on."""
    able = (i for i, plan in enumerate(plans, 1) if cannot(kind, plan, model, length) is None)
    return next(able, None)


def words_of(plan: Plan, model: Model, length: int) -> list[str] | None:
    """The options of course_lib.train that run a plan with a new model of this shape."""
    if model.config is None:
        return None
    place, config = plan.place, model.config.changed(dropout=0.0, attention_dropout=0.0)
    shape = config.changed(length=length) if config.position == "learned" else config
    how = {"tp": place.tp, "sequence": place.sequence}
    words = ours.train(shape, length, place.world, plan.setting, **how)
    if words is not None and config.vocabulary > FEW_WORDS:
        words += ["--corpus-bytes", str(ALL_BYTES)]
    return words


def files_of(kind: str, plan: Plan, task: Task) -> dict[str, str]:
    """The files of a plan, name to text; refuses a plan that the program has no words for."""
    why = cannot(kind, plan, task.model, task.length)
    if why is not None:
        raise ValueError(why)
    setting, tp, machine = plan.setting, plan.place.tp, task.machine
    cluster = Nodes(machine.memory, task.per_node, task.nodes, machine.host_memory)
    lines = comments(plan, task, ours=kind in ("torchrun", "slurm"))
    if kind == "deepspeed":
        sizes, name = settings.Sizes.of(task.model), "ds_config.json"
        files = {
            name: settings.deepspeed(setting, cluster, sizes, nvme_path="/local_nvme", tp=tp),
            "training_arguments.json": settings.training_arguments(setting, name),
        }
        return {name: json.dumps(values, indent=2) + "\n" for name, values in files.items()}
    if kind == "fsdp2":
        lines += [line for note in fsdp2.notes(setting) for line in wrap(f"{note}.", 96)]
        return {"fsdp2.py": python(plan, task.model, task.length, lines)}
    above = "".join(f"# {line}\n" for line in lines)
    if kind == "accelerate":
        text = fsdp2.accelerate_fsdp2(setting, cluster, task.model.kind, tp=tp)
        return {"accelerate.yaml": above + text}
    words = words_of(plan, task.model, task.length)
    words = [word for i, word in enumerate(words) if "--ranks" not in words[max(0, i - 1) : i + 1]]
    nodes, gpus = task.nodes, task.per_node
    if kind == "torchrun":
        text = ONE_NODE if nodes == 1 else MANY
        text = text.format(nodes=nodes, gpus=gpus, words=shlex.join(words))
        return {"run.sh": f"#!/bin/bash\n{above}set -euo pipefail\n{text}"}
    words += ["--out", "runs/plan"] if nodes > 1 else []  # a folder that all nodes see
    how = "one node" if nodes == 1 else "torchrun"
    text = slurm.script(nodes, gpus, "-m", ["course_lib.train", *words], kind=how, name="plan")
    first, mark, rest = text.partition("# One task a node")
    return {"job.sh": first + above + mark + rest}


def comments(plan: Plan, task: Task, *, ours: bool) -> list[str]:
    """What a file is for, in its first lines; `ours`: whether it runs the course's own decoder."""
    seconds, gpu = plan.seconds.total, plan.needs.gpu / 1e9
    text = (
        f"{plan.name}: {task.gpus} GPUs of {task.machine.name}, {task.tokens:,} tokens a step. "
        f"Predicted: {seconds:.3g} s a step, {gpu:.3g} GB on each GPU."
    )
    if ours and not task.model.ours:
        text += (
            " The prediction is of Transformers' model under DeepSpeed; what runs here is the "
            "course's own decoder of the same shape."
        )
    config = task.model.config
    if config is not None and config.dropout:
        text += f" The dropout of {config.dropout:g} is left out of the command: --dropout has it."
    return wrap(text, 96)
