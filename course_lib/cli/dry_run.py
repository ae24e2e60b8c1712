"""`course dry-run`: a step of the training program as rank r of N, without memory or network.

All that is typed goes to course_lib.dry, which knows the options of `course train` as well. Lesson
15.
"""

from __future__ import annotations

import typer

from course_lib.cli.base import app


@app.command(
    "dry-run",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def dry_run(context: typer.Context) -> None:
    """Count what any rank of any world sends and holds in a step, on shapes alone."""
    from course_lib.dry import command

    raise typer.Exit(command.main(context.args))
