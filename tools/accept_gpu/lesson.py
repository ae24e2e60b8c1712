"""`python -m tools.accept_gpu.lesson NOTEBOOK WORLD FOLDER`: a lesson cell by cell, errors counted.

It prints a complete line of JSON after each cell. A cell with the tag raises-exception must raise,
and a failing cell does not end the lesson. FOLDER holds the kernel's files and separate leases, so
that parallel lessons do not block the GPU. No lesson derives it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError

from course_classroom.notebook.notebooks import kernel_over_files

CELL_LIMIT = 90  # seconds
LONGEST = 1500  # characters of an error, from its end
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def main(path: Path, world: int, folder: str) -> None:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, kernel_name="python3", kernel_manager_class=kernel_over_files(folder),
        timeout=CELL_LIMIT, interrupt_on_timeout=True, allow_errors=True,
        resources={"metadata": {"path": str(path.parent)}},
    )  # fmt: skip
    os.environ.update(
        WORLD_SIZE=str(world), IPYTHONDIR=folder, COURSE_LEASES=f"{folder}/leases",
        MPLBACKEND="module://matplotlib_inline.backend_inline",
    )  # fmt: skip
    found = {"cells": 0, "errors": [], "seconds_by_cell": {}, "ended": False}
    with client.setup_kernel(env=dict(os.environ)):
        for number, cell in enumerate(notebook.cells):
            if cell.cell_type != "code":
                continue
            began = time.monotonic()
            dead = False
            try:
                client.execute_cell(cell, number)
                errors = _errors(cell)
            except (CellTimeoutError, DeadKernelError) as error:
                errors, dead = [f"{type(error).__name__}: {error}"], True
            found["cells"] += 1
            found["seconds_by_cell"][number] = round(time.monotonic() - began, 1)
            found["errors"] += [{"cell": number, "error": error[-LONGEST:]} for error in errors]
            print(json.dumps(found), flush=True)
            if dead:
                return
    print(json.dumps({**found, "ended": True}), flush=True)


def _errors(cell: nbformat.NotebookNode) -> list[str]:
    """Return a cell's errors; for a cell that must raise, report a missing error."""
    raised = [one for one in cell.outputs if one.output_type == "error"]
    if "raises-exception" in cell.metadata.get("tags", []):
        return [] if raised else ["should raise, but did not"]
    return [
        ANSI.sub("", "\n".join([*one.traceback, f"{one.ename}: {one.evalue}"])) for one in raised
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]), sys.argv[3])
