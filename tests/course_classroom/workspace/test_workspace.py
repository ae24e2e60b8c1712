"""A learner's copies: made once, never overwritten, renewed only with a backup."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from course_classroom import workspace
from course_classroom.cli import app, learner
from course_classroom.workspace import place
from course_classroom.workspace.handed_out import version

LESSON, OTHER = "notebooks/00_start.ipynb", "notebooks/01_ring.ipynb"
MEAN, SUM = "exercises/00_start/mean.ipynb", "exercises/00_start/total.ipynb"
RING = "exercises/01_ring/ring.ipynb"
NOW = datetime(2026, 11, 21, 9, 30)


def notebook(*sources: str, output: str = "", count: int | None = None) -> str:
    outputs = [{"output_type": "stream", "name": "stdout", "text": [output]}] if output else []
    cells = [
        {
            "cell_type": "code",
            "execution_count": count,
            "id": f"c{number}",
            "metadata": {},
            "outputs": outputs,
            "source": source.splitlines(keepends=True),
        }
        for number, source in enumerate(sources)
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small course: two lessons, three exercises."""
    course = tmp_path / "course"
    for path in (LESSON, OTHER, MEAN, SUM, RING):
        file = course / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(notebook(f"# {path}", "answer = ..."))
    (course / "course_lib").mkdir()
    (course / "course_lib" / "ranks.py").write_text("# a file to read")
    (course / "docs").mkdir()
    (course / "docs" / "glossary.md").write_text("# a page to read")
    return course


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return tmp_path / "mine"


