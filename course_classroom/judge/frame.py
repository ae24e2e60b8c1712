"""The common parts of all checks: four outcomes, named findings, hints in steps.

A lesson's file adds its exercises; each has one function that tries and judges an answer. The frame
never prints an answer. Lesson 01 has the first exercise.
"""

from __future__ import annotations

import contextlib
import importlib
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from course_classroom.judge import answer, card, general, looking, thought
from course_classroom.judge.finding import Finding, NotJudged
from course_classroom.judge.judge import A_SMALLER_GROUP, Judge, refuse_world_numbers
from course_classroom.judge.slips import meant
from course_classroom.judge.thought import Thought
from course_classroom.progress.log import MARKS, NOT_ATTEMPTED, NOT_JUDGED, RIGHT, WRONG

EMPTY = "Its body is still empty. Fill it in, run its cell, then run this cell again."
UNREADABLE = "syntax"  # the finding if Python cannot parse the answer's cell
LESSONS = "course_lessons"  # by name, because it depends on this package
_LONGEST = 300  # characters of an error in the check itself
_OF_THE_GROUP = ("group left out", "left out by an empty rank")  # recognised before, more precisely
_BROKE_OFF = ("raised", "killed", "no end", "deadlock")  # findings that are not caused by a hash


@dataclass(frozen=True)
class Exercise:
    """A function to write; `judge` raises a Finding or returns."""

    name: str  # the function that the learner writes
    title: str
    points: int
    judge: Callable[[answer.Answer, Judge], None]
    when_right: str
    hints: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """The result of a check."""

    exercise: str
    outcome: str  # NOT_ATTEMPTED, WRONG, RIGHT or NOT_JUDGED
    name: str  # the misconception, if one was recognised
    text: str
    points: int
    of: int

    def as_fact(self) -> dict:
        """Return the fields that a progress file keeps."""
        return {name: value for name, value in vars(self).items() if name != "text"}

    def __str__(self) -> str:
        head = f"{MARKS[self.outcome]} {self.exercise}: {self.outcome}"
        points = "" if self.outcome == NOT_JUDGED else f" ({self.points} of {self.of} points)"
        return f"{head}{points}\n{self.text}"

    def __repr__(self) -> str:
        # A grader that runs the notebook reads the points here; people see the card.
        return str(self.points)

    def _repr_html_(self) -> str:
        head, text = str(self).split("\n", 1)
        links = []
        if self.outcome == RIGHT:
            with contextlib.suppress(OSError):  # the folder itself may have been deleted
                links = card.onward(self.exercise, lessons(), Path.cwd())
        return card.card(self.outcome, head, text, links)


def lessons() -> dict[str, tuple[Exercise | Thought, ...]]:
    """Return the exercises of each lesson by number, from the folders of course_lessons."""
    found = {}
    for folder in sorted(Path(importlib.import_module(LESSONS).__file__).parent.glob("lesson_*")):
        module = importlib.import_module(f"{LESSONS}.{folder.name}")
        found[folder.name.removeprefix("lesson_")] = module.EXERCISES
    return found


def exercises() -> dict[str, Exercise | Thought]:
    """Return every exercise of the course by name."""
    return {one.name: one for lesson in lessons().values() for one in lesson}


def find(name: str) -> Exercise | Thought:
    """Return the exercise of that name; the error for an unknown name suggests a similar one."""
    if not isinstance(name, str):
        raise TypeError('the name of an exercise must be in quotes, as in hint("mean_over_ranks")')
    known = exercises()
    if name not in known:
        where = meant(name, known) or "its page has the name in its check"
        raise ValueError(f"there is no exercise {name!r}; {where}")
    return known[name]


def judge(
    exercise: Exercise | Thought,
    sources: Mapping[str, str],
    values: Mapping[str, object],
    judge: Judge,
) -> Verdict:
    """Try an answer. In every case this returns a verdict and leaves a working judge.

    `sources` gives for each function the last cell that defined it; `values` are the variables of
    the notebook, which contain the numbers.
    """
    outcome, name, points = RIGHT, "", 0
    try:
        if isinstance(exercise, Thought):
            text = _try_numbers(exercise, values.get(exercise.name))
        else:
            text = _try_function(exercise, sources, judge)
    except Finding as finding:
        outcome, name, text = WRONG, finding.name, finding.text
    except NotJudged as why:
        outcome, text = NOT_JUDGED, why.text
    except Exception as error:  # an error in the check, since errors of the answer are findings
        with contextlib.suppress(Exception):
            judge.stop()  # its state is unknown, so the next check starts it again
        outcome, text = NOT_JUDGED, _own_fault(error)
    else:
        if text:
            outcome = NOT_ATTEMPTED
        else:
            text, points = exercise.when_right, exercise.points
    return Verdict(exercise.name, outcome, name, text, points, exercise.points)


def _own_fault(error: Exception) -> str:
    """Return the message for an error in the check itself."""
    said = " ".join("".join(traceback.format_exception_only(error)).split())
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        "The check itself has failed, so this says nothing about your answer. Run it again. If it "
        "fails again, please report this line and your answer to the maintainers of the "
        f"course:\n{said[:_LONGEST]} ({Path(last.filename).name}, line {last.lineno})"
    )


def _try_function(exercise: Exercise, sources: Mapping[str, str], judge: Judge) -> str:
    """Raise a Finding if the function is wrong; return why it is not attempted, or nothing."""
    try:
        found = answer.read(exercise.name, sources)
    except SyntaxError as error:
        where = f" in line {error.lineno + 1}" if error.lineno else ""
        raise Finding(UNREADABLE, f"Python cannot read the cell{where}: {error.msg}.") from None
    if not found.cells:
        return f"No %%ranks cell has defined {exercise.name} yet. Run the cell that contains it."
    if not found.attempted:
        return EMPTY
    with looking.rounded() as misses:
        try:
            exercise.judge(found, judge)
        except Finding as finding:
            smaller = A_SMALLER_GROUP.search(finding.text)
            if smaller and finding.name not in _OF_THE_GROUP:
                refuse_world_numbers(found, smaller[0])
            if found.hashes_text and finding.name not in _BROKE_OFF:
                raise general.SAYS("hash of a string", what=finding.text) from None
            only_rounded = misses.kinds and not misses.off and "rounded" not in finding.name
            if only_rounded and finding.name not in _BROKE_OFF:
                raise general.rounding(misses.kinds, finding.text) from None
            raise
    return ""


def _try_numbers(question: Thought, given: object) -> str:
    if given is None:
        return (
            f"There is no `{question.name}` yet. Its cell is missing, was stopped before its end, "
            "or has not run since the kernel was started. Run that cell, then this one again."
        )
    blank = thought.blanks(question, given)
    if blank:
        some = len(blank) < len(question.fields)
        missing = f" for {', '.join(map(repr, blank))}" if some else ""
        return (
            f"Still blank{missing}. Replace each `...` by a number in the cell that defines "
            f"`{question.name}`, run that cell, then this one again. Any numbers already there "
            "count once their cell has run to its end."
        )
    question.judge(thought.as_numbers(question, given))
    return ""
