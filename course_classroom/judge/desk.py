"""The learner's desk: `check`, `hint`, `predict` and `measured` in a notebook.

The desk belongs to one notebook's shell and holds its judge, the hints given and the predictions
made. Lesson 00 introduces it; lesson 01 uses it first.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from IPython import get_ipython

from course_classroom.judge import frame
from course_classroom.judge.judge import Judge
from course_classroom.judge.slips import meant, plainly
from course_classroom.progress import log as progress
from course_classroom.ranks.carried import Definitions
from course_classroom.ranks.output import watched

AT_ONCE = 0.5  # seconds; reading a verdict takes longer
_FEW = 20  # small integers need no ratio, because readers compare them at a glance


class Desk:
    """One learner's checks, hints and predictions during the life of the notebook's kernel."""

    def __init__(self) -> None:
        self.judge = Judge()
        self.hints_given: Counter[str] = Counter()
        self.predictions: dict[str, object] = {}
        self.verdicts: dict[str, frame.Verdict] = {}
        self.checked_at = -AT_ONCE  # by time.monotonic
        atexit.register(self.judge.stop)

    def check(
        self, name: str, sources: Mapping[str, str], values: Mapping[str, object] | None = None
    ) -> frame.Verdict:
        """Try the answer `name`: a function's text is in `sources`, and numbers are in `values`."""
        self.judge.enter("the check begins")
        verdict = frame.judge(frame.find(name), sources, values or {}, self.judge)
        self.checked_at = time.monotonic()
        if verdict.outcome != frame.NOT_JUDGED:
            self.verdicts[name] = verdict
            self._record("check", **verdict.as_fact())
        return verdict

    def hint(self, name: str) -> str:
        """Return the next hint; each hint reveals more than the previous hint."""
        hints = frame.find(name).hints
        if self.hints_given[name] == len(hints):
            return "\n".join(["These were all the hints:", *_numbered(hints)])
        self.hints_given[name] += 1
        self._record("hint", exercise=name, number=self.hints_given[name])
        return _numbered(hints)[self.hints_given[name] - 1]

    def predict(self, question: str, value: object, unit: str) -> str:
        """Record a prediction; `...` or None counts as a blank."""
        if not isinstance(question, str):
            raise TypeError('the question must be first, in quotes: predict("01.two", ..., "MB")')
        if value is None or value is ...:
            self.predictions.pop(question, None)
            return f"Prediction {question}: not attempted."
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise TypeError(
                "a prediction is a number without quotes or unit, or `...` for a blank; "
                f"{question} got {value!r}"
            )
        self.predictions[question] = value
        self._record("prediction", question=question, value=value, unit=unit)
        return f"Prediction {question}: {_written(value, unit)}."

    def measured(
        self, question: str, value: float | None, unit: str, formula: float | None = None
    ) -> str:
        """Compare a measured value, or the formula's value, with the prediction."""
        how = "Measured" if value is not None else "By the formula,"
        value = formula if value is None else value
        if value is None:
            raise TypeError(f"{question} has neither a measurement nor a formula")
        said = f"{how} {question}: {_written(value, unit)}."
        if question not in self.predictions:
            return f"{said} Prediction: not attempted."
        guess = self.predictions[question]
        self._record("measured", question=question, value=value, unit=unit, predicted=guess)
        if guess == value:
            return f"{said} Prediction: the same."
        return f"{said} Prediction: {_written(guess, unit)}{_beside(guess, value)}."

    def lessons(self, sources: Iterable[str], place: str) -> set[str]:
        """Return the lessons of this notebook, from its checks, hints, predictions and path."""
        names, known = {*self.verdicts, *self.hints_given, *sources}, frame.lessons()
        found = {lesson for lesson in known for one in known[lesson] if one.name in names}
        found |= {question.partition(".")[0] for question in self.predictions}  # "01.two"
        # notebooks/01_collectives.ipynb, exercises/01_collectives/ring.ipynb
        found |= {part[:2] for part in Path(place).parts[-2:] if part[2:3] == "_"}
        return found & set(known)

    def _record(self, kind: str, **fact: object) -> None:
        """Write to the workspace's progress file if the notebook is in a workspace."""
        found = progress.here()
        if found and (trouble := found.record(kind, **fact)):
            print(trouble, file=sys.stderr)


@plainly
def check(name: str | None = None) -> frame.Verdict:
    """Check the answer `name`: a function from a `%%ranks` cell, or a variable with numbers.

    On the page of an exercise the name may be omitted.
    """
    desk, defined = _desk(), _defined()
    name = _of_this_page(desk, defined) if name is None else name
    with watched(desk.judge.says):
        verdict = desk.check(name, defined.sources, _shell().user_ns)
    return _remarked(verdict, defined)


