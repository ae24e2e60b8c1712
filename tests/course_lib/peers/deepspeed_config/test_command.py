"""`course ds-check`: what it prints, its exit codes, its corrected copy, what it never imports."""

from __future__ import annotations

import errno
import json
import os

import pytest
from typer.testing import CliRunner

from course_classroom.cli import app
from course_lib.peers.deepspeed_config import schema
from tests.course_lib.peers.deepspeed_config.parts import MODEL, VALID
from tests.support.commands import python

RIGHT = VALID[0]
WRONG = '{\n  "train_batch_size": 8,\n  "gradient_cliping": 1.0\n}\n'
WARNED = '{"train_batch_size": 8, "zero_optimization": {"stage": 1, "cpu_offload": true}}'
FIELDS = ["path", "line", "column", "level", "message", "reason", "source", "suggestion"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(WRONG)
    return path


def run(*arguments: object):
    return CliRunner().invoke(app, ["ds-check", *map(str, arguments)])


def test_exit_codes(file):
    assert run(RIGHT).exit_code == 0
    assert run(file).exit_code == 1
    file.write_text(WARNED)
    assert run(file).exit_code == 0
    assert run(file, "--strict").exit_code == 1
    assert run(RIGHT, "--strict").exit_code == 0
    assert run(file.with_name("no.json")).exit_code == 1


@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("--world", "0", "1 or more"),
        ("--args", "missing.json", "No such file"),
        ("--model", ".", "folder"),
        ("--args", "list.json", "a list"),
        ("--args", "wrong.json", "learning_rate"),
    ],
)
def test_wrong_usage_is_told(file, option, value, word):
    file.with_name("list.json").write_text("[]")
    file.with_name("wrong.json").write_text('{"learning_rate": "high"}')
    value = value if value == "0" else file.parent / value
    done = run(file, option, value)
    assert done.exit_code == 2
    assert word in done.stderr and done.stdout == ""


def test_what_a_person_reads(file):
    done = run(file)
    assert f"{file}:3:3 error gradient_cliping" in done.stdout.replace("\n", "")
    words = " ".join(done.stdout.split())
    assert 'did you mean "gradient_clipping"?' in words
    assert f"ignores this key. (deepspeed {schema.load().release}, runtime/config.py)" in words
    assert "→ rename it to gradient_clipping" in words
    assert "1 error, 0 warnings" in words
    assert "Traceback" not in done.output


def test_values_that_wait_for_the_trainer_are_one_line():
    done = run(VALID[7])
    text = " ".join(done.stdout.split())
    assert '16 values are "auto": train_batch_size, ' in text and ". Add --args for them" in text
    assert text.count('"auto"') == 1 and text.endswith("16 hints (DeepSpeed 0.19.8)")
    assert len(json.loads(run(VALID[7], "--json").stdout)["findings"]) == 16


def test_names_of_the_file_are_shown_as_they_are_written(file):
    file.write_text('{"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2}')
    assert "  train_batch_size 7 is not a multiple of 2." in run(file).stdout


def test_json_alone_on_stdout(file):
    done = run(file, "--json", "--fix")
    document = json.loads(done.stdout)
    assert list(document) == ["findings", "resolved"]
    assert [list(finding) for finding in document["findings"]] == [FIELDS] * len(
        document["findings"]
    )
    (first,) = (finding for finding in document["findings"] if finding["level"] != "hint")
    assert (first["line"], first["column"], first["level"]) == (3, 3, "error")
    assert first["path"] == "gradient_cliping"
    assert "ds.fixed.json" in done.stderr


def test_without_deepspeed_it_is_said_beside_the_findings(file, monkeypatch):
    monkeypatch.setattr(schema, "installed", lambda: None)
    done = run(file, "--json")
    assert done.exit_code == 1 and "DeepSpeed is not installed" in done.stderr
    paths = [finding["path"] for finding in json.loads(done.stdout)["findings"]]
    assert "gradient_cliping" in paths


