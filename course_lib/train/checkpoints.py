"""Checkpoints that are whole or not there: written beside, renamed when all ranks are done.

A folder is what transformers reads, and holds the optimizer's states, a record in JSON and a sum of
each file as well; `latest` names the last whole one, and moves only then. Lesson 08; lesson 14 goes
on from here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from course_lib import pretrained
from course_lib.collectives.call import Group
from course_lib.gpt import GPT
from course_lib.pretrained.together import together
from course_lib.tensor_parallel import check_replicas
from course_lib.train import states, sums
from course_lib.train.record import FOLDER, FORM, LATEST, RECORD, remedy, whole

STATES = re.compile(r"optimizer-\d+-of-\d+\.safetensors")


def save(
    out: Path,
    step: int,
    model: GPT,
    optimizer: torch.optim.Optimizer,
    mesh: DeviceMesh,
    record: Mapping,
    *,
    files: Mapping[str, str],
    keep: int,
) -> Path:
    """Write a checkpoint of this step; every rank calls it. What was there stays until it is whole,
    and for good if the writing fails on any rank; then every rank raises."""
    tp, groups = mesh.get_group("tp"), _groups(mesh)
    check_replicas(model, tp)
    top = out / FOLDER
    part, final = top / f".step-{step:06d}.part", top / f"step-{step:06d}"
    first, what = dist.get_rank() == 0, f"saving {final}"
    with together(groups, what):
        if first:
            top.mkdir(parents=True, exist_ok=True)
            sweep(top)
    try:
        pretrained.save(model, part, mesh)
        written: dict[str, str] = {}
        with together(groups, what):
            if mesh.get_group("dp").rank() == 0:  # the other replicas have the same
                written[_states(tp)] = states.write(model, optimizer, part / _states(tp))
        every: list = [None] * tp.size()
        dist.all_gather_object(every, written, group=tp)
        with together(groups, what):
            if first:
                about = {"form": FORM, "step": step, "mesh": _sizes(mesh), "checksums": sums.SUMS}
                text = json.dumps({**about, **record}, indent=1)
                _put(part, {RECORD: text, **files}, [name for own in every for name in own.items()])
        with together(groups, what):
            if first:
                shutil.rmtree(final, ignore_errors=True)  # of a run that went on from before it
                part.rename(final)
                _to_disk(top)
                _write(top / f".{LATEST}.part", f"{final.name}\n")
                (top / f".{LATEST}.part").replace(top / LATEST)
                _to_disk(top)
                for old in whole(top)[:-keep]:
                    if old != final:
                        shutil.rmtree(old, ignore_errors=True)
    except Exception:
        if first:
            sweep(top)
        raise
    return final


def check_bytes(path: Path, record: Mapping, mesh: DeviceMesh) -> bool:
    """Read all files of a checkpoint and refuse, on every rank, bytes that are not those written.

    Each rank reads its own states, rank 0 also what belongs to all. False: the checkpoint is from
    a time without sums.
    """
    if not sums.there(path, record):
        return False
    with together(_groups(mesh), f"checking {path}"):
        own = _states(mesh.get_group("tp"))
        names = [own]
        if dist.get_rank() == 0:
            listed = sums.read(path, lambda: remedy(path))
            names += [name for name in listed if not STATES.fullmatch(name)]
        sums.check(path, names, lambda: remedy(path))
    return True


def load_states(path: Path, model: GPT, optimizer: torch.optim.Optimizer, mesh: DeviceMesh) -> None:
    """The optimizer's states back in their places; every rank calls it."""
    tp, groups = mesh.get_group("tp"), _groups(mesh)
    found: dict = {}
    with together(groups, f"reading {path}"):
        found = states.read(model, path / _states(tp))
    states.put(optimizer, found)


def sweep(top: Path) -> None:
    """Take away what a run that was killed in the middle of a save has left."""
    for one in top.iterdir() if top.is_dir() else ():
        if one.name.startswith(".") and ".part" in one.name:
            shutil.rmtree(one, ignore_errors=True) if one.is_dir() else one.unlink()


def _put(part: Path, texts: Mapping[str, str], written: Sequence[tuple[str, str]]) -> None:
    """The small files, and last the sums of all; `written` are those of the ranks' states."""
    for name, text in texts.items():
        _write(part / name, text)
    every = dict(written)
    others = [one.name for one in part.iterdir() if one.name not in every]
    every |= {name: sums.of_file(part / name) for name in others}
    _write(part / sums.SUMS, sums.as_text(every))


def _groups(mesh: DeviceMesh) -> list[Group]:
    return [mesh.get_group(axis) for axis in ("tp", "dp")]


def _states(tp: Group) -> str:
    return f"optimizer-{tp.rank() + 1}-of-{tp.size()}.safetensors"


def _sizes(mesh: DeviceMesh) -> dict[str, int]:
    return {axis: mesh.get_group(axis).size() for axis in ("dp", "tp")}


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _to_disk(folder: Path) -> None:
    """The names in it, too."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
