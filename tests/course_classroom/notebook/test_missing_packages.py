"""A lesson without DeepSpeed or Transformers: cells that need them say so, and the rest runs."""

from __future__ import annotations

import builtins
import sys
from types import SimpleNamespace

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbformat.v4 import new_code_cell
from traitlets.config import Config

from course_classroom.cli.base import ROOT
from course_classroom.notebook import missing_packages, notebooks, unloaded
from tests.house.test_packaging import project

pytestmark = pytest.mark.cpu("about cells that do not run")

NO_HISTORY = Config({"HistoryManager": {"enabled": False}})
HIDE = """
import os, sys
from importlib.machinery import PathFinder

class Hidden(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.split(".")[0] in os.environ["HIDDEN"].split():
            return None
        return super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Hidden
"""


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    """What a shell in this process puts in its place is gone after the test."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    for name in ("__IPYTHON__", "display"):
        monkeypatch.setattr(builtins, name, None, raising=False)
    for name in ("displayhook", "excepthook"):
        monkeypatch.setattr(sys, name, getattr(sys, name))


@pytest.fixture
def shell(monkeypatch):
    """IPython without `phantom`, whose ranks are this process."""
    monkeypatch.setattr(missing_packages, "PACKAGES", ("phantom",))
    shell = InteractiveShell(config=NO_HISTORY)
    monkeypatch.setattr(missing_packages, "get_ipython", lambda: shell)
    ranks: dict = {}

    def on_ranks(line: str, cell: str) -> None:
        try:
            exec(cell, ranks)
        except Exception as error:
            raise RuntimeError(f"every rank raised {type(error).__name__}: {error}") from None

    for magic in ("ranks", "extra"):
        shell.register_magic_function(on_ranks, "cell", magic)
    shell.user_ns.update(pull=lambda text, rank=0: eval(text, ranks), push=ranks.update)
    missing_packages.install(shell)
    return SimpleNamespace(run=lambda cell: shell.run_cell(cell, store_history=True))


def test_the_packages_are_those_that_lessons_need_and_the_classroom_does_not_bring():
    extras = project()["optional-dependencies"]
    names = {
        extra: {text.split(">")[0].strip() for text in extras[extra]}
        for extra in ("classroom", "deepspeed", "huggingface")
    }
    asked = names["deepspeed"] | names["huggingface"]
    assert set(missing_packages.PACKAGES) == asked - names["classroom"]


def test_a_cell_that_needs_it_is_skipped_with_the_cells_that_use_its_names(shell, capsys):
    assert shell.run("import phantom as p\na = 1").success
    first = capsys.readouterr().out
    assert "needs phantom, which is not installed" in first and "make setup" in first
    for later in ("b = a + 1", "print(b)", "print([p for _ in range(3)])"):
        assert shell.run(later).success
        assert capsys.readouterr().out == (
            "Not run: this cell needs phantom, which is not installed.\n"
        )
    assert shell.run("a = 5").success
    shell.run("print(a)")
    assert capsys.readouterr().out == "5\n", "the name is there again"


def test_it_is_the_same_on_the_ranks_and_across(shell, capsys):
    shell.run("%%ranks\nimport phantom\nn = 2")
    assert "needs phantom" in capsys.readouterr().out
    for later in ("%%ranks\nprint(n)", "m = pull('n + 1', 0)", "push(k=m)", "%%ranks\nprint(k)"):
        assert shell.run(later).success
        assert "needs phantom" in capsys.readouterr().out, later
    for later in ("%%extra 4 --with n\npass", "%%extra 4 --pull z,o\nprint(k)", "z", "print(o)"):
        assert shell.run(later).success
        assert "needs phantom" in capsys.readouterr().out, later
    shell.run("n = 7\nprint(n)")
    assert capsys.readouterr().out == "7\n", "the notebook's own n is another"
    shell.run("push(n=4)")
    shell.run("%%ranks\nprint(n)")
    assert capsys.readouterr().out == "4\n"


@pytest.mark.parametrize("magic", ["", "%%ranks\n"])
def test_an_import_inside_of_what_is_called_is_seen_too(shell, capsys, magic):
    shell.run(magic + "def deep():\n    __import__('phantom')")
    shell.run(magic + "print('begun')\nc = deep()")
    told = capsys.readouterr().out
    assert told.startswith("begun\nNot run: this cell needs phantom")
    shell.run(magic + "print(c)")
    assert "needs phantom" in capsys.readouterr().out


def test_other_errors_and_values_are_as_ever(shell, capsys):
    error = shell.run("%%ranks\n1 / 0").error_in_exec
    assert isinstance(error, RuntimeError)
    assert isinstance(shell.run("import another").error_in_exec, ModuleNotFoundError)
    assert shell.run("6 * 7").success
    assert "42" in capsys.readouterr().out
    assert shell.run("6 * 7;").success
    assert "42" not in capsys.readouterr().out
    assert shell.run("from math import *\nawait __import__('asyncio').sleep(0)").success


def test_what_the_course_shows_follows_the_sentence(shell, capsys, tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    cell = new_code_cell("import phantom\nphantom.sing()")
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text="la\nla\n")]
    notebook = nbformat.v4.new_notebook(cells=[new_code_cell("print(1)"), cell])
    nbformat.write(notebook, tmp_path / "notebooks" / "a.ipynb")
    monkeypatch.setattr(missing_packages, "ROOT", tmp_path)
    shell.run(cell.source)
    assert capsys.readouterr().out.endswith(
        "Below is the output of the cell with that package.\nla\nla\n"
    )
    shell.run(cell.source + "  # changed")
    assert "Below" not in capsys.readouterr().out


def test_nothing_is_in_place_where_all_packages_are_there(monkeypatch):
    monkeypatch.setattr(missing_packages, "PACKAGES", ("json", "IPython"))
    shell = InteractiveShell(config=NO_HISTORY)
    unloaded.load_ipython_extension(shell)
    assert shell.ast_transformers == []


QUICK = pytest.param("appendix_e3", " ".join(missing_packages.PACKAGES), id="E3")
ALL = [
    pytest.param(name, hidden, id=f"{name} without {hidden.split()[0]}", marks=pytest.mark.slow)
    for name in ("08", "13", "14", "appendix_e1", "appendix_e2")
    for hidden in (" ".join(missing_packages.PACKAGES), "deepspeed", "bitsandbytes")
]


@pytest.mark.parametrize(("lesson", "hidden"), [QUICK, *ALL])
def test_a_lesson_goes_to_its_end(lesson, hidden, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HIDDEN", hidden)
    (path,) = ROOT.glob(f"notebooks/{lesson}_*.ipynb")
    notebook = nbformat.read(path, 4)
    notebook.cells.insert(0, new_code_cell(f"%load_ext {unloaded.EXTENSION}"))  # as the lab does
    skipped = 0
    for cell in notebooks.execute(notebook, path, 2).cells:
        outputs = cell.get("outputs", [])
        raised = any(one.output_type == "error" for one in outputs)
        assert not raised or "raises-exception" in cell.metadata.get("tags", []), cell.source
        skipped += any("Not run: this cell needs" in one.get("text", "") for one in outputs)
    assert skipped or hidden != QUICK.values[1]
