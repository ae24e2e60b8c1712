"""The rules that notebooks are held to while they are tested: what may stand in them, and do."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import nbformat
import pytest

from tests.support.kernel_watch import Watch
from tests.support.notebook_lint import faults_of_source

ROOT = Path(__file__).resolve().parents[2]
# From lesson 08 on a step is one of a whole GPT, or of an engine.
WITH_ENGINES = [p for p in sorted(ROOT.glob("notebooks/*.ipynb")) if p.name >= "08"]


@pytest.mark.parametrize(
    "source",
    [
        "x = 1\nprint('!', x != 2, '%d' % x)",
        "%load_ext course_classroom\n%matplotlib inline",
        "%%ranks 0 --deadline 3\nprint(me.rank)",
        "%%ranks",
        "%ranks status",
        "# !ls\n'''\n!ls\n%foo\n'''",
    ],
)
def test_what_may_stand_in_a_notebook(source):
    assert faults_of_source(source) == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("!ls", "runs a shell command"),
        ("if True:\n    files = !ls", "runs a shell command"),
        ("get_ipython().system('ls')", "runs a shell command"),
        ("%%script python\nprint()", "runs a shell by %%script"),
        ("%time x = 1", "uses %time;"),
        ("for i in range(2):\n    %foo", "uses %foo;"),
        ("print?", "uses %pinfo;"),
        ("%%ranks 0\n\n%foo", "uses %foo;"),
        ("%%bash\nls", "runs a shell by %%bash"),
        ("cd nowhere", "is not Python"),
    ],
)
def test_what_may_not(source, fault):
    (said,) = faults_of_source(source)
    assert fault in said


def test_the_watch_counts_only_what_a_cell_does(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", subprocess.Popen)
    monkeypatch.setattr(os, "system", os.system)
    monkeypatch.setattr("threading.excepthook", lambda args: None)
    watch = Watch()
    watch.install()
    inside_a_library = {"__name__": "somewhere"}
    inside_a_cell = {"__name__": "__main__"}
    code = (
        "import os, subprocess, threading\n"
        "subprocess.run(['sh', '-c', 'exit 3'])\n"
        "subprocess.call('exit 4', shell=True)\n"
        "subprocess.getoutput('exit 5')\n"
        "os.system('exit 6')\n"
        "subprocess.Popen('exit 7', shell=True).wait()\n"
        "subprocess.Popen('sleep 60', shell=True).kill()\n"
        "subprocess.run('true', check=True)\n"
    )
    exec(code, inside_a_library)
    assert json.loads(watch.report()) == []
    exec(code, inside_a_cell)
    said = json.loads(watch.report())
    codes = sorted(int(re.search(r"ended with (\d)", one).group(1)) for one in said)
    assert codes == [3, 4, 5, 6, 7]
    assert json.loads(watch.report()) == []


@pytest.mark.parametrize("path", WITH_ENGINES, ids=lambda path: path.stem)
def test_a_cell_that_takes_steps_on_ranks_has_a_minute(path):
    """On a busy machine a cell takes many times as long, and the neighbours' time is its own."""
    for cell in nbformat.read(path, as_version=4).cells:
        magic = cell.source.partition("\n")[0]
        if magic.startswith("%%ranks") and re.search(r"step(s|_of|_over)?\(", cell.source):
            seconds = re.search(r"--deadline (\d+)", magic)
            assert seconds and int(seconds[1]) >= 60, cell.source[:300]
