"""`course grade` and `course check`: answers judged from the shell, many people's or one's own.

Instructors type the first on a folder of submissions, learners the second on their own notebooks;
both ask the same checks. Lesson 01 has the first exercise.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from course_classroom.cli.base import ROOT, Json, app, need_the_course, stop

UNJUDGED = 3  # the exit code where nothing was wrong, and not everything could be judged
LEAST_MEMORY = 1_500_000_000  # bytes: the judge and its three ranks alone
WITH_ANSWERS = ("solutions", "tests", ".git")
WARNING = (
    "This runs code that other people wrote, on this machine, as the user {user}. It is kept in "
    "bounds of time, memory and processes: use an account or a container made for it "
    "(docs/instructors.md)."
)
SUBMISSIONS = "STUDENT/LESSON/NOTEBOOK.ipynb, STUDENT/NOTEBOOK.ipynb or STUDENT.ipynb below it."


@app.command()
def grade(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help=SUBMISSIONS)],
    lesson: Annotated[str, typer.Option(help="Only this lesson, such as 01.")] = "",
    csv: Annotated[Path, typer.Option(help="Where the rows are written.")] = Path("grades.csv"),
    as_json: Json = False,
    limit: Annotated[float, typer.Option(help="Seconds for each notebook.", min=1)] = 60.0,
    memory: Annotated[str, typer.Option(help="For each notebook, such as 4GB.")] = "4GB",
    sandboxed: Annotated[
        bool, typer.Option("--sandboxed", envvar="COURSE_SANDBOX", help="This is a sandbox.")
    ] = False,
) -> None:
    """Grade every submission below DIR: a table, and a CSV with a row a student and exercise.

    It runs strangers' code. What counts is exercises/ and the checks; solutions/ is not needed.
    Exit code 1 where something could not be graded.
    """
    from course_classroom.grading import discover, handouts, intact, marking, rows, walls
    from course_classroom.grading.watch import Limits
    from course_lib.peers.deepspeed_config.walk import nbytes

    try:
        limits = Limits(seconds=limit, memory=nbytes(memory, "--memory"))
        if limits.memory < LEAST_MEMORY:
            least = f"{LEAST_MEMORY / 1e9:g}GB"
            raise ValueError(f"--memory {memory}: the judge's own ranks need {least} or more")
    except ValueError as error:
        stop(f"{error}.")
    if not folder.is_dir():
        stop(f"{folder} is not a folder: name the one that holds the submissions.")
    try:
        given = intact.intact(ROOT)
    except intact.Unfit as error:
        _refused(f"{error}; nothing was graded")
    chosen = handouts.of_lesson(given, lesson) if lesson else given
    if not chosen:
        lessons = ", ".join(sorted({one.lesson for one in given}))
        stop(f"there is no lesson {lesson} with exercises; there are {lessons}.")
    if os.geteuid() == 0 and not sandboxed:
        _refused(
            "this runs strangers' code and will not do so as root. Use another account, or a "
            "container, and say --sandboxed there (docs/instructors.md shows one)"
        )
    try:
        rows.check_target(csv)
        marking.Grading.check_place()
    except rows.Refused as error:
        _refused(str(error))
    submissions, aside = discover.find(folder)
    wanted = chosen[0].lesson if lesson else ""
    if wanted:
        others = {h.lesson for h in given} - {wanted}
        submissions = [one for one in submissions if one.lesson not in others]
    standing = walls.built()
    bare = [] if standing.confined else _readable_answers(ROOT)
    for text in [WARNING.format(user=_user()), str(standing), *bare, *aside]:
        _aside(text)
    if not submissions:
        _refused(f"there is nothing to grade in {folder}")
    jobs = marking.default_jobs(limits)
    grading = marking.Grading(given, limits, wanted, jobs, _aside, walls=standing)
    try:
        found = grading.grade(submissions)
    except KeyboardInterrupt:
        _refused("stopped; what was running has been ended, and nothing is written")
    if wanted:
        found = rows.with_missing(found, chosen)
    trouble = ""
    try:
        rows.write_csv(found, csv)
    except rows.Refused as error:
        trouble = str(error)
    failed = sum(not row.graded for row in found)
    if as_json:
        told = {"rows": [asdict(row) for row in found], "csv": "" if trouble else str(csv)}
        print(json.dumps(told | {"not_graded": failed, "walls": str(standing)}))
    else:
        rows.print_table(found)
        print(f"{len(found)} row(s), {failed} of them could not be graded.", end=" ")
        print("" if trouble else f"They are in {csv}.")
    if trouble:
        _refused(trouble)
    raise typer.Exit(1 if failed else 0)


@app.command()
def check(
    what: Annotated[
        str, typer.Argument(help="A lesson (01), an exercise, or the path of a notebook.")
    ],
    as_json: Json = False,
) -> None:
    """Check your own answers again, as they stand in your saved notebooks.

    Exit code 0 where all are right, 3 where the others could not be judged, else 1.
    """
    need_the_course("check", ROOT)
    from course_classroom import workspace
    from course_classroom.grading import recheck
    from course_classroom.judge.frame import NOT_JUDGED, RIGHT

    try:
        notebooks = recheck.find(what, ROOT, workspace.current(ROOT))
    except (recheck.Unknown, workspace.Refused) as error:
        stop(f"{error}.")
    found = []
    for verdict in recheck.check(notebooks, ROOT):
        found.append(verdict)
        if not as_json:
            print(f"{verdict.text}\n")
        if verdict.not_recorded:
            _aside(verdict.not_recorded)
    if as_json:
        print(json.dumps({"checks": [asdict(verdict) for verdict in found]}))
    left = [verdict.exercise for verdict in found if verdict.outcome == NOT_JUDGED]
    for name in left:
        _aside(f"Not judged, and not noted as wrong: {name}. `course check {name}` tries it again.")
    if found and all(verdict.outcome == recheck.NOT_OPENED for verdict in found):
        example = "course check exercises/01_collectives/ring_bytes.ipynb"
        _aside(f"Answers elsewhere are checked by the path of their notebook: `{example}`.")
    others = {verdict.outcome for verdict in found} - {RIGHT}
    raise typer.Exit(0 if not others else UNJUDGED if others == {NOT_JUDGED} else 1)


def _readable_answers(root: Path) -> list[str]:
    """A line where answers lie in the course that grades, in reach of what is graded."""
    there = [f"{name}/" for name in WITH_ANSWERS if (root / name).exists()]
    if not there:
        return []
    return [
        f"The code that is graded can read the answers in {root}: {', '.join(there)}. Grading does "
        "not need them: grade in a copy that `course handout` made, or keep them elsewhere."
    ]


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())


def _aside(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _refused(text: str) -> NoReturn:
    stop(f"{text}.", 1)
