"""A learner's notebook in the benchmark: a real kernel, two ranks, a check and its three ranks.

Memory is proportional (shared memory is divided among its processes), so the parts add up to the
notebook's cost for its node.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import nbformat
import psutil
from nbclient import NotebookClient

from course_classroom.notebook.notebooks import kernel_over_files

# Learners have this file, so the answer is wrong. Only the check's last look detects it, so it
# takes as long as a right answer.
ATTEMPT = """
def mean_over_ranks(x, group):
    total = x.clone()
    dist.all_reduce(total, group=group)
    return total / 3
"""
SETTLED = 6.0  # seconds after the first cell, because a learner reads before the first check


class Notebook:
    """A kernel that runs cells; as a context manager it ends all of its processes."""

    def __init__(self) -> None:
        self._files = tempfile.TemporaryDirectory(prefix="course-bench-")
        self.client = NotebookClient(
            nbformat.v4.new_notebook(),
            timeout=120,
            startup_timeout=180,
            kernel_manager_class=kernel_over_files(self._files.name),
        )

    def __enter__(self) -> Notebook:
        self._kernel = self.client.setup_kernel()
        self._kernel.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self._kernel.__exit__(*error)
        self._files.cleanup()

    def run(self, source: str) -> str:
        cell = nbformat.v4.new_code_cell(source)
        self.client.nb.cells.append(cell)
        shown = self.client.execute_cell(cell, len(self.client.nb.cells) - 1).outputs
        return "".join(output.get("text", "") for output in shown)

    def seconds(self, source: str) -> float:
        began = time.perf_counter()
        self.run(source)
        return time.perf_counter() - began

    def memory(self) -> dict[str, float]:
        """Measure the megabytes of the kernel and its descendants, by kind."""
        kernel = psutil.Process(int(self.run("import os\nprint(os.getpid())")))
        parts = {"kernel": _share(kernel)}
        for process in kernel.children(recursive=True):
            kind = _kind(process)
            parts[kind] = parts.get(kind, 0.0) + _share(process)
        return {name: round(megabytes, 1) for name, megabytes in parts.items()}


def learner(runs: int) -> dict:
    """Measure the first and the next check in seconds, and a notebook's memory afterwards."""
    check = "assert check('mean_over_ranks').name == 'a fixed number of ranks'"
    first, following, parts = [], [], {}
    for _ in range(runs):
        with Notebook() as notebook:
            notebook.run("%load_ext course_classroom")
            notebook.run("from course_classroom.judge import check")
            notebook.run(f"%%ranks\n{ATTEMPT}")
            time.sleep(SETTLED)
            first.append(notebook.seconds(check))
            parts = notebook.memory()
            following.append(statistics.median(notebook.seconds(check) for _ in range(3)))
    return {
        "first_check": round(statistics.median(first), 4),
        "next_check": round(statistics.median(following), 4),
        "learner_mb": round(sum(parts.values()), 1),
        "learner_parts_mb": parts,
    }


def _kind(process: psutil.Process) -> str:
    """Return the kind of a notebook's process."""
    try:
        words = " ".join(process.cmdline())
        if "course_lib.processes.preparer" not in words:
            return "ranks" if "course_classroom.ranks.rank" in words else "others"
        return "ranks" if process.name().startswith("course-rank") else "prepared"
    except psutil.Error:
        return "others"


def _share(process: psutil.Process) -> float:
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
        kilobytes = next(line.split()[1] for line in text.splitlines() if line.startswith("Pss:"))
        return int(kilobytes) * 1024 / 1e6
    except (OSError, StopIteration):
        return process.memory_info().rss / 1e6
