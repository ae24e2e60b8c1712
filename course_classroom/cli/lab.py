"""`course lab`: a learner's workspace in JupyterLab, on this machine alone and behind a token.

It makes the copies, says what is new, and holds the workspace while it runs. Lesson 00 is what it
opens.
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
        bool, typer.Option("--prepare", help="Make the workspace ready, and start nothing.")
    ] = False,
) -> None:
    """Open JupyterLab on your own copies of the lessons, on this machine alone.

    They are in work/, or where COURSE_WORK says. Whatever follows goes to JupyterLab:
    `course lab --no-browser --port 9000`.
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
    """JupyterLab until it is ended."""
    from course_classroom.progress.log import MARK
    from course_classroom.workspace.handed_out import first_lesson
    from course_classroom.workspace.server import ready

    prepare_environment(work)
    list_fonts()
    start = first_lesson(work)
    page = f"/lab/tree/{start}" if start else "/lab"
    if not any(o.startswith(("--LabApp.default_url", "--ServerApp.default_url")) for o in options):
        options = [f"--LabApp.default_url={page}", *options]
    # Which tabs are open belongs to the workspace: two people may share a user name.
    layout = work / MARK / "layout"
    options = [f"--ServerApp.root_dir={work}", f"--LabApp.workspaces_dir={layout}", *options]
    sys.argv = ["jupyter-lab", *options]
    server = ready(options)
    if server.wanted not in (0, server.port):
        print(
            f"Port {server.wanted} is taken, so this JupyterLab is at port {server.port}: "
            "follow the address that it prints.",
            flush=True,
        )
    server.start()


def list_fonts() -> None:
    """Let Matplotlib look for fonts, which it does once for each user and tells of in red."""
    import matplotlib

    if not any(Path(matplotlib.get_cachedir()).glob("fontlist-*.json")):
        print("Matplotlib looks for fonts, once.", flush=True)
        command = [sys.executable, "-c", "import matplotlib.font_manager"]
        subprocess.run(command, stderr=subprocess.DEVNULL, check=False)


def prepare_environment(work: Path) -> None:
    """What kernels and terminals of this JupyterLab inherit."""
    from course_classroom.workspace import place

    os.environ[place.VARIABLE] = str(work)  # `course status` and `reset` mean this workspace
    # Kernels find the library from any folder; the notice about news stays away from a first visit.
    put_first("PYTHONPATH", ROOT)
    put_first("JUPYTER_CONFIG_PATH", ROOT / "course_classroom" / "workspace" / "jupyter")
    if shutil.which("course") is None:  # an environment that does not hold course_lib itself
        put_first("PATH", place.command_folder(work))


def put_first(variable: str, path: Path) -> None:
    parts = [str(path), *filter(None, os.environ.get(variable, "").split(os.pathsep))]
    os.environ[variable] = os.pathsep.join(parts)


def lab_options(extra: list[str]) -> list[str]:
    """JupyterLab's options: loopback, a token, no calls home, notebooks saved whole."""
    for option in extra:
        if "allow_unauthenticated_access" in option or option.endswith(".token="):
            raise typer.BadParameter(
                f"{option} would open this machine to everybody who reaches it"
            )
        if option.startswith(OTHER_ROOT):
            raise typer.BadParameter(
                f"{option}: the folder is named by a variable, COURSE_WORK=/another/folder make lab"
            )
    options = [
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.contents_manager_class=course_classroom.workspace.reading_room.LearnersFiles",
        "--ServerApp.kernel_spec_manager_class=course_classroom.workspace.server.LearnersKernels",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.custom_css=True",  # ours, of CourseServer
    ]
    if os.geteuid() == 0:  # rented nodes and containers log in as root
        options.append("--allow-root")
    return options + extra
