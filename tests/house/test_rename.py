"""tools/rename.py: what names a module, a path or the repository's root follows the move."""

from __future__ import annotations

import json
import subprocess

from tests.support.commands import python

FILES = {
    "course_lib/old/run.py": "from pathlib import Path\n\nROOT = Path(__file__).parents[2]\n",
    "course_lib/old/stay.py": "HERE = 1\n",
    "course_lib/own/held.py": "def held(): ...\n",  # a function that its package has by this name
    "course_lib/own/__init__.py": "from course_lib.own.held import held\n",
    "course_lib/uses.py": "from course_lib.own import held\n",
    "course_lib/use.py": "from course_lib.old import (  # noqa: F401\n    run,\n    stay,\n)\n"
    "NAMES = ('course_lib.old.run:main', 'course_lib/old/run.py', 'see course_lib/old/.')\n",
    "page.ipynb": json.dumps(
        {"cells": [{"cell_type": "code", "source": ["import course_lib.old.run"]}]}
    ),
    "CHANGELOG.md": "course_lib.old.run was there\n",
}
TABLE = "course_lib/old/ course_lib/peers/old/\ncourse_lib/old/run.py course_classroom/go.py\n"
TABLE += "course_lib/own/held.py course_lib/own/inventory.py\n"


def test_what_names_a_module_follows_it(tmp_path):
    for name, text in {**FILES, "table.txt": TABLE}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for words in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    for more, moved in (((), False), (("--write",), True)):
        done = python("-m", "tools.rename", "table.txt", *more, cwd=tmp_path)
        assert done.stdout == "4 files name what moves; 3 files move\n", done.stderr
        assert (tmp_path / "course_classroom/go.py").exists() is moved
    assert "parents[1]" in (tmp_path / "course_classroom/go.py").read_text()
    assert (tmp_path / "course_lib/peers/old/stay.py").read_text() == "HERE = 1\n"
    assert (tmp_path / "course_lib/use.py").read_text() == (
        "from course_classroom import go as run  # noqa: F401\n"
        "from course_lib.peers.old import stay\n"
        "NAMES = ('course_classroom.go:main', 'course_classroom/go.py', "
        "'see course_lib/peers/old/.')\n"
    )
    assert "own.inventory import held" in (tmp_path / "course_lib/own/__init__.py").read_text()
    assert (tmp_path / "course_lib/uses.py").read_text() == FILES["course_lib/uses.py"]
    assert '"import course_classroom.go"' in (tmp_path / "page.ipynb").read_text()
    assert (tmp_path / "CHANGELOG.md").read_text() == FILES["CHANGELOG.md"]
