"""Notebooks in their committed form: executed, with stable ids, and without run-specific data.

They contain no path, user, time or widget state, so two executions differ only in measured values.
A failed run leaves the old file unchanged.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_classroom.notebook.release import as_text
from course_lib.files import write_whole

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
CELL_METADATA = ("tags", "nbgrader", "deletable", "editable", "jupyter", "slideshow")
CELL_LIMIT = 120  # seconds; only a last resort, since ranks have their own deadlines
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_PATH = re.compile(r"(/[\w.+~-]+){2,}|[A-Z]:\\\\")


class NotebookFailed(RuntimeError):
    """An error for a notebook that did not run to its end; its file is unchanged."""


def refresh(paths: Iterable[Path | str], world: int) -> None:
    """Execute each notebook with `world` ranks, normalise it and write the complete file."""
    for path in map(Path, paths):
        notebook = normalise(execute(nbformat.read(path, as_version=4), path, world))
        write_whole(path, as_text(notebook))
        print(f"{path.name}: executed with {world} ranks and written")


def execute(notebook: NotebookNode, path: Path, world: int) -> NotebookNode:
    """Run all cells in a fresh kernel of this Python, in the notebook's own folder."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    with tempfile.TemporaryDirectory(prefix="course-ipython-") as folder:
        client = NotebookClient(
            notebook,
            kernel_name="python3",
            kernel_manager_class=kernel_over_files(folder),
            timeout=CELL_LIMIT,
            record_timing=False,
            resources={"metadata": {"path": str(path.resolve().parent)}},
        )
        try:
            return client.execute(env=_environment(world, folder))
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
            told = _ANSI.sub("", str(error))
            raise NotebookFailed(
                f"{path.name} did not run to its end; the file is unchanged.\n{told}"
            ) from None


def kernel_over_files(folder: str) -> type:
    """Return a kernel class for this Python and private sockets, whatever kernels are installed."""
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpecManager
    from traitlets import default

    class ThisPython(AsyncKernelManager):
        transport = "ipc"
        ip = os.path.join(folder, "kernel")

        @default("kernel_spec_manager")
        def _no_other_python(self) -> KernelSpecManager:
            return KernelSpecManager(kernel_dirs=[])

    return ThisPython


def normalise(notebook: NotebookNode) -> NotebookNode:
    """Return the same notebook with stable ids and without anything that differs between runs."""
    notebook = nbformat.from_dict(notebook)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": dict(KERNEL), "language_info": {"name": "python"}}
    )
    taken: set[str] = set()
    for cell in notebook.cells:
        cell.id = _id(cell, taken)
        taken.add(cell.id)
        kept = {k: v for k, v in sorted(cell.metadata.items()) if k in CELL_METADATA and v}
        cell.metadata = nbformat.from_dict(kept)
        if cell.cell_type == "code":
            cell.outputs = _outputs(cell.outputs)
    nbformat.validate(notebook)
    return notebook


def _id(cell: NotebookNode, taken: set[str]) -> str:
    """Return nbgrader's id, the heading or a digest of a cell, with a number if it is in use."""
    text = f"{cell.cell_type}\n{cell.source.strip()}".encode()
    base = (
        cell.metadata.get("nbgrader", {}).get("grade_id")
        or _of_heading(cell)
        or hashlib.sha1(text).hexdigest()[:10]
    )
    number, name = 1, base
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


def _of_heading(cell: NotebookNode) -> str:
    """Return the first heading as an id, so that links to a section survive changes in its text."""
    heading = re.search(r"^(?:> )?#+ (.+)$", cell.source, re.MULTILINE)
    if cell.cell_type != "markdown" or heading is None:
        return ""
    return re.sub(r"[^a-z0-9]+", "-", heading.group(1).lower()).strip("-")[:50].strip("-")


def _outputs(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Join streams, and drop empty outputs, widgets and the machine's paths in errors."""
    kept: list[NotebookNode] = []
    for output in outputs:
        output = nbformat.from_dict(output)
        kind = output.output_type
        if kind == "stream":
            if not output.text:
                continue
            if kept and kept[-1].output_type == "stream" and kept[-1].name == output.name:
                kept[-1].text += output.text
                continue
        elif kind in ("display_data", "execute_result"):
            output.pop("transient", None)
            for mime in [m for m in output.data if "widget" in m]:
                del output.data[mime]
            if not any(output.data.values()):
                continue
            shown = output.metadata
            output.metadata = nbformat.from_dict({m: shown[m] for m in output.data if m in shown})
        elif kind == "error":
            lines = [_ANSI.sub("", line) for part in output.traceback for line in part.split("\n")]
            if any(_PATH.search(line) for line in lines):
                lines = [f"{output.ename}: {output.evalue}"]
            output.traceback = lines
        kept.append(output)
    return kept


def _environment(world: int, ipython: str) -> dict[str, str]:
    env = dict(os.environ)
    for name in ("JPY_SESSION_NAME", "VSCODE_PID"):  # there is no viewer
        env.pop(name, None)
    house = str(Path(__file__).resolve().parents[2])
    path = [house, *[p for p in [env.get("PYTHONPATH")] if p]]
    env.update(
        IPYTHONDIR=ipython,
        WORLD_SIZE=str(world),
        MPLBACKEND="module://matplotlib_inline.backend_inline",
        PYTHONPATH=os.pathsep.join(path),
        PATH=os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")]),
    )
    return env
