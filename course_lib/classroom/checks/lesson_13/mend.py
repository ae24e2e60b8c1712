"""`mend_config` of lesson 13: eight configs that DeepSpeed takes, or refuses far from the fault.

The answer mends the eight that the exercise prints, then others with the same faults and new
values. What each author meant has to be so, nothing else changed, and nothing left for `ds-check`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.lesson_13 import broken
from course_lib.classroom.checks.lesson_13.broken import Case
from course_lib.classroom.checks.lesson_13.remedies import REMEDIES, SAYS, at, changes
from course_lib.classroom.checks.looking import THREE, Looks, fresh_seed
from course_lib.collectives.call import Group

FRESH = 3  # draws beside the printed one
_MOST = 20_000  # characters; the longest config here has a few hundred


# ---- what runs on the judge's ranks
def run(function: Callable, group: Group, cases: list[tuple[str, dict, dict]]) -> dict:
    """Of each case what `function(name, config, facts)` returned, and if it changed its inputs."""
    return {"mended": [_tried(function, *case) for case in cases]}


def _tried(function: Callable, name: str, config: dict, facts: dict) -> dict:
    given, known = copy.deepcopy(config), copy.deepcopy(facts)
    out, _ = bench.watched(lambda: function(name, given, known))
    report = {"kind": type(out).__name__, "changed": (given, known) != (config, facts), "text": ""}
    if isinstance(out, Mapping):
        report["text"] = _as_json(out)
    return report


def _as_json(out: Mapping) -> str:
    """The config as text; nothing where JSON has no way to write it."""
    try:
        text = json.dumps(dict(out), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return ""
    return text if len(text) <= _MOST else ""


# ---- what is said of it
class Trial(NamedTuple):
    """The answer on the eight cases of one draw, beside what it gave for the printed ones."""

    reports: list[dict]
    cases: list[Case]
    when: str
    printed: list[dict]


def judge_mend(answer: Answer, judge: Judge) -> None:
    """The printed configs first, then fresh ones."""
    judge.take(answer, __name__)
    earlier: list[dict] = []

    def tried(seed: int) -> Trial:
        cases = broken.drawn(seed)
        when = "as the exercise prints it" if seed == broken.PRINTED else "with other values"
        sent = [(case.name, case.config, case.facts) for case in cases]
        reports = judge.trial(answer, run, sent, members=THREE, when=when)
        earlier.extend([] if earlier else reports[0]["mended"])
        return Trial(reports, cases, when, earlier)

    seeds = [broken.PRINTED, *(fresh_seed() for _ in range(FRESH))]
    LOOKS.at(answer, (tried(seed) for seed in seeds))


def _look_at_shape(one: Trial) -> None:
    for rank, report in enumerate(one.reports):
        for case, mended in zip(one.cases, report["mended"], strict=True):
            looks = {
                "nothing returned": mended["kind"] == "NoneType",
                "not a config": not mended["text"],
            }
            SAYS.refuse(looks, name=case.name, when=one.when, kind=mended["kind"], rank=rank)


def _look_at_inputs(one: Trial) -> None:
    for report in one.reports:
        for case, mended in zip(one.cases, report["mended"], strict=True):
            SAYS.refuse({"input changed": mended["changed"]}, name=case.name, when=one.when)


def _look_at_meaning(one: Trial) -> None:
    """A Finding for the first case that is not mended; it says how many others are."""
    for report in one.reports:
        found = []
        for case, mended, printed in zip(one.cases, report["mended"], one.printed, strict=True):
            try:
                _look_at(case, json.loads(mended["text"]))
            except Finding as finding:
                found.append((case, finding, _typed_in(case, mended["text"], printed["text"])))
        if not found:
            continue
        case, first, typed = found[0]
        others = len(one.cases) - len(found)
        rest = f" {others} of the eight are mended." if others else ""
        if typed and one.when != "as the exercise prints it":
            raise SAYS("typed in", name=case.name, when=one.when, text=first.text, rest=rest)
        raise Finding(first.name, f"`{case.name}`, {one.when}: {first.text}{rest}")


def _look_at(case: Case, mended: dict) -> None:
    remedy = REMEDIES[case.name]
    for path in remedy.about:
        value = at(mended, *path)
        if isinstance(value, str) and value.replace(".", "", 1).isdigit():
            raise SAYS("a number as text", path=path[-1], value=value)
    remedy.look(case, mended)
    beside = changes(case, mended)
    if beside:
        path, what = next(iter(beside.items()))
        more = f", and {len(beside) - 1} more" if len(beside) > 1 else ""
        raise SAYS("changed besides", path=".".join(path), what=what, more=more)
    left = broken.still_wrong(mended, case.facts["world"])
    if left:
        raise SAYS("another fault", left=left[0])


def _typed_in(case: Case, text: str, printed: str) -> bool:
    """Whether what the mend is about came back as for the printed config, whose values differ."""
    mine, first = json.loads(text), json.loads(printed)
    worked_out = [
        (at(mine, *path), at(first, *path))
        for path in REMEDIES[case.name].about
        if at(mine, *path) != at(case.config, *path)  # what its author has named stays
    ]
    return all(a == b for a, b in worked_out) and any(a is not None for a, _ in worked_out)


LOOKS = Looks(shape=_look_at_shape, unchanged=_look_at_inputs, value=_look_at_meaning)
MEND_CONFIG = Exercise(judge=judge_mend, **SAYS.about)
