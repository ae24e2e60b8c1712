"""A learner's copy in use: answers are checked and graded in it as in the full course."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from course_lib.classroom import confine, learners_copy
from tests.commands import python
from tests.grading.hand_in import (
    MEAN,
    RIGHT,
    RING,
    ROOT,
    WHO,
    WHO_RIGHT,
    WRONG,
    answered,
    blank,
    save,
    solution,
)
from tests.grading.test_learners_copy import whole_clone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    clone = whole_clone(tmp_path_factory.mktemp("c") / "course")
    return Path(learners_copy.make(clone, tmp_path_factory.mktemp("l") / "c").folder)


def course(root: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess:
    """`course` of the tree at `root`."""
    (cwd / "t").mkdir(exist_ok=True)
    own = {"COURSE_WORK": str(cwd / "work"), "TMPDIR": str(cwd / "t"), "PYTHONPATH": str(root)}
    return python("-m", "course_lib.cli", *words, cwd=cwd, env=own)


def test_it_grades_as_the_full_course_does(copy, tmp_path_factory):
    cwd = tmp_path_factory.mktemp("g")
    for student, notebook in {
        "ana": answered(RIGHT),
        "bob": answered(WRONG),
        "cem": blank(),
        "dee": answered(WHO_RIGHT, WHO),
        "eli": solution(RING),
    }.items():
        save(notebook, cwd / "in" / f"{student}.ipynb")
    tables = {}
    for root in (ROOT, copy):
        done = course(root, "grade", "in", "--sandboxed", "--json", cwd=cwd)
        assert done.returncode == 0, done.stderr
        reached = root == ROOT and not confine.version()
        assert ("can read the answers" in done.stderr) == reached
        tables[root] = json.loads(done.stdout)["rows"]
    assert tables[ROOT] == tables[copy]
    points = {row["student"]: (row["points"], row["max"]) for row in tables[copy]}
    assert points == {"ana": (2, 2), "bob": (0, 2), "cem": (0, 2), "dee": (1, 1), "eli": (4, 4)}


def test_a_learner_s_commands_work_in_it(copy, tmp_path_factory):
    cwd = tmp_path_factory.mktemp("w")
    done = course(copy, "lab", "--prepare", cwd=cwd)
    assert done.returncode == 0 and "Your own copies are in" in done.stdout, done.stderr
    mine = cwd / "work" / "exercises" / "00_start_here" / f"{MEAN}.ipynb"
    assert mine.read_bytes() == (ROOT / mine.relative_to(cwd / "work")).read_bytes()
    save(answered(RIGHT), mine)
    done = course(copy, "check", MEAN, cwd=cwd)
    assert done.returncode == 0 and "right (2 of 2 points)" in done.stdout, done.stderr
    done = course(copy, "reset", MEAN, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    done = course(copy, "status", "--json", cwd=cwd)
    (start, *_) = json.loads(done.stdout)["lessons"]
    assert (start["lesson"], start["points"]) == ("00", 2)
    done = course(copy, "bench", cwd=cwd)
    assert "Benchmarks: classroom" in done.stderr
    assert course(copy, "release", cwd=cwd).returncode == 2
