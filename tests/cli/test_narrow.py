"""Tables at any width of the terminal: every number and every name of the wide one is there."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.parts import LLAMA
from tests.commands import called

CALLS = {
    "estimate": ("--params", "70B", "--largest-layer", "131M", "--gpus", "8"),
    "ladder": ("--config", "config.json", "--gpu-memory", "300MB", "--rows", "4", "--gpus", "4"),
}


@pytest.mark.parametrize("command", CALLS)
def test_no_number_and_no_name_is_cut(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    printed = {}
    for width in (30, 40, 50, 60, 70, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        _, printed[width], _ = called(capsys, command, *CALLS[command])
    numbers = re.findall(r"-?[\d,]*\d\.\d\d\b", printed[120])
    assert len(numbers) > 30
    for width, text in printed.items():
        lines = text.partition("# ----")[0].splitlines()  # below are files, which are not broken
        assert max(map(len, lines)) <= width and "…" not in text, width
        assert re.findall(r"-?[\d,]*\d\.\d\d\b", text) == numbers, width
        names = set(re.findall(r"\w{3,}", printed[120])) - {"acts"}  # a column without a number
        assert names <= set(re.findall(r"\w{3,}", text)), width
