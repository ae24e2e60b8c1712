"""The `course grade` and `course check` commands, which judge answers from the shell.

Instructors run `grade` on a folder of submissions, and learners run `check` on their notebooks.
Both use the same checks. Lesson 01 has the first exercise.
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

UNJUDGED = 3  # exit code if nothing was wrong, but not everything could be judged
LEAST_MEMORY = 1_500_000_000  # bytes that the judge and its three ranks need
WITH_ANSWERS = ("solutions", "tests", ".git")
WARNING = (
    "This runs other people's code on this machine, as the user {user}. It limits only time, "
    "memory and processes, so use a separate account or container (docs/instructors.md)."
)
SUBMISSIONS = (
    "Folder of submissions: STUDENT/LESSON/NOTEBOOK.ipynb, STUDENT/NOTEBOOK.ipynb or STUDENT.ipynb."
)


@app.command()
def grade(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help=SUBMISSIONS)],
    lesson: Annotated[str, typer.Option(
        help="Number of the lesson to grade, e.g. 01 (default: all lessons).")] = "",
    csv: Annotated[Path, typer.Option(
        help="CSV file to write, with a row per student and exercise.")] = Path("grades.csv"),
    as_json: Json = False,
    limit: Annotated[float, typer.Option(min=1,
        help="Time limit for each notebook, in seconds.")] = 60.0,
    memory: Annotated[str, typer.Option(help="Memory limit for each notebook, e.g. 4GB.")] = "4GB",
    sandboxed: Annotated[bool, typer.Option("--sandboxed", envvar="COURSE_SANDBOX",
        help="Confirm that this command runs in a sandbox.")] = False,
) -> None:  # fmt: skip
    """Grade every submission below DIR, and write the results to a CSV file.

    The file has a row per student and exercise. Grading runs other people's code.
    It needs exercises/ and the checks, but not solutions/. The exit code is 1 if
    a submission could not be graded.
    """
    from course_classroom.grading import discover, handouts, intact, marking, rows, walls
    from course_classroom.grading.watch import Limits
    from course_lib.peers.deepspeed_config.walk import nbytes

    try:
        limits = Limits(seconds=limit, memory=nbytes(memory, "--memory"))
        if limits.memory < LEAST_MEMORY:
            least = f"{LEAST_MEMORY / 1e9:g}GB"
            raise ValueError(f"--memory {memory}: the judge's ranks need {least} or more")
    except ValueError as error:
        stop(f"{error}.")
    if not folder.is_dir():
        stop(f"{folder} is not a folder. Name the folder with the submissions.")
    try:
        given = intact.intact(ROOT)
    except intact.Unfit as error:
        _refused(f"{error}; nothing was graded")
    chosen = handouts.of_lesson(given, lesson) if lesson else given
    if not chosen:
        lessons = ", ".join(sorted({one.lesson for one in given}))
        stop(f"there is no lesson {lesson} with exercises. Choose one of {lessons}.")
    if os.geteuid() == 0 and not sandboxed:
        _refused(
            "this runs other people's code, so it refuses to run as root. Use a different account, "
            "or a container with --sandboxed (docs/instructors.md shows an example)"
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
        _refused("stopped; the running notebooks have been ended, and nothing is written")
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
    what: Annotated[str, typer.Argument(
        help="Number of a lesson (e.g. 01), name of an exercise, or path of a notebook.")],
    as_json: Json = False,
) -> None:  # fmt: skip
    """Check the answers in your saved notebooks again.

    The exit code is 0 if all answers are right, 3 if no answer is wrong but some
    could not be judged, and 1 otherwise.
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
        _aside(
            f"Not judged, so not counted as wrong: {name}. `course check {name}` tries it again."
        )
    if found and all(verdict.outcome == recheck.NOT_OPENED for verdict in found):
        example = "course check exercises/01_collectives/ring_bytes.ipynb"
        _aside(f"To check a notebook in a different folder, name its path: `{example}`.")
    others = {verdict.outcome for verdict in found} - {RIGHT}
    raise typer.Exit(0 if not others else UNJUDGED if others == {NOT_JUDGED} else 1)


def _readable_answers(root: Path) -> list[str]:
    """Return a warning if the graded code can read answers in the course's folder."""
    there = [f"{name}/" for name in WITH_ANSWERS if (root / name).exists()]
    if not there:
        return []
    return [
        f"The graded code can read the answers in {root}: {', '.join(there)}. Grading does not "
        "need them, so grade in a copy made by `course handout`, or keep them elsewhere."
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
