"""Numbers worked out from a notebook's text: what leads to them is run, and nothing else."""

from __future__ import annotations

import pytest

from course_classroom.grading.worked_out import leading_to, worked_out
from course_classroom.ranks import confine

KINDS = {
    "plain": (["sent = {2: 100, 3: 4.5}"], {2: 100, 3: 4.5}),
    "a product": (["n = 3", "sent = {'a': 2 * (n - 1) / n * 6}"], {"a": 8.0}),
    "filled later": (["sent = {'a': ..., 'b': None}", "sent['a'] = 7"], {"a": 7, "b": ...}),
    "by a method": (["sent = {}", "sent.update(a=1)"], {"a": 1}),
    "a function": (["def f(n):\n    return n + 1", "sent = {'a': f(1)}"], {"a": 2}),
    "an import": (["%load_ext course_classroom\nimport math", "sent = {'a': math.pi // 1}"],
                  {"a": 3}),
    "a text": (["sent = {'a': '4 MB'}"], {"a": "4 MB"}),
    "truth": (["sent = {'a': True}"], "{'a': True}"),
    "pairs": (["sent = {(2, 'ring'): 1}"], {(2, "ring"): 1}),
    "beyond floats": (["sent = {'a': 10**400}"], "{'a': of type int}"),
    "an object": (["class A:\n    __repr__ = None", "sent = {'a': A()}"], "{'a': of type A}"),
    "no dictionary": (["sent = 4"], 4.0),
    "never given": (["other = 4"], None),
    "no Python": (["sent = {'a': 1}", "what is this"], {"a": 1}),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_as_they_are_written(kind, tmp_path):
    cells, expected = KINDS[kind]
    value, note = worked_out("sent", cells, tmp_path)
    assert (value if not isinstance(expected, str) else repr(value)) == expected
    assert note == ""


def test_only_what_leads_to_the_numbers_is_run():
    cells = ["x = 1\ny = 2\nprint(x)", "while True:\n    pass", "sent = {'a': y}"]
    assert leading_to("sent", cells) == ["y = 2", "sent = {'a': y}"]


def test_what_is_printed_is_no_answer(tmp_path):
    forged = 'import os\nos.write(1, b\'{"value": {"kind": "number", "it": 4}}\')'
    cells = [f"{forged}\nsent = {{'a': len(os.sep)}}\nprint('{{}}')"]
    assert worked_out("sent", cells, tmp_path) == ({"a": 1}, "")


def test_an_error_leaves_what_was_there_before_and_is_said(tmp_path):
    value, note = worked_out("sent", ["sent = {'a': 1}", "sent['a'] = 1 / 0"], tmp_path)
    assert value == {"a": 1}
    assert "ZeroDivisionError" in note


def test_what_does_not_end_or_kills_is_said(tmp_path):
    cells = ["def f():\n    while True: pass", "sent = {'a': f()}"]
    value, note = worked_out("sent", cells, tmp_path, limit=1.0)
    assert value is None and "had not ended after 1 s" in note
    cells = ["import os", "sent = {'a': os._exit(0)}"]
    value, note = worked_out("sent", cells, tmp_path)
    assert value is None and "ended its process" in note


def test_a_file_of_the_submission_can_be_read_and_stands_in_for_nothing(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit")
    (tmp_path / "mine.py").write_text("four = 4")
    (tmp_path / "data").write_text("5")
    cells = ["import mine", "sent = {'a': mine.four, 'b': int(open('data').read())}"]
    assert worked_out("sent", cells, tmp_path) == ({"a": 4, "b": 5}, "")


@pytest.mark.skipif(not confine.version(), reason="this system has no Landlock")
def test_what_leads_to_a_number_is_confined_where_grading_is(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "theirs").write_text("42")
    cells = [f"n = int(open({str(tmp_path / 'theirs')!r}).read())"]
    assert worked_out("n", cells, tmp_path / "own") == (42.0, "")
    for name, text in confine.around(tmp_path / "own").items():
        monkeypatch.setenv(name, text)
    value, note = worked_out("n", cells, tmp_path / "own")
    assert value is ... and "PermissionError" in note
