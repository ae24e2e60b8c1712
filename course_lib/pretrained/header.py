"""The header of a safetensors file: which tensor lies at which bytes, and nothing that could run.

A file is 8 bytes of length, that much JSON, then the numbers. What it says of itself is checked
against its size, so that no read goes astray; a pickle would be a program. Lesson 08.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import NamedTuple

import torch

LONGEST = 100_000_000  # bytes of JSON, the bound of the format's own library
# The dtypes that a weight may have here, and those of other buffers, such as a count or a mask.
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
STORED = DTYPES | {"I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8}
STORED |= {"U8": torch.uint8, "BOOL": torch.bool}
_STORED_AS = {dtype: name for name, dtype in STORED.items()}
# Bytes of an element; a buffer that is left alone may have further dtypes.
BYTES = {name: dtype.itemsize for name, dtype in STORED.items()}
BYTES |= {"U64": 8, "U32": 4, "U16": 2, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1}


class CheckpointError(ValueError):
    """A checkpoint is not what it has to be: which tensor, which numbers, what to do."""


class FileSlot(NamedTuple):
    """Where a tensor lies in its file."""

    dtype: str
    shape: tuple[int, ...]
    start: int  # in bytes, from the start of the file
    stop: int


def read_header(file: int, path: str | os.PathLike) -> dict[str, FileSlot]:
    """The tensors of an open file, by name; raises where header and file disagree."""
    size = os.fstat(file).st_size
    first = os.pread(file, 8, 0)
    if len(first) < 8:
        raise CheckpointError(
            f"{path}: {size} bytes are too few for a safetensors file; copy it again"
        )
    if first == b"version ":
        raise CheckpointError(
            f"{path} is a pointer of Git LFS, {size} bytes long, and not the file itself; fetch "
            "that with `git lfs pull`"
        )
    length = int.from_bytes(first, "little")
    if length > LONGEST or length > size - 8:
        raise CheckpointError(
            f"{path}: the header would be {length} bytes long, in a file of {size} bytes (and "
            f"{LONGEST} are the most); is it cut off, or no safetensors file?"
        )
    return _checked(read_json(os.pread(file, length, 8), path), 8 + length, size, path)


def make_header(tensors: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> tuple:
    """(the bytes of a header, the slots) for tensors by name: wide dtypes first.

    So every tensor starts at a multiple of its element's size, which readers may count on.
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
    """A JSON object without a name twice; whatever else it is, is refused."""

    def once(pairs: list) -> dict:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(f"{path} names {twice!r} twice; which of the two counts?")
        return found

    try:
        told = json.loads(raw.decode("utf-8"), object_pairs_hook=once)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:  # no JSON, no UTF-8, or a number without end
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(told, dict):
        raise CheckpointError(f"{path} holds a JSON {type(told).__name__} where an object belongs")
    return told


def _checked(told: dict, begin: int, size: int, path: str | os.PathLike) -> dict[str, FileSlot]:
    told.pop("__metadata__", None)
    slots = {name: _slot(name, entry, begin, path) for name, entry in told.items()}
    at, before = begin, "the header"
    for name, slot in sorted(slots.items(), key=lambda pair: pair[1][2:]):
        if slot.start != at:
            what = "overlaps" if slot.start < at else "leaves a gap after"
            raise CheckpointError(
                f"{path}: {name} begins at byte {slot.start} and {what} {before}, which ends at "
                f"{at}; the file is damaged"
            )
        at, before = slot.stop, name
    if at > size:
        lost = [name for name, slot in slots.items() if slot.stop > size]
        raise CheckpointError(
            f"{path} is cut off: it should have {at} bytes and has {size}, so {len(lost)} of its "
            f"{len(slots)} tensors are not whole, such as {lost[0]}; copy it again"
        )
    if at < size:
        raise CheckpointError(
            f"{path}: {size - at} bytes after its last tensor belong to none; the file is damaged"
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
            f"{path}: {name} has shape={shape} and data_offsets={[start, stop]}; all of them have "
            "to be whole numbers, 0 or more"
        )
    if not isinstance(dtype, str) or dtype not in BYTES:
        raise CheckpointError(f"{path}: {name} has dtype={dtype!r}, which is none of {list(BYTES)}")
    needed = math.prod(shape) * BYTES[dtype]
    if stop - start != needed:
        raise CheckpointError(
            f"{path}: {name} is {dtype} {tuple(shape)}, which takes {needed} bytes, and its "
            f"data_offsets leave it {stop - start}; the file is damaged"
        )
    return FileSlot(dtype, tuple(shape), begin + start, begin + stop)
