"""Weights of any origin as tensors by name, read row by row: DeepSpeed's, ours, Hugging Face's.

The float32 master copy stands for a weight wherever there is one. A name of our dense model becomes
Hugging Face's where a config.json says which model it is. Lesson 14.
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
from course_lib.checkpoint.saved import Saved
from course_lib.pretrained.config import from_transformers
from course_lib.pretrained.header import STORED, CheckpointError, read_json
from course_lib.pretrained.names import prefix_of, weights_of
from course_lib.pretrained.reader import WHOLE, Checkpoint

AT_ONCE = 1 << 22  # bytes of a tensor that are read, and held beside it, at a time
CONFIG, RECORD, LATEST = "config.json", "training.json", "latest"
OPTIMIZER = ("optimizer.safetensors", "optimizer.safetensors.index.json")
FORM = 3  # the newest form of our own checkpoints; form 2 kept the masters by rank
MASTER = ":master"


class Entry(NamedTuple):
    """A tensor on its way out: its shape there, and its rows here."""

    shape: tuple[int, ...]
    dtype: torch.dtype  # that it is read in
    rows: Callable[[int, int], Tensor]  # of the tensor as it is stored here
    transposed: bool = False


class Source(NamedTuple):
    """What can be read: `tensors` in the order of the model; `tied`, other names of some of them;
    `about` says of what kind the checkpoint is."""

    path: Path
    tensors: dict[str, Entry]
    tied: dict[str, str]
    config: dict | None
    about: dict

    @torch.no_grad()
    def into(self, name: str, target: Tensor) -> Tensor:
        """Fill `target`, of the tensor's shape, some rows at a time; it may be of another dtype."""
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
            _check_range(name, part, found)
            del found  # before the next rows come
        return target


@contextlib.contextmanager
def opened(source: str | os.PathLike, config: str | os.PathLike | None = None) -> Iterator[Source]:
    """The weights of a DeepSpeed checkpoint, of one of ours, or of a Hugging Face folder."""
    path = Path(source).expanduser()
    if not path.exists():
        raise FileNotFoundError(
            f"there is no checkpoint at {path}; what is on the hub comes here by `hf download`"
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
                "the names are those of course_lib's GPT; with --config, its config.json, they "
                "become those that transformers knows"
            )
        else:
            entries, tied = _renamed(entries, files.path, config), {}
    about = {
        "kind": "deepspeed", "path": str(files.path), "stage": files.stage, "ranks": files.world,
        "release": files.release, "step": files.training["steps"], "notes": notes,
    }  # fmt: skip
    return Source(files.path, entries, dict(tied), config, about)


def _of_ours(step: Path, config: dict | None, stack: contextlib.ExitStack) -> Source:
    """The files of weights in Hugging Face's names; the master copies beside, in our own."""
    record = read_json((step / RECORD).read_bytes(), step / RECORD)
    form = record.get("form", 1)
    if not isinstance(form, int) or form > FORM:
        raise CheckpointError(
            f"{step / RECORD}: form {form!r} is newer than this release, which knows forms up to "
            f"{FORM}; take the release that wrote it"
        )
    if form == FORM:  # every byte that will be used is held against its checksum first
        with Saved(step) as saved:
            saved.check(lambda stem, name: stem == "model" or name.endswith(MASTER))
    source = _of_hugging_face(step, config, stack)
    about = {"kind": "course", "path": str(step), "step": record.get("step"), "notes": []}
    half = any(e.dtype in (torch.float16, torch.bfloat16) for e in source.tensors.values())
    if form < FORM and half:
        raise CheckpointError(
            f"{step / RECORD}: form {form} keeps the float32 copies of 16-bit weights in files of "
            "its ranks, which are not read here; go on with the release that wrote it, or take the "
            f"16-bit weights themselves: they are {step / WHOLE}, as transformers reads it"
        )
    optimizer = next((step / name for name in OPTIMIZER if (step / name).is_file()), None)
    if form < FORM or optimizer is None:
        return source._replace(about=about)
    if config is None:
        raise CheckpointError(f"{step} has no {CONFIG}; name it with --config")
    masters = stack.enter_context(Checkpoint(optimizer))
    ours = {
        name.removesuffix(MASTER): _entry(masters, name)
        for name in masters.slots if name.endswith(MASTER)
    }  # fmt: skip
    known = from_transformers(config, step / CONFIG)
    fine = {w.name: w for w in weights_of(known, prefix_of(known, source.tensors))}
    lost = sorted(ours.keys() - fine.keys())
    if lost:
        raise CheckpointError(
            f"{optimizer}: {lost[0]}{MASTER} is of no weight of the model that {CONFIG} describes"
        )
    entries = dict(source.tensors)
    for name, entry in ours.items():
        _check_shape(optimizer, name, entry.shape, fine[name].shape)
        entries |= dict(_parts(fine[name], entry))
    return source._replace(tensors=entries, about=about)


