"""Weights from DeepSpeed, this course or Hugging Face as tensors by name, read row by row.

If a weight has a float32 master copy, this is read instead. If a config.json describes the model,
the names of our dense model are translated to Hugging Face's names. Lesson 14.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.checkpoint import deepspeed_files
from course_lib.checkpoint.engine_record import record_of
from course_lib.checkpoint.folder import LATEST, RECORD, last
from course_lib.checkpoint.open_checkpoint import OpenCheckpoint
from course_lib.pretrained.config import from_transformers
from course_lib.pretrained.header import STORED, CheckpointError, read_json
from course_lib.pretrained.names import weights_of
from course_lib.pretrained.reader import Checkpoint, check_range
from course_lib.pretrained.writer import CONFIG

AT_ONCE = 1 << 22  # bytes of a tensor that are read, and held in addition to it, at a time
MASTER = ":master"


class Entry(NamedTuple):
    """A tensor to be written: its shape in the output, and its rows in the source."""

    shape: tuple[int, ...]
    dtype: torch.dtype  # of the stored tensor
    rows: Callable[[int, int], Tensor]  # of the stored tensor
    transposed: bool = False


class Source(NamedTuple):
    """A checkpoint's readable content: `tensors` in the model's order, and `tied` with other names
    for some of them. `about` states the kind of checkpoint."""

    path: Path
    tensors: dict[str, Entry]
    tied: dict[str, str]
    config: dict | None
    about: dict

    @torch.no_grad()
    def into(self, name: str, target: Tensor) -> Tensor:
        """Fill `target` (of the tensor's shape, any dtype) a few rows at a time."""
        entry = self.tensors[name]
        if not entry.shape or 0 in entry.shape:
            target.copy_(entry.rows(0, 1) if not entry.shape else target)
            return target
        own = target.t() if entry.transposed else target
        row = own[0].numel() * entry.dtype.itemsize
        for start in range(0, len(own), max(1, AT_ONCE // row)):
            part = own[start : start + max(1, AT_ONCE // row)]
            found = entry.rows(start, start + len(part))
            part.copy_(found)
            check_range(part, found, name, self.path)
            del found  # before the next rows are read
        return target


@contextlib.contextmanager
def opened(source: str | os.PathLike, config: str | os.PathLike | None = None) -> Iterator[Source]:
    """Open the weights of a DeepSpeed or course checkpoint, or of a Hugging Face folder."""
    path = Path(source).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"there is no checkpoint at {path}; download one from the hub with `hf download`"
        )
    with contextlib.ExitStack() as stack:
        if deepspeed_files.is_one(path):
            files = stack.enter_context(deepspeed_files.DeepSpeedFiles(path))
            yield _of_deepspeed(files, _config(config, files.path, path))
            return
        step = _step_of_ours(path)
        keys = _config(config, step)
        if (step / RECORD).is_file():
            yield _of_ours(step, keys, stack)
        else:
            yield _of_hugging_face(step, keys, stack)


def _of_deepspeed(files: deepspeed_files.DeepSpeedFiles, config: dict | None) -> Source:
    entries, notes = {}, []
    for name, logical in files.tensors.items():

        def rows(start: int, stop: int, name: str = name, shape: tuple = logical.shape) -> Tensor:
            return files.rows(name, start, stop) if shape else files.read(name)

        entries[name] = Entry(logical.shape, files.dtype(name), rows)
    tied = files.tied
    if "tokens.weight" in entries:
        if config is None:
            notes.append(
                "the names are those of course_lib's GPT; with --config and its config.json they "
                "become the names that transformers uses"
            )
        else:
            entries, tied = _renamed(entries, files.path, config), {}
    about = {
        "kind": "deepspeed", "path": str(files.path), "stage": files.stage, "ranks": files.world,
        "release": files.release, "step": files.steps, "notes": notes,
    }  # fmt: skip
    return Source(files.path, entries, dict(tied), config, about)


def _of_ours(step: Path, config: dict | None, stack: contextlib.ExitStack) -> Source:
    """Open a course checkpoint's weights (Hugging Face's names) and masters (our names)."""
    about = {"kind": "course", "path": str(step), "step": record_of(step).get("step"), "notes": []}
    saved = stack.enter_context(OpenCheckpoint(step))
    saved.check(lambda stem, name: stem == "model" or name.endswith(MASTER))  # all that is used
    entries = {name: _entry(saved.model.file, name) for name in saved.model.slots}
    masters = [name for name in saved.optimizer.slots if name.endswith(MASTER)]
    if masters and config is None:
        raise CheckpointError(f"{step} has no {CONFIG}; name it with --config")
    if masters:
        ours = {name.removesuffix(MASTER): _entry(saved.optimizer.file, name) for name in masters}
        entries |= _renamed(ours, step, config, every=False)
    return Source(step, entries, {}, config, about)


def _of_hugging_face(folder: Path, config: dict | None, stack: contextlib.ExitStack) -> Source:
    checkpoint = stack.enter_context(Checkpoint(folder))
    entries = {name: _entry(checkpoint, name) for name in checkpoint.slots}
    about = {"kind": "huggingface", "path": str(folder), "notes": []}
    return Source(folder, entries, {}, config, about)


def _renamed(
    entries: dict[str, Entry], path: Path, config: dict, *, every: bool = True
) -> dict[str, Entry]:
    """Rename our dense model's tensors as its family does; without `every`, some may be missing."""
    known = {weight.name: weight for weight in weights_of(from_transformers(config))}
    lost = sorted(known.keys() - entries.keys()) if every else []
    more = sorted(entries.keys() - known.keys())
    if lost or more:
        what = f"it needs {lost[0]}, which is missing" if lost else f"{more[0]} is not in it"
        raise CheckpointError(f"{path}: the config is of a different model, because {what}")
    renamed: dict[str, Entry] = {}
    for name, weight in known.items():
        if name not in entries:
            continue
        has, needs = tuple(entries[name].shape), tuple(weight.shape)
        if has != needs:
            raise CheckpointError(
                f"{path}: {name} has shape {has}, but the config needs {needs}. Name the config of "
                "this model"
            )
        renamed |= dict(_parts(weight, entries[name]))
    return renamed


def _parts(weight, entry: Entry) -> Iterator[tuple[str, Entry]]:
    """Yield the stored tensors of one of our weights, each with its own rows."""
    first = 0
    for part in weight.parts:

        def rows(start: int, stop: int, first: int = first) -> Tensor:
            return entry.rows(first + start, first + stop)

        yield part.name, Entry(part.shape(weight), entry.dtype, rows, part.transposed)
        first += part.rows


def _entry(checkpoint: Checkpoint, name: str) -> Entry:
    slot = checkpoint.slots[name]
    if slot.dtype not in STORED:
        raise CheckpointError(
            f"{checkpoint.path}: {name} is stored as {slot.dtype}, which cannot be read here (only "
            f"{', '.join(STORED)} can). Was the checkpoint quantized?"
        )

    def rows(start: int, stop: int) -> Tensor:
        if not slot.shape:
            return checkpoint.whole(name)
        return checkpoint.read(name, 0, start, stop)

    return Entry(slot.shape, STORED[slot.dtype], rows)


def _step_of_ours(path: Path) -> Path:
    """Find the last checkpoint of a run or of a folder; return any other path unchanged."""
    for top in (path / "checkpoints", path):
        if (top / LATEST).is_file() and not (top / RECORD).is_file():
            return last(top)
    return path


def _config(given: str | os.PathLike | None, *folders: Path) -> dict | None:
    """Read the given config file, or the first config.json in these folders."""
    if given is not None:
        path = Path(given).expanduser()
        if not path.is_file():
            raise CheckpointError(f"there is no file {path}, which was named as the config")
        return read_json(path.read_bytes(), path)
    for folder in folders:
        path = (folder if folder.is_dir() else folder.parent) / CONFIG
        if path.is_file():
            return read_json(path.read_bytes(), path)
    return None
