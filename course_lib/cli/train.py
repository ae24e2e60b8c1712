"""`course train`: the training program on this host's ranks, without torchrun and without a port.

All that is typed goes to course_lib.train, which has its own options. Lesson 08.
"""

from __future__ import annotations

import typer

from course_lib.cli.base import app
from course_lib.prepared.here import without_threads


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def train(context: typer.Context) -> None:
    """Train a GPT over several ranks of this host; --help shows its options."""
    with without_threads():
        from course_lib.train import launch

    raise typer.Exit(launch.main(context.args))
