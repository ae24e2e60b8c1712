"""The judge of one submission: it reads the notebook, tries answers on ranks, and reports.

It runs below a supervisor, in a private folder with a minimal environment. The marks come from the
current checks; the submission's own output is never read.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from course_classroom.grading import plain, sealed
from course_classroom.grading.handouts import Cell, Handout
from course_classroom.grading.reading import Reading, Unreadable, answers, plain_cells, read
from course_classroom.grading.watch import end_with_parent
from course_classroom.grading.worked_out import leading_to, worked_out
from course_classroom.ranks import confine

if TYPE_CHECKING:
    from course_classroom.judge.frame import Verdict
    from course_classroom.judge.judge import Judge

TASK = "task.json"  # the worker's task, written by marking.py
LARGEST_FILE = 1 << 30  # maximum bytes of any file that a submission writes
OWN = ("home", "tmp", "r")  # folders of a submission that its processes may write to
_NO_MEMORY = ("MemoryError", "can't allocate memory", "Cannot allocate memory")


def work(task: dict, say: Callable[[dict], None]) -> None:
    """Read and judge a submission, and report every result immediately."""
    try:
        given = [Handout.from_json(one) for one in task["handouts"]]
        reading = read(Path(task["notebook"]), given, task["name"])
        if task["lesson"] not in ("", reading.handout.lesson):
            told = f"{reading.handout.name} of {reading.handout.lesson}, not of {task['lesson']}"
            raise Unreadable("wrong lesson", f"it is {told}")
    except Unreadable as why:
        say({"event": "unreadable", "outcome": why.outcome, "text": why.text})
        return
    judge, handout, notes = None, reading.handout, reading.notes
    found = {cell.id: answers(reading, cell) for cell in handout.checks}
    inner = {cell.id: beyond(reading, cell, found[cell.id]) for cell in handout.checks}
    say({"event": "read", "lesson": handout.lesson, "name": handout.name, "notes": notes})
    try:
        judge = _judge_for([c for c in handout.checks if not inner[c.id]], found)
        say({"event": "ready"})
        for cell in handout.checks:
            told = by_hand(cell, inner[cell.id])
            if not told:
                numbers = given_numbers(reading, cell, Path(os.environ["HOME"]))
                told = _verdict(cell, found[cell.id], numbers, judge)
            say({"event": "verdict", "cell": cell.id, **told})
    finally:
        if judge is not None:
            judge.stop()


def _judge_for(checks: list[Cell], found: dict[str, dict[str, str]]) -> Judge:
    """Return a judge, with its ranks running if an answer needs them."""
    from course_classroom.judge import answer
    from course_classroom.judge.finding import NotJudged
    from course_classroom.judge.judge import Judge

    judge = Judge(idle_minutes=0)
    for cell in checks:
        try:
            if answer.read(cell.exercise, found[cell.id]).attempted:
                judge.ready()
                break
        except SyntaxError:
            continue  # the verdict will report it
        except NotJudged:
            break  # each verdict will try again and report it
    return judge


def by_hand(cell: Cell, inner: list[str]) -> dict:
    """Return a verdict if a person must grade the answer, or an empty dict if a check can."""
    text = ""
    if not cell.exercise:
        text = f"the cell {cell.id} calls no check, so it is graded by hand, with nbgrader"
    elif inner:
        uses = ", ".join(inner[:5]) + (", …" if len(inner) > 5 else "")
        text = f"read it yourself: the answer uses {uses}, so it was not run"
    return {"outcome": "by hand", "name": "", "text": text, "points": 0} if text else {}


def given_numbers(reading: Reading, cell: Cell, folder: Path) -> tuple[object, str]:
    """Return a thought question's answer and a note; the answer is None for other exercises."""
    from course_classroom.judge import frame
    from course_classroom.judge.thought import Thought

    if not isinstance(frame.find(cell.exercise), Thought):
        return None, ""
    return worked_out(cell.exercise, plain_cells(reading, cell), folder)


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
    """Return the check's verdict; numbers whose computation failed are not judged."""
    from course_classroom.judge import frame

    exercise, (value, note) = frame.find(cell.exercise), numbers
    if value is None and note:
        text = f"There is nothing to judge: {note}."
        return frame.Verdict(exercise.name, frame.NOT_JUDGED, "", text, 0, exercise.points)
    return frame.judge(exercise, sources, {cell.exercise: value}, judge)


def beyond(reading: Reading, cell: Cell, sources: dict[str, str]) -> list[str]:
    """Return everything in an answer, or in the source of its numbers, that is not plain code."""
    from course_classroom.judge import answer, frame
    from course_classroom.judge.thought import Thought

    if cell.exercise and isinstance(frame.find(cell.exercise), Thought):
        return plain.odd(leading_to(cell.exercise, plain_cells(reading, cell)))
    try:
        return plain.odd(answer.read(cell.exercise, sources).cells)
    except SyntaxError:
        return []  # the verdict will report it


def limit_this_process(memory: int) -> None:
    """Set the kernel's limits per process; the supervisor watches the total."""
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
    confine.unreadable_by_others()
    seal = sealed.Seal(sys.stdin.buffer.read(sealed.KEY))
    task = json.loads(Path(TASK).read_text())
    if task["confined"]:
        own = (Path.cwd() / name for name in OWN)
        os.environ.update(confine.around(*own))  # of the ranks and of `worked_out`
    limit_this_process(task["memory"])
    os.chdir("/")  # ranks import from their start folder, which must have no files of a submission
    with os.fdopen(pipe, "wb", buffering=0) as out:
        work(task, lambda event: out.write(seal.closed(event) + b"\n"))


if __name__ == "__main__":
    main()