def _remarked(verdict: frame.Verdict, defined: Definitions) -> frame.Verdict:
    """Add a remark to the verdict about the definition that was judged, if the remark helps."""
    name, remark = verdict.exercise, defined.remark(verdict.exercise)
    misread = name in defined.elsewhere or verdict.name == frame.UNREADABLE
    about_cells = misread and not isinstance(frame.find(name), frame.Thought)
    if not (remark and about_cells) or verdict.outcome == frame.RIGHT:
        return verdict
    return replace(verdict, text=f"{verdict.text}\n{remark}" if name in defined.sources else remark)


@plainly
def hint(name: str | None = None) -> None:
    """Show the next hint for an exercise; on its own page the name may be omitted."""
    desk = _desk()
    if name is None:
        name = _of_this_page(desk, _defined())
        # The hint cell follows the check, and Run All is not a request for help.
        if time.monotonic() - desk.checked_at < AT_ONCE:
            print("No hint was given, because this cell ran right after the check. Run only it.")
            return
    print(desk.hint(name))


def _of_this_page(desk: Desk, defined: Definitions) -> str:
    """Return the exercise of a notebook, from its file, its last check or its cells."""
    known = frame.exercises()
    file = Path(os.environ.get("JPY_SESSION_NAME", "")).stem
    names = [file, *reversed(desk.verdicts), *defined.sources, *defined.elsewhere]
    found = next((one for one in names if one in known), None)
    if found is None:
        raise ValueError('this page is not an exercise: pass a name, as in hint("mean_over_ranks")')
    return found


@plainly
def predict(question: str, value: float | None = None, unit: str = "") -> None:
    """Record a prediction. A blank (`...`) counts as not attempted and raises no error."""
    print(_desk().predict(question, value, unit))


@plainly
def measured(
    question: str, value: float | None, unit: str = "", *, formula: float | None = None
) -> None:
    """Show the measured value next to the prediction. If the question needs more ranks, pass None
    as `value`; the value of `formula` is then shown and labelled as such."""
    print(_desk().measured(question, value, unit, formula))


def my_progress(everything: bool = False) -> None:
    """Show your progress in this notebook's lesson, or in the full course.

    `course status` in a terminal shows the same.
    """
    from course_classroom.progress import points as standing

    found = progress.here()
    if found is None:
        print(
            "There is no table, because this notebook runs outside a learner's copy of the "
            "course. Progress is recorded in a copy, which `make lab` creates."
        )
        return
    log = found.read()
    # A kernel runs in its notebook's folder, but the notebook's name may be unknown.
    place = os.environ.get("JPY_SESSION_NAME") or str(Path.cwd() / "notebook")
    magics = _shell().magics_manager.registry.get("RanksMagics")
    shown = None if everything else _desk().lessons(magics.defined.sources if magics else (), place)
    print(standing.as_text(standing.standing(log, frame.lessons()), log, shown))


@plainly
def cell_of(name: str) -> str:
    """Return the last `%%ranks` cell that defined `name`, for use on other ranks."""
    sources = _defined().sources
    if name not in sources:
        what = meant(name, sources) or "run the cell that defines it"
        raise KeyError(f"no %%ranks cell has defined {name} yet; {what}")
    return sources[name]


def _desk() -> Desk:
    shell = _shell()
    if not hasattr(shell, "course_desk"):
        shell.course_desk = Desk()
    return shell.course_desk


def _defined() -> Definitions:
    magics = _shell().magics_manager.registry.get("RanksMagics")
    if magics is None:
        raise RuntimeError("run `%load_ext course_classroom` first")
    return magics.defined


def _shell():
    shell = get_ipython()
    if shell is None:
        raise RuntimeError("checks, hints and predictions work only in a notebook; this is none")
    return shell


def _beside(guess: float, value: float) -> str:
    """Describe the ratio of a prediction to the value, unless the difference is evident."""
    few = all(isinstance(one, int) and abs(one) <= _FEW for one in (guess, value))
    if few or not value:
        return ""
    ratio = guess / value
    return ", less than 1 % off" if abs(ratio - 1) < 0.01 else f", {ratio:.3g} times as much"


def _numbered(hints: tuple[str, ...]) -> list[str]:
    return [f"Hint {i} of {len(hints)}: {text}" for i, text in enumerate(hints, 1)]


def _written(value: object, unit: str) -> str:
    return f"{value:,} {unit}".rstrip()
