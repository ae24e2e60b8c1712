"""A folder of twelve submissions, most of them hostile or broken: right marks, and nothing left."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.course_classroom.grading.hand_in import (
    MEAN,
    RIGHT,
    WRONG,
    answered,
    blank,
    body,
    cell,
    save,
    with_cell,
)  # fmt: skip
from tests.support.commands import python

# Two cores for over a minute; what each of the twelve does has a quick test elsewhere.
pytestmark = pytest.mark.slow

HANG = body("while True:\n    pass")
# A tame one: two hundred children that end by themselves, should nobody end them.
FORK_BOMB = body(
    "import os, time\n"
    "for _ in range(200):\n"
    "    if os.fork() == 0:\n"
    "        os.setsid()\n"
    "        time.sleep(60)\n"
    "        os._exit(0)\n"
    "time.sleep(20)"
)
MEMORY_HOG = body(
    "import time\nheld = []\nfor _ in range(40):\n"
    "    held.append(torch.ones(2**25))\n    time.sleep(0.02)\ntime.sleep(20)"
)
KILLS = body("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
FORGED = """
import atexit
class Four:
    def __repr__(self): return "2"
def check(name): return Four()
"""


def _edited():
    """The check cell replaced by one that claims all points, and more of that kind above it."""
    notebook = answered(WRONG)
    cell(notebook, f"{MEAN}-check").source = "2"
    return with_cell(notebook, FORGED, place=2)


def _previous():
    """What an older release looked like: another text in a locked cell, and its checksum."""
    notebook = answered(RIGHT)
    old = cell(notebook, f"{MEAN}-check")
    old.source, old.metadata.nbgrader.checksum = f'check("{MEAN}", strict=True)', "0" * 32
    return notebook


def twelve(folder: Path) -> None:
    """One submission of each kind, in all three layouts."""
    save(answered(RIGHT), folder / "ana" / "00_start_here" / f"{MEAN}.ipynb")
    save(answered(WRONG), folder / "bob" / f"{MEAN}.ipynb")
    save(blank(), folder / "cem.ipynb")
    save(_edited(), folder / "dee.ipynb")
    save(answered(HANG), folder / "eli" / f"{MEAN}.ipynb")
    save(answered(FORK_BOMB), folder / "fay" / f"{MEAN}.ipynb")
    save(answered(MEMORY_HOG), folder / "gus" / f"{MEAN}.ipynb")
    save(answered(KILLS), folder / "hal" / f"{MEAN}.ipynb")
    (folder / "ivy").mkdir()
    (folder / "ivy" / f"{MEAN}.ipynb").write_text("def mean_over_ranks(x, group): ...\n")
    save(blank("ring_all_reduce"), folder / "jon" / "ring_all_reduce.ipynb")
    (folder / "kai.ipynb").write_text("")
    save(_previous(), folder / "lea" / f"{MEAN}.ipynb")


EXPECTED = {
    "ana": ("right", "", 2),
    "bob": ("wrong", "sum", 0),
    "cem": ("not attempted", "", 0),
    "dee": ("wrong", "sum", 0),
    "eli": ("wrong", "no end", 0),
    "fay": ("too many processes", "", 0),
    "gus": ("out of memory", "", 0),
    "hal": ("wrong", "killed", 0),
    "ivy": ("not a notebook", "", 0),
    "jon": ("wrong lesson", "", 0),
    "kai": ("empty", "", 0),
    "lea": ("right", "", 2),
}


def grade(*arguments: object, cwd: Path, **more: str) -> subprocess.CompletedProcess:
    (cwd / "t").mkdir(exist_ok=True)
    words = ("-m", "course_classroom.cli", "grade", *arguments)
    return python(*words, cwd=cwd, env={"TMPDIR": str(cwd / "t"), **more})


def left(cwd: Path) -> list[str]:
    """What still runs with a temporary folder below `cwd`, and what is still in that folder."""
    alive = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except (psutil.Error, OSError):
            continue
        if environment.get("TMPDIR", "").startswith(str(cwd)):
            alive.append(" ".join(process.cmdline()))
    return alive + [str(path) for path in (cwd / "t").iterdir()]


@pytest.fixture(scope="module")
def graded(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess]:
    cwd = tmp_path_factory.mktemp("g")
    twelve(cwd / "in")
    options = ("--lesson", "00", "--sandboxed", "--json", "--memory", "2GB", "--limit", "120")
    return cwd, grade("in", *options, cwd=cwd)


def rows_of(graded, student: str) -> list[dict]:
    rows = json.loads(graded[1].stdout)["rows"]
    found = [row for row in rows if row["student"] == student]
    return [row for row in found if row["outcome"] != "not handed in"]


@pytest.mark.parametrize("student", EXPECTED)
def test_each_of_twelve_gets_the_marks_that_it_deserves(graded, student):
    (row,) = rows_of(graded, student)
    assert (row["outcome"], row["misconception"], row["points"]) == EXPECTED[student], row


def test_what_was_odd_is_said(graded):
    assert "was edited; graded with the original" in rows_of(graded, "dee")[0]["note"]
    assert "earlier version" in rows_of(graded, "lea")[0]["note"]
    assert "ring_all_reduce of 01_collectives" in rows_of(graded, "jon")[0]["note"]


def test_some_could_not_be_graded_and_the_exit_code_says_so(graded):
    assert graded[1].returncode == 1
    assert json.loads(graded[1].stdout)["not_graded"] == 3
    assert "other people's code" in graded[1].stderr


def test_nothing_is_left_of_all_that(graded):
    assert left(graded[0]) == []
