"""Checkpoints that are whole or not there: written beside, renamed when all ranks are done.

A folder is what transformers reads, and holds each rank's part of the optimizer, a record in JSON
and a sum of each file as well; `latest` names the last whole one, and moves only then. Lesson 12;
lesson 14 goes on from here.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from course_lib import pretrained
from course_lib.checkpoint.units import unit_by_unit
from course_lib.collectives.call import Group
from course_lib.files import sync_folder, write_whole
from course_lib.pretrained.together import together
from course_lib.tensor_parallel import check_replicas
from course_lib.train import states, sums
from course_lib.train.record import FOLDER, FORM, LATEST, RECORD, number_of, remedy, whole
from course_lib.zero import Engine

STATES = re.compile(r"states-dp\d+of\d+-tp\d+of\d+\.safetensors")


def save(
    out: Path,
    step: int,
    engine: Engine,
    mesh: DeviceMesh,
    record: Mapping,
    *,
    files: Mapping[str, str],
    keep: int,
) -> Path:
    """Write a checkpoint of this step; every rank calls it. What was there stays until it is whole,
    and for good if the writing fails on any rank; then every rank raises."""
    tp, groups, stage = mesh.get_group("tp"), _groups(mesh), engine.stage
    if stage < 3:
        check_replicas(engine.module, tp)
    top = out / FOLDER
    part, final = top / f".step-{step:06d}.part", top / f"step-{step:06d}"
    first, what = dist.get_rank() == 0, f"saving {final}"
    with together(groups, what):
        if first:
            top.mkdir(parents=True, exist_ok=True)
            sweep(top)
    try:
        with unit_by_unit(engine) as gathered:
            pretrained.save(engine.module, part, mesh, gathered=gathered)
        sums_of: dict[str, str] = {}
        with together(groups, what):
            if stage or mesh.get_group("dp").rank() == 0:  # at stage 0 replicas have the same
                name = states_of(mesh, stage)
                sums_of[name] = states.write(engine, part / name)
        for group in groups:
            every: list = [None] * group.size()
            dist.all_gather_object(every, sums_of, group=group)
            sums_of = {name: digest for some in every for name, digest in some.items()}
        with together(groups, what):
            if first:
                about = {"form": FORM, "step": step, "mesh": sizes(mesh), "checksums": sums.SUMS}
                text = json.dumps({**about, **record, "engine": engine.counters()}, indent=1)
                _put(part, {RECORD: text, **files}, sums_of)
        with together(groups, what):
            if first:
                shutil.rmtree(final, ignore_errors=True)  # of a run that went on from before it
                part.rename(final)
                sync_folder(top)
                write_whole(top / LATEST, f"{final.name}\n")
                # What a run that was gone back on has left after this step is not ours to remove.
                before = [path for path in whole(top) if number_of(path) <= step]
                for old in before[:-keep]:
                    shutil.rmtree(old, ignore_errors=True)
    except Exception:
        if first:
            sweep(top)
            with contextlib.suppress(OSError):  # nothing was ever saved here
                top.rmdir()
        raise
    return final


def check_bytes(path: Path, record: Mapping, mesh: DeviceMesh, stage: int) -> bool:
    """Read all files of a checkpoint and refuse, on every rank, bytes that are not those written.

    Each rank reads its own states, rank 0 also what belongs to all. False: the checkpoint is from
    a time without sums.
    """
    if not sums.there(path, record):
        return False
    with together(_groups(mesh), f"checking {path}"):
        names = [states_of(mesh, stage)]
        if dist.get_rank() == 0:
            listed = sums.read(path, lambda: remedy(path))
            names += [name for name in listed if not STATES.fullmatch(name)]
        sums.check(path, names, lambda: remedy(path))
    return True


def load_states(path: Path, record: Mapping, engine: Engine, mesh: DeviceMesh) -> None:
    """Put what the optimizer updates, its states and the engine's counters back in their places;
    every rank calls it."""
    with contextlib.ExitStack() as stack:
        with together(_groups(mesh), f"reading {path}"):
            stored = stack.enter_context(
                states.Stored(engine, path / states_of(mesh, engine.stage))
            )
        stored.put_into()
        engine.set_counters(record["engine"])


def sweep(top: Path) -> None:
    """Take away what a run that was killed in the middle of a save has left."""
    for entry in top.iterdir() if top.is_dir() else ():
        if entry.name.startswith("."):
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink()


def _put(part: Path, texts: Mapping[str, str], sums_of: Mapping[str, str]) -> None:
    """The small files, and last the sums of all; `sums_of` are those of the ranks' states."""
    for name, text in texts.items():
        write_whole(part / name, text)
    others = [file.name for file in part.iterdir() if file.name not in sums_of]
    every = {**sums_of, **{name: sums.of_file(part / name) for name in others}}
    write_whole(part / sums.SUMS, sums.as_text(every))


def _groups(mesh: DeviceMesh) -> list[Group]:
    return [mesh.get_group(axis) for axis in ("tp", "dp")]


def states_of(mesh: DeviceMesh, stage: int) -> str:
    """The file of this rank's part; at stage 0 that of the first replica."""
    dp, tp = (mesh.get_group(axis) for axis in ("dp", "tp"))
    at, of = (dp.rank() + 1, dp.size()) if stage else (1, 1)
    return f"states-dp{at}of{of}-tp{tp.rank() + 1}of{tp.size()}.safetensors"


def sizes(mesh: DeviceMesh) -> dict[str, int]:
    return {axis: mesh.get_group(axis).size() for axis in ("dp", "tp")}
