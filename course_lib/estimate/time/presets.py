"""Known machines, from their data sheets, and what is assumed that a product reaches of the peak.

A rate beside its peak: half of an A100's, 45 % of an H100's are what published training runs came
to (Narayanan et al. 2021, arXiv 2104.04473; Llama 3, arXiv 2407.21783). Lesson 15.
"""

from __future__ import annotations

from collections.abc import Callable

from course_lib.estimate.time.bars import NETWORK, NVLINK, PCIE, dgx_2h
from course_lib.estimate.time.machine import Link, Machine, Rate

GB, TERA = 10**9, 10**12
LOOPBACK = 50e-6  # seconds of a step between processes of one host


def _gpus(
    name: str,
    gpus: int,
    memory: int,
    peak: float,
    reached: float,
    moved: float,
    inside: Link,
    across: Link | None,
    **more: object,
) -> Machine:
    rate = Rate(gpus, peak * TERA * reached, moved * GB)
    return Machine(
        name, gpus, memory * GB, (rate,), inside, across, peak=peak * TERA, **more
    )  # fmt: skip


def dgx_a100() -> Machine:
    """312 TFLOP/s in 16 bits, 2039 GB/s; NVLink 3, 300 GB/s one way; 8 links of 200 Gb/s."""
    return _gpus(
        "DGX A100 80 GB", 8, 80, 312, 0.50, 2039, Link(300 * GB, NVLINK), Link(200 * GB, NETWORK),
        host=25 * GB, host_memory=2000 * GB, host_moved=400 * GB, single=19.5 * TERA,
        source="NVIDIA, DGX A100 data sheet",
    )  # fmt: skip


def hgx_h100() -> Machine:
    """989 TFLOP/s in 16 bits, 3350 GB/s; NVLink 4, 450 GB/s one way; 8 links of 400 Gb/s."""
    return _gpus(
        "HGX H100", 8, 80, 989, 0.45, 3350, Link(450 * GB, NVLINK), Link(400 * GB, NETWORK),
        host=55 * GB, host_memory=2000 * GB, host_moved=600 * GB, single=67 * TERA,
        source="NVIDIA, H100 SXM data sheet",
    )  # fmt: skip


def hgx_h200() -> Machine:
    """An H100 with 141 GB at 4800 GB/s."""
    return hgx_h100().changed(
        name="HGX H200", memory=141 * GB, source="NVIDIA, H200 SXM data sheet",
        rates=(Rate(8, 989 * TERA * 0.45, 4800 * GB),),
    )  # fmt: skip


def workstation() -> Machine:
    """Two RTX 4090: 165 TFLOP/s in 16 bits with sums in 32, 1008 GB/s; PCIe 4 x16, 32 GB/s one
    way, and no peer access: each message goes through the host, which takes it twice."""
    return _gpus(
        "workstation, 2 x 24 GB", 2, 24, 165, 0.5, 1008, Link(16 * GB, 2 * PCIE), None,
        host=25 * GB, host_memory=128 * GB, host_moved=80 * GB, single=82.6 * TERA,
        source="NVIDIA, Ada architecture white paper; PCI-SIG",
    )  # fmt: skip


def laptop() -> Machine:
    """Four cores with AVX2 at 3 GHz: 96 GFLOP/s each in 32 bits, half of which products reach, and
    a quarter of two channels of DDR4-3200; ranks are processes, gloo goes over loopback."""
    cores = 4
    rates = tuple(
        Rate(ranks, 0.5 * 96 * GB * cores / ranks, 51.2 * GB / ranks) for ranks in (1, 2, cores)
    )
    return Machine(
        "laptop CPU", cores, 4 * GB, rates, Link(2 * GB, LOOPBACK), host=10 * GB,
        host_memory=16 * GB, host_moved=25 * GB, cores=cores, overlaps=False,
        precision="float32", source="Intel, AVX2; JEDEC, DDR4-3200",
    )  # fmt: skip


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
