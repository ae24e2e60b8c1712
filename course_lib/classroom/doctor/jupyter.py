"""JupyterLab and the kernel that notebooks run in.

Lesson 00 opens it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from course_lib.classroom.doctor.commands import ask
from course_lib.classroom.doctor.finding import Finding

GET = "make setup, or python -m pip install -c constraints.txt '.[classroom]'"


def jupyterlab(python: str = sys.executable) -> list[Finding]:
    """Its own answer to --version, and a kernel whose Python is there."""
    answer = ask([python, "-m", "jupyterlab", "--version"], 60.0)
    if not answer.good:
        why = next(iter(answer.said.splitlines()[-1:]), "no reason given")
        return [Finding("JupyterLab", "bad", f"it does not start: {why}", GET)]
    return [Finding("JupyterLab", "ok", f"{answer.out.strip()} starts")]


def kernel(name: str = "python3") -> list[Finding]:
    """The kernel named in the notebooks, and that it runs this very Python."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        found = KernelSpecManager().get_kernel_spec(name)
    except NoSuchKernel:
        told = f"there is no kernel {name!r}, which the notebooks name"
        return [Finding("kernel", "bad", told, "python -m ipykernel install --sys-prefix")]
    program = found.argv[0]
    # Jupyter itself puts the running Python in for these.
    if program in ("python", "python3", f"python{sys.version_info[0]}.{sys.version_info[1]}"):
        program = sys.executable
    if shutil.which(program) is None:
        told = f"the kernel {name!r} names {program}, which is not there"
        return [Finding("kernel", "bad", told, "python -m ipykernel install --sys-prefix")]
    if Path(program).parent != Path(sys.executable).parent:
        told = f"the kernel {name!r} runs {program}, not this environment's {sys.executable}"
        return [Finding("kernel", "note", told, "python -m ipykernel install --sys-prefix")]
    return [Finding("kernel", "ok", f"{name!r} runs this environment's Python")]
