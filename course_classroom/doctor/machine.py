"""Checks of the cores, memory, shared memory and open files that this process may use.

Lesson 00 prints the same numbers for the reader's own machine.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path

from course_classroom.doctor.finding import Finding, size
from course_classroom.leases.machine import Limits, allowed_cores, limits

SHM = Path("/dev/shm")
# NCCL opens about 10 MB for each neighbour of each rank; a container starts with 64 MB in total.
SHM_PER_GPU = 64e6
SHM_LEAST = 16e6
SHM_REMEDY = (
    "a container gets more with `docker run --shm-size=8g` (or --ipc=host, in Kubernetes an "
    "emptyDir with medium: Memory on /dev/shm), others by `sudo mount -o remount,size=8G /dev/shm`"
)
FILES_LEAST, FILES_COMFORT = 256, 1024


def cpu(allowed: int | None = None, bounds: Limits | None = None) -> list[Finding]:
    allowed = allowed or allowed_cores()
    usable = min(allowed, (bounds or limits()).cores or allowed)
    told = f"this process may use {usable:g} core{'s' if usable != 1 else ''} of {os.cpu_count()}"
    if usable < 2:
        more = "give the container or job at least two cores (docker --cpus, SLURM --cpus-per-task)"
        told += ", so two ranks take turns and everything takes about twice as long"
        return [Finding("CPU", "note", told, more)]
    return [Finding("CPU", "ok", told)]


def memory(
    total: int | None = None,
    available: int | None = None,
    bounds: Limits | None = None,
    gpus: int | None = None,
) -> list[Finding]:
    """Report whether memory suffices for two ranks, and for the four ranks of some exercises."""
    import psutil

    from course_classroom.leases.gpus import visible_count
    from course_classroom.leases.share import rank_bytes

    each = rank_bytes(visible_count(os.environ) if gpus is None else gpus)
    now = psutil.virtual_memory()
    total = now.total if total is None else total
    free = now.available if available is None else available
    bounds = bounds or limits()
    told = f"{size(total)} in total, {size(free)} available"
    if bounds.memory is not None and bounds.memory < total:
        told += f"; the container may use {size(bounds.memory)}, {size(bounds.left or 0)} left"
        free = min(free, bounds.left or 0)
    remedy = (
        "close other notebooks, end stray ranks with `course stop --all`, or give the machine or "
        "container more memory (docker --memory, SLURM --mem)"
    )
    for ranks, level in ((2, "bad"), (4, "note")):
        if free < ranks * each:
            told += f"; {ranks} ranks need {size(ranks * each)}"
            return [Finding("memory", level, told, remedy)]
    return [Finding("memory", "ok", told)]


def shared_memory(folder: Path = SHM, gpus: int = 0, free: int | None = None) -> list[Finding]:
    """Report the space in /dev/shm, which NCCL needs and gloo does not."""
    name = "shared memory"
    if not folder.is_dir():
        if sys.platform != "linux":
            return [Finding(name, "ok", f"this system has no {folder} and does not need it")]
        return [Finding(name, "bad", f"{folder} is missing", f"sudo mount -t tmpfs shm {folder}")]
    free = shutil.disk_usage(folder).free if free is None else free
    told = f"{folder}: {size(free)} free"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 20))
            file.flush()
    except OSError as error:
        return [Finding(name, "bad", f"{told}; it is not writable: {error.strerror}", SHM_REMEDY)]
    needed = max(SHM_LEAST, SHM_PER_GPU * gpus if gpus > 1 else 0)
    if free < needed:
        who = f"NCCL on {gpus} GPUs needs" if gpus > 1 else "torch's own workers need"
        return [Finding(name, "bad", f"{told}; {who} {size(needed)}", SHM_REMEDY)]
    return [Finding(name, "ok", told)]


def open_files(soft: int | None = None) -> list[Finding]:
    """Report the limit on the files and sockets that this process may hold open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if soft is None else soft
    unlimited = soft == resource.RLIM_INFINITY
    told = "no limit" if unlimited else f"at most {soft}"
    for least, level in ((FILES_LEAST, "bad"), (FILES_COMFORT, "note")):
        if soft < least and not unlimited:
            told += f"; notebooks with ranks need {least}"
            remedy = "`ulimit -n 4096` in the shell that starts JupyterLab"
            return [Finding("open files", level, told, remedy)]
    return [Finding("open files", "ok", told)]
