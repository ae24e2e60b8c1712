"""`course handout`: what learners need is in the copy, and no answer, no test and no history."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course_classroom.cli import app, author
from course_classroom.grading import learners_copy
from course_classroom.notebook import release
from course_classroom.ranks import confine
from course_classroom.workspace.handed_out import without_answers
from tests.course_classroom.grading.hand_in import (
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
from tests.support.answers_shown import as_statements, shown
from tests.support.commands import python
from tests.support.mutation import LEFT_OUT
from tools.bootstrap import __main__ as bootstrap

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git here")
# What git tracks and a learner does not get; a new folder has to be put into one list or the other.
STAYS = {
    ".ci/", ".github/", "conftest.py", "nbgrader_config.py", "solutions/", "tests/",
    "tools/accept_gpu/", "tools/deepspeed_keys.py", "tools/pins.py", "tools/plain_english.py",
    "tools/published_runs.csv", "tools/published_runs.py", "tools/rename.py",
    "tools/then_and_now.py", "tools/trainer_table.py",
}  # fmt: skip
SOLUTION = f"solutions/01_collectives/{RING}.ipynb"


def git(folder: Path, *words: str) -> subprocess.CompletedProcess:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    kept = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(
        ["git", *who, *words],
        cwd=folder, env=kept, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def commit(folder: Path) -> Path:
    """A clone with everything in it tracked, but for what .gitignore names."""
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    assert git(folder, "commit", "-q", "-m", "all").returncode == 0
    return folder


def whole_clone(folder: Path) -> Path:
    """A clone of the whole course."""
    ignored = shutil.ignore_patterns(*LEFT_OUT, ".venv*", "runs", "*.egg-info")
    shutil.copytree(ROOT, folder, ignore=ignored, symlinks=True)
    return commit(folder)


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A clone of the whole course, with files in it that are nobody's business."""
    folder = whole_clone(tmp_path_factory.mktemp("clone") / "course")
    for name in ("grades.csv", "docs/grades.csv", "work/mine.ipynb", "course_lib/x.pyc"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("private")
    return folder


@pytest.fixture(scope="module")
def copy(clone, tmp_path_factory) -> learners_copy.Copy:
    return learners_copy.make(clone, tmp_path_factory.mktemp("copy") / "course")


@pytest.fixture
def small(tmp_path) -> Path:
    """A clone with every exercise, and little else."""
    folder = tmp_path / "small"
    shutil.copytree(ROOT / "exercises", folder / "exercises")
    (folder / "README.md").write_text("Begin here.\n")
    save(solution(RING), folder / SOLUTION)
    return commit(folder)


@pytest.fixture
def make(small, tmp_path, monkeypatch):
    """Hand that clone out, without making its exercises anew."""
    monkeypatch.setattr(release, "check", lambda root: [])
    return lambda folder=tmp_path / "h": learners_copy.make(small, folder)


def refused(make, *says: str) -> None:
    with pytest.raises(learners_copy.Refused) as why:
        make()
    assert all(part in str(why.value) for part in says), why.value


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# --- what is in it ---


def test_each_tracked_file_travels_or_stays_and_nothing_else_travels(clone, copy):
    there = files(Path(copy.folder))
    tracked = {*learners_copy.tracked_files(clone)}
    stayed = {path for path in tracked if path.startswith(tuple(STAYS))}
    assert there == tracked - stayed | {learners_copy.MARK}
    assert set(copy.stayed) == STAYS
    assert copy.untracked == ("docs/grades.csv",)
    assert {"solutions/", "tests/", ".ci/"} <= STAYS and SOLUTION in stayed
    assert copy.files == len(there)
    for path in there - {learners_copy.MARK}:
        as_handed_out = without_answers((clone / path).read_bytes())
        assert (Path(copy.folder) / path).read_bytes() == as_handed_out


def test_no_file_shows_an_answer(clone, copy):
    exercises = {path.stem for path in clone.glob("solutions/*/*.ipynb")}
    assert {one.exercise for one in as_statements(clone / "solutions")} == exercises
    assert shown(Path(copy.folder), clone / "solutions") == []


def test_what_the_copy_imports_and_links_to_is_in_it(copy):
    folder = Path(copy.folder)
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [n for n in names if re.match(r"(tests|tools\.(accept_gpu|pins))\b", n)]
    for path in folder.glob("**/*.md"):
        for link in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
            assert "://" in link or (path.parent / link).exists(), f"{path.name}: {link}"


def test_the_copy_says_what_it_is_and_anybody_may_read_it_who_may_read_the_course(copy, clone):
    folder = Path(copy.folder)
    assert learners_copy.MARK == bootstrap.MARK
    assert copy.version and copy.version in (folder / learners_copy.MARK).read_text()
    assert learners_copy.is_one(folder) and not learners_copy.is_one(clone)
    plain = clone.parent / "plain"
    plain.mkdir()
    assert folder.stat().st_mode == plain.stat().st_mode


# --- no history ---


def test_git_shows_no_answer_in_it(make, tmp_path):
    around = tmp_path / "around"
    around.mkdir()
    (around / "a").write_text("another project")
    commit(around)
    for folder in (tmp_path / "h", around / "h"):
        make(folder)
        assert not (folder / ".git").exists()
        done = git(folder, "show", f"HEAD:{SOLUTION}")
        assert done.returncode and not done.stdout


# --- what is refused ---


def test_a_place_that_is_none_is_refused(make, small, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("my own work")
    (tmp_path / "way").symlink_to(small)
    for folder, says in {
        tmp_path / "full": "is not an empty folder",
        tmp_path / "full" / "mine": "is not an empty folder",
        tmp_path: "is not an empty folder",
        small: "inside the course itself",
        small / "docs" / "h": "inside the course itself",
        tmp_path / "way" / "h": "inside the course itself",
        tmp_path / "none" / "h": "does not exist; create it first",
    }.items():
        before = files(tmp_path)
        refused(lambda at=folder: make(at), says)
        assert files(tmp_path) == before


def test_an_empty_folder_is_a_place(make, tmp_path):
    (tmp_path / "h").mkdir()
    assert make().files == len(files(tmp_path / "h"))


def test_what_is_no_clone_is_refused(make, small, tmp_path, monkeypatch):
    (small / ".git").rename(tmp_path / "git")
    refused(make, "is not a clone of the course (fatal: not a git repository")
    commit(tmp_path)
    refused(make, "it is only a folder in", "run this in a clone")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    refused(make, "git cannot be run", "only files that git tracks are handed out")


def test_a_variable_of_git_s_does_not_lead_elsewhere(make, small, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "README.md").write_text("another project")
    commit(elsewhere)
    monkeypatch.setenv("GIT_DIR", str(elsewhere / ".git"))
    assert make().files > 50


DAMAGE = {
    "an exercise that is gone": (lambda one: one.unlink(), f"{RING} of lesson 01 (4 points) is"),
    "an exercise that was tried": (
        lambda one: one.write_text(one.read_text().replace("Your answer goes here", "isend")),
        f"cell {RING}-answer, was changed",
    ),
    "a file that is gone": (lambda one: one.parents[2].joinpath("README.md").unlink(), "restore"),
    "a link": (
        lambda one: link(one.parents[2] / "README.md", one.parents[2] / SOLUTION),
        "is a link",
    ),
}


def link(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


@pytest.mark.parametrize("what", DAMAGE)
def test_a_clone_that_is_not_whole_is_refused(make, small, tmp_path, what):
    damage, says = DAMAGE[what]
    damage(small / "exercises" / "01_collectives" / f"{RING}.ipynb")
    refused(make, says)
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_exercises_that_solutions_no_longer_give_are_refused(make, monkeypatch):
    monkeypatch.setattr(release, "check", lambda root: ["a.ipynb differs", "b.ipynb differs"])
    refused(make, "a.ipynb differs (and 1 more)")


def test_an_exercise_that_git_does_not_track_is_refused(make, small):
    git(small, "rm", "-q", "--cached", f"exercises/01_collectives/{RING}.ipynb")
    refused(make, f"{RING}.ipynb is not tracked", "git add")


@pytest.mark.parametrize(
    ("number", "says"), [(errno.ENOSPC, "No space left"), (errno.EACCES, "README.md")]
)
def test_a_disk_that_ends_it_leaves_nothing(make, tmp_path, monkeypatch, number, says):
    copied, number_of = shutil.copy, iter(range(1000))

    def fail(source, target):
        if next(number_of) == 20:
            raise OSError(number, os.strerror(number), "README.md")
        return copied(source, target)

    monkeypatch.setattr(shutil, "copy", fail)
    refused(make, says, "the partial copy was removed")
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_an_interrupt_leaves_nothing(make, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make()
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


# --- the command ---


@pytest.fixture
def course(make, small, monkeypatch):
    monkeypatch.setattr(author, "ROOT", small)
    return lambda *words: CliRunner().invoke(app, list(words))


def test_the_command_says_what_it_made_and_what_stayed(course, small, tmp_path):
    done = course("handout", str(tmp_path / "h"))
    assert done.exit_code == 0, done.output
    assert f"{tmp_path / 'h'}: a learner's copy of " in done.stdout
    assert "Left out: solutions/." in done.stdout
    again = course("handout", str(tmp_path / "h"))
    assert (again.exit_code, "is not an empty folder" in again.stderr) == (1, True)
    (small / "course_lib").mkdir()
    (small / "course_lib" / "new.py").write_text("")
    told = json.loads(course("handout", str(tmp_path / "other"), "--json").stdout)
    assert (told["stayed"], told["untracked"]) == (["solutions/"], ["course_lib/new.py"])
    assert told["files"] == len(files(tmp_path / "other"))


@pytest.mark.parametrize("words", [["release"], ["release", "--check"], ["notebooks"], ["handout"]])
def test_what_authors_type_is_refused_in_a_copy(course, small, tmp_path, words, monkeypatch):
    (small / learners_copy.MARK).touch()
    before = files(tmp_path)
    done = course(*words, *([str(tmp_path / "h")] if words == ["handout"] else []))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "this is a learner's copy" in done.stderr and "`course check 01`" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert files(tmp_path) == before


# --- in use: answers are checked and graded in it as in the full course ---


def called_in(root: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess:
    """`course` of the tree at `root`."""
    (cwd / "t").mkdir(exist_ok=True)
    own = {"COURSE_WORK": str(cwd / "work"), "TMPDIR": str(cwd / "t"), "PYTHONPATH": str(root)}
    return python("-m", "course_classroom.cli", *words, cwd=cwd, env=own)


@pytest.mark.slow
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
    for root in (ROOT, Path(copy.folder)):
        done = called_in(root, "grade", "in", "--sandboxed", "--json", cwd=cwd)
        assert done.returncode == 0, done.stderr
        reached = root == ROOT and not confine.version()
        assert ("can read the answers" in done.stderr) == reached
        tables[root] = json.loads(done.stdout)["rows"]
    assert tables[ROOT] == tables[Path(copy.folder)]
    points = {row["student"]: (row["points"], row["max"]) for row in tables[Path(copy.folder)]}
    assert points == {"ana": (2, 2), "bob": (0, 2), "cem": (0, 2), "dee": (1, 1), "eli": (4, 4)}


@pytest.mark.slow
def test_a_learner_s_commands_work_in_it(copy, tmp_path_factory):
    cwd = tmp_path_factory.mktemp("w")
    done = called_in(copy.folder, "lab", "--prepare", cwd=cwd)
    assert done.returncode == 0 and "Your own copies are in" in done.stdout, done.stderr
    mine = cwd / "work" / "exercises" / "00_start_here" / f"{MEAN}.ipynb"
    assert mine.read_bytes() == (ROOT / mine.relative_to(cwd / "work")).read_bytes()
    save(answered(RIGHT), mine)
    done = called_in(copy.folder, "check", MEAN, cwd=cwd)
    assert done.returncode == 0 and "right (2 of 2 points)" in done.stdout, done.stderr
    done = called_in(copy.folder, "reset", MEAN, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    done = called_in(copy.folder, "status", "--json", cwd=cwd)
    (start, *_) = json.loads(done.stdout)["lessons"]
    assert (start["lesson"], start["points"]) == ("00", 2)
    done = called_in(copy.folder, "bench", cwd=cwd)
    assert "Benchmarks: classroom" in done.stderr
    assert called_in(copy.folder, "release", cwd=cwd).returncode == 2
