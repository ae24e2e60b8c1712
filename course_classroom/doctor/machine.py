"""Cores, memory, shared memory and open files: what the machine gives this process, not the box.

Lesson 00 prints the same numbers of the reader's own machine.
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
# NCCL opens some ten MB for each neighbour of each rank; a container starts with 64 MB in all.
SHM_PER_GPU = 64e6
SHM_LEAST = 16e6
SHM_REMEDY = (
    "a container gets more with `docker run --shm-size=8g` (or --ipc=host; in Kubernetes an "
    "emptyDir with medium: Memory on /dev/shm); else `sudo mount -o remount,size=8G /dev/shm`"
)
FILES_LEAST, FILES_COMFORT = 256, 1024


def cpu(allowed: int | None = None, bounds: Limits | None = None) -> list[Finding]:
    allowed = allowed or allowed_cores()
    usable = min(allowed, (bounds or limits()).cores or allowed)
    told = f"{usable:g} core{'s' if usable != 1 else ''} for this process, of {os.cpu_count()}"
    if usable < 2:
        more = "give the container or job two cores or more (docker --cpus, SLURM --cpus-per-task)"
        told += ": two ranks take turns, and everything takes about twice as long"
        return [Finding("CPU", "note", told, more)]
    return [Finding("CPU", "ok", told)]


def memory(
    total: int | None = None,
    available: int | None = None,
    bounds: Limits | None = None,
    gpus: int | None = None,
) -> list[Finding]:
    """Whether two ranks fit, and four, which some exercises start."""
    import psutil

    from course_classroom.leases.gpus import visible_count
    from course_classroom.leases.share import rank_bytes

    each = rank_bytes(visible_count(os.environ) if gpus is None else gpus)
    now = psutil.virtual_memory()
    total = now.total if total is None else total
    free = now.available if available is None else available
    bounds = bounds or limits()
    told = f"{size(total)}, {size(free)} of it available"
    if bounds.memory is not None and bounds.memory < total:
        told += f"; the container's limit is {size(bounds.memory)}, {size(bounds.left or 0)} left"
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
    """Room in /dev/shm: NCCL's ranks meet there, gloo's ranks do not."""
    name = "shared memory"
    if not folder.is_dir():
        if sys.platform != "linux":
            return [Finding(name, "ok", f"no {folder} on this system, and none is needed")]
        return [Finding(name, "bad", f"{folder} is not there", f"sudo mount -t tmpfs shm {folder}")]
    free = shutil.disk_usage(folder).free if free is None else free
    told = f"{folder}: {size(free)} free"
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 20))
            file.flush()
    except OSError as error:
        return [Finding(name, "bad", f"{told}; it cannot be written: {error.strerror}", SHM_REMEDY)]
    needed = max(SHM_LEAST, SHM_PER_GPU * gpus if gpus > 1 else 0)
    if free < needed:
        who = f"NCCL on {gpus} GPUs needs" if gpus > 1 else "torch's own workers need"
        return [Finding(name, "bad", f"{told}; {who} {size(needed)}", SHM_REMEDY)]
    return [Finding(name, "ok", told)]


def open_files(soft: int | None = None) -> list[Finding]:
    """How many files and sockets this process may hold open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if soft is None else soft
    unlimited = soft == resource.RLIM_INFINITY
    told = "no limit" if unlimited else f"{soft} at most"
    for least, level in ((FILES_LEAST, "bad"), (FILES_COMFORT, "note")):
        if soft < least and not unlimited:
            told += f"; notebooks with ranks need {least}"
            remedy = "`ulimit -n 4096` in the shell that starts JupyterLab"
            return [Finding("open files", level, told, remedy)]
    return [Finding("open files", "ok", told)]
