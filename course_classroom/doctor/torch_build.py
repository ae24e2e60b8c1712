"""Checks of torch and the driver: torch's build, NCCL, visible GPUs, and a product on each GPU.

A CPU build on a machine with GPUs works but silently ignores them; this check reports it. Lesson 00
prints the device of each rank.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass

from course_classroom.doctor.finding import Finding
from course_classroom.doctor.gpus import cuda_of_driver, has_driver
from course_classroom.leases.smi import ask

GET_CUDA_BUILD = (
    "make clean, then make setup (it now detects the driver), or in your own environment: python "
    "-m pip install --force-reinstall -c constraints.txt torch"
)


@dataclass(frozen=True)
class Torch:
    version: str
    cuda: str | None  # the CUDA version it was built for
    devices: int  # number of visible GPUs
    nccl: str | None
    hip: str | None = None


def of_this_process() -> Torch:
    import torch
    import torch.distributed as dist

    nccl = None
    if dist.is_available() and dist.is_nccl_available():
        number = torch.cuda.nccl.version()
        nccl = ".".join(map(str, number)) if isinstance(number, tuple) else str(number)
    built = torch.version
    return Torch(torch.__version__, built.cuda, torch.cuda.device_count(), nccl, built.hip)


def torch_build() -> list[Finding]:
    driver = has_driver()
    return judge(of_this_process(), driver, cuda_of_driver() if driver else "")


def judge(
    torch: Torch, driver: bool, driver_cuda: str = "", visible: str | None = None
) -> list[Finding]:
    """Judge torch's build and NCCL, on a machine with or without an NVIDIA driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    built = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else "the CPU"
    told = f"{torch.version}, built for {built}, sees {torch.devices} GPU(s)"
    level, remedy = "bad", GET_CUDA_BUILD
    if not driver or torch.devices:
        level, remedy = "ok", ""
    elif torch.cuda is None:
        told += "; there is an NVIDIA driver, but this build cannot use it"
    elif visible is not None:
        told += f"; CUDA_VISIBLE_DEVICES={visible!r} hides the others"
        level, remedy = "note", "unset CUDA_VISIBLE_DEVICES to use all GPUs"
    elif driver_cuda and _major(driver_cuda) < _major(torch.cuda):
        told += f"; the driver supports CUDA up to {driver_cuda}"
        remedy = f"install a driver for CUDA {_major(torch.cuda)} or newer, or a torch build "
        remedy += f"for CUDA {_major(driver_cuda)}"
    else:
        told += ", although a driver is loaded"
        remedy = "run `nvidia-smi`; start a container with --gpus all, and reboot after an "
        remedy += "update"
    return [Finding("torch", level, told, remedy), *_nccl(torch)]


def _nccl(torch: Torch) -> list[Finding]:
    if torch.nccl:
        return [Finding("NCCL", "ok", f"{torch.nccl}, built into torch")]
    if torch.devices > 1:
        told = f"this torch has no NCCL: {torch.devices} GPUs would use the host (gloo)"
        return [Finding("NCCL", "bad", told, GET_CUDA_BUILD)]
    return [Finding("NCCL", "ok", "not in this build of torch; only needed for two or more GPUs")]


def _major(version: str) -> int:
    return int(version.split(".")[0])


def gpus_compute(devices: tuple[str, ...] = ()) -> list[Finding]:
    """Compute a small product on every GPU in a separate process, which is ended if it hangs."""
    devices = devices or tuple(f"cuda:{i}" for i in range(of_this_process().devices))
    if not devices:
        return []
    answer = ask([sys.executable, "-m", __name__, *devices], 120.0)
    last = next(iter(answer.said.splitlines()[-1:]), "no reason given")
    wrong = json.loads(answer.out) if answer.good else {"the test ended abnormally": last}
    told = "; ".join(f"{one}: {said}" for one, said in wrong.items() if said)
    if told:
        remedy = (
            "look for Xid errors in `sudo dmesg`, free the GPU if it is full, or, if the GPU is "
            "too old for this build of torch, install an older build"
        )
        return [Finding("GPUs compute", "bad", told, remedy)]
    return [Finding("GPUs compute", "ok", f"correct product on {', '.join(devices)}")]


def trouble(device: str) -> str:
    """Describe a device's problem; return an empty string if the device computes correctly."""
    import torch

    try:
        # Small integers: the product is exact in any order and at any precision of the units.
        a = torch.arange(64 * 48).reshape(64, 48) % 7
        b = torch.arange(48 * 32).reshape(48, 32) % 5
        there = a.to(device, torch.float32) @ b.to(device, torch.float32)
        right = bool((there.cpu() == (a @ b).float()).all())
    except (RuntimeError, AssertionError) as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    return "" if right else "the product is wrong"


if __name__ == "__main__":
    print(json.dumps({device: trouble(device) for device in sys.argv[1:]}))
