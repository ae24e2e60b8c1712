"""A checksum for each small file of a checkpoint, verified before its bytes are used.

The checksums are in a file in `sha256sum`'s format, so `sha256sum --check SHA256SUMS` works too.
One of the small files lists CRCs of the tensors, because many ranks write them. Lesson 08.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from course_lib.pretrained.header import CheckpointError

SUMS = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64})  ([^/\s]+)")


def of_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def as_text(sums: Mapping[str, str]) -> str:
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))


def read(folder: Path, remedy: Callable[[], str]) -> dict[str, str]:
    """Read the checksum file as {file name: checksum}, and refuse a malformed line."""
    path = folder / SUMS
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise CheckpointError(
            f"{path}, which has the checksums of the checkpoint's files, cannot be read "
            f"({error.strerror}); {remedy()}"
        ) from error
    sums: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        match = LINE.fullmatch(line)
        if match is None or match[2] in sums:
            raise CheckpointError(
                f"{path}, line {number}, is not a checksum and a file name ({line[:80]!r}); "
                f"{remedy()}"
            )
        sums[match[2]] = match[1]
    return sums


def check(folder: Path, names: Iterable[str], remedy: Callable[[], str]) -> None:
    """Read these files completely, and refuse any file that does not match its checksum."""
    sums = read(folder, remedy)
    for name in names:
        if name not in sums:
            raise CheckpointError(f"{folder / SUMS} has no line for {name}; {remedy()}")
        try:
            actual = of_bytes((folder / name).read_bytes())
        except OSError as error:
            raise CheckpointError(
                f"{folder / name} cannot be read ({error.strerror}); {remedy()}"
            ) from error
        if actual != sums[name]:
            raise CheckpointError(
                f"{folder / name} or its line in {SUMS} is damaged, because the sha256 of its "
                f"bytes is {actual}, but the line has {sums[name]}; {remedy()}"
            )
