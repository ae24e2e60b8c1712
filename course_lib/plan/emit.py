"""A plan as files for other programs: DeepSpeed, FSDP2, Accelerate, torchrun, SLURM.

The course's own program runs every plan, but DeepSpeed, FSDP2 and Accelerate run only some. A
setting that a program lacks is reported before a file is written. Lesson 15.
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

MOST_WORDS = 60_000  # entries of a tokenizer from all of Python's library
FEW_WORDS, ALL_BYTES = 16_000, 10**8  # entries in the default text; bytes for more
KINDS = ("deepspeed", "fsdp2", "accelerate", "torchrun", "slurm")
ONE_NODE = """\
torchrun --standalone --nproc-per-node {gpus} \\
  -m course_lib.train {words} "$@"
"""
MANY = """\
# On every node: NODE_RANK is 0 on the first node, and MASTER_ADDR is its address.
torchrun --nnodes {nodes} --nproc-per-node {gpus} \\
  --node-rank "${{NODE_RANK:?number of this node among {nodes}, from 0 on}}" \\
  --master-addr "${{MASTER_ADDR:?address of the first node}}" \\
  --master-port "${{MASTER_PORT:-29500}}" \\
  -m course_lib.train {words} "$@"
"""


def cannot(kind: str, plan: Plan, model: Model, length: int) -> str | None:
    """Return the reason why a kind of file cannot express this plan, or None if it can."""
    if kind not in KINDS:
        raise ValueError(f"--emit {kind} is none of {', '.join(KINDS)}")
    return next((why for so, why in _reasons(kind, plan, model, length) if so), None)


def _reasons(kind: str, plan: Plan, model: Model, length: int) -> Iterator[tuple[bool, str]]:
    """Yield pairs (True if a reason against the plan applies, the reason)."""
    setting, tp, config = plan.setting, plan.place.tp, model.config
    away = sorted({setting.optimizer, setting.parameters} - {None})
    if kind in ("torchrun", "slurm"):
        yield len(away) > 1, f"course train offloads to one place only, but this plan uses {away}"
        if config is not None:
            yield (
                config.vocabulary > MOST_WORDS,
                f"course train makes its tokenizer from Python's own library, which gives about "
                f"{MOST_WORDS:,} entries, but the model has {config.vocabulary:,}",
            )
        new = words_of(plan, model, length)
        why = f"course train cannot make a new model of this shape (model_type {model.kind!r})"
        yield new is None, why
        return
    yield plan.place.sequence, f"sequence parallelism has no setting in the files of --emit {kind}"
    if kind == "deepspeed":
        files = setting.optimizer == "nvme" and setting.stage < 3
        yield files, "DeepSpeed keeps states in files (NVMe) only at stage 3"
        why = "DeepSpeed trains with tensor parallelism (AutoTP) up to stage 2, not at stage 3"
        yield tp > 1 and setting.stage == 3, why
        return
    scaled = setting.precision == "float16" and setting.stage > 0
    yield scaled, "FSDP2 has no loss scale for float16, but --emit deepspeed has one"
    why = "FSDP2 keeps no states in files, but --emit deepspeed and --emit torchrun do"
    yield "nvme" in away, why
    why = "FSDP2 offloads parameters, gradients and states together, or none of them"
    yield (setting.optimizer == "cpu") != (setting.parameters == "cpu"), why
    why = "FSDP2 has no stage 1, which keeps all gradients until the update"
    yield setting.stage == 1, why
    if tp > 1:
        why = "tensor-parallel replicas cannot be wrapped in "
        yield setting.stage == 0, why + "DistributedDataParallel"
        yield (
            model.kind != "llama" or config is None,
            "torch's tensor-parallel plan for a Transformers model is written here only for Llama, "
            "because GPT-2's q, k and v are one layer, which torch cannot shard by heads",
        )
        why = f"DTensor cannot distribute {config.kv_heads} key/value heads over {tp} ranks"
        yield config.kv_heads % tp > 0, why


def first_that_can(kind: str, plans: Sequence[Plan], model: Model, length: int) -> int | None:
    """Return the number, from 1, of the fastest plan that a kind of file can express, or None."""
    able = (i for i, plan in enumerate(plans, 1) if cannot(kind, plan, model, length) is None)
    return next(able, None)


def words_of(plan: Plan, model: Model, length: int) -> list[str] | None:
    """Return the options of course_lib.train that run a plan with a new model of this shape."""
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
    """Return a plan's files as {name: text}, or refuse a plan that the program cannot express."""
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
    first, mark, rest = text.partition("# One task per node")
    return {"job.sh": first + above + mark + rest}


def comments(plan: Plan, task: Task, *, ours: bool) -> list[str]:
    """Write a file's first lines; `ours` is True if it runs the course's own decoder."""
    seconds, gpu = plan.seconds.total, plan.needs.gpu / 1e9
    text = (
        f"{plan.name}: {task.gpus} GPUs of {task.machine.name}, {task.tokens:,} tokens per step. "
        f"Predicted: {seconds:.3g} s per step, {gpu:.3g} GB on each GPU."
    )
    if ours and not task.model.ours:
        text += (
            " The prediction is for Transformers' model under DeepSpeed, but this file runs the "
            "course's own decoder of the same shape."
        )
    config = task.model.config
    if config is not None and config.dropout:
        text += f" The command omits the dropout of {config.dropout:g} (add it with --dropout)."
    return wrap(text, 96)
