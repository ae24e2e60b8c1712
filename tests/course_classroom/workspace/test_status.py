"""`course status`: one's own standing, and a room's, whatever stands in somebody's files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course_classroom import workspace
from course_classroom.cli import app
from course_classroom.cli.base import ROOT
from course_classroom.judge import frame
from course_classroom.leases import take
from course_classroom.progress.log import Progress
from course_classroom.workspace.overview import search

LESSON = "notebooks/00_start_here.ipynb"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "room" / "ana" / "work"
    monkeypatch.setenv("COURSE_WORK", str(folder))
    workspace.open_up(ROOT, folder)
    return folder


def course(*arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def lesson(number: str, *arguments: str) -> dict:
    told = json.loads(course("status", "--json", *arguments).stdout)
    return next(one for one in told["lessons"] if one["lesson"] == number)


def check(work: Path, exercise: str, outcome: str, points: int, of: int) -> None:
    facts = {"exercise": exercise, "outcome": outcome, "points": points, "of": of}
    assert Progress(work).record("check", name="", **facts) == ""


def test_a_lesson_is_listed_with_its_exercises_as_the_checks_have_them(work):
    told = json.loads(course("status", "--json").stdout)["lessons"]
    assert all(one["title"] and one["notebook"] for one in told)
    listed = {
        one["lesson"]: [(row["exercise"], row["of"]) for row in one["exercises"]]
        for one in told
        if one["lesson"].isdigit()
    }
    assert listed == {
        lesson: [(one.name, one.points) for one in ones] for lesson, ones in frame.lessons().items()
    }


def test_a_look_at_one_s_progress_loads_no_torch(work):
    code = (
        "import sys; from course_classroom.cli import app; app(['status'], standalone_mode=False); "
    )
    code += "print([heavy for heavy in ('torch', 'IPython') if heavy in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=120, check=True, cwd=ROOT,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_a_learner_has_done(work):
    check(work, "mean_over_ranks", "wrong", 0, 2)
    check(work, "mean_over_ranks", "right", 2, 2)
    check(work, "mean_over_ranks", "wrong", 0, 2)
    book = Progress(work)
    book.record("hint", exercise="who_knows", number=2)
    book.record("prediction", question="00.lost", value=2, unit="")
    book.record("measured", question="00.lost", value=1, unit="", predicted=2)
    book.record("prediction", question="01.two", value=2, unit="MB")
    since, last = (book.read().events[i]["at"] for i in (1, 2))
    told = lesson("00")
    assert told["title"] == "Start here" and told["notebook"] == LESSON and told["opened"]
    assert (told["points"], told["of"]) == (2, 3)
    assert told["predictions"] == {"made": 1, "compared": 1}
    assert lesson("01")["predictions"] == {"made": 1, "compared": 0}
    mean = {"exercise": "mean_over_ranks", "outcome": "right", "points": 2, "of": 2, "hints": 0}
    times = {"since": since, "last": last, "last_outcome": "wrong"}
    assert {**mean, **times} in told["exercises"], "the best, and when it was last tried"
    said = course("status").stdout
    assert "Lesson 00  Start here: opened, 2 of 3 points, 1 prediction recorded, 1 compared" in (
        said
    )
    since, last = (at[:16].replace("T", " ") for at in (since, last))
    line = f"right, 2 of 2, right at {since}, wrong when last checked at {last}"
    assert f"  ✓ mean_over_ranks        {line}\n" in said
    check(work, "mean_over_ranks", "right", 2, 2)
    assert "  ✓ mean_over_ranks        right, 2 of 2, last checked " in course("status").stdout
    assert "  ○ who_knows              not attempted, 0 of 1, 2 hints\n" in said


def test_the_best_outcome_counts_and_no_more_points_than_there_are(work):
    check(work, "who_knows", "not attempted", 0, 1)
    check(work, "who_knows", "wrong", 0, 1)
    assert "  ✗ who_knows              wrong, 0 of 1, last checked " in course("status").stdout
    check(work, "who_knows", "right", 100, 1)
    assert lesson("00")["points"] == 1


def test_a_half_written_line_is_named_and_the_rest_counts(work):
    check(work, "who_knows", "right", 1, 1)
    with open(work / "progress.jsonl", "a") as file:
        file.write('{"at": "2026-11-21T10:00:00+00:00", "kind": "che')
    assert lesson("00")["points"] == 1
    assert "Line 2 of progress.jsonl cannot be read; the others count." in course("status").stdout
    assert json.loads(course("status", "--json").stdout)["damaged_lines"] == [2]


def test_no_workspace_yet(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_WORK", str(tmp_path / "none"))
    ended = course("status")
    assert ended.exit_code == 1 and "`make lab` creates it" in ended.stderr
    assert not (tmp_path / "none").exists()


STRANGE = [
    {"exercise": "who_knows", "outcome": "splendid", "points": 1, "of": 1},
    {"exercise": "who_knows", "outcome": "right", "points": float("inf"), "of": 1},
    {"exercise": ["who_knows"], "outcome": "right", "points": 1, "of": 1},
    {"exercise": "who_knows", "outcome": "right", "points": 1, "of": 1, "at": "\x1b[2Jnow"},
]


@pytest.mark.parametrize("fact", STRANGE, ids=str)
def test_what_no_notebook_writes_does_not_count(work, fact):
    assert Progress(work).record("check", **fact) == ""
    assert lesson("00")["points"] == 0
    ended = course("status", "--all", str(work.parents[1]))
    assert ended.exit_code == 0 and "\x1b[2J" not in ended.stdout


@pytest.fixture
def room(work: Path, tmp_path: Path) -> Path:
    """ana/work, ben/course-work, cem/course/work, work-dora; twice a learner called ana."""
    check(work, "mean_over_ranks", "right", 2, 2)
    for place in ("ben/course-work", "cem/course/work", "work-dora", "ana/second/work"):
        workspace.open_up(ROOT, tmp_path / "room" / place)
    check(tmp_path / "room" / "ben" / "course-work", "who_knows", "right", 1, 1)
    (tmp_path / "room" / "eve").mkdir()
    (tmp_path / "room" / "eve" / "work").symlink_to(work)
    (tmp_path / "room" / "eve" / "a").mkdir()
    (tmp_path / "room" / "eve" / "a" / "work").symlink_to(work)
    deep = tmp_path / "room" / "eve" / "a" / "b" / "work"
    workspace.open_up(ROOT, deep)
    return tmp_path / "room"


def test_a_room_of_learners(room):
    told = json.loads(course("status", "--all", str(room), "--json").stdout)
    points = {
        os.path.relpath(one["workspace"], room): (one["name"], one["lessons"][0]["points"])
        for one in told["learners"]
    }
    assert points == {
        "ana/work": ("ana", 2),
        "ana/second/work": ("ana", 0),
        "ben/course-work": ("ben", 1),
        "cem/course/work": ("cem", 0),
        "work-dora": ("work-dora", 0),
    }, "no link is followed, and nothing deeper is searched"
    assert told["unreadable"] == []
    assert set(told["node"]) >= {"gpus", "cores", "memory", "claims", "problem"}
    said = course("status", "--all", str(room)).stdout
    rows = {line.split("│")[1].strip(): line for line in said.splitlines() if "│" in line}
    assert set(rows) == {
        f"ana ({room}/ana/work)",
        f"ana ({room}/ana/second/work)",
        "ben",
        "cem",
        "work-dora",
    }, "two of one name are kept apart"
    assert "│ 1/3 │ " in rows["ben"] and "│ –   │ " in rows["cem"] and "never" in rows["cem"]


def test_who_holds_what_stands_below(room, tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_LEASES", str(tmp_path / "leases"))  # where nobody else holds any
    lease = take(2)
    try:
        said = course("status", "--all", str(room)).stdout
        assert "This node:" in said and f"process {os.getpid()}" in said
        assert f"  cores: {lease.cores} of " in said
    finally:
        lease.give_back()
    assert f"process {os.getpid()}" not in course("status", "--all", str(room)).stdout


def spoil_size(file: Path) -> None:
    with open(file, "wb") as made:
        made.truncate(60_000_000)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (os.mkfifo, "not a regular file"),
        pytest.param(
            lambda file: file.symlink_to("/etc/passwd"),
            "not a regular file",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            lambda file: file.write_text("[" * 200_000),
            "not a list of events",
            marks=pytest.mark.slow,
        ),
        (spoil_size, "larger than 50 MB"),
    ],
    ids=["a pipe", "a link", "too deep", "too large"],
)
def test_a_progress_file_that_cannot_be_read_costs_its_own_row(room, spoil, reason):
    bad = room / "cem" / "course" / "work"
    spoil(bad / "progress.jsonl")
    told = json.loads(course("status", "--all", str(room), "--json").stdout)
    assert len(told["learners"]) == 4
    ((path, why),) = [tuple(one.values()) for one in told["unreadable"]]
    assert path == str(bad) and reason in why
    assert f"{bad} cannot be read: progress.jsonl" in course("status", "--all", str(room)).stdout


def test_names_that_a_terminal_would_obey_are_made_harmless(room):
    (room / "ben").rename(room / "b\x1b[2J")
    said = course("status", "--all", str(room)).stdout
    assert "\x1b[2J" not in said and "b?[2J" in said


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that somebody without any rights can reach."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


AS_NOBODY = """
import os, sys, json
from pathlib import Path
from course_classroom.workspace.overview import search
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print(json.dumps(search(Path(sys.argv[1])), default=str))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_homes_and_workspaces_that_are_closed_are_named(open_folder):
    for place in ("ana/work/.course", "ben/course-work/.course", "cem/x/.course", "cem/.ssh"):
        (open_folder / place).mkdir(parents=True)
    (open_folder / "ana").chmod(0o700)
    (open_folder / "ben" / "course-work").chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(open_folder)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    learners, unreadable = json.loads(done.stdout)
    assert learners == [["cem", f"{open_folder}/cem/x"]]
    assert unreadable == [
        [f"{open_folder}/ana", "Permission denied"],
        [f"{open_folder}/ben/course-work", "Permission denied"],
    ]


def test_all_of_something_else(tmp_path):
    ended = course("status", "--all", str(tmp_path / "nowhere"))
    assert ended.exit_code == 2 and "is not a folder" in ended.stderr
    (tmp_path / "empty").mkdir()
    ended = course("status", "--all", str(tmp_path / "empty"))
    assert ended.exit_code == 0 and "No workspace was found" in ended.stdout


def test_a_workspace_itself_is_found_too(work):
    assert search(work) == ([("work", work)], [])