@pytest.fixture
def course(root: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """The `course` command on the small course."""
    monkeypatch.setattr(learner, "ROOT", root)
    monkeypatch.setenv("COURSE_WORK", str(work))
    return lambda *arguments: CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def contents(work: Path) -> dict[str, str]:
    return {
        path.relative_to(work).as_posix(): path.read_text()
        for path in work.rglob("*.ipynb")
        if not path.is_relative_to(work / "backups")
    }


def paths(found: list) -> list[str]:
    return [item.path for item in found]


def test_the_first_opening_copies_everything_and_says_where(root, work):
    news = workspace.open_up(root, work)
    assert contents(work) == contents(root)
    assert news.lines() == [
        f"Your own copies are in {work}: 2 lessons and 3 exercises. Updates never overwrite them."
    ]
    assert workspace.open_up(root, work).lines() == [], "nothing is new the second time"


def test_a_copy_can_be_written_though_the_course_is_read_only(root, work):
    for path in contents(root):
        (root / path).chmod(0o444)
    workspace.open_up(root, work)
    assert all((work / path).stat().st_mode & stat.S_IWUSR for path in contents(work))


def test_outside_of_the_course_a_workspace_is_its_owners_alone(root, work):
    old = os.umask(0o002)
    try:
        workspace.open_up(root, work)
        workspace.open_up(root, root / "work")
    finally:
        os.umask(old)
    assert stat.S_IMODE(work.stat().st_mode) == 0o700
    assert stat.S_IMODE((root / "work").stat().st_mode) == 0o775


def test_an_update_overwrites_nothing_and_is_told(root, work):
    workspace.open_up(root, work)
    (work / MEAN).write_text(notebook("# mean", "answer = 42"))
    before = contents(work)
    (root / LESSON).write_text(notebook("# a better lesson"))
    (root / MEAN).write_text(notebook("# a better exercise"))
    (root / "notebooks/02_new.ipynb").write_text(notebook("# new"))
    news = workspace.open_up(root, work)
    assert before.items() <= contents(work).items(), "touched or not, each is as it was"
    assert news.lines() == [
        f"Missing in {work} and now copied again, as handed out: lesson 02 "
        "(notebooks/02_new.ipynb).",
        "Lesson 00 has changed since your copy was made; yours is unchanged. "
        f"`course reset {LESSON}` gets the new one and keeps yours in backups/.",
        "Exercise mean has changed since your copy was made; yours is unchanged. "
        "`course reset mean` gets the new one and keeps yours in backups/.",
    ]


def test_what_was_deleted_comes_back_and_that_is_said_once(root, work):
    workspace.open_up(root, work)
    (work / RING).unlink()
    assert workspace.open_up(root, work).lines() == [
        f"Missing in {work} and now copied again, as handed out: exercise ring ({RING})."
    ]
    assert (work / RING).read_text() == (root / RING).read_text()
    assert workspace.open_up(root, work).lines() == []


def test_what_left_the_course_stays_with_the_learner(root, work):
    workspace.open_up(root, work)
    (root / RING).unlink()
    assert workspace.open_up(root, work).lines() == [
        f"{RING} is no longer part of the course; yours stays."
    ]
    assert (work / RING).exists() and workspace.open_up(root, work).lines() == []


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_without_a_manifest_every_file_is_the_learners(root, work, how):
    workspace.open_up(root, work)
    (work / MEAN).write_text(notebook("# mean", "answer = 42"))
    (root / LESSON).write_text(notebook("# a better lesson"))
    manifest, before = work / ".course" / "manifest.json", contents(work)
    if how == "missing":
        manifest.unlink()
    else:
        manifest.write_text(manifest.read_text()[:-40])
    said = workspace.open_up(root, work).lines()
    assert said == [
        f"The files copied into {work} are unknown (its manifest is {how}), so every file there "
        "counts as yours and none is overwritten."
    ]
    assert contents(work) == before
    assert workspace.open_up(root, work).lines() == []
    (root / OTHER).write_text(notebook("# known again: it was as handed out"))
    assert paths(workspace.open_up(root, work).newer) == [OTHER]


@pytest.mark.parametrize("page", ["course_lib/ranks.py", "docs/glossary.md"])
def test_the_library_and_the_pages_are_there_to_read_wherever_the_course_moves(root, work, page):
    folder, text = page.split("/")[0], (root / page).read_text()
    workspace.open_up(root, work)
    workspace.open_up(root, root / "work")
    assert (work / page).read_text() == text
    moved = root.rename(root.parent / "moved")
    assert (moved / "work" / page).exists(), "both moved together"
    assert not (work / folder).exists()
    workspace.open_up(moved, work)
    assert (work / page).exists(), "the dangling link is set right"
    (work / folder).unlink()
    (work / folder).mkdir()
    workspace.open_up(moved, work)
    assert not (work / folder).is_symlink(), "a folder of the learner's own stays"


def test_reset_renews_a_lesson_and_keeps_the_old_files(root, work, course):
    workspace.open_up(root, work)
    mine = notebook("# mean", "answer = 42")
    (work / MEAN).write_text(mine)
    (work / SUM).unlink()
    (root / LESSON).write_text(notebook("# a better lesson"))
    old_lesson = (work / LESSON).read_text()
    told = json.loads(course("reset", "0", "--json").output)
    kept = {one["path"]: one["backup"] for one in told["reset"]}
    assert set(kept) == {LESSON, MEAN, SUM} and kept[SUM] == ""
    assert (work / kept[MEAN]).read_text() == mine
    assert (work / kept[LESSON]).read_text() == old_lesson
    assert contents(work) == contents(root)
    assert workspace.open_up(root, work).lines() == [], "the new version is known"
    stamp = Path(kept[MEAN]).parts[1]
    assert kept[MEAN] == f"backups/{stamp}/{MEAN}" and datetime.strptime(stamp, "%Y-%m-%d_%H-%M-%S")


@pytest.mark.parametrize(
    ("what", "means"),
    [
        ("01", [OTHER, RING]),
        ("1", [OTHER, RING]),
        ("mean", [MEAN]),
        ("00_start.ipynb", []),
        (OTHER, [OTHER]),
        (f"./{OTHER}", [OTHER]),
        ("7", []),
        ("../course/notebooks/00_start.ipynb", []),
    ],
)
def test_what_reset_understands(root, work, what, means):
    if means:
        assert paths(workspace.find(what, root, work)) == means
    else:
        with pytest.raises(
            workspace.Unknown, match=r"You can reset:\n  00  notebooks/00_start.ipynb, "
        ):
            workspace.find(what, root, work)


def test_a_backup_never_takes_the_place_of_another(root, work):
    workspace.open_up(root, work)
    ring = workspace.find("ring", root, work)
    for answer in ("first", "second"):
        (work / RING).write_text(answer)
        workspace.renew(ring, root, work, NOW)
    kept = sorted(path.read_text() for path in (work / "backups").rglob("ring.ipynb"))
    assert kept == ["first", "second"]
    workspace.renew(ring, root, work, NOW)
    assert len(list((work / "backups").iterdir())) == 2, "what is as handed out needs no backup"


@pytest.mark.parametrize("arguments", [["nonsense"], []])
def test_reset_of_nothing_is_wrong_usage_and_lists_what_there_is(course, arguments):
    ended = course("reset", *arguments)
    assert ended.exit_code == 2
    assert "  00  notebooks/00_start.ipynb, mean, total\n" in ended.stderr
    assert ended.stdout == ""


def test_a_backup_that_reads_back_otherwise_keeps_the_answer(root, work, monkeypatch):
    workspace.open_up(root, work)
    (work / RING).write_text("my answer")
    real = Path.read_bytes

    def bad_disk(path: Path) -> bytes:
        return b"rubbish" if "backups" in path.parts else real(path)

    monkeypatch.setattr(Path, "read_bytes", bad_disk)
    with pytest.raises(workspace.Refused, match="a backup differed when it was read back"):
        workspace.renew(workspace.find("ring", root, work), root, work, NOW)
    assert (work / RING).read_text() == "my answer"


def test_a_full_disk_when_copying(root, small_disk):
    (root / RING).write_text(notebook("x" * 3_000_000))
    work = small_disk / "w"
    with pytest.raises(workspace.Refused) as refused:
        workspace.open_up(root, work)
    assert str(refused.value) == (
        f"{work} is full: No space left on device. Nothing was overwritten, and no file is "
        "incomplete.\nRemedy: free 5 MB there, or COURSE_WORK=/another/folder make lab"
    )
    whole = contents(work)
    assert RING not in whole and whole == {path: contents(root)[path] for path in whole}
    assert not list(work.rglob(".~*"))
    (root / RING).write_text(notebook("now it fits"))
    news = workspace.open_up(root, work)
    assert paths(news.copied) == [RING] and not news.newer, "the rest is known again"


def test_a_full_disk_when_backing_up_loses_nothing(root, small_disk, monkeypatch):
    work = small_disk / "w"
    workspace.open_up(root, work)
    answer = notebook("# my long answer " + "y" * 30_000)
    (work / RING).write_text(answer)
    (small_disk / "filler").write_bytes(bytes(small_free(small_disk) - 8_192))
    monkeypatch.setenv("COURSE_WORK", str(work))
    monkeypatch.setattr(learner, "ROOT", root)
    ended = CliRunner().invoke(app, ["reset", "ring"])
    assert ended.exit_code == 1 and "free 2 MB there, or COURSE_WORK=" in ended.stderr
    assert (work / RING).read_text() == answer
    assert not (work / "backups").exists(), "an empty backup would be no backup"


def small_free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_bsize


def test_a_file_in_the_folders_place(root, work):
    work.write_text("not a folder")
    with pytest.raises(workspace.Refused, match=f"{work} cannot be written"):
        workspace.open_up(root, work)
    assert work.read_text() == "not a folder"


def test_where_the_workspace_is(root, work, monkeypatch, tmp_path):
    monkeypatch.delenv("COURSE_WORK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert workspace.chosen(root) == workspace.current(root) == root / "work"
    workspace.open_up(root, work)
    monkeypatch.chdir(work / "notebooks")
    assert workspace.current(root) == work, "in a workspace, that one is meant"
    assert workspace.chosen(root) == root / "work", "but it is not the one to open"
    monkeypatch.setenv("COURSE_WORK", "~/other")
    assert workspace.chosen(root) == workspace.current(root) == tmp_path / "home" / "other"
    monkeypatch.delenv("COURSE_WORK")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert workspace.chosen(root) == tmp_path / "home" / "course-work"
    (root / "work").mkdir()
    assert workspace.chosen(root) == root / "work", "there is one of one's own already"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert workspace.chosen(root) == tmp_path / "home" / "course-work", "that is somebody else's"


@pytest.mark.parametrize("inside", ["", "notebooks", "exercises/00_start"])
def test_the_course_itself_is_no_place_for_copies(root, inside):
    with pytest.raises(workspace.Refused, match="is inside the course's own files"):
        workspace.open_up(root, root / inside if inside else root)
    assert not (root / inside / ".course").exists()


def test_half_a_course_is_refused(tmp_path, work):
    with pytest.raises(workspace.Refused, match="There are no lessons in"):
        workspace.open_up(tmp_path, work)
    assert not work.exists()


HOLDER = """
import subprocess, sys, time
from pathlib import Path
from course_classroom.workspace import place
with place.only_lab(Path(sys.argv[1])):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, flush=True)
    time.sleep(600)
"""


def test_a_killed_lab_leaves_no_refusal_though_its_child_lives(root, work):
    workspace.open_up(root, work)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(work)], stdout=subprocess.PIPE, text=True
    )
    child = int(holder.stdout.readline())
    try:
        with pytest.raises(workspace.Refused, match=f"process {holder.pid}"), place.only_lab(work):
            pass
        holder.kill()
        holder.wait(timeout=60)
        with place.only_lab(work):
            os.kill(child, 0)  # it lives, and does not hold the workspace
    finally:
        holder.kill()
        holder.wait(timeout=60)
        holder.stdout.close()
        os.kill(child, signal.SIGKILL)


