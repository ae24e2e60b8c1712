"""A checkpoint's description of its run (training.json), and the choice of the last checkpoint.

Every rank reads the description, and a launcher reads it before it starts ranks. Any error is one
sentence with the file and the remedy, and then no rank is started. Lesson 08.
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
    "Start a new run with a smaller --lr, a longer --warmup or a tighter --clip, from the start "
    "or with --from a checkpoint that is still good"
)


class Failed(RuntimeError):
    """The error for a failure that every rank knows of; one rank prints it."""


def last(out: Path) -> tuple[Path, dict]:
    """Return the last complete checkpoint of a run and its record, or refuse."""
    try:
        path = last_of(out / FOLDER)
    except NothingThere as error:
        raise Refused(
            f"--resume: {error}. Omit --resume to start a new run, or name the folder of a run "
            "with --out"
        ) from error
    return path, read(path)


def config_of(path: Path, record: Mapping) -> Config:
    """Build the model's config from the record."""
    lost = sorted(Config().as_dict().keys() - record["config"].keys())
    try:
        if lost:
            raise ValueError(f"it lacks {lost[0]}")
        return Config.read(record["config"])
    except ValueError as error:
        raise CheckpointError(f"{path / RECORD}, config: {error}; {remedy(path)}") from error


def read(path: Path) -> dict:
    """Read the record of a checkpoint, after checking its checksum."""
    file, record = path / RECORD, record_of(path)
    lost = [key for key in PARTS if key not in record]
    if lost:
        raise CheckpointError(
            f"{file} does not belong to a run of `course train`, since it lacks {', '.join(lost)}. "
            f"Its weights may be good, so start a new run with --from {path}; or {remedy(path)}"
        )
    if record["step"] != number_of(path):
        raise CheckpointError(
            f"{file} is of step {record['step']}, but its folder is {path.name}; {remedy(path)}"
        )
    known, saved = {option.name for option in options()}, record["options"]
    for name in sorted(known ^ set(saved)):
        what = "lack" if name in known else "contain the unknown"
        raise CheckpointError(
            f"in {file} the options {what} {name}. Its weights may still be good, so start a new "
            f"run with --from {path}; or {remedy(path)}"
        )
    return record
