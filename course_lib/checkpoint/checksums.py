"""A sum for each small file of a checkpoint, held against its bytes before they are used.

They are in a file of their own, in the form of `sha256sum`: `sha256sum --check SHA256SUMS` looks as
well. One of the small files vouches for the tensors, since many ranks write those. Lesson 08.
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
    """File to sum, as they were written; a line that cannot be one is refused."""
    path = folder / SUMS
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise CheckpointError(
            f"{path}, which vouches for the checkpoint's files, cannot be read: {error.strerror}; "
            f"{remedy()}"
        ) from error
    sums: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        match = LINE.fullmatch(line)
        if match is None or match[2] in sums:
            raise CheckpointError(
                f"{path}, line {number}: {line[:80]!r} is not a sum and the name of a file; "
                f"{remedy()}"
            )
        sums[match[2]] = match[1]
    return sums


def check(folder: Path, names: Iterable[str], remedy: Callable[[], str]) -> None:
    """Read these files to the end and refuse one that is not what was written."""
    sums = read(folder, remedy)
    for name in names:
        if name not in sums:
            raise CheckpointError(f"{folder / SUMS} has no line for {name}; {remedy()}")
        try:
            actual = of_bytes((folder / name).read_bytes())
        except OSError as error:
            raise CheckpointError(
                f"{folder / name} cannot be read: {error.strerror}; {remedy()}"
            ) from error
        if actual != sums[name]:
            raise CheckpointError(
                f"{folder / name} is damaged, or its line in {SUMS}: the sha256 of its bytes is "
                f"{actual}, and there it is {sums[name]}; {remedy()}"
            )
