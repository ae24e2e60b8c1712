"""A checkpoint out of an engine: every rank writes what it has, no tensor is gathered.

Each element is written once, and that is counted; the small files say of all bytes what they are.
What goes wrong on one rank is raised on all, and the checkpoints before it stay. Lesson 14.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from course_lib.checkpoint import checksums, folder
from course_lib.checkpoint.box_writer import BoxWriter, Takes, make
from course_lib.checkpoint.contents import MODEL, OPTIMIZER, VALUE, Contents, Label
from course_lib.checkpoint.crc import crc32
from course_lib.checkpoint.engine_record import groups_of
from course_lib.checkpoint.files import SHARD_BYTES, TENSORS, of_all, report_of, vouched
from course_lib.checkpoint.shared_errors import about, agreed, merged, not_written, union
from course_lib.checkpoint.streams import streams_of
from course_lib.files import sync_file
from course_lib.gpt import GPT
from course_lib.layout import Box
from course_lib.pretrained.config import to_transformers
from course_lib.pretrained.writer import CONFIG, as_json
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
    streams: bool = True,
    shard_bytes: float = SHARD_BYTES,
) -> Path:
    """Write `top`/step-…, whole or not at all; every rank calls it, between two steps.

    `record` goes into training.json, beside what the engine counts: the state of a schedule, the
    position in the data. `files` are further texts, `streams` are the ranks' random numbers. The
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
            pens = {n: stack.enter_context(BoxWriter(part, f)) for n, f in planned.files.items()}

            def write() -> Written:
                scalars = write_own(planned, engine, pens)
                reports = {name: report_of(pen) for name, pen in pens.items()}
                return Written(scalars, groups_of(engine), reports)

            written = merged(groups, write, joined)
            random_streams = streams_of(mesh) if streams else None
            with agreed(groups, not_written):
                if first:
                    texts = small_files(engine, mesh, step, record or {}, written, random_streams)
                    finish(part, planned, written, {**texts, **(files or {})})
                for pen in pens.values():  # each rank, since each may be on a host of its own
                    pen.sync()
        with agreed(groups, not_written):
            if first:
                folder.publish(top, step, keep)
    except Exception:
        if claim.held:
            folder.discard(top, step)
        raise
    finally:
        claim.release()
    return top / folder.named(step)


class Written(NamedTuple):
    """What ranks have written: the optimizer's states that are single numbers, the optimizer's
    group of each parameter, and of each set of files the shares and counts."""

    scalars: dict[str, dict]
    groups: dict[str, int]
    reports: dict[str, dict]


def joined(several: list[Written]) -> Written:
    """What several ranks have written together."""
    reports = of_all([written.reports for written in several])
    groups = {name: number for written in several for name, number in written.groups.items()}
    return Written(union([written.scalars for written in several]), groups, reports)


def check_numbers(step: int, keep: int) -> None:
    """Refuse a step that names no folder, and to keep nothing of what is saved."""
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step={step!r}: take the number of steps that are done, 0 or more")
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ValueError(f"keep={keep!r}: of how many stay, the new one is one; take 1 or more")


def prepared(engine: Engine, mesh: DeviceMesh, shard_bytes: float) -> Contents:
    """The plan of a checkpoint, once it is known that copies are the same on all tp ranks."""
    tp = mesh.get_group("tp") if "tp" in mesh.mesh_dim_names else None
    if engine.stage < 3 and tp is not None and tp.size() > 1:
        check_replicas(engine.module, tp)
    return Contents(engine, mesh, shard_bytes)


def write_own(planned: Contents, engine: Engine, pens: Mapping[str, Takes]) -> dict[str, dict]:
    """Write this rank's tensors; the states that are single numbers, {name: {key: [x, dtype]}}."""
    scalars: dict[str, dict] = {}
    for text, x in engine.own_tensors():
        label = Label.of(text)
        if label.key != VALUE and label.key not in planned.keys.get(label.name, {}):
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


def small_files(
    engine: Engine,
    mesh: DeviceMesh,
    step: int,
    record: Mapping,
    written: Written,
    streams: Sequence[Mapping] | None,
) -> dict[str, str]:
    """The texts of a checkpoint: what it is of, and what is no tensor in it."""
    about = {
        "form": folder.FORM,
        "step": step,
        "mesh": {name: mesh.get_group(name).size() for name in mesh.mesh_dim_names},
        "checksums": checksums.SUMS,
        **record,
        "optimizer": type(engine.optimizer).__name__,
        "engine": engine.counters(),
        "scalars": written.scalars,
        "groups": written.groups,
        "streams": streams,
    }
    texts = {folder.RECORD: json.dumps(about, indent=1)}
    if isinstance(engine.module, GPT):
        dtype = next(p.dtype for p in engine.module.parameters())
        texts[CONFIG] = as_json(to_transformers(engine.module.config, dtype, None))
    return texts


def finish(part: Path, planned: Contents, written: Written, texts: Mapping[str, str]) -> None:
    """Write the small files, and what vouches for all of them."""
    files_of: dict = {"form": folder.FORM, "files": {}}
    for name in (MODEL, OPTIMIZER):
        files = planned.files[name]
        for file, header in files.headers.items():  # what a reader compares before a tensor is read
            about = {"bytes": files.sizes[file], "header": f"{crc32(header):08x}"}
            files_of["files"][file] = about
        files_of[name] = vouched(written.reports[name], files)
        texts = {**texts, **files.index}
    texts = {**texts, TENSORS: json.dumps(files_of, indent=1)}
    every = {name: checksums.of_bytes(text.encode()) for name, text in texts.items()}
    record = texts.pop(folder.RECORD)  # which makes a checkpoint of a folder, so it comes last
    put_all(part, {**texts, checksums.SUMS: checksums.as_text(every), folder.RECORD: record})


def put_all(part: Path, texts: Mapping[str, str]) -> None:
    """Write files into a folder that is nobody's yet; all are written before the first is waited
    for, so that a disk has them in one go."""
    with contextlib.ExitStack() as stack:
        files = {}
        for name, text in texts.items():
            with about(part / name):
                files[name] = stack.enter_context((part / name).open("x", encoding="utf-8"))
                files[name].write(text)
        for name, file in files.items():
            with about(part / name):
                sync_file(file)
