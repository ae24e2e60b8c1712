"""A checkpoint out of an engine: every rank writes what it has, no tensor is gathered.

Each element is written once, and that is counted; the small files say of all bytes what they are.
What goes wrong on one rank is raised on all, and the checkpoints before it stay. Lesson 14.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from course_lib.checkpoint import folder, sums
from course_lib.checkpoint.agreed import about, agreed, not_written
from course_lib.checkpoint.checked import TENSORS, Vouched, added_up
from course_lib.checkpoint.files import SHARD_BYTES
from course_lib.checkpoint.pen import Pen, make
from course_lib.checkpoint.planned import MODEL, OPTIMIZER, Label, Planned, merged
from course_lib.checkpoint.recorded import groups_of
from course_lib.files import write_whole
from course_lib.gpt import GPT
from course_lib.layout import Box
from course_lib.pretrained.config import to_transformers
from course_lib.pretrained.writer import CONFIG
from course_lib.tensor_parallel import check_replicas
from course_lib.zero import Engine


def save(
    top: Path | str,
    step: int,
    engine: Engine,
    mesh: DeviceMesh,
    *,
    record: Mapping | None = None,
    files: Mapping[str, str] | None = None,
    keep: int = 2,
    shard_bytes: float = SHARD_BYTES,
) -> Path:
    """Write `top`/step-…, whole or not at all; every rank calls it, between two steps.

    `record` goes into training.json, beside what the engine counts; `files` are further texts. The
    last `keep` checkpoints stay. Where the writing fails on a rank, every rank raises.
    """
    check_numbers(step, keep)
    top = Path(top)
    planned = prepared(engine, mesh, shard_bytes)
    groups, first = planned.groups, dist.get_rank() == 0
    part, claim = folder.part_of(top, step), folder.Claim(top)
    try:
        with agreed(groups, not_written):
            if first:
                claim.take()
                folder.begin(top, step)
                make(part, list(planned.files.values()))
        with contextlib.ExitStack() as stack:
            pens = {n: stack.enter_context(Pen(part, f)) for n, f in planned.files.items()}
            with agreed(groups, not_written):
                scalars = write_own(planned, engine, pens)
                for pen in pens.values():
                    pen.sync()
            states = merged({"scalars": scalars, "groups": groups_of(engine)}, groups)
            vouched = {name: added_up(pen, groups) for name, pen in pens.items()}
        with agreed(groups, not_written):
            if first:
                texts = small_files(engine, mesh, step, record or {}, states)
                finish(part, planned, vouched, {**texts, **(files or {})})
                folder.publish(top, step, keep)
    except Exception:
        if claim.held:
            folder.discard(top, step)
        raise
    finally:
        claim.release()
    return top / folder.named(step)


def check_numbers(step: int, keep: int) -> None:
    """Refuse a step that names no folder, and to keep nothing of what is saved."""
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step={step!r}: take the number of steps that are done, 0 or more")
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ValueError(f"keep={keep!r}: of how many stay, the new one is one; take 1 or more")


def prepared(engine: Engine, mesh: DeviceMesh, shard_bytes: float) -> Planned:
    """The plan of a checkpoint, once it is known that copies are the same on all tp ranks."""
    tp = mesh.get_group("tp") if "tp" in mesh.mesh_dim_names else None
    if engine.stage < 3 and tp is not None and tp.size() > 1:
        check_replicas(engine.module, tp)
    return Planned(engine, mesh, shard_bytes)


def write_own(planned: Planned, engine: Engine, pens: Mapping[str, Pen]) -> dict[str, dict]:
    """Write this rank's tensors; the states that are single numbers, {name: {key: [x, dtype]}}."""
    scalars: dict[str, dict] = {}
    for text, x in engine.own_tensors():
        label = Label.of(text)
        if is_scalar(planned, label):
            kind = str(x.dtype).removeprefix("torch.")
            scalars.setdefault(label.name, {})[label.key] = [x.item(), kind]
        else:
            planned.write(label, x, pens)
    for label, x in planned.frozen(engine):
        planned.write(label, x, pens)
    if dist.get_rank() == 0:
        for name, x in planned.buffers.items():
            pens[MODEL].put(name, Box((0,) * x.dim(), tuple(x.shape)), x)
    return scalars


def is_scalar(planned: Planned, label: Label) -> bool:
    """Whether a tensor of an engine's is a single number beside a parameter's elements."""
    return label.key != "value" and label.key not in planned.keys.get(label.name, {})


def small_files(
    engine: Engine, mesh: DeviceMesh, step: int, record: Mapping, states: Mapping
) -> dict[str, str]:
    """The texts of a checkpoint: what it is of, and what is no tensor in it."""
    about = {
        "form": folder.FORM,
        "step": step,
        "mesh": {name: mesh.get_group(name).size() for name in mesh.mesh_dim_names},
        "checksums": sums.SUMS,
        **record,
        "optimizer": type(engine.optimizer).__name__,
        "engine": engine.counters(),
        **states,  # the single numbers of an optimizer, and each parameter's group
    }
    texts = {folder.RECORD: json.dumps(about, indent=1)}
    if isinstance(engine.module, GPT):
        dtype = next(p.dtype for p in engine.module.parameters())
        config = to_transformers(engine.module.config, dtype, None)
        texts[CONFIG] = json.dumps(config, indent=2, sort_keys=True) + "\n"
    return texts


def finish(
    part: Path, planned: Planned, vouched: Mapping[str, Vouched], texts: Mapping[str, str]
) -> None:
    """Write the small files, and what vouches for all of them; the record comes last."""
    about = {"form": folder.FORM, "files": {}}
    for name in (MODEL, OPTIMIZER):
        files = planned.files[name]
        about["files"] |= {file: files.about(file) for file in files.headers}
        about[name] = vouched[name].as_text(files)
        texts = {**texts, **files.index}
    texts = {**texts, TENSORS: json.dumps(about, indent=1)}
    record = texts[folder.RECORD]
    for name, text in texts.items():
        if name != folder.RECORD:
            put(part / name, text)
    every = {name: sums.of_text(text) for name, text in texts.items()}
    put(part / sums.SUMS, sums.as_text(every))
    put(part / folder.RECORD, record)


def put(path: Path, text: str) -> None:
    with about(path):
        write_whole(path, text)
