"""Calls of system programs, and the GPUs that nvidia-smi reports.

The calls never open a GPU, because a CUDA context takes hundreds of MB on each GPU.
"""

from __future__ import annotations

import csv
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FORMAT = "--format=csv,noheader,nounits"
CONTEXT_BYTES = 512 << 20  # of a GPU's memory, for each rank's CUDA context and its libraries
FIELDS = "index,uuid,name,memory.total,memory.used,driver_version,compute_mode,mig.mode.current"


@dataclass(frozen=True)
class Answer:
    """The exit code of a program (None if it is missing or too slow), and its output."""

    code: int | None
    out: str = ""
    said: str = ""  # its error message, or ours about it

    @property
    def good(self) -> bool:
        return self.code == 0


def ask(command: list[str], limit: float = 20.0, folder: Path | None = None) -> Answer:
    """Run a program to its end, or for at most `limit` seconds."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C", "NO_COLOR": "1"},
        )
    except subprocess.TimeoutExpired:
        return Answer(None, said=f"{command[0]} did not end within {limit:g} s")
    except OSError as error:
        return Answer(None, said=f"{command[0]} cannot be run ({error.strerror})")
    return Answer(done.returncode, done.stdout, (done.stderr or done.stdout).strip())


Smi = Callable[[list[str]], Answer]


@dataclass(frozen=True)
class Gpu:
    index: int
    uuid: str
    name: str
    total: int | None  # bytes; None if the GPU shares the machine's memory
    used: int | None
    driver: str
    mode: str
    mig: bool

    @property
    def free(self) -> int | None:
        return None if self.total is None else self.total - (self.used or 0)


def nvidia_smi(arguments: list[str]) -> Answer:
    return ask(["nvidia-smi", *arguments], 30.0)


def read_gpus(text: str) -> list[Gpu]:
    """Parse the output of `--query-gpu=FIELDS --format=csv,noheader,nounits`."""
    gpus = []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(FIELDS.split(",")):
            continue
        index, uuid, name, total, used, driver, mode, mig = (cell.strip() for cell in row)
        if index.isdigit():
            sizes = (_mebibytes(total), _mebibytes(used))
            gpus.append(Gpu(int(index), uuid, name, *sizes, driver, mode, mig == "Enabled"))
    return gpus


def listed(smi: Smi = nvidia_smi) -> list[Gpu]:
    """Return the GPUs that nvidia-smi lists, or an empty list if it does not answer."""
    answer = smi([f"--query-gpu={FIELDS}", FORMAT])
    return read_gpus(answer.out) if answer.good else []


def _mebibytes(text: str) -> int | None:
    found = re.match(r"\s*(\d+)", text)
    return int(found[1]) << 20 if found else None
