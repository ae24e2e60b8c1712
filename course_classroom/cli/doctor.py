"""The `course doctor` command, which examines this machine and prints findings and remedies.

The exit code is 1 if a finding is bad. Lesson 00 refers to this command.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from course_classroom.cli.base import ROOT, Json, app

if TYPE_CHECKING:
    from rich.console import Console

    from course_classroom.doctor.examine import Report
    from course_classroom.doctor.finding import Finding

COLOURS = {"ok": "green", "note": "yellow", "bad": "bold red"}


@app.command()
def doctor(
    world: Annotated[int, typer.Option(help="Number of ranks in the test all-reduce.", min=2)] = 2,
    as_json: Json = False,
) -> None:
    """Check whether this machine can run the course, and list remedies for problems."""
    from course_classroom.doctor.examine import examine

    if as_json:
        report = examine(ROOT, world)
        print(json.dumps(report.as_json()))
    else:
        from rich.console import Console

        console = Console(highlight=False, soft_wrap=True, force_jupyter=False)
        report = examine(ROOT, world, lambda finding: show(console, finding))
        conclude(console, report)
    raise typer.Exit(1 if report.bad else 0)


def show(console: Console, finding: Finding) -> None:
    from rich.text import Text

    first = next(iter(finding.found.splitlines()), "")
    console.print(
        Text(f"{finding.level:<5}", COLOURS[finding.level]), Text(f"{finding.name:<19} {first}")
    )


def conclude(console: Console, report: Report) -> None:
    """Print the bandwidths, then the notes with a remedy, then the problems in full."""
    from rich.text import Text

    for row in report.bandwidth:
        console.print(
            Text(
                f"      {row['bytes']:>10,} bytes {row['seconds'] * 1e3:>9.3f} ms "
                f"{row['gb_per_s']:>7.3f} GB/s"
            )
        )
    for level, head in (("note", "Notes"), ("bad", "To be fixed")):
        chosen = [one for one in report.findings if one.level == level and one.remedy]
        if chosen:
            console.print(Text(f"\n{head}:", COLOURS[level]))
        for one in chosen:
            # A note's text is printed above already, but a problem is repeated in full.
            console.print(Text(f"{one.name}: {one.found}" if level == "bad" else one.name))
            console.print(Text(f"    remedy: {one.remedy}"))
    if not report.bad:
        console.print(Text("\nThe course can run on this machine.", COLOURS["ok"]))
