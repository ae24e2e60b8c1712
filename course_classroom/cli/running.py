"""The commands `course train`, `course dry-run` and `course stop`, which start and end ranks.

Lesson 00 shows why `stop` is rarely needed, lesson 08 uses `train`, and lesson 15 uses `dry-run`.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from course_classroom.cli.base import Json, app
from course_lib.processes.here import without_threads

PASSED_ON = {  # all options go to a program that parses them itself
    "add_help_option": False,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}


@app.command(**PASSED_ON)
def train(
    context: typer.Context,
) -> None:  # fmt: skip
    """Train a GPT over several ranks of this host (--help shows the options)."""
    with without_threads():
        from course_lib.train import launch

    raise typer.Exit(launch.main(context.args))


@app.command("dry-run", **PASSED_ON)
def dry_run(
    context: typer.Context,
) -> None:  # fmt: skip
    """Count the bytes that a rank sends and holds in a step, using only tensor shapes."""
    from course_lib.dry import command

    raise typer.Exit(command.main(context.args))


@app.command()
def stop(
    everything: Annotated[bool, typer.Option("--all",
        help="Also end ranks whose notebook is still open.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """End ranks whose notebook is closed (with --all, end all your ranks on this machine)."""
    from course_classroom.ranks import runs

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
        print(f"Ended {run['ranks']} process(es) of {run['notebook'] or 'a notebook'}.")
    if not ended:
        living = sum(len(run.living()) for run in runs.all_runs())
        more = f" {living} process(es) belong to open notebooks; --all ends them too."
        print(f"No stray ranks.{more if living else ''}")
