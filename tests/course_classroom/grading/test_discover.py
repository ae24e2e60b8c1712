"""Submissions are found in every layout, by name, and nothing that is no submission is opened."""

from __future__ import annotations

from pathlib import Path

from course_classroom.grading import discover


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def shown(folder: Path) -> list[tuple[str, str, str]]:
    return [(one.student, one.shown, one.lesson) for one in discover.find(folder)[0]]


def test_three_layouts_side_by_side(tmp_path):
    put(tmp_path, "cem.ipynb", "ana/01_collectives/ring.ipynb", "bob/ring.ipynb")
    assert shown(tmp_path) == [
        ("ana", "ana/01_collectives/ring.ipynb", "01_collectives"),
        ("bob", "bob/ring.ipynb", ""),
        ("cem", "cem.ipynb", ""),
    ]


def test_a_folder_without_a_notebook_is_said(tmp_path):
    put(tmp_path, "ana/answer.docx", "ana/timestamp.txt")
    (tmp_path / "bob").mkdir()
    told = {one.student: one.trouble for one in discover.find(tmp_path)[0]}
    assert told["ana"] == "not a notebook: no notebook, only answer.docx"
    assert told["bob"].startswith("empty: ")


def test_links_hidden_files_and_checkpoints_are_left_aside(tmp_path):
    put(tmp_path, "in/ana/ring.ipynb", "in/ana/.ipynb_checkpoints/ring.ipynb", "secret.ipynb")
    (tmp_path / "in" / "bob").symlink_to(tmp_path)
    (tmp_path / "in" / "ana" / "more.ipynb").symlink_to(tmp_path / "secret.ipynb")
    found, aside = discover.find(tmp_path / "in")
    assert [one.shown for one in found] == ["ana/ring.ipynb"]
    assert len(aside) == 2 and all("link" in text for text in aside)


def test_a_name_that_is_no_text_can_still_be_written(tmp_path):
    (tmp_path / "an\udcffna.ipynb").write_text("x")
    (one,) = discover.find(tmp_path)[0]
    assert one.student.encode("utf-8") == b"an\\xffna"
    assert one.path.read_text() == "x"
