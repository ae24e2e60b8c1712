"""`course stop`: what runs on this machine, and how it is ended.

Lesson 00 shows why one hardly ever needs it.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from course_lib.cli.base import Json, app


@app.command()
def stop(
    everything: Annotated[bool, typer.Option("--all", help="Of living notebooks too.")] = False,
    as_json: Json = False,
) -> None:
    """End ranks whose notebook is gone; with --all, every rank of yours on this machine."""
    from course_lib.classroom import runs

    ended = [
        {"notebook": run.notebook, "owner": run.owner, "ranks": run.end()}
        for run in runs.all_runs()
        if everything or not run.owner_alive()
    ]
    runs.sweep()
    if as_json:
        print(json.dumps({"stopped": ended}))
        return
    for run in ended:
        print(f"Ended {run['ranks']} rank(s) of {run['notebook'] or 'a notebook'}.")
    if not ended:
        living = sum(len(run.living_ranks()) for run in runs.all_runs())
        more = (
            f" {living} rank(s) belong to open notebooks; --all ends those too." if living else ""
        )
        print(f"No stray ranks.{more}")
