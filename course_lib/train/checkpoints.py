"""Checkpoints that are whole or not there: written beside, renamed when all ranks are done.

A folder is what transformers reads, and holds the optimizer's states and a record in JSON as well;
`latest` names the last whole one, and moves only then. Lesson 08; lesson 14 goes on from here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from course_lib import pretrained
from course_lib.collectives.call import Group
from course_lib.gpt import GPT
from course_lib.pretrained.header import CheckpointError, read_json
from course_lib.pretrained.together import together
from course_lib.tensor_parallel import check_replicas
from course_lib.train import states
from course_lib.train.options import Refused

FOLDER, LATEST, RECORD, FORM = "checkpoints", "latest", "training.json", 1
NAME = re.compile(r"step-\d{6,}")


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
    tp, groups = mesh.get_group("tp"), [mesh.get_group(axis) for axis in ("tp", "dp")]
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
        with together(groups, what):
            if mesh.get_group("dp").rank() == 0:  # the other replicas have the same
                states.write(model, optimizer, part / _states(tp))
            if first:
                told = {"form": FORM, "step": step, "mesh": _sizes(mesh), **record}
                for name, text in {RECORD: json.dumps(told, indent=1), **files}.items():
                    _write(part / name, text)
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


def last(out: Path) -> tuple[Path, dict]:
    """The last whole checkpoint of a run and its record, or a refusal."""
    top = out / FOLDER
    try:
        name = (top / LATEST).read_text().strip()
    except OSError as error:
        raise Refused(
            f"--resume: there is no checkpoint in {top}; leave --resume out to begin a run, or "
            "name the folder of one with --out"
        ) from error
    path = top / name
    if not NAME.fullmatch(name) or not (path / RECORD).exists():
        raise CheckpointError(
            f"{top / LATEST} names {name!r}, and no whole checkpoint is there. Whole ones: "
            f"{', '.join(one.name for one in whole(top)) or 'none'}; write the name of one of "
            f"them into {LATEST}"
        )
    record = read_json((path / RECORD).read_bytes(), path / RECORD)
    lost = [key for key in ("step", "mesh", "options", "config", "data") if key not in record]
    if record.get("form") != FORM or lost:
        raise CheckpointError(
            f"{path / RECORD} is not a record of this form ({FORM}): "
            + (f"it lacks {', '.join(lost)}" if lost else f"it says form={record.get('form')!r}")
        )
    return path, record


def check_mesh(path: Path, record: Mapping, dp: int, tp: int) -> None:
    had = record["mesh"]
    if had != {"dp": dp, "tp": tp}:
        raise Refused(
            f"{path} was written by dp {had.get('dp')} × tp {had.get('tp')} ranks, and this run "
            f"has dp {dp} × tp {tp}: go on with as many, or begin a run from its weights with "
            f"--from {path}. (Optimizer states at another size: lesson 14.)"
        )


def load_states(path: Path, model: GPT, optimizer: torch.optim.Optimizer, mesh: DeviceMesh) -> None:
    """The optimizer's states back in their places; every rank calls it."""
    tp, groups = mesh.get_group("tp"), [mesh.get_group(axis) for axis in ("tp", "dp")]
    found: dict = {}
    with together(groups, f"reading {path}"):
        found = states.read(model, path / _states(tp))
    states.put(optimizer, found)


def whole(top: Path) -> list[Path]:
    """The checkpoints in a folder, the oldest first."""
    return sorted(
        (one for one in top.iterdir() if NAME.fullmatch(one.name) and (one / RECORD).exists()),
        key=lambda one: int(one.name.partition("-")[2]),
    )


def sweep(top: Path) -> None:
    """Take away what a run that was killed in the middle of a save has left."""
    for one in top.iterdir() if top.is_dir() else ():
        if one.name.startswith(".") and ".part" in one.name:
            shutil.rmtree(one, ignore_errors=True) if one.is_dir() else one.unlink()


def _states(tp: Group) -> str:
    return f"optimizer-{tp.rank() + 1}-of-{tp.size()}.safetensors"


def _sizes(mesh: DeviceMesh) -> dict[str, int]:
    return {axis: mesh.get_group(axis).size() for axis in ("dp", "tp")}


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
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