def test_another_command_that_changes_the_copies_is_waited_for_but_not_for_ever(
    root, work, monkeypatch
):
    workspace.open_up(root, work)
    monkeypatch.setattr(place, "PATIENCE", 0.2)
    with open(work / ".course" / "change.lock") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(workspace.Refused, match="Another command has been changing"):
            workspace.open_up(root, work)
    assert workspace.open_up(root, work).lines() == []


def test_a_disk_without_locks_is_no_obstacle(root, work, monkeypatch):
    def unknown(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unknown)
    workspace.open_up(root, work)
    assert contents(work) == contents(root)


def test_the_version_of_a_notebook_holds_what_its_cells_say_and_not_their_outputs():
    def cells(text: str) -> str:
        return version(text.encode()).cells

    def marked(**metadata: object) -> str:
        made = json.loads(notebook("a", "b"))
        made["cells"][0]["metadata"] |= metadata
        return json.dumps(made)

    plain = cells(notebook("a", "b"))
    ran = notebook("a", "b", "", output="3", count=3)  # JupyterLab adds an empty cell
    assert cells(ran) == cells(marked(scrolled=True)) == plain
    others = [notebook("a", "3"), notebook("b", "a"), notebook("a", "b", "mine"), notebook("a")]
    for other in (*others, marked(tags=["raises-exception"])):
        assert cells(other) not in ("", plain)
    assert cells("{") == cells("[" * 100_000) == "", "no notebook, or deeper than a reader goes"
