"""`course status` and `course reset`: where a learner stands, and how a lesson is begun again.

`course status --all` is an instructor's look at a whole room. Lesson 00 names both.
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
    what: Annotated[
        str, typer.Argument(help="A lesson (03), an appendix (B), an exercise, or a path.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Begin a lesson or an exercise again: yours is kept as a backup."""
    need_the_course("reset", ROOT)
    from course_classroom import workspace

    if not what:
        there = workspace.as_list(workspace.items(ROOT))
        stop(f"Say what to reset: a lesson, an appendix, an exercise or a path. There is:\n{there}")
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
        print("Where one is open in JupyterLab: File, then Reload Notebook from Disk.")


def _as_line(one) -> str:
    if one.was == "the same":
        return f"{one.path} is as handed out already."
    kept = f"; yours is kept as {one.backup}" if one.backup else ", and there was none before"
    return f"{one.path} is as handed out{kept}."


@app.command()
def status(
    everybody: Annotated[
        Path | None,
        typer.Option("--all", metavar="DIR", help="Every learner below DIR, such as /home."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Also the lessons that you have not opened.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show how far you have come: points, hints and predictions of each lesson."""
    if everybody is None:
        _own(as_json, everything)
    elif not everybody.is_dir():
        stop(f"{everybody} is not a folder: name the one that holds the learners' folders.", 2)
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
        stop(f"There is no workspace at {work} yet: `make lab` makes it.", 1)

    from course_classroom.workspace import overview, show

    try:
        found = overview.overview(work, ROOT)
    except overview.Unreadable as why:
        stop(f"{work}: {why}. Move that file away; a new one is begun by the next check.", 1)
    print(json.dumps(found) if as_json else show.own(found, everything))


def _all(top: Path, as_json: bool) -> None:
    from course_classroom.leases import node_report
    from course_classroom.workspace import overview, show

    room, node = overview.room(top, ROOT), node_report()
    if as_json:
        print(json.dumps({**room, "node": node}))
    else:
        show.everybody(room, node)
