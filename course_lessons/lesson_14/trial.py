"""Common parts of lesson 14's exercises: trials on the judge's ranks, and returned dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from course_classroom.judge import bench, frame, looking, words
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.judge import Judge, refuse_none


class Trial(NamedTuple):
    """One run of an answer on a group: each rank's report, and the right results."""

    reports: list
    when: str
    right: object = None

    def seen(self, key: str) -> list:
        """Return the values under a key in all ranks' dictionaries."""
        return [report["values"][key] for report in self.reports]

    def refuse(self, says: words.Words, look: str) -> None:
        """Raise the first entry that holds in a rank's table with the name `look`."""
        for rank, report in enumerate(self.reports):
            says.refuse(report[look], **{"rank": rank, **report, "when": self.when})


def keyed(out: object, keys: Sequence[str], plain: Callable) -> dict:
    """Return a report on a returned dictionary, with a table of errors in its form."""
    seen = bench.keyed(out, keys, plain)
    form = {"not a dictionary": seen["kind"] != "dict", "a key missing": seen["lost"]}
    return {**seen, "keys": ", ".join(keys), "form": form}


def exercise(
    says: words.Page, run: Callable, owed: str, trials: Callable, looks: Mapping, stops: Mapping
) -> frame.Exercise:
    """Make an exercise of `trials(tried, seed)`; it calls `tried(members, when, *given, right=…)`.

    Every rank has to return `owed`. A look may also be a table's name. `stops` maps entries to
    conditions on a Finding of the frame."""
    named = {
        at: partial(Trial.refuse, says=says, look=look) if isinstance(look, str) else look
        for at, look in looks.items()
    }

    def judge_it(answer: Answer, judge: Judge) -> None:
        def tried(members: list[int], when: str, *given: object, right: object = None) -> Trial:
            try:
                reports = judge.trial(answer, run, *given, members=members, when=when)
            except Finding as finding:
                met = {entry: so(finding) for entry, so in stops.items()}
                says.refuse(met, when=when, text=finding.text)
                raise
            if owed:
                refuse_none(reports, when, owed)
            return Trial(reports, when, right)

        judge.take(answer, run.__module__)
        looking.Looks(**named).at(answer, trials(tried, looking.fresh_seed()))

    return frame.Exercise(judge=judge_it, **says.about)
