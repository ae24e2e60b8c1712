"""`python -m course_lib.train`, with or without torchrun or srun: program, progress bar, picture.

The picture is drawn by course_classroom if that is installed. Lesson 12.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

from course_lib import ranks
from course_lib.train import curve, entry, program
from course_lib.train.options import Options
from course_lib.train.rendezvous import behind
from course_lib.train.report import Lines, Progress, Show, Unbroken, clock
from course_lib.train.stop import Stop

PICTURE = "course_classroom.figures.run_summary"  # by name, since the library does not depend on it


def train(options: Options, me: ranks.Me, stop: Stop) -> None:
    done = program.train(options, me, stop, display(options))
    if me.rank:
        return
    if options.plot:
        done["figure"] = draw(done)
    if options.json:
        print(json.dumps(done), file=Unbroken(sys.stdout), flush=True)


def display(options: Options) -> Show:
    """Create a bar for a terminal, or lines elsewhere; with --json, stdout is only for JSON."""
    stream = sys.stderr if options.json else sys.stdout
    if stream.isatty():
        try:
            return ProgressBar(options.steps, stream)
        except ImportError:  # rich is installed with the command line
            pass
    return Lines(stream)


class ProgressBar:
    """A progress bar with the time left; messages appear above it.

    Step and time left are always complete; the text between them is cut on a narrow terminal.
    """

    WIDTH = 16

    def __init__(self, steps: int, stream):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        console = Console(file=Unbroken(stream))
        console.show_cursor = lambda show=True: False  # a killed rank could not restore it
        whole, words = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)
        columns = [TextColumn("step"), MofNCompleteColumn(table_column=whole)]
        columns += [BarColumn(bar_width=self.WIDTH)]
        columns += [TextColumn("{task.description}", markup=False, table_column=words)]
        columns += [TextColumn("{task.fields[left]}", table_column=whole)]
        # It needs no thread, because it is drawn after each step.
        self.bar = RichProgress(*columns, console=console, auto_refresh=False, expand=True)
        self.task = self.bar.add_task("", total=steps, left="")
        self.drawn = False

    def say(self, text: str) -> None:
        self.bar.console.print(text, markup=False, highlight=False)

    def step(self, progress: Progress, *, due: bool) -> None:
        if not self.drawn:
            self.bar.start()
            self.drawn = True
        shown = {"description": str(progress), "left": f"{clock(progress.left)} left"}
        self.bar.update(self.task, completed=progress.point.step, refresh=True, **shown)

    def close(self) -> None:
        if self.drawn:
            self.bar.stop()


def draw(done: dict) -> str | None:
    """Draw run.png next to the curve; print a message if it cannot be drawn."""
    picture = Path(done["out"]) / "run.png"
    try:
        run_summary = importlib.import_module(PICTURE).run_summary
        points = [(p.step, p.loss) for p in curve.read(Path(done["curve"]))]
        run_summary(points, done["validation"], done["ranks"]).save(picture)
        return str(picture)
    except (ImportError, OSError, ValueError) as error:
        missing = "; pip install 'course_lib[classroom]' installs the figures"
        more = missing if isinstance(error, ImportError) else ""
        print(f"no picture: {error}{more}", file=sys.stderr)
        return None


def forked(argv: list[str], names: list[str], *descriptors: int) -> None:
    """Run a rank that is a fork of its launcher and has its descriptors under new numbers."""
    os.environ.update(zip(names, map(str, descriptors), strict=False))
    for number in descriptors[len(names) :]:
        os.environ[entry.RENDEZVOUS] = behind(number)
    sys.exit(entry.run(argv, train))


if __name__ == "__main__":
    sys.exit(entry.run(sys.argv[1:], train))
