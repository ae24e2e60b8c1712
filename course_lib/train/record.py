"""What a checkpoint says of its run, training.json, and which checkpoint is the last.

Read by every rank, and by a launcher before there are any: whatever is wrong in it is a sentence
with the file, the line and what to do, and no rank is started. Lesson 08.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from course_lib.checkpoint import sums
from course_lib.checkpoint.folder import (
    FORM,
    RECORD,
    NothingThere,
    number_of,
    remedy,
)
from course_lib.checkpoint.folder import last as last_of
from course_lib.gpt import Config
from course_lib.pretrained.header import CheckpointError, read_json
from course_lib.train.options import WORDS, Refused, of_kind, options

FOLDER = "checkpoints"


REMEDY = (
    "Begin a run anew with a smaller --lr, a longer --warmup or a tighter --clip: from the start, "
    "or with --from a checkpoint that is still good"
)


class Failed(RuntimeError):
    """Something went wrong that every rank knows of; one of them says it."""


ENGINE = ("skipped", "scale", "groups")  # what an engine's counters have
KINDS = {"step": int, "mesh": dict, "options": dict, "config": dict, "data": dict, "engine": dict}
KINDS |= {"scalars": dict}


def last(out: Path) -> tuple[Path, dict]:
    """The last whole checkpoint of a run and its record, or a refusal."""
    try:
        path = last_of(out / FOLDER)
    except NothingThere as error:
        raise Refused(
            f"--resume: {error}; leave --resume out to begin a run, or name the folder of one with "
            "--out"
        ) from error
    return path, read(path)


def config_of(path: Path, record: Mapping) -> Config:
    """The model's config as the record has it."""
    known = Config().as_dict()
    saved = record["config"]
    for key in sorted({*known, *saved}):
        if key not in known or key not in saved:
            what = "lacks" if key in known else "has, and a config has not,"
            raise CheckpointError(f"{path / RECORD}: its config {what} {key}; {remedy(path)}")
        _check_kind(path, f"config.{key}", saved[key], type(known[key]))
    try:
        return Config.read(saved)
    except ValueError as error:
        raise CheckpointError(f"{path / RECORD}: its config: {error}; {remedy(path)}") from error


def read(path: Path) -> dict:
    """The record of a checkpoint, checked."""
    file = path / RECORD
    try:
        record = read_json(file.read_bytes(), file)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error.strerror}; {remedy(path)}") from error
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {remedy(path)}") from error
    lost = [key for key in KINDS if key not in record]
    if record.get("form") != FORM or lost:
        raise CheckpointError(
            f"{file} is not a record of this form ({FORM}): "
            + (f"it lacks {', '.join(lost)}" if lost else f"it says form={record.get('form')!r}")
            + f"; its weights may be good still: begin a run with --from {path}; or {remedy(path)}"
        )
    for key, kind in KINDS.items():
        _check_kind(path, key, record[key], kind)
    lost = [key for key in ENGINE if key not in record["engine"]]
    if lost:
        raise CheckpointError(f"{file}: its engine lacks {', '.join(lost)}; {remedy(path)}")
    if record["step"] != number_of(path):
        raise CheckpointError(
            f"{file}{_line(path, 'step')}: step is {record['step']}, and the folder is named "
            f"{path.name}; {remedy(path)}"
        )
    _check_mesh_and_options(path, record)
    sums.check(path, [RECORD], lambda: remedy(path))
    return record


def _check_mesh_and_options(path: Path, record: Mapping) -> None:
    mesh, saved = record["mesh"], record["options"]
    for axis in ("dp", "tp"):
        _check_kind(path, f"mesh.{axis}", mesh.get(axis), int)
        if mesh[axis] < 1:
            _refuse(path, f"mesh.{axis}", mesh[axis], "1 or more")
    known = {option.name: option for option in options()}
    for name in sorted({*known, *saved}):
        if name not in known or name not in saved:
            what = "lack" if name in known else "have, and a run has not,"
            raise CheckpointError(
                f"{path / RECORD}: its options {what} {name}; its weights may be good still: begin "
                f"a run with --from {path}; or {remedy(path)}"
            )
    for name, option in known.items():
        value, choices = saved[name], option.metadata.get("choices")
        _check_kind(path, f"options.{name}", value, type(option.default))
        if choices and value not in choices:
            _refuse(path, f"options.{name}", value, f"one of {', '.join(map(str, choices))}")


def _check_kind(path: Path, key: str, value: object, kind: type) -> None:
    if not of_kind(value, kind):
        _refuse(path, key, value, WORDS[kind])


def _refuse(path: Path, key: str, value: object, wanted: str) -> None:
    shown = json.dumps(value)
    shown = shown if len(shown) < 60 else f"{shown[:60]}…"
    raise CheckpointError(
        f"{path / RECORD}{_line(path, key)}: {key} is {shown}, and has to be {wanted}; "
        f"{remedy(path)}"
    )


def _line(path: Path, key: str) -> str:
    """Where a key stands in the file, in words: `mesh.tp` is the first "tp" after "mesh"."""
    text, at = (path / RECORD).read_text(encoding="utf-8"), 0
    for name in key.split("."):
        next_ = text.find(f'"{name}"', at)
        at = at if next_ < 0 else next_
    return f", line {text.count(chr(10), 0, at) + 1}"
