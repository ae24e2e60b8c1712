"""Which build of torch goes in: a wheel at hand, the CPU build, or the one for NVIDIA GPUs.

A wheel that pip finds without an index is taken first, and then no index is asked for torch.
No lesson derives it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

from .pip_run import Pip
from .pip_words import diagnose
from .room import need_room
from .say import say

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
GPU_DOWNLOAD = 3e9  # bytes, torch and the CUDA libraries it brings
GPU_INSTALLED = 8e9
CPU_INSTALLED = 0.8e9


def has_nvidia_driver() -> bool:
    """True where the NVIDIA driver is loaded, told without importing anything."""
    if Path("/proc/driver/nvidia/version").exists():
        return True
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        done = subprocess.run([tool, "-L"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0 and b"GPU" in done.stdout


def same_release(installed: str | None, pin: str) -> bool:
    """Whether a build of torch is the pinned release; 2.13.0+cpu and 2.13.0+cu130 both are."""
    return installed is not None and installed.split("+")[0] == pin


def install_torch(pip: Pip, pin: str, installed: str | None, constraints: Path) -> str:
    """Put the pinned torch in, from the nearest place; the answer says in words which it was."""
    if same_release(installed, pin):
        return f"torch {installed} was there already"
    wanted = f"torch=={pin}"
    found, output = pip.try_install("--no-index", "--no-deps", wanted)
    if found:
        say(f"torch {pin}: from a wheel that pip found on this machine, no index asked")
        return f"torch {pin} from a local wheel"
    told = diagnose(output)
    if told is not None and "No matching distribution" not in output:
        pip.refuse(1, output)
    index = os.environ.get("TORCH_INDEX_URL")
    if index:
        say(f"torch {pin}: from TORCH_INDEX_URL, {index}")
        pip.install("--index-url", index, "--no-deps", wanted)
        return f"torch {pin} from {index}"
    if has_nvidia_driver():
        say(
            f"torch {pin}: an NVIDIA driver is here, so the build with CUDA; about "
            f"{GPU_DOWNLOAD / 1e9:.0f} GB to download, {GPU_INSTALLED / 1e9:.0f} GB installed "
            f"(TORCH_INDEX_URL={CPU_INDEX} would take the CPU build instead)"
        )
        need_room(pip.python.parent, GPU_INSTALLED, downloads=GPU_DOWNLOAD)
        pip.install("-c", str(constraints), wanted)
        return f"torch {pin} with CUDA"
    say(f"torch {pin}: no NVIDIA driver here, so the CPU build, about 200 MB, from {CPU_INDEX}")
    # On Linux the CPU build carries its own tag: asked for by name, no other index can slip in
    # the build with CUDA under the same release.
    tag = "+cpu" if platform.system() == "Linux" else ""
    pip.install("--index-url", CPU_INDEX, "--no-deps", wanted + tag)
    return f"torch {pin}, CPU build"
