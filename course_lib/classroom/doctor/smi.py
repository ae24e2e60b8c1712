"""What nvidia-smi says of the GPUs, read into numbers: names, memory, modes, who uses them, links.

Reads text alone, and never opens a GPU: a context costs hundreds of MB on each. No lesson derives
it.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from course_lib.classroom.doctor.commands import Answer, ask

FIELDS = "index,uuid,name,memory.total,memory.used,driver_version,compute_mode,mig.mode.current"
Smi = Callable[[list[str]], Answer]
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Gpu:
    index: int
    uuid: str
    name: str
    total: int | None  # bytes; None where the GPU shares the machine's memory
    used: int | None
    driver: str
    mode: str
    mig: bool


def nvidia_smi(arguments: list[str]) -> Answer:
    return ask(["nvidia-smi", *arguments], 30.0)


def read_gpus(text: str) -> list[Gpu]:
    """From `--query-gpu=FIELDS --format=csv,noheader,nounits`."""
    gpus = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(FIELDS.split(",")):
            continue
        index, uuid, name, total, used, driver, mode, mig = (cell.strip() for cell in row)
        if index.isdigit():
            sizes = (_mebibytes(total), _mebibytes(used))
            gpus.append(Gpu(int(index), uuid, name, *sizes, driver, mode, mig == "Enabled"))
    return gpus


def read_users(text: str) -> dict[str, list[tuple[int, int | None]]]:
    """By GPU: (pid, bytes), from `--query-compute-apps=gpu_uuid,pid,used_memory` in the format."""
    users: dict[str, list[tuple[int, int | None]]] = {}
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == 3 and row[1].strip().isdigit():
            users.setdefault(row[0].strip(), []).append((int(row[1]), _mebibytes(row[2])))
    return users


def read_cuda(text: str) -> str:
    """The newest CUDA that the driver can run, from nvidia-smi's own headline."""
    found = re.search(r"CUDA (?:\w+ )?Version\s*:\s*(\d+\.\d+)", text)
    return found[1] if found else ""


def read_links(text: str) -> dict[tuple[int, int], str]:
    """The link of each pair of GPUs, from `topo -m`: NV18, PIX, PXB, PHB, NODE or SYS."""
    columns: list[str] = []
    links: dict[tuple[int, int], str] = {}
    for line in _ESCAPES.sub("", text).splitlines():
        cells = line.split()
        if not columns:
            # The headline has no cell in front; its GPU columns come first.
            columns = [one for one in cells if re.fullmatch(r"GPU\d+", one)]
            continue
        if not cells or not re.fullmatch(r"GPU\d+", cells[0]):
            continue
        one = int(cells[0][3:])
        for column, link in zip(columns, cells[1:], strict=False):
            other = int(column[3:])
            if one < other and link != "X":
                links[one, other] = link
    return links


def links_in_words(links: dict[tuple[int, int], str]) -> str:
    """`28 pairs over NV18`; where kinds differ, each with its count."""
    kinds = Counter(links.values()).most_common()
    return ", ".join(f"{n} pair{'s' if n > 1 else ''} over {kind}" for kind, n in kinds)


def _mebibytes(text: str) -> int | None:
    found = re.match(r"\s*(\d+)", text)
    return int(found[1]) << 20 if found else None
