"""The record of a checkpoint, and checks of its format, optimizer and parameter groups.

Folders with other content (only weights, or a pickle) and names of hub repositories are recognised
here, but not opened. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from course_lib.checkpoint import checksums, folder
from course_lib.pretrained.header import CheckpointError, read_json
from course_lib.zero import Engine


def record_of(path: Path) -> dict:
    """Read training.json after checking its checksum and its format."""
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
            f"{file} has format {record.get('form')!r}, but this course_lib reads format "
            f"{folder.FORM}; "
            + ("use the newer course_lib that wrote it" if newer else folder.remedy(path))
        )
    checksums.check(path, [folder.RECORD], lambda: folder.remedy(path))
    return record


def _no_checkpoint(path: Path) -> str:
    """Describe the content of a place where a checkpoint was expected, and the remedy."""
    inside = sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []
    pickles = [name for name in inside if name.endswith((".pt", ".pth", ".bin", ".pkl", ".ckpt"))]
    steps = ", ".join(one.name for one in folder.whole(path))
    closed = "a pickle that can run code when read, so it is not opened"
    lacks = f"no {folder.RECORD}"
    if path.is_file():
        what = f"is a file, but a checkpoint is a folder; a file of torch.save is {closed}"
    elif not path.is_dir():
        what = (
            "is not a folder on this disk, and nothing is downloaded from a hub; name a "
            "checkpoint's folder, or start from weights of a hub with pretrained.load"
        )
    elif steps:
        what = f"is a folder of checkpoints. Name one of them: {steps}"
    elif any(name.startswith("model") and "safetensors" in name for name in inside):
        what = (
            f"has weights but {lacks}, so no training can continue from it; start a new training "
            "from these weights with pretrained.load or `course train --from`"
        )
    elif pickles:
        what = f"has {lacks}. {pickles[0]} is {closed}; name a checkpoint of course_lib"
    else:
        what = f"has {lacks}, so it is not a checkpoint; {folder.remedy(path)}"
    return f"{path} {what}"


def check_groups(path: Path, record: Mapping, engine: Engine) -> None:
    """Refuse to continue with a different optimizer or different parameter groups."""
    kind, saved = type(engine.optimizer).__name__, record["optimizer"]
    remedy = "continue with that, or load only the weights (course train --from, pretrained.load)"
    if kind != saved:
        raise CheckpointError(
            f"{path} was trained with {saved}, but this engine has {kind}; {remedy}"
        )
    there, here = len(record["engine"]["groups"]), len(engine.optimizer.param_groups)
    if there != here:
        raise CheckpointError(
            f"{path}: its {saved} had {there} group(s) of parameters, but this engine's has "
            f"{here}. Use the same groups"
        )
    for name, parameter in engine.module.named_parameters():
        if parameter.requires_grad != (name in record["groups"]):
            both = ("frozen", "trained") if parameter.requires_grad else ("trained", "frozen")
            raise CheckpointError(f"in {path}, {name} was {both[0]}, now it is {both[1]}; {remedy}")
    for name, group in groups_of(engine).items():
        if record["groups"][name] != group:
            raise CheckpointError(
                f"{path}: {name} was in the optimizer's group {record['groups'][name]}, but is in "
                f"group {group} here. Use the same groups, because otherwise its options change"
            )


def goes_on(engine: Engine, counters: Mapping) -> None:
    """Restore the counters; the saved loss scale is used only if this run has one too."""
    scale = engine.precision.scale
    counters = dict(counters)
    if (scale is None) != (counters["scale"] is None):
        counters["scale"] = engine.counters()["scale"]
    engine.set_counters(counters)


def groups_of(engine: Engine) -> dict[str, int]:
    """Map each parameter that this rank has parts of to the index of its optimizer group."""
    group_of = {p: i for i, g in enumerate(engine.optimizer.param_groups) for p in g["params"]}
    parts = ((piece.slot.name, part) for piece, part in engine.shards.parts())
    return {name: group_of[part] for name, part in parts if part in group_of}  # not a frozen one
