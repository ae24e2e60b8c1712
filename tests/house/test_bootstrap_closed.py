"""A Python that is closed to the user: what closes it is named, and pip is not blamed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.house.test_bootstrap_refusals import as_ordinary_user, open_folder, ordinary_user
from tests.house.toy import Toy
from tools.bootstrap.closed import closed_part, follow
from tools.bootstrap.pip_words import diagnose

__all__ = ["open_folder"]  # a fixture
REMEDY = "from a Python that everybody may read, such as the system's: PYTHON=/usr/bin/python3"


@pytest.fixture
def home(open_folder: Toy) -> Path:
    """Somebody else's home, with a Python in it; the user may write the clone."""
    if os.getuid() != 0:
        pytest.skip("a folder that is closed to this user needs another user, and root")
    for one in [open_folder.root, *open_folder.root.rglob("*")]:
        os.chown(one, 65534, 65534)
    home = open_folder.root.parent / "home"
    (home / "bin").mkdir(parents=True)
    _, python = ordinary_user()
    (home / "bin" / "python").symlink_to(python)
    return home


def check(toy: Toy, place: Path, **variables: str) -> None:
    """That a setup is refused because of the place, with a remedy, and makes nothing."""
    done = as_ordinary_user(toy, "lab", **variables)
    assert done.returncode != 0
    assert f"cannot be used by somebody: {place} may not be read." in done.stdout, done.stdout
    assert REMEDY in done.stdout
    assert "pip" not in done.stdout.replace("pip_", "") and "Traceback" not in done.stdout
    assert not toy.venv.exists()


def test_a_python_in_a_closed_home(open_folder: Toy, home: Path) -> None:
    home.chmod(0o700)
    done = as_ordinary_user(open_folder, "lab", PYTHON=str(home / "bin" / "python"))
    assert f"PYTHON={home}/bin/python cannot be used by somebody: {home} may not" in done.stdout
    assert REMEDY in done.stdout and not open_folder.venv.exists()


def test_a_python_that_may_not_be_executed(open_folder: Toy, home: Path) -> None:
    python = home / "bin" / "own"
    shutil.copy(sys.executable, python)
    python.chmod(0o600)
    check(open_folder, python, PYTHON=str(python))


def test_a_shared_environment_in_a_closed_home(open_folder: Toy, home: Path) -> None:
    home.chmod(0o700)
    check(open_folder, home, COURSE_VENV=str(home))


def test_a_shared_environment_whose_python_lies_in_a_closed_home(
    open_folder: Toy, home: Path
) -> None:
    (home / "venv" / "bin").mkdir(parents=True)
    (home / "far" / "bin").mkdir(parents=True)
    (home / "far" / "bin" / "python").symlink_to(sys.executable)
    (home / "venv" / "bin" / "python").symlink_to("../../far/bin/python")
    (home / "far").chmod(0o700)
    check(open_folder, home / "far", COURSE_VENV=str(home / "venv"))


def test_an_environment_that_was_well_and_is_closed_now(open_folder: Toy, home: Path) -> None:
    """As `.venv`, where a node was prepared with a Python in the administrator's home; and as
    COURSE_VENV, where packages may not be read."""
    done = as_ordinary_user(open_folder, "lab")
    assert done.returncode == 0, done.stdout
    python = open_folder.venv / "bin" / "python"
    python.unlink()
    python.symlink_to(home / "bin" / "python")
    home.chmod(0o700)
    os.chown(open_folder.root, 0, 0)
    done = as_ordinary_user(open_folder, "lab")
    assert f".venv cannot be used by somebody: {home} may not be read." in done.stdout
    assert REMEDY in done.stdout and "cannot be written" not in done.stdout
    assert python.is_symlink(), "nothing was taken away"
    home.chmod(0o755)
    assert as_ordinary_user(open_folder, "lab").returncode == 0
    shared = open_folder.venv.rename(home / "venv")
    for closed in ("site-packages/alpha-1.0.dist-info", "site-packages"):
        (place,) = shared.glob(f"lib/python3*/{closed}")
        os.chown(place, 0, 0)
        place.chmod(0o700)
        check(open_folder, place, COURSE_VENV=str(shared))


def test_an_environment_that_is_closed_as_a_whole(open_folder: Toy, home: Path) -> None:
    open_folder.venv.mkdir(mode=0o700)
    (open_folder.venv / "file").touch()
    os.chown(open_folder.root, 0, 0)
    done = as_ordinary_user(open_folder, "lab")
    assert f"{open_folder.venv} may not be read." in done.stdout and done.returncode != 0


def test_this_python_is_open_and_a_chain_of_links_ends(tmp_path: Path) -> None:
    assert closed_part(Path(sys.executable)) is None
    assert closed_part(tmp_path / "nowhere" / "bin" / "python") is None
    (tmp_path / "round").symlink_to("round")
    assert follow(tmp_path / "round")[0] is None


def test_a_file_that_pip_may_not_read_is_named() -> None:
    told = diagnose("OSError: [Errno 13] Permission denied: '/srv/w/alpha.whl'\n")
    assert told is not None and told.cause.endswith("by you: /srv/w/alpha.whl.")
    assert "line above" not in told.remedy
    assert "{" not in diagnose("sh: Permission denied\n").cause
