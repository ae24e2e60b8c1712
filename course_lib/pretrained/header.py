"""The header of a safetensors file: each tensor's bytes, and nothing that can execute.

A file has 8 bytes for the header's length, the JSON header, and the elements. The header must match
the file's size, so that no read leaves the file. A pickle could run code. Lesson 08.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import NamedTuple

import torch

LONGEST = 100_000_000  # bytes of JSON, the limit in the format's own library
# The dtypes of weights here, and those of other buffers, such as a count or a mask.
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
STORED = DTYPES | {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8}
STORED |= {"U8": torch.uint8, "BOOL": torch.bool}
_STORED_AS = {dtype: name for name, dtype in STORED.items()}
# Bytes per element; a buffer that is not read may have further dtypes.
BYTES = {name: dtype.itemsize for name, dtype in STORED.items()}
BYTES |= {"U64": 8, "U32": 4, "U16": 2, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1}


class CheckpointError(ValueError):
    """The error for an invalid checkpoint, with the tensor, the numbers and the remedy."""


class FileSlot(NamedTuple):
    """The position of a tensor in its file."""

    dtype: str
    shape: tuple[int, ...]
    start: int  # in bytes, from the start of the file
    stop: int


def read_header(file: int, path: str | os.PathLike) -> dict[str, FileSlot]:
    """Read the tensors of an open file by name; raise if header and file disagree."""
    size = os.fstat(file).st_size
    first = os.pread(file, 8, 0)
    if len(first) < 8:
        raise CheckpointError(
            f"{path} has {size} bytes, too few for a safetensors file; copy it again"
        )
    if first == b"version ":
        raise CheckpointError(
            f"{path} is a Git LFS pointer of {size} bytes instead of the file itself; fetch the "
            "file with `git lfs pull`"
        )
    length = int.from_bytes(first, "little")
    if length > LONGEST or length > size - 8:
        raise CheckpointError(
            f"{path} is cut off or not a safetensors file, because its header would be {length} "
            f"bytes long in a file of {size} bytes (at most {LONGEST} are allowed)"
        )
    return _checked(read_json(os.pread(file, length, 8), path), 8 + length, size, path)


def make_header(tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> tuple:
    """Build (the bytes of a header, the slots) for tensors by name, with the widest dtypes first.

    This order makes every tensor start at a multiple of its element size, as readers may expect.
    """
    at, told, slots = 0, {"__metadata__": {"format": "pt"}}, {}
    for name in sorted(tensors, key=lambda name: -tensors[name][0].itemsize):
        dtype, shape = tensors[name]
        stop = at + math.prod(shape) * dtype.itemsize
        told[name] = {"dtype": _STORED_AS[dtype], "shape": list(shape), "data_offsets": [at, stop]}
        slots[name], at = FileSlot(_STORED_AS[dtype], shape, at, stop), stop
    text = json.dumps(told).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    slots = {n: FileSlot(d, shape, begin + a, begin + b) for n, (d, shape, a, b) in slots.items()}
    return len(text).to_bytes(8, "little") + text, slots


def read_json(raw: bytes, path: str | os.PathLike) -> dict:
    """Read a JSON object; refuse duplicate names and any other JSON value."""

    def once(pairs: list) -> dict:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(f"{path} contains {twice!r} twice; keep one of them")
        return found

    try:
        told = json.loads(raw.decode("utf-8"), object_pairs_hook=once)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or an endless number
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(told, dict):
        raise CheckpointError(f"{path} holds a JSON {type(told).__name__} instead of an object")
    return told


def _checked(told: dict, begin: int, size: int, path: str | os.PathLike) -> dict[str, FileSlot]:
    told.pop("__metadata__", None)
    slots = {name: _slot(name, entry, begin, path) for name, entry in told.items()}
    at, before = begin, "the header"
    for name, slot in sorted(slots.items(), key=lambda pair: pair[1][2:]):
        if slot.start != at:
            what = "overlaps" if slot.start < at else "leaves a gap after"
            raise CheckpointError(
                f"{path} is damaged, because {name} begins at byte {slot.start} and {what} "
                f"{before}, which ends at {at}"
            )
        at, before = slot.stop, name
    if at > size:
        lost = [name for name, slot in slots.items() if slot.stop > size]
        raise CheckpointError(
            f"{path} is cut off, because it should have {at} bytes but has {size}. So {len(lost)} "
            f"of its {len(slots)} tensors are incomplete, such as {lost[0]}; copy it again"
        )
    if at < size:
        raise CheckpointError(
            f"{path} is damaged, because {size - at} bytes after its last tensor belong to none"
        )
    return slots


def _slot(name: str, entry: object, begin: int, path: str | os.PathLike) -> FileSlot:
    try:
        dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: {name} lacks dtype, shape or data_offsets") from error
    whole = [start, stop, *shape] if isinstance(shape, list) else [None]
    if any(type(number) is not int or number < 0 for number in whole):
        raise CheckpointError(
            f"{path}: {name} has shape={shape} and data_offsets={[start, stop]}, but all of them "
            "must be integers, 0 or more"
        )
    if not isinstance(dtype, str) or dtype not in BYTES:
        raise CheckpointError(f"{path}: {name} has dtype={dtype!r}, not one of {list(BYTES)}")
    needed = math.prod(shape) * BYTES[dtype]
    if stop - start != needed:
        raise CheckpointError(
            f"{path} is damaged, because {name} is {dtype} {tuple(shape)}, which takes {needed} "
            f"bytes, but its data_offsets give it {stop - start}"
        )
    return FileSlot(dtype, tuple(shape), begin + start, begin + stop)