def _of_hugging_face(folder: Path, config: dict | None, stack: contextlib.ExitStack) -> Source:
    checkpoint = stack.enter_context(Checkpoint(folder))
    entries = {name: _entry(checkpoint, name) for name in checkpoint.slots}
    about = {"kind": "huggingface", "path": str(folder), "notes": []}
    return Source(folder, entries, {}, config, about)


def _renamed(entries: dict[str, Entry], path: Path, config: dict) -> dict[str, Entry]:
    """The tensors of our dense model as those that its family's checkpoints have."""
    known = weights_of(from_transformers(config))
    lost = sorted(w.name for w in known if w.name not in entries)
    more = sorted(entries.keys() - {w.name for w in known})
    if lost or more:
        raise CheckpointError(
            f"{path}: the config is of another model: "
            + (
                f"it needs {lost[0]}, which is not there"
                if lost
                else f"{more[0]} has no place in it"
            )
        )
    found: dict[str, Entry] = {}
    for weight in known:
        _check_shape(path, weight.name, entries[weight.name].shape, weight.shape)
        found |= dict(_parts(weight, entries[weight.name]))
    return found


def _parts(weight, entry: Entry) -> Iterator[tuple[str, Entry]]:
    """The stored tensors of one of our weights, each with its own rows of it."""
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
            f"{checkpoint.path}: {name} is stored as {slot.dtype}, which is not read here: "
            f"{', '.join(STORED)} are; was the checkpoint quantized?"
        )

    def rows(start: int, stop: int) -> Tensor:
        if not slot.shape:
            return checkpoint.whole(name)
        return checkpoint.read(name, 0, start, stop)

    return Entry(slot.shape, STORED[slot.dtype], rows)


def _check_shape(path: Path, name: str, has: tuple, needs: tuple) -> None:
    if tuple(has) != tuple(needs):
        raise CheckpointError(
            f"{path}: {name} is {tuple(has)}, and the config makes it {tuple(needs)}; is the "
            "config of this model?"
        )


def _check_range(name: str, own: Tensor, found: Tensor) -> None:
    """Refuse what is finite and would be infinite."""
    if not own.is_floating_point() or torch.finfo(own.dtype).max >= torch.finfo(found.dtype).max:
        return
    if not own.isinf().any():
        return
    lost = own.isinf() & ~found.isinf()
    if lost.any():
        raise CheckpointError(
            f"{name}: {int(lost.sum())} numbers, up to "
            f"{found[found.isfinite()].abs().max().item():.4g}, are too large for {own.dtype}, "
            f"which ends at {torch.finfo(own.dtype).max:.4g}; take bfloat16 or float32"
        )


def _step_of_ours(path: Path) -> Path:
    """A run's folder, its folder of checkpoints, or a checkpoint: the last one of it."""
    for top in (path / "checkpoints", path):
        latest = top / LATEST
        if latest.is_file() and not (top / RECORD).is_file():
            name = latest.read_text(errors="replace").strip()
            if Path(name).name != name or name in ("", ".", "..") or not (top / name).is_dir():
                raise CheckpointError(
                    f"{latest} names {name[:60]!r}, and no checkpoint is there; name the folder of "
                    "one"
                )
            return top / name
    return path


def _config(given: str | os.PathLike | None, *folders: Path) -> dict | None:
    """The keys of the config.json that was named, or of the first that lies in one of these."""
    if given is not None:
        path = Path(given).expanduser()
        if not path.is_file():
            raise CheckpointError(f"there is no {path}, which was named as the config")
        return read_json(path.read_bytes(), path)
    for folder in folders:
        path = (folder if folder.is_dir() else folder.parent) / CONFIG
        if path.is_file():
            return read_json(path.read_bytes(), path)
    return None
