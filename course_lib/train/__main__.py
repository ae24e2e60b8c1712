"""`python -m course_lib.train`, under torchrun, srun or alone: the program, its bar, its picture.

The picture is drawn by course_classroom, where that is installed. Lesson 12.
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

PICTURE = "course_classroom.figures.run_summary"  # by name: the library does without it


def train(options: Options, me: ranks.Me, stop: Stop) -> None:
    done = program.train(options, me, stop, display(options))
    if me.rank:
        return
    if options.plot:
        done["figure"] = draw(done)
    if options.json:
        print(json.dumps(done), file=Unbroken(sys.stdout), flush=True)


def display(options: Options) -> Show:
    """A bar on a terminal, lines elsewhere; standard output is JSON's alone where that is asked."""
    stream = sys.stderr if options.json else sys.stdout
    if stream.isatty():
        try:
            return ProgressBar(options.steps, stream)
        except ImportError:  # rich comes with the command line
            pass
    return Lines(stream)


class ProgressBar:
    """A progress bar with the time left; what is said stands above it.

    Step and time left are always whole, and the words between them are cut on a narrow terminal.
    """

    WIDTH = 16

    def __init__(self, steps: int, stream):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        console = Console(file=Unbroken(stream))
        console.show_cursor = lambda show=True: False  # a killed rank could not bring it back
        whole, words = Column(no_wrap=True), Column(no_wrap=True, overflow="ellipsis", ratio=1)
        columns = [TextColumn("step"), MofNCompleteColumn(table_column=whole)]
        columns += [BarColumn(bar_width=self.WIDTH)]
        columns += [TextColumn("{task.description}", markup=False, table_column=words)]
        columns += [TextColumn("{task.fields[left]}", table_column=whole)]
        # No thread of its own: it is drawn after each step.
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
    """run.png beside the curve; a word and no failure where it cannot be drawn."""
    picture = Path(done["out"]) / "run.png"
    try:
        run_summary = importlib.import_module(PICTURE).run_summary
        points = [(p.step, p.loss) for p in curve.read(Path(done["curve"]))]
        run_summary(points, done["validation"], done["ranks"]).save(picture)
        return str(picture)
    except (ImportError, OSError, ValueError) as error:
        missing = "; pip install 'course_lib[classroom]' brings what draws"
        more = missing if isinstance(error, ImportError) else ""
        print(f"no picture: {error}{more}", file=sys.stderr)
        return None


def forked(argv: list[str], names: list[str], *descriptors: int) -> None:
    """A rank that is a fork of its launcher: the numbers of its descriptors are other ones."""
    os.environ.update(zip(names, map(str, descriptors), strict=False))
    for number in descriptors[len(names) :]:
        os.environ[entry.RENDEZVOUS] = behind(number)
    sys.exit(entry.run(argv, train))


if __name__ == "__main__":
    sys.exit(entry.run(sys.argv[1:], train))
