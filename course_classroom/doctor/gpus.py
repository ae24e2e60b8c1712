"""The GPUs as the driver reports them: whether they answer, are free, and can be used by ranks.

The checks read nvidia-smi and never open a GPU, because a CUDA context takes hundreds of MB. Lesson
01 draws the bandwidth of their links; `torch_build.py` checks whether torch can use them.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

from course_classroom.doctor.finding import Finding, size
from course_classroom.leases.smi import (
    CONTEXT_BYTES,
    FIELDS,
    FORMAT,
    Gpu,
    Smi,
    listed,
    nvidia_smi,
    read_gpus,
)

DRIVER = Path("/proc/driver/nvidia/version")
BUSY = 1e9  # bytes in use that exceed the driver's share
WITH_GPUS = "start the container with --gpus all (needs NVIDIA Container Toolkit), or the job with"
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def read_cuda(text: str) -> str:
    """Return the newest CUDA version that the driver supports, from nvidia-smi's header."""
    found = re.search(r"CUDA (?:\w+ )?Version\s*:\s*(\d+\.\d+)", text)
    return found[1] if found else ""


def read_links(text: str) -> dict[tuple[int, int], str]:
    """Return each GPU pair's link type from `nvidia-smi topo -m`, such as NV18, PIX or SYS."""
    columns: list[str] = []
    links: dict[tuple[int, int], str] = {}
    for line in _ESCAPES.sub("", text).splitlines():
        cells = line.split()
        if not columns:
            # The header row has no row label; its GPU columns come first.
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
    """Describe the links, as in `28 pairs over NV18`, with a count for each kind of link."""
    kinds = Counter(links.values()).most_common()
    return ", ".join(f"{n} pair{'s' if n > 1 else ''} over {kind}" for kind, n in kinds)


def cuda_of_driver(smi: Smi = nvidia_smi) -> str:
    return read_cuda(smi([]).out)


def has_driver(smi: Smi = nvidia_smi, driver: Path = DRIVER) -> bool:
    return driver.exists() or bool(listed(smi))


def gpus(smi: Smi = nvidia_smi, driver: Path = DRIVER) -> list[Finding]:
    """Return a finding for all GPUs, then one for each GPU that would cause problems for ranks."""
    answer = smi([f"--query-gpu={FIELDS}", FORMAT])
    found = read_gpus(answer.out) if answer.good else []
    if not found:
        return [_none(answer.code, answer.said or answer.out.strip(), driver)]
    names = {}
    for gpu in found:
        names.setdefault(f"{gpu.name}, {_memory(gpu)}", []).append(gpu.index)
    told = "; ".join(f"{len(indices)} × {name}" for name, indices in names.items())
    told += f"; driver {found[0].driver}, CUDA up to {cuda_of_driver(smi) or 'unknown'}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        told += f"; CUDA_VISIBLE_DEVICES={visible!r} restricts them"
    return [Finding("GPUs", "ok", told), *(f for gpu in found for f in _each(gpu))]


def _none(code: int | None, said: str, driver: Path) -> Finding:
    if not driver.exists() and code is None:
        return Finding("GPUs", "ok", "no GPU and no NVIDIA driver: ranks compute on the CPU")
    if code is None:
        told = f"a driver is loaded, but nvidia-smi does not answer: {said}"
        more = "in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return Finding("GPUs", "bad", told, f"{more}; otherwise put nvidia-smi on the PATH")
    told = f"nvidia-smi finds none: {' '.join(said.split())[:300] or 'it printed nothing'}"
    remedy = "reboot if the driver was just updated, otherwise reinstall it (nvidia-smi must list "
    return Finding("GPUs", "bad", told, f"{remedy}every GPU); {WITH_GPUS} --gres=gpu:2")


def _memory(gpu: Gpu) -> str:
    return "the machine's memory" if gpu.total is None else size(gpu.total)


def _each(gpu: Gpu) -> list[Finding]:
    name, found = f"GPU {gpu.index}", []
    back = f"sudo nvidia-smi -i {gpu.index} -c DEFAULT"
    if gpu.mode == "Prohibited":
        told = "its compute mode is Prohibited, so no program may use it"
        found.append(Finding(name, "bad", told, back))
    elif gpu.mode.startswith("Exclusive"):
        told = f"its compute mode is {gpu.mode}, so two ranks cannot share it"
        found.append(Finding(name, "note", told, back))
    if gpu.mig:
        told = "MIG is on: the GPU appears as slices, and NCCL cannot connect slices of one GPU"
        found.append(Finding(name, "note", told, f"sudo nvidia-smi -i {gpu.index} -mig 0"))
    used = gpu.used or 0
    if used > BUSY:
        told = f"other programs use {size(used)} of {_memory(gpu)}"
        remedy = "see `nvidia-smi`; choose others with CUDA_VISIBLE_DEVICES, or wait until it ends"
        full = gpu.free is not None and gpu.free < 2 * CONTEXT_BYTES
        if full:
            told += f"; two ranks need {size(2 * CONTEXT_BYTES)} of it before they allocate tensors"
        found.append(Finding(name, "bad" if full else "note", told, remedy))
    return found


def links(smi: Smi = nvidia_smi) -> list[Finding]:
    """Report how the GPUs are linked; return no finding for fewer than two GPUs."""
    if len(listed(smi)) < 2:
        return []
    pairs = read_links(smi(["topo", "-m"]).out)
    if not pairs:
        return []
    told = links_in_words(pairs)
    kinds = {"NV": "NVLink", "PI": "PCIe", "PX": "PCIe", "PH": "PCIe", "NO": "PCIe", "SY": "PCIe"}
    told += f" ({', '.join(sorted({kinds.get(one[:2], one) for one in pairs.values()}))})"
    if "SYS" in pairs.values():
        told += "; SYS crosses from one CPU socket to the other"
    return [Finding("links", "ok", told)]
