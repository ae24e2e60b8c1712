"""What a checkpoint says of its run, training.json, and which checkpoint is the last.

Read by every rank, and by a launcher before there are any: whatever is wrong in it is a sentence
with the file and what to do, and no rank is started. Lesson 08.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from course_lib.checkpoint.engine_record import record_of
from course_lib.checkpoint.folder import RECORD, NothingThere, number_of, remedy
from course_lib.checkpoint.folder import last as last_of
from course_lib.gpt import Config
from course_lib.pretrained.header import CheckpointError
from course_lib.train.options import Refused, options

FOLDER = "checkpoints"
PARTS = ("step", "mesh", "options", "config", "data", "engine", "scalars")
REMEDY = (
    "Begin a run anew with a smaller --lr, a longer --warmup or a tighter --clip: from the start, "
    "or with --from a checkpoint that is still good"
)


class Failed(RuntimeError):
    """Something went wrong that every rank knows of; one of them says it."""


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
    lost = sorted(Config().as_dict().keys() - record["config"].keys())
    try:
        if lost:
            raise ValueError(f"it lacks {lost[0]}")
        return Config.read(record["config"])
    except ValueError as error:
        raise CheckpointError(f"{path / RECORD}: its config: {error}; {remedy(path)}") from error


def read(path: Path) -> dict:
    """The record of a checkpoint, as it was written: its sum is held against it first."""
    file, record = path / RECORD, record_of(path)
    lost = [key for key in PARTS if key not in record]
    if lost:
        raise CheckpointError(
            f"{file} is of no run of `course train`: it lacks {', '.join(lost)}; its weights may "
            f"be good still: begin a run with --from {path}; or {remedy(path)}"
        )
    if record["step"] != number_of(path):
        raise CheckpointError(
            f"{file}: step is {record['step']}, and the folder is named {path.name}; {remedy(path)}"
        )
    known, saved = {option.name for option in options()}, record["options"]
    for name in sorted(known ^ set(saved)):
        what = "lack" if name in known else "have, and a run has not,"
        raise CheckpointError(
            f"{file}: its options {what} {name}; its weights may be good still: begin a run with "
            f"--from {path}; or {remedy(path)}"
        )
    return record
