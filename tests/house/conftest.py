"""Toy clones of the course, fresh or set up, for the tests of the bootstrap; an empty course.

Setting up for real is done once a session; tests that need a set-up clone get a copy of it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.house.toy import Toy, lay_out, wheel
from tools.accept_gpu import running
from tools.accept_gpu.running import Place


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for name, version in (("torch", "2.13.0"), ("alpha", "1.0"), ("alpha", "1.1"), ("beta", "2.0")):
        wheel(folder, name, version)
    return folder


@pytest.fixture
def toy(tmp_path: Path, wheels: Path) -> Toy:
    """A toy clone in which nothing has been set up."""
    return lay_out(tmp_path / "clone", wheels)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, wheels: Path) -> tuple[Toy, str]:
    """A toy clone that `make lab` has set up, and what it printed; not to be changed."""
    toy = lay_out(tmp_path_factory.mktemp("finished") / "clone", wheels)
    done = toy.make("lab", LAB_ARGS="--port '9 0'")
    assert done.returncode == 0, done.stdout
    return toy, done.stdout


@pytest.fixture
def ready(tmp_path: Path, finished: tuple[Toy, str]) -> Toy:
    """A set-up toy clone of one's own, its environment's stamp telling its new place."""
    source, _ = finished
    root = tmp_path / "clone"
    shutil.copytree(source.root, root, symlinks=True)
    stamp = root / ".venv" / "course-stamp.json"
    stamp.write_text(stamp.read_text().replace(str(source.root), str(root)))
    return Toy(root, source.wheels)


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A course without anything in it, for the stages of `make accept-gpu`."""
    # The stages' own pytest needs no plugin here, and loading them all takes seconds.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setattr(running, "PATIENCE", 0.2)
    (tmp_path / "course" / "tests").mkdir(parents=True)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "course" / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    return Place(tmp_path / "course", tmp_path / "scratch")
