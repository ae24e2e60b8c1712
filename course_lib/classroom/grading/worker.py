"""One submission judged: its notebook read, its answers tried on ranks, a line said for each.

Runs below a supervisor, in a private folder and with an environment of a few names. Marks are made
here, by today's checks; nothing that the submission prints is read. No lesson derives it.
"""

from __future__ import annotations

import ast
import json
import os
import re
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from course_lib.classroom.grading.handouts import Cell, Handout
from course_lib.classroom.grading.reading import Reading, Unreadable, answers, plain_cells, read
from course_lib.classroom.grading.watch import end_with_parent
from course_lib.classroom.grading.worked_out import worked_out

if TYPE_CHECKING:
    from course_lib.classroom.checks.frame import Verdict
    from course_lib.classroom.checks.judge import Judge

TASK = "task.json"
LARGEST_FILE = 1 << 30  # bytes that one file of a submission may grow to
# An answer has no business with these. They open the way to what measures it, which runs in the
# same process as it does; so a person decides about who uses them.
INNER = {"classroom", "_getframe", "currentframe", "f_back", "ctypes", "gc", "get_objects"}
_NO_MEMORY = ("MemoryError", "can't allocate memory", "Cannot allocate memory")


@dataclass(frozen=True)
class Task:
    """What the worker is asked, as it lies in its folder."""

    notebook: Path
    name: str  # the notebook's name in the submission, without .ipynb
    files: Path  # where the answers run: the submission's own files
    lesson: str  # the only lesson asked for; empty for any
    handouts: list[Handout]
    memory: int

    @classmethod
    def load(cls, folder: Path) -> Task:
        told = json.loads((folder / TASK).read_text())
        told["handouts"] = [Handout.from_json(one) for one in told["handouts"]]
        told["notebook"], told["files"] = Path(told["notebook"]), Path(told["files"])
        return cls(**told)


def work(task: Task, say: Callable[[dict], None]) -> None:
    """Read and judge; every finding is said as soon as it is there."""
    try:
        reading = read(task.notebook, task.handouts, task.name)
        if task.lesson and reading.handout.lesson != task.lesson:
            told = f"{reading.handout.name} of {reading.handout.lesson}, not of {task.lesson}"
            raise Unreadable("wrong lesson", f"it is {told}")
    except Unreadable as why:
        say({"event": "unreadable", "outcome": why.outcome, "text": why.text})
        return
    judge = None
    found = {cell.id: answers(reading, cell) for cell in reading.handout.checks}
    inner = {
        cell.id: reached_into(found[cell.id], cell.exercise) for cell in reading.handout.checks
    }
    handout, notes = reading.handout, reading.notes
    say({"event": "read", "lesson": handout.lesson, "name": handout.name, "notes": notes})
    try:
        judge = _judge_for([c for c in handout.checks if not inner[c.id]], found, task.files)
        say({"event": "ready"})
        for cell in handout.checks:
            told = by_hand(cell, inner[cell.id])
            if not told:
                numbers = given_numbers(reading, cell, task.files)
                told = _verdict(cell, found[cell.id], numbers, judge)
            say({"event": "verdict", "cell": cell.id, **told})
    finally:
        if judge is not None:
            judge.stop()


def _judge_for(checks: list[Cell], found: dict[str, dict[str, str]], files: Path) -> Judge:
    """A judge with its ranks running, where there is an answer for them."""
    from course_lib.classroom.checks import answer
    from course_lib.classroom.checks.finding import NotJudged
    from course_lib.classroom.checks.judge import Judge
    from course_lib.classroom.crew import START_LIMIT

    class Among(Judge):
        """Its ranks work among the submission's files, which come last where they import."""

        def start(self, *args, **kwargs) -> None:
            super().start(*args, **kwargs)
            here = str(files)
            code = (
                f"__import__('os').chdir({here!r})\n"
                "__path__ = __import__('sys').path\n"
                f"__path__[:] = [place for place in __path__ if place] + [{here!r}]"
            )
            self.everywhere(lambda r: code, START_LIMIT)

    judge = Among(idle_minutes=0)
    for cell in checks:
        try:
            if answer.read(cell.exercise, found[cell.id]).attempted:
                judge.ready()
                break
        except SyntaxError:
            continue  # the verdict will say so
        except NotJudged:
            break  # each verdict will try again, and say so
    return judge


def by_hand(cell: Cell, inner: list[str]) -> dict:
    """The verdict where a person has to decide; empty where a check can."""
    text = ""
    if not cell.exercise:
        text = f"the cell {cell.id} calls no check: it is graded by hand, with nbgrader"
    elif inner:
        text = f"read it yourself: the answer uses {', '.join(inner)}, and was not run"
    return {"outcome": "by hand", "name": "", "text": text, "points": 0} if text else {}


def given_numbers(reading: Reading, cell: Cell, files: Path) -> tuple[object, str]:
    """What a thought question was answered with, and a note; None for every other exercise."""
    from course_lib.classroom.checks import frame
    from course_lib.classroom.checks.thought import Thought

    if not isinstance(frame.find(cell.exercise), Thought):
        return None, ""
    return worked_out(cell.exercise, plain_cells(reading, cell), files)


def _verdict(
    cell: Cell, sources: dict[str, str], numbers: tuple[object, str], judge: Judge
) -> dict:
    value, note = numbers
    verdict = judged(cell, sources, numbers, judge)
    outcome, name = verdict.outcome, verdict.name
    if name == "raised" and any(said in verdict.text for said in _NO_MEMORY):
        outcome, name = "out of memory", ""
    told = {"outcome": outcome, "name": name, "text": verdict.text}
    return told | {"points": verdict.points, "notes": [note] if note and value is not None else []}


def judged(
    cell: Cell, sources: dict[str, str], numbers: tuple[object, str], judge: Judge
) -> Verdict:
    """The check's verdict; numbers that could not be worked out are neither blank nor wrong."""
    from course_lib.classroom.checks import frame

    exercise, (value, note) = frame.find(cell.exercise), numbers
    if value is None and note:
        text = f"There is nothing to judge: {note}."
        return frame.Verdict(exercise.name, frame.NOT_JUDGED, "", text, 0, exercise.points)
    return frame.judge(exercise, sources, {cell.exercise: value}, judge)


def reached_into(sources: dict[str, str], exercise: str) -> list[str]:
    """The words of an answer with which it could bend its own measuring."""
    from course_lib.classroom.checks import answer

    try:
        cells = answer.read(exercise, sources).cells
        nodes = [node for cell in cells for node in ast.walk(ast.parse(cell))]
    except SyntaxError:
        return []
    words: set[str] = set()
    for node in nodes:
        for field in ("id", "attr", "name", "module", "value"):
            text = getattr(node, field, None)
            if isinstance(text, str) and re.fullmatch(r"[\w.]+", text):
                words.update(text.split("."))
    return sorted(words & INNER)


def limit_this_process(memory: int) -> None:
    """What the kernel can bound for each process; the supervisor watches them all together."""
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, LARGEST_FILE),
        (resource.RLIMIT_DATA, memory),
    ):
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (most, most))


def main() -> None:
    end_with_parent()
    pipe = int(sys.argv[1])
    os.set_inheritable(pipe, False)
    task = Task.load(Path.cwd())
    limit_this_process(task.memory)
    os.chdir("/")  # ranks import from where they start: not from what a submission brings or writes
    with os.fdopen(pipe, "w", buffering=1) as out:
        work(task, lambda event: print(json.dumps(event), file=out, flush=True))


if __name__ == "__main__":
    main()
