"""The `course lab` command, which opens a learner's workspace in JupyterLab on this machine.

It copies the lessons, reports updates, and locks the workspace while it runs. Access needs a token.
The first page is lesson 00.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from course_classroom.cli.base import ROOT, app, stop

OTHER_ROOT = ("--ServerApp.root_dir", "--notebook-dir", "--ServerApp.notebook_dir")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(
    context: typer.Context,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Prepare the workspace without starting JupyterLab.")
    ] = False,
) -> None:
    """Open JupyterLab with your own copies of the lessons, only on this machine.

    The copies are in work/, or in the folder that COURSE_WORK names. Other options
    are passed to JupyterLab, for example `course lab --no-browser --port 9000`.
    """
    from course_classroom import workspace
    from course_classroom.workspace import place

    options = lab_options(context.args)  # refused before anything is made
    try:
        work = workspace.chosen(ROOT)
        place.make(work, ROOT)
        if prepare:
            tell_news(workspace.open_up(ROOT, work))
            return
        with place.only_lab(work):
            tell_news(workspace.open_up(ROOT, work))
            serve(work, options)
    except workspace.Refused as refusal:
        stop(refusal, 1)


def tell_news(news) -> None:
    for line in news.lines():
        print(line, flush=True)


def serve(work: Path, options: list[str]) -> None:
    """Run JupyterLab in the workspace until it ends."""
    from course_classroom.progress.log import MARK
    from course_classroom.workspace.handed_out import first_lesson
    from course_classroom.workspace.server import ready

    prepare_environment(work)
    list_fonts()
    start = first_lesson(work)
    page = f"/lab/tree/{start}" if start else "/lab"
    if not any(o.startswith(("--LabApp.default_url", "--ServerApp.default_url")) for o in options):
        options = [f"--LabApp.default_url={page}", *options]
    # The workspace stores the open tabs, because two people may share a user name.
    layout = work / MARK / "layout"
    options = [f"--ServerApp.root_dir={work}", f"--LabApp.workspaces_dir={layout}", *options]
    sys.argv = ["jupyter-lab", *options]
    server = ready(options)
    if server.wanted not in (0, server.port):
        print(
            f"Port {server.wanted} is taken, so this JupyterLab is at port {server.port}. "
            "Open the address that it prints.",
            flush=True,
        )
    server.start()


def list_fonts() -> None:
    """Let Matplotlib search for fonts now, because its first search prints a red message."""
    import matplotlib

    if not any(Path(matplotlib.get_cachedir()).glob("fontlist-*.json")):
        print("Matplotlib searches for fonts (once).", flush=True)
        command = [sys.executable, "-c", "import matplotlib.font_manager"]
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False)


def prepare_environment(work: Path) -> None:
    """Set the environment variables that this JupyterLab's kernels and terminals inherit."""
    from course_classroom.workspace import place

    os.environ[place.VARIABLE] = str(work)  # used by `course status` and `reset`
    # Kernels find the library from any folder, and a first visit shows no notice about news.
    put_first("PYTHONPATH", ROOT)
    put_first("JUPYTER_CONFIG_PATH", ROOT / "course_classroom" / "workspace" / "jupyter")
    if shutil.which("course") is None:  # course_lib is not installed in this environment
        put_first("PATH", place.command_folder(work))


def put_first(variable: str, path: Path) -> None:
    parts = [str(path), *filter(None, os.environ.get(variable, "").split(os.pathsep))]
    os.environ[variable] = os.pathsep.join(parts)


def lab_options(extra: list[str]) -> list[str]:
    """Return JupyterLab's options: loopback only, a token, no update check, and atomic saves."""
    for option in extra:
        if "allow_unauthenticated_access" in option or option.endswith(".token="):
            raise typer.BadParameter(
                f"{option} would open this machine to everyone who can reach it"
            )
        if option.startswith(OTHER_ROOT):
            raise typer.BadParameter(
                f"{option}: name the folder with COURSE_WORK=/another/folder make lab instead"
            )
    options = [
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.contents_manager_class=course_classroom.workspace.reading_room.LearnersFiles",
        "--ServerApp.kernel_spec_manager_class=course_classroom.workspace.server.LearnersKernels",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.custom_css=True",  # our CSS, from CourseServer
    ]
    if os.geteuid() == 0:  # rented nodes and containers log in as root
        options.append("--allow-root")
    return options + extra
