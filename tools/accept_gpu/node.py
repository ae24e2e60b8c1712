"""The part of a node that a verdict states: GPUs, links, versions, the commit, but no names.

No lesson derives it.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import course_lib
from course_classroom.doctor import gpus, torch_build
from course_classroom.leases.smi import ask


def describe(root: Path) -> dict[str, Any]:
    listed = gpus.listed()
    torch = torch_build.of_this_process()
    return {
        "gpus": [{"name": one.name, "memory": one.total} for one in listed],
        "links": gpus.links_in_words(gpus.read_links(gpus.nvidia_smi(["topo", "-m"]).out)),
        "driver": listed[0].driver if listed else "",
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {
            "course": course_lib.__version__,
            "python": platform.python_version(),
            "torch": torch.version,
            "cuda": torch.cuda or "",
            "nccl": torch.nccl or "",
        },
        "commit": commit(root),
    }


def commit(root: Path) -> str:
    """Return the commit, marked if files were changed since; empty without git information."""
    found = ask(["git", "rev-parse", "HEAD"], folder=root)
    if not found.good:
        return ""
    changed = ask(["git", "status", "--porcelain", "--untracked-files=no"], folder=root).out
    return found.out.strip() + (" with changes" if changed.strip() else "")
