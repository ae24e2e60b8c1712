"""The record of a checkpoint, and whether an engine can go on from it: form, optimizer, groups.

A folder that is something else, weights alone, a pickle, the name of a hub, is told apart here, and
none of it is opened. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from course_lib.checkpoint import folder, sums
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
    sums.check(path, [folder.RECORD], lambda: folder.remedy(path))
    return record


def _no_checkpoint(path: Path) -> str:
    """What is in this place where a checkpoint belongs, and what to do with it."""
    inside = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    pickles = [name for name in inside if name.endswith((".pt", ".pth", ".bin", ".pkl", ".ckpt"))]
    if path.is_file():
        return (
            f"{path} is a file, and a checkpoint is a folder with {folder.RECORD}; what torch.save "
            "wrote is a pickle, a program that its reader runs, and is not opened"
        )
    if not path.is_dir():
        return (
            f"there is no folder {path}: a checkpoint is a folder on this disk, and nothing is "
            "fetched from a hub; name the folder, or begin with weights from a hub by "
            "pretrained.load"
        )
    if folder.whole(path):
        names = ", ".join(one.name for one in folder.whole(path))
        return f"{path} is a folder of checkpoints; name one of them: {names}"
    if any(name.startswith("model") and "safetensors" in name for name in inside):
        return (
            f"{path} has weights and no {folder.RECORD}, so no training goes on from it; begin one "
            "with these weights by pretrained.load, or `course train --from`"
        )
    if pickles:
        return (
            f"{path} has {pickles[0]} and no {folder.RECORD}: a pickle is a program that its "
            "reader runs, and is not opened; name a checkpoint of course_lib's"
        )
    return f"{path} has no {folder.RECORD}, so it is no checkpoint; {folder.remedy(path)}"


def check_groups(path: Path, record: Mapping, engine: Engine) -> None:
    """Refuse to go on with another optimizer, or with other groups of parameters."""
    kind, saved = type(engine.optimizer).__name__, record["optimizer"]
    remedy = (
        "go on with that, or take the weights alone: "
        "`course train --from`, or pretrained.load of the same folder"
    )
    if kind != saved:
        raise CheckpointError(
            f"{path} was trained with {saved}, and this engine has {kind}; {remedy}"
        )
    there, here = record["engine"]["groups"], engine.optimizer.param_groups
    if len(there) != len(here):
        raise CheckpointError(
            f"{path}: its {saved} had {len(there)} group(s) of parameters, and this engine's has "
            f"{len(here)}; make the same groups"
        )
    for name, parameter in engine.module.named_parameters():
        if parameter.requires_grad != (name in record["groups"]):
            there, here = (
                ("frozen", "trained") if parameter.requires_grad else ("trained", "frozen")
            )
            raise CheckpointError(f"{path}: {name} was {there}, and is {here} here; {remedy}")
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
        counters["scale"] = scale and {
            "value": scale.value, "good": scale.good, "left": scale.left,
        }  # fmt: skip
    engine.set_counters(counters)


def groups_of(engine: Engine) -> dict[str, int]:
    """Which of the optimizer's groups a parameter is in, of those that this rank has parts of."""
    group_of = {p: i for i, g in enumerate(engine.optimizer.param_groups) for p in g["params"]}
    parts = ((piece.slot.name, part) for piece, part in engine.shards.parts())
    return {name: group_of[part] for name, part in parts if part in group_of}  # a frozen one is not
