"""Reading a file: every key has its place; what is no config gets a sentence and a remedy."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from course_lib.peers.deepspeed_config import source
from course_lib.peers.deepspeed_config.json_reader import read_json
from tests.course_lib.peers.deepspeed_config.parts import PAGES, VALID, report

# What the file holds, where the finding stands, a word of it.
BAD = [
    ("", 1, 1, "empty"),
    ("[1, 2]", 1, 1, "a list"),
    ('{"stage" 1}', 1, 10, "':' delimiter, but 1 was found"),
    ('{"a": 1\n "b": 2}', 2, 2, "',' delimiter"),
    ('{"a": {"b": 1}', 1, 15, "',' delimiter"),
    ('{"a": "b\n"}', 1, 9, "control character"),
    ('{"a": stage}', 1, 7, "stage was found"),
    ('{"a": 1} {"b": 2}', 1, 10, "Extra data"),
    ("{'a': 1}", 1, 2, "'a' was found"),
    ('{"a": True}', 1, 7, "True"),
    ('{"a": 1e999}', 1, 7, "1e999"),
    ('{"a": -Infinity}', 1, 7, "Infinity"),
    ('{"a": 1' + "0" * 5000 + "}", 1, 7, "digits"),
    ('{"a": ' * 70 + "1" + "}" * 70, 1, 361, "nested objects"),
    ("[" * 100_000, 1, 1, "nested objects"),
    ('/* of the run */ {"a": 1}', 1, 1, "comment"),
    (b'{"a":\n "\xff"}', 2, 3, "UTF-8"),
    ('\ufeff{"a": 1}', 1, 1, "byte order mark"),
    ('{"a": 1}'.encode("utf-16"), 1, 1, "UTF-16"),
]


@pytest.mark.parametrize(("text", "line", "column", "word"), BAD, ids=lambda x: str(x)[:20])
def test_what_is_no_json_is_told_with_its_place(text, line, column, word):
    first = next(item for item in report(text).findings if item.level == "error")
    assert (first.line, first.column, first.level) == (line, column, "error")
    assert word in first.message
    assert first.suggestion and first.reason and first.source


@pytest.mark.parametrize("path", VALID + PAGES, ids=lambda path: path.stem)
def test_what_json_reads_is_read_likewise(path):
    text = path.read_text()
    reading = read_json(text)
    assert reading.whole and reading.faults == []
    assert reading.value == json.loads(text)
    lines = text.splitlines()
    for keys, place in reading.places.items():
        if keys and isinstance(keys[-1], str):
            at = lines[place.line - 1][place.column - 1 :]
            assert at.startswith(f'"{keys[-1]}"')


def test_no_text_brings_the_reader_down():
    """Any cut and any exchange of letters: a value or a fault, and never an exception."""
    text, draw = VALID[2].read_text(), random.Random(5)
    for _ in range(100):
        letters = list(text[: draw.randrange(len(text))])
        for _ in range(draw.randrange(4)):
            letters.insert(draw.randrange(len(letters) + 1), draw.choice("{}[]\",:\\'/#-e1 \x00\n"))
        broken = "".join(letters)
        reading = read_json(broken)
        assert reading.whole or reading.faults
        try:
            value = json.loads(broken)
        except ValueError:
            assert reading.faults, broken
        else:
            assert reading.whole and reading.value == value


def test_a_key_given_twice_is_told_at_its_second_place():
    text = '{"fp16": {"enabled": true},\n "train_batch_size": 8,\n "fp16": {"loss_scale": 0}}'
    findings = [item for item in report(text).findings if item.kind == "duplicate"]
    assert [(item.path, item.line, item.column) for item in findings] == [("fp16", 3, 2)]
    assert "line 1" in findings[0].message and "last value" in findings[0].reason


def test_a_folder_a_device_and_a_file_that_is_not_there(tmp_path):
    (tmp_path / "ds.json").write_text("{}")
    for path, word in ((tmp_path, "folder"), (tmp_path / "no", "No such file")):
        (finding,) = source.read(path).findings
        assert word in finding.message
    assert "ds.json" in source.read(tmp_path).findings[0].suggestion
    assert "regular" in source.read(Path(os.devnull)).findings[0].message


def test_fifty_megabytes_are_not_read(tmp_path):
    path = tmp_path / "weights.json"
    with open(path, "wb") as file:
        file.truncate(50 << 20)
    (finding,) = source.read(path).findings
    assert "52,428,800 bytes" in finding.message
