"""Terminals that are not UTF-8, or narrow: a command prints in them what it prints in others."""

from __future__ import annotations

import json
import re

import pytest
import typer
from typer.testing import CliRunner

from course_classroom import workspace
from course_classroom.cli import app
from course_classroom.cli.base import ROOT
from course_classroom.grading import recheck
from course_classroom.judge.frame import MARKS
from tests.course_classroom.cli.documented import LLAMA
from tests.support.commands import called

CALLS = {
    "ds-check": ["ds-check", "ds.json"],
    "ds-check --fix": ["ds-check", "ds.json", "--fix", "--json"],
    "estimate": ["estimate", "--params", "7B", "--largest-layer", "131M"],
    "ladder": ["ladder", "--config", "config.json", "--gpu-memory", "2GB", "--rows", "2"],
    "plan": ["plan", "--config", "config.json", "--machine", "laptop"],
    "status": ["status"],
    "status --all": ["status", "--all", "."],
    "check": ["check", "00"],
    "reset": ["reset", "00"],
    "weights": ["weights", "nowhere→", "out"],
    "stop": ["stop"],
    "bench": ["bench"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A learner's workspace, files to name, and a judge that has given every kind of verdict."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COURSE_WORK", str(tmp_path / "work"))
    monkeypatch.setenv("COURSE_RUNTIME_DIR", str(tmp_path / "r"))
    workspace.open_up(ROOT, tmp_path / "work")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8, "gradient_cliping": "→ ö 10²"}')
    verdicts = [
        recheck.Checked("00", "x", outcome, "", 0, 1, f"{mark} x: 2Ψ", "x.ipynb")
        for outcome, mark in MARKS.items()
    ]
    monkeypatch.setattr(recheck, "check", lambda *_: iter(verdicts))


@pytest.mark.parametrize("words", CALLS.values(), ids=CALLS)
def test_a_command_prints_as_it_does_in_utf_8(folder, words):
    usual = CliRunner().invoke(app, words)
    for charset in ("ascii", "iso-8859-1"):
        done = CliRunner(charset=charset).invoke(app, words)
        assert isinstance(done.exception, (SystemExit, type(None))), done.exception
        assert done.exit_code == usual.exit_code
        assert len(done.stdout) >= len(usual.stdout) / 2
        assert charset != "ascii" or done.stdout.isascii()


def test_every_help_is_printed(folder):
    for name in typer.main.get_command(app).commands:
        assert CliRunner(charset="ascii").invoke(app, [name, "--help"]).exit_code == 0, name


TABLES = {
    "estimate": ("--params", "70B", "--largest-layer", "131M", "--gpus", "8"),
    "ladder": ("--config", "config.json", "--gpu-memory", "300MB", "--rows", "4", "--gpus", "4"),
}


@pytest.mark.parametrize("command", TABLES)
def test_no_number_and_no_name_is_cut(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    printed = {}
    for width in (30, 40, 50, 60, 70, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        _, printed[width], _ = called(capsys, command, *TABLES[command])
    numbers = re.findall(r"-?[\d,]*\d\.\d\d\b", printed[120])
    assert len(numbers) > 30
    for width, text in printed.items():
        lines = text.partition("torchrun ")[0].splitlines()  # a command, which is not broken
        assert max(map(len, lines)) <= width and "…" not in text, width
        assert re.findall(r"-?[\d,]*\d\.\d\d\b", text) == numbers, width
        names = set(re.findall(r"\w{3,}", printed[120])) - {"acts"}  # a column without a number
        assert names <= set(re.findall(r"\w{3,}", text)), width
