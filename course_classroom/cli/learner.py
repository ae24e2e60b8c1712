"""The `course status` and `course reset` commands: a learner's progress, and a fresh copy.

`course status --all` shows an instructor all learners. Lesson 00 introduces both commands.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from course_classroom.cli.base import ROOT, Json, app, need_the_course, stop


@app.command()
def reset(
    what: Annotated[str, typer.Argument(
        help="Number of a lesson (e.g. 03), letter of an appendix (e.g. B), name of an exercise, "
        "or path of a notebook (omit it to list them all).")] = "",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Restore the original of a lesson or an exercise, and keep your version as a backup."""
    need_the_course("reset", ROOT)
    from course_classroom import workspace

    if not what:
        there = workspace.as_list(workspace.items(ROOT))
        stop(f"Name a lesson, an appendix, an exercise or a path to reset. Choose from:\n{there}")
    try:
        work = workspace.current(ROOT)
        chosen = workspace.find(what, ROOT, work)
        done = workspace.renew(chosen, ROOT, work, datetime.now())
    except (workspace.Unknown, workspace.Refused) as error:
        stop(error, 2 if isinstance(error, workspace.Unknown) else 1)
    if as_json:
        print(json.dumps({"workspace": str(work), "reset": [vars(one) for one in done]}))
        return
    for one in done:
        print(_as_line(one))
    if any(one.was != "the same" for one in done):
        print("If a notebook is open in JupyterLab, choose File, then Reload Notebook from Disk.")


def _as_line(one) -> str:
    if one.was == "the same":
        return f"{one.path} is already as handed out."
    kept = f"; yours is kept as {one.backup}" if one.backup else ", and there was none before"
    return f"{one.path} is as handed out{kept}."


@app.command()
def status(
    everybody: Annotated[Path | None, typer.Option("--all", metavar="DIR",
        help="Show the status of every learner whose folder is below DIR, e.g. /home.")] = None,
    everything: Annotated[bool, typer.Option("--everything",
        help="Also show lessons that you have not opened.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Show your points, hints and predictions for each lesson."""
    if everybody is None:
        _own(as_json, everything)
    elif not everybody.is_dir():
        stop(f"{everybody} is not a folder. Name the folder with the learners' folders.", 2)
    else:
        _all(everybody.resolve(), as_json)


def _own(as_json: bool, everything: bool) -> None:
    from course_classroom import workspace
    from course_classroom.progress import log as progress

    try:
        work = workspace.current(ROOT)
    except workspace.Refused as refusal:
        stop(str(refusal), 1)
    if not (work / progress.MARK).is_dir():
        stop(f"There is no workspace at {work} yet; `make lab` creates it.", 1)

    from course_classroom.workspace import overview, show

    try:
        found = overview.overview(work, ROOT)
    except overview.Unreadable as why:
        stop(f"{work}: {why}. Move that file away, and the next check creates a new file.", 1)
    print(json.dumps(found) if as_json else show.own(found, everything))


def _all(top: Path, as_json: bool) -> None:
    from course_classroom.leases import node_report
    from course_classroom.workspace import overview, show

    room, node = overview.room(top, ROOT), node_report()
    if as_json:
        print(json.dumps({**room, "node": node}))
    else:
        show.everybody(room, node)
