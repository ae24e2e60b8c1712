"""`course lab`: JupyterLab on this machine alone, behind a token, ready to save whole files.

Lesson 00 is what it opens.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import typer

from course_lib.cli.base import ROOT, app

FIRST_LESSON = "notebooks/01_collectives_and_the_ledger.ipynb"


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(context: typer.Context) -> None:
    """Open JupyterLab on the first lesson, on this machine alone and behind a token.

    Whatever follows goes to JupyterLab: `course lab --no-browser --port 9000`.
    """
    from jupyterlab.labapp import LabApp

    options = lab_options(context.args)
    sys.argv = ["jupyter-lab", *options]
    # Kernels find the library from any folder; the notice about news stays away from a first visit.
    put_first("PYTHONPATH", ROOT)
    put_first("JUPYTER_CONFIG_PATH", ROOT / "course_lib" / "classroom" / "jupyter")
    LabApp.launch_instance(argv=options)


def put_first(variable: str, path: Path) -> None:
    parts = [str(path), *filter(None, os.environ.get(variable, "").split(os.pathsep))]
    os.environ[variable] = os.pathsep.join(parts)


def lab_options(extra: list[str]) -> list[str]:
    """JupyterLab's options: loopback, a token, no calls home, notebooks saved whole."""
    refused = [o for o in extra if "allow_unauthenticated_access" in o or o.endswith(".token=")]
    if refused:
        raise typer.BadParameter(
            f"{refused[0]} would open this machine to everybody who reaches it"
        )
    options = [
        f"--ServerApp.root_dir={ROOT}",
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.contents_manager_class=course_lib.classroom.saving.WholeFiles",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    if os.geteuid() == 0:  # rented nodes and containers log in as root
        options.append("--allow-root")
    if not any(o.startswith(("--LabApp.default_url", "--ServerApp.default_url")) for o in extra):
        options.append(f"--LabApp.default_url=/lab/tree/{FIRST_LESSON}")
    return options + extra
