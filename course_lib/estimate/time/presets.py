"""Known machines, from their data sheets, and machines in files, which were measured or written.

Of a peak an A100 and an H100 get what fits published runs (published.py); the rest is said with
each. Lesson 15.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path

from course_lib.estimate.time.bars import BARS, NETWORK, NVLINK, PCIE, dgx_2h, fit
from course_lib.estimate.time.machine import Constants, Link, Machine, Rate
from course_lib.estimate.time.published import A100, H100
from course_lib.files import write_whole

GB, TERA = 10**9, 10**12
LOOPBACK = 50e-6  # seconds of a step between processes of one host
NUMBERS = ("gpus", "memory", "host", "host_memory", "host_moved", "disk", "cores", "peak", "single")


def dgx_a100() -> Machine:
    """312 TFLOP/s in 16 bits, 2039 GB/s; NVLink 3, 300 GB/s one way; 8 links of 200 Gb/s."""
    rates, source = (A100.rate(8, 312 * TERA, 2039 * GB),), "NVIDIA, DGX A100 data sheet"
    links = Link(300 * GB, NVLINK), Link(200 * GB, NETWORK)
    host = {"host": 25 * GB, "host_memory": 2000 * GB, "host_moved": 400 * GB}
    peaks = {"peak": 312 * TERA, "single": 19.5 * TERA, "runs": A100.runs, "within": A100.within}
    return Machine("DGX A100 80 GB", 8, 80 * GB, rates, *links, **host, **peaks, source=source)


def hgx_h100() -> Machine:
    """989 TFLOP/s in 16 bits, 3350 GB/s; NVLink 4, 450 GB/s one way; 8 links of 400 Gb/s."""
    rates, source = (H100.rate(8, 989 * TERA, 3350 * GB),), "NVIDIA, H100 SXM data sheet"
    links = Link(450 * GB, NVLINK), Link(400 * GB, NETWORK)
    host = {"host": 55 * GB, "host_memory": 2000 * GB, "host_moved": 600 * GB}
    peaks = {"peak": 989 * TERA, "single": 67 * TERA, "runs": H100.runs, "within": H100.within}
    return Machine("HGX H100", 8, 80 * GB, rates, *links, **host, **peaks, source=source)


def hgx_h200() -> Machine:
    """An H100 with 141 GB at 4800 GB/s."""
    rates, source = (H100.rate(8, 989 * TERA, 4800 * GB),), "NVIDIA, H200 SXM data sheet"
    how = {"name": "HGX H200", "memory": 141 * GB, "rates": rates, "source": source, "runs": 0}
    return hgx_h100().changed(**how)


def workstation() -> Machine:
    """Two RTX 4090: 165 TFLOP/s in 16 bits with sums in 32, half of which products are taken to
    reach, 1008 GB/s; PCIe 4 x16, 32 GB/s one way, and no peer access: each message goes through the
    host, which takes it twice."""
    name, rates = "workstation with RTX 4090", (Rate(2, 165 * TERA * 0.5, 1008 * GB),)
    host = {"host": 25 * GB, "host_memory": 128 * GB, "host_moved": 80 * GB}
    peaks = {"peak": 165 * TERA, "single": 82.6 * TERA}
    source, link = "NVIDIA, Ada architecture white paper; PCI-SIG", Link(16 * GB, 2 * PCIE)
    return Machine(name, 2, 24 * GB, rates, link, **host, **peaks, source=source)


def laptop() -> Machine:
    """Four cores with AVX2 at 3 GHz: 96 GFLOP/s each in 32 bits, half of which products reach, and
    a quarter of two channels of DDR4-3200; ranks are processes, gloo goes over loopback."""
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
    """A known machine, by the name on the command line."""
    if name not in PRESETS:
        raise ValueError(
            f"--machine {name} is none of {', '.join(PRESETS)}, nor a file of a machine; such a "
            'file may say {"like": one of these} and the figures that are others'
        )
    return PRESETS[name]()


def cluster(name: str | Machine, *, gpus: int = 0) -> Machine:
    """A known machine, the file of one, or one that was measured; `gpus` are wanted in all."""
    if isinstance(name, Machine):
        machine = name
    elif name not in PRESETS and Path(name).is_file():
        machine = read_machine(Path(name))
    else:
        machine = preset(name)
    if machine.cores is not None and gpus > machine.gpus:
        # Processes of one host, however many: they share its cores and its memory.
        return machine.changed(gpus=gpus, memory=machine.memory * machine.gpus // gpus)
    return machine


def constants(machine: Machine) -> Constants:
    """Those of the published bars, for GPUs; of a machine whose ranks are processes the links are
    what a collective was measured to reach, and which rank is slow changes from step to step."""
    return Constants() if machine.cores is not None else fit(BARS, worst=True)


def read_machine(path: Path) -> Machine:
    """A machine as `write_machine` leaves it; `like` names a known one, whose figures count for
    those that the file has not."""
    refused = f"--machine {path} is no file of a machine: "
    try:
        values = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{refused}it is no JSON ({error})") from error
    if not isinstance(values, dict):
        raise ValueError(f'{refused}it has to hold an object, such as {{"like": "hgx-h100"}}')
    like = values.pop("like", None)
    values = {**(preset(like).as_dict() if like else {}), **values}
    figures = {figure.name: figure.default is MISSING for figure in fields(Machine)}
    if strange := sorted(values.keys() - figures.keys()):
        known = ", ".join(figures)
        raise ValueError(f"{refused}it names {', '.join(strange)}; the figures are {known}")
    if missing := [name for name, needed in figures.items() if needed and name not in values]:
        raise ValueError(f'{refused}it lacks {", ".join(missing)}; or give "like": a known machine')
    for name in NUMBERS:
        value = values.get(name)
        if value is not None and not (type(value) in (int, float) and value > 0):
            raise ValueError(f"{refused}{name} is {value!r} and has to be a number above 0")
    try:
        return Machine.from_dict(values)
    except (TypeError, KeyError, AttributeError) as error:
        form = 'rates are [{"ranks", "flops", "moved"}], links {"bandwidth", "latency"}'
        raise ValueError(f"{refused}{form}") from error


def write_machine(machine: Machine, path: Path) -> None:
    write_whole(path, (json.dumps(machine.as_dict(), indent=2) + "\n").encode())
