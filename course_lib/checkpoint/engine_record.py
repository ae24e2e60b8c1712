"""The record of a checkpoint, and whether an engine can go on from it: form, optimizer, groups.

A folder that is something else, weights alone, a pickle, the name of a hub, is told apart here, and
none of it is opened. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from course_lib.checkpoint import checksums, folder
from course_lib.pretrained.header import CheckpointError, read_json
from course_lib.zero import Engine


def record_of(path: Path) -> dict:
    """training.json, once its sum and its form are right."""
    file = path / folder.RECORD
    if not file.exists():
        raise CheckpointError(_no_checkpoint(path))
    try:
        record = read_json(file.read_bytes(), file)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {folder.remedy(path)}") from error
    if record.get("form") != folder.FORM:
        newer = isinstance(record.get("form"), int) and record["form"] > folder.FORM
        raise CheckpointError(
            f"{file} is of form {record.get('form')!r}, and this course_lib reads form "
            f"{folder.FORM}; "
            + ("take the newer course_lib that wrote it" if newer else folder.remedy(path))
        )
    checksums.check(path, [folder.RECORD], lambda: folder.remedy(path))
    return record


def _no_checkpoint(path: Path) -> str:
    """What is in this place where a checkpoint belongs, and what to do with it."""
    inside = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    pickles = [name for name in inside if name.endswith((".pt", ".pth", ".bin", ".pkl", ".ckpt"))]
    steps = ", ".join(one.name for one in folder.whole(path))
    closed = "a pickle, a program that its reader runs, and is not opened"
    lacks = f"no {folder.RECORD}"
    if path.is_file():
        what = f"is a file, and a checkpoint is a folder; what torch.save wrote is {closed}"
    elif not path.is_dir():
        what = (
            "is no folder on this disk, as a checkpoint is, and nothing is fetched from a hub; "
            "name the folder, or begin with weights from a hub by pretrained.load"
        )
    elif steps:
        what = f"is a folder of checkpoints; name one of them: {steps}"
    elif any(name.startswith("model") and "safetensors" in name for name in inside):
        what = (
            f"has weights and {lacks}, so no training goes on from it; begin one with these "
            "weights by pretrained.load, or `course train --from`"
        )
    elif pickles:
        what = f"has {lacks}; {pickles[0]} is {closed}; name a checkpoint of course_lib's"
    else:
        what = f"has {lacks}, so it is no checkpoint; {folder.remedy(path)}"
    return f"{path} {what}"


def check_groups(path: Path, record: Mapping, engine: Engine) -> None:
    """Refuse to go on with another optimizer, or with other groups of parameters."""
    kind, saved = type(engine.optimizer).__name__, record["optimizer"]
    remedy = "go on with that, or take the weights alone: `course train --from`, or pretrained.load"
    if kind != saved:
        raise CheckpointError(
            f"{path} was trained with {saved}, and this engine has {kind}; {remedy}"
        )
    there, here = len(record["engine"]["groups"]), len(engine.optimizer.param_groups)
    if there != here:
        raise CheckpointError(
            f"{path}: its {saved} had {there} group(s) of parameters, and this engine's has "
            f"{here}; make the same groups"
        )
    for name, parameter in engine.module.named_parameters():
        if parameter.requires_grad != (name in record["groups"]):
            both = ("frozen", "trained") if parameter.requires_grad else ("trained", "frozen")
            raise CheckpointError(f"{path}: {name} was {both[0]}, and is {both[1]} here; {remedy}")
    for name, group in groups_of(engine).items():
        if record["groups"][name] != group:
            raise CheckpointError(
                f"{path}: {name} was in the optimizer's group {record['groups'][name]}, and is in "
                f"group {group} here; make the same groups, or its options would change"
            )


def goes_on(engine: Engine, counters: Mapping) -> None:
    """Take over the counters; a loss scale goes along where both trainings have one."""
    scale = engine.precision.scale
    counters = dict(counters)
    if (scale is None) != (counters["scale"] is None):
        counters["scale"] = engine.counters()["scale"]
    engine.set_counters(counters)


def groups_of(engine: Engine) -> dict[str, int]:
    """Which of the optimizer's groups a parameter is in, of those that this rank has parts of."""
    group_of = {p: i for i, g in enumerate(engine.optimizer.param_groups) for p in g["params"]}
    parts = ((piece.slot.name, part) for piece, part in engine.shards.parts())
    return {name: group_of[part] for name, part in parts if part in group_of}  # a frozen one is not
