"""Known machines from data sheets, and machines in files, measured or written by hand.

The fraction of their peak that A100 and H100 GPUs reach is fitted to published runs, in
tools/published_runs.py. The other functions state their assumptions. Lesson 15.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import NamedTuple

from course_lib.estimate.time.bars import BARS, NETWORK, NVLINK, PCIE, dgx_2h, fit
from course_lib.estimate.time.machine import Constants, Link, Machine, Rate
from course_lib.files import write_whole

GB, TERA = 10**9, 10**12
LOOPBACK = 50e-6  # seconds of a ring's step between processes of one host
NUMBERS = ("gpus", "memory", "host", "host_memory", "host_moved", "disk", "cores", "peak", "single")


class Fitted(NamedTuple):
    """The fractions of a GPU's peak that wide products and fused attention reach, the hidden size
    at which products reach half of that, and the fraction of memory bandwidth for other operations.
    For nine in ten of `runs` published runs, the relative error is at most `within`."""

    products: float
    knee: float
    attention: float
    stream: float
    runs: int = 0
    within: float = 0.0

    def rate(self, ranks: int, peak: float, moved: float) -> Rate:
        how = {"attention": peak * self.attention, "knee": self.knee, "stream": self.stream}
        return Rate(ranks, peak * self.products, moved, **how)


H100 = Fitted(0.702, 314.0, 0.347, 0.493, 52, 0.10)
A100 = Fitted(0.904, 479.0, 0.592, 0.695, 51, 0.08)


def dgx_a100() -> Machine:
    """Describe GPUs with 312 TFLOP/s in 16 bits, 2039 GB/s, NVLink 3 (300 GB/s), 8 × 200 Gb/s."""
    rates, source = (A100.rate(8, 312 * TERA, 2039 * GB),), "NVIDIA, DGX A100 data sheet"
    links = Link(300 * GB, NVLINK), Link(200 * GB, NETWORK)
    host = {"host": 25 * GB, "host_memory": 2000 * GB, "host_moved": 400 * GB}
    peaks = {"peak": 312 * TERA, "single": 19.5 * TERA, "runs": A100.runs, "within": A100.within}
    return Machine("DGX A100 80 GB", 8, 80 * GB, rates, *links, **host, **peaks, source=source)


def hgx_h100() -> Machine:
    """Describe GPUs with 989 TFLOP/s in 16 bits, 3350 GB/s, NVLink 4 (450 GB/s), 8 × 400 Gb/s."""
    rates, source = (H100.rate(8, 989 * TERA, 3350 * GB),), "NVIDIA, H100 SXM data sheet"
    links = Link(450 * GB, NVLINK), Link(400 * GB, NETWORK)
    host = {"host": 55 * GB, "host_memory": 2000 * GB, "host_moved": 600 * GB}
    peaks = {"peak": 989 * TERA, "single": 67 * TERA, "runs": H100.runs, "within": H100.within}
    return Machine("HGX H100", 8, 80 * GB, rates, *links, **host, **peaks, source=source)


def hgx_h200() -> Machine:
    """Describe H100 GPUs with 141 GB at 4800 GB/s."""
    rates, source = (H100.rate(8, 989 * TERA, 4800 * GB),), "NVIDIA, H200 SXM data sheet"
    how = {"name": "HGX H200", "memory": 141 * GB, "rates": rates, "source": source, "runs": 0}
    return hgx_h100().changed(**how)


def workstation() -> Machine:
    """Describe two RTX 4090 GPUs with 1008 GB/s and 165 TFLOP/s (16-bit inputs, 32-bit sums), of
    which products are assumed to reach half. PCIe 4 x16 has 32 GB/s one way, but without peer
    access each message crosses it twice, through the host."""
    name, rates = "workstation with RTX 4090", (Rate(2, 165 * TERA * 0.5, 1008 * GB),)
    host = {"host": 25 * GB, "host_memory": 128 * GB, "host_moved": 80 * GB}
    peaks = {"peak": 165 * TERA, "single": 82.6 * TERA}
    source, link = "NVIDIA, Ada architecture white paper; PCI-SIG", Link(16 * GB, 2 * PCIE)
    return Machine(name, 2, 24 * GB, rates, link, **host, **peaks, source=source)


def laptop() -> Machine:
    """Describe four AVX2 cores at 3 GHz with 96 GFLOP/s each in 32 bits, of which products reach
    half. They share two DDR4-3200 channels. Ranks are processes, and gloo uses loopback."""
    cores = 4
    rates = tuple(
        Rate(ranks, 0.5 * 96 * GB * cores / ranks, 51.2 * GB / ranks) for ranks in (1, 2, cores)
    )
    host = {"host": 10 * GB, "host_memory": 16 * GB, "host_moved": 25 * GB}
    how = {"cores": cores, "overlaps": False, "precision": "float32"}
    source, link = "Intel, AVX2; JEDEC, DDR4-3200", Link(2 * GB, LOOPBACK)
    return Machine("laptop CPU", cores, 4 * GB, rates, link, **host, **how, source=source)


PRESETS: dict[str, Callable[[], Machine]] = {
    "dgx-2h": dgx_2h,
    "dgx-a100": dgx_a100,
    "hgx-h100": hgx_h100,
    "hgx-h200": hgx_h200,
    "workstation": workstation,
    "laptop": laptop,
}


def preset(name: str) -> Machine:
    """Return a known machine by its name on the command line."""
    if name not in PRESETS:
        raise ValueError(
            f"--machine {name} is none of {', '.join(PRESETS)}, nor a file of a machine. Such a "
            'file may have {"like": one of these names} and the figures that differ'
        )
    return PRESETS[name]()


def cluster(name: str | Machine, *, gpus: int = 0) -> Machine:
    """Return a machine that is known, measured or described in a file, for `gpus` in total."""
    if isinstance(name, Machine):
        machine = name
    elif name not in PRESETS and Path(name).is_file():
        machine = read_machine(Path(name))
    else:
        machine = preset(name)
    if machine.cores is not None and gpus > machine.gpus:
        # All processes are on one host, and share its cores and its memory.
        return machine.changed(gpus=gpus, memory=machine.memory * machine.gpus // gpus)
    return machine


def constants(machine: Machine) -> Constants:
    """Return the constants fitted to the published bars for GPUs. CPU processes need none, because
    their collectives were measured on the links, and the slowest rank changes from step to step."""
    return Constants() if machine.cores is not None else fit(BARS, worst=True)


def read_machine(path: Path) -> Machine:
    """Read a machine from a file in the form of `write_machine`. The key `like` names a known
    machine, which provides the figures that the file lacks."""
    refused = f"--machine {path} is not a file of a machine: "
    try:
        values = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{refused}it is not JSON ({error})") from error
    if not isinstance(values, dict):
        raise ValueError(f'{refused}it has to hold an object, such as {{"like": "hgx-h100"}}')
    like = values.pop("like", None)
    values = {**(preset(like).as_dict() if like else {}), **values}
    figures = {figure.name: figure.default is MISSING for figure in fields(Machine)}
    if strange := sorted(values.keys() - figures.keys()):
        known = ", ".join(figures)
        raise ValueError(f"{refused}it names {', '.join(strange)}, but the figures are {known}")
    if missing := [name for name, needed in figures.items() if needed and name not in values]:
        raise ValueError(f'{refused}it lacks {", ".join(missing)} (or "like", a known machine)')
    for name in NUMBERS:
        value = values.get(name)
        if value is not None and not (type(value) in (int, float) and value > 0):
            raise ValueError(f"{refused}{name} is {value!r}, but has to be a number above 0")
    try:
        return Machine.from_dict(values)
    except (TypeError, KeyError, AttributeError) as error:
        form = 'rates are [{"ranks", "flops", "moved"}], links {"bandwidth", "latency"}'
        raise ValueError(f"{refused}{form}") from error


def write_machine(machine: Machine, path: Path) -> None:
    write_whole(path, (json.dumps(machine.as_dict(), indent=2) + "\n").encode())