def test_each_resolved_value_says_where_it_is_from(file):
    for name, content in (("args", {"learning_rate": 3e-4, "bf16": True}), ("model", MODEL)):
        file.with_name(f"{name}.json").write_text(json.dumps(content))
    done = run(
        VALID[7], "--json", "--world", 4, "--args", file.with_name("args.json"),
        "--model", file.with_name("model.json"),
    )  # fmt: skip
    assert done.exit_code == 0
    resolved = json.loads(done.stdout)["resolved"]
    assert resolved["optimizer.params.lr"]["value"] == 3e-4
    assert "learning_rate" in resolved["optimizer.params.lr"]["origin"]
    size = resolved["zero_optimization.reduce_bucket_size"]
    assert size["value"] == 4096**2 and "--model" in size["origin"]
    assert resolved["train_batch_size"]["value"] == 32
    assert resolved["zero_optimization.stage"] == {"value": 3, "origin": "the file"}
    shown = run(VALID[7], "--world", 4, "--args", file.with_name("args.json"))
    assert "learning_rate of the Trainer's arguments" in " ".join(shown.stdout.split())


def test_a_corrected_copy_overwrites_nothing(file):
    first = run(file, "--fix")
    assert first.exit_code == 1, "the file is what it was"
    copy = file.with_name("ds.fixed.json")
    assert json.loads(copy.read_text()) == {"train_batch_size": 8, "gradient_clipping": 1.0}
    assert "gradient_cliping: rename it to gradient_clipping" in first.stdout
    copy.write_text("mine")
    run(file, "--fix")
    assert copy.read_text() == "mine"
    assert json.loads(file.with_name("ds.fixed-2.json").read_text())["gradient_clipping"] == 1.0
    assert file.read_text() == WRONG
    file.write_text('{"train_batch_size": 8, "amp": {}, "gradient_cliping": 1.0}')
    assert 'left, error: amp: "amp" was removed' in run(file, "--fix").stdout
    assert {path.name for path in file.parent.iterdir()} == {
        "ds.json", "ds.fixed.json", "ds.fixed-2.json", "ds.fixed-3.json",
    }  # fmt: skip


def test_a_full_disk_leaves_no_part_of_a_copy(file, monkeypatch):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    done = run(file, "--fix")
    assert done.exit_code != 0
    assert [path.name for path in file.parent.iterdir()] == ["ds.json"]


def test_no_copy_where_nothing_is_to_be_corrected(file):
    file.write_text(RIGHT.read_text())
    assert "nothing that can be corrected" in run(file, "--fix").stdout
    for text in ("[]", '{"gradient_clipping": NaN}'):
        file.write_text(text)
        assert "no copy is written" in run(file, "--fix").stdout
    assert [path.name for path in file.parent.iterdir()] == ["ds.json"]


def test_a_pipe_of_eighty_columns(file):
    file.write_text(json.dumps(json.loads(VALID[7].read_text()) | {"steps_per_prnt": 5}))
    words = ("-m", "course_classroom.cli", "ds-check", "ds.json")
    done = python(*words, cwd=file.parent, env={"COLUMNS": "80"})
    assert done.returncode == 1 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 90 and "\x1b" not in done.stdout
    assert all(len(line) <= 80 for line in lines if line.startswith("  "))
    assert all(line == line.rstrip() for line in lines)


def test_neither_torch_nor_deepspeed_is_imported(file):
    """The command's whole road, and that of all commands' module."""
    script = (
        "import sys\nfrom course_classroom.cli import app\n"
        "try:\n    app(['ds-check', 'ds.json', '--fix', '--args', 'args.json'])\n"
        "except SystemExit as end:\n    assert end.code == 1, end.code\n"
        "heavy = {'torch', 'deepspeed', 'transformers', 'accelerate', 'hjson'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    file.with_name("args.json").write_text("{}")
    done = python("-c", script, cwd=file.parent)
    assert done.returncode == 0 and done.stderr.strip().endswith("heavy: []"), done.stderr
    assert "gradient_clipping" in done.stdout
