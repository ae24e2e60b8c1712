"""A checkpoint written by an engine: every rank writes its own part, and no tensor is gathered.

Element counts verify that each element is written exactly once. The small files describe all bytes.
If one rank fails, all ranks raise, and earlier checkpoints are kept. Lesson 14.
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
    """Write `top`/step-… completely or not at all. Every rank calls it, between two steps.

    `record`, for example a schedule's state or the position in the data, is added to training.json.
    `files` maps the names of additional files to their texts. With `streams`, the ranks' random
    states are saved. The last `keep` checkpoints are kept. If a rank fails, every rank raises.
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
                for pen in pens.values():  # on each rank, since each may be on a different host
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
    """The results of writing: the optimizer's scalar states, the optimizer group of each parameter,
    and for each set of files the checksum shares and element counts."""

    scalars: dict[str, dict]
    groups: dict[str, int]
    reports: dict[str, dict]


def joined(several: list[Written]) -> Written:
    """Merge the results of several ranks."""
    reports = of_all([written.reports for written in several])
    groups = {name: number for written in several for name, number in written.groups.items()}
    return Written(union([written.scalars for written in several]), groups, reports)


def check_numbers(step: int, keep: int) -> None:
    """Refuse a step that is not a count, and a `keep` that would keep no checkpoint."""
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step={step!r}: use the number of completed steps, 0 or more")
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise ValueError(f"keep={keep!r}: the new checkpoint counts as well, so use 1 or more")


def prepared(engine: Engine, mesh: DeviceMesh, shard_bytes: float) -> Contents:
    """Plan a checkpoint after checking that replicated tensors are equal on all tp ranks."""
    tp = mesh.get_group("tp") if "tp" in mesh.mesh_dim_names else None
    if engine.stage < 3 and tp is not None and tp.size() > 1:
        check_replicas(engine.module, tp)
    return Contents(engine, mesh, shard_bytes)


def write_own(planned: Contents, engine: Engine, pens: Mapping[str, Takes]) -> dict[str, dict]:
    """Write this rank's tensors and return the scalar states as {name: {key: [x, dtype]}}."""
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
    """Build the small files' texts: the checkpoint's description and its non-tensor data."""
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
    """Write the small files, and the checksums that cover all files."""
    files_of: dict = {"form": folder.FORM, "files": {}}
    for name in (MODEL, OPTIMIZER):
        files = planned.files[name]
        for file, header in files.headers.items():  # compared before a tensor is read
            about = {"bytes": files.sizes[file], "header": f"{crc32(header):08x}"}
            files_of["files"][file] = about
        files_of[name] = vouched(written.reports[name], files)
        texts = {**texts, **files.index}
    texts = {**texts, TENSORS: json.dumps(files_of, indent=1)}
    every = {name: checksums.of_bytes(text.encode()) for name, text in texts.items()}
    record = texts.pop(folder.RECORD)  # makes the folder a checkpoint, so it comes last
    put_all(part, {**texts, checksums.SUMS: checksums.as_text(every), folder.RECORD: record})


def put_all(part: Path, texts: Mapping[str, str]) -> None:
    """Write files into a folder that is not published yet. All files are written before the first
    sync, so that the disk receives them together."""
    with contextlib.ExitStack() as stack:
        files = {}
        for name, text in texts.items():
            with about(part / name):
                files[name] = stack.enter_context((part / name).open("x", encoding="utf-8"))
                files[name].write(text)
        for name, file in files.items():
            with about(part / name):
                sync_file(file)
