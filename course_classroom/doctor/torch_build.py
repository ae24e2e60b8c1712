"""torch beside the driver: the right build, all GPUs visible, NCCL in it, and each GPU computing.

A CPU build on a machine with GPUs works and uses none of them, without a word; here it gets one.
Lesson 00 prints which device a rank has.
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
    "make clean, then make setup (it sees the driver now); in an environment of your own: "
    "python -m pip install --force-reinstall -c constraints.txt torch"
)


@dataclass(frozen=True)
class Torch:
    version: str
    cuda: str | None  # the CUDA it was built for
    devices: int  # GPUs that it sees
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
    """torch's build and NCCL, on a machine with an NVIDIA driver or without one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
    built = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.hip}" if torch.hip else "the CPU"
    told = f"{torch.version}, built for {built}, sees {torch.devices} GPU(s)"
    level, remedy = "bad", GET_CUDA_BUILD
    if not driver or torch.devices:
        level, remedy = "ok", ""
    elif torch.cuda is None:
        told += "; an NVIDIA driver is here, and this build cannot use it"
    elif visible is not None:
        told += f"; CUDA_VISIBLE_DEVICES={visible!r} hides the rest"
        level, remedy = "note", "unset CUDA_VISIBLE_DEVICES to use all GPUs"
    elif driver_cuda and _major(driver_cuda) < _major(torch.cuda):
        told += f"; the driver runs CUDA up to {driver_cuda}"
        remedy = f"install a driver for CUDA {_major(torch.cuda)} or newer, or a build of torch "
        remedy += f"for CUDA {_major(driver_cuda)}"
    else:
        told += ", although a driver is loaded"
        remedy = "look at `nvidia-smi`; in a container start it with --gpus all; reboot after an "
        remedy += "update"
    return [Finding("torch", level, told, remedy), *_nccl(torch)]


def _nccl(torch: Torch) -> list[Finding]:
    if torch.nccl:
        return [Finding("NCCL", "ok", f"{torch.nccl}, as built into torch")]
    if torch.devices > 1:
        told = f"torch has none, and {torch.devices} GPUs would talk through the host, by gloo"
        return [Finding("NCCL", "bad", told, GET_CUDA_BUILD)]
    return [Finding("NCCL", "ok", "not in this build of torch; it is for two GPUs or more")]


def _major(version: str) -> int:
    return int(version.split(".")[0])


def gpus_compute(devices: tuple[str, ...] = ()) -> list[Finding]:
    """A small product on every GPU, in a process of its own: one that hangs is ended."""
    devices = devices or tuple(f"cuda:{i}" for i in range(of_this_process().devices))
    if not devices:
        return []
    answer = ask([sys.executable, "-m", __name__, *devices], 120.0)
    last = next(iter(answer.said.splitlines()[-1:]), "no reason given")
    wrong = json.loads(answer.out) if answer.good else {"the trial ended badly": last}
    told = "; ".join(f"{one}: {said}" for one, said in wrong.items() if said)
    if told:
        remedy = (
            "look for Xid errors in `sudo dmesg`; free the GPU if it is full; a GPU older than "
            "this build of torch supports needs an older build"
        )
        return [Finding("GPUs compute", "bad", told, remedy)]
    return [Finding("GPUs compute", "ok", f"a product is right on {', '.join(devices)}")]


def trouble(device: str) -> str:
    """What is wrong with a device; empty where it computes."""
    import torch

    try:
        # Small whole numbers: the product is exact in any order and any precision of the units.
        a = torch.arange(64 * 48).reshape(64, 48) % 7
        b = torch.arange(48 * 32).reshape(48, 32) % 5
        there = a.to(device, torch.float32) @ b.to(device, torch.float32)
        right = bool((there.cpu() == (a @ b).float()).all())
    except (RuntimeError, AssertionError) as error:
        return next(iter(str(error).splitlines()), type(error).__name__)
    return "" if right else "the product is wrong"


if __name__ == "__main__":
    print(json.dumps({device: trouble(device) for device in sys.argv[1:]}))
