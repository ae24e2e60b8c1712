"""Everything that keeps an environment from being made is said, with its remedy, before harm.

Wrong or crippled Pythons are played by small scripts on an otherwise empty PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.toy import Toy, lay_out


def actor(folder: Path, name: str, answer: str) -> None:
    """A python that runs everything as the real one does, but describes itself as told."""
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(
        "#!/bin/sh\n"
        f"if [ \"$1\" = -I ]; then echo '{answer}'; exit 0; fi\n"
        f'exec "{sys.executable}" "$@"\n'
    )
    script.chmod(0o755)


def run(toy: Toy, path: Path, **changed: str | None) -> subprocess.CompletedProcess[str]:
    """make setup with nothing but `path` on the PATH."""
    shutil.copy(shutil.which("make") or "make", path / "make")
    return toy.make("setup", PATH=str(path), PYTHON=changed.pop("PYTHON", None), **changed)


def test_wrong_python(toy: Toy, tmp_path: Path) -> None:
    path = tmp_path / "path"
    actor(path, "python3", '{"version": [3, 9, 1], "path": "x", "venv": true, "virtualenv": false}')
    done = run(toy, path)
    assert done.returncode != 0
    assert "The course needs Python 3.10 to 3.13; found on this PATH: 3.9.1." in done.stdout
    assert "apt install python3" in done.stdout
    assert not toy.venv.exists()


def test_a_python_that_is_named_is_the_one_that_is_taken(toy: Toy, tmp_path: Path) -> None:
    path = tmp_path / "path"
    actor(path, "python3", '{"version": [3, 12, 1], "path": "x", "venv": true, "virtualenv": true}')
    actor(path, "other", '{"version": [3, 14, 0], "path": "x", "venv": true, "virtualenv": true}')
    done = run(toy, path, PYTHON=str(path / "other"))
    assert "is Python 3.14.0; the course needs 3.10 to 3.13" in done.stdout
    assert done.returncode != 0
    done = run(toy, path, PYTHON="no-such-python")
    assert "PYTHON=no-such-python does not run." in done.stdout
    assert done.returncode != 0


def test_no_venv_module(toy: Toy, tmp_path: Path) -> None:
    path = tmp_path / "path"
    actor(
        path, "python3",
        '{"version": [3, 11, 2], "path": "/usr/bin/python3", "venv": false, "virtualenv": false}',
    )  # fmt: skip
    done = run(toy, path)
    assert done.returncode != 0
    assert "has no venv module with ensurepip, and virtualenv is not there either" in done.stdout
    assert "apt install python3-venv (or python3.11-venv)" in done.stdout
    assert not toy.venv.exists()


def test_virtualenv_steps_in_where_venv_is_missing(toy: Toy, tmp_path: Path) -> None:
    path = tmp_path / "path"
    actor(
        path, "python3",
        f'{{"version": [3, 11, 2], "path": "{sys.executable}", "venv": 0, "virtualenv": 0}}',
    )  # fmt: skip
    helper = path / "virtualenv"
    helper.write_text(f'#!/bin/sh\necho "$@" > {path}/asked\nexit 7\n')
    helper.chmod(0o755)
    done = run(toy, path)
    assert f"--python {sys.executable} --prompt course {toy.venv}" in (path / "asked").read_text()
    assert "failed (exit 7)" in done.stdout
    assert done.returncode != 0


def test_no_python_at_all(toy: Toy, tmp_path: Path) -> None:
    path = tmp_path / "path"
    path.mkdir()
    done = run(toy, path)
    assert done.returncode != 0
    assert "No Python was found on this PATH" in done.stdout
    assert "Remedy: install Python 3.10 to 3.13" in done.stdout


def test_a_shim_that_does_not_run_is_passed_over(toy: Toy, tmp_path: Path) -> None:
    path = tmp_path / "path"
    path.mkdir()
    (path / "python3").write_text("#!/bin/sh\necho 'python3: command not found' >&2\nexit 127\n")
    (path / "python3").chmod(0o755)
    actor(path, "python3.12", '{"version": [3, 9, 0], "path": "x", "venv": 1, "virtualenv": 0}')
    done = run(toy, path)
    assert "found on this PATH: 3.9.0" in done.stdout, "python3.12 was asked after the shim failed"


def test_an_unknown_release_of_torch(toy: Toy) -> None:
    (toy.root / "constraints.txt").write_text("alpha==1.0\n")
    done = toy.make("lab")
    assert "constraints.txt pins no release of torch." in done.stdout
    assert done.returncode != 0


@pytest.fixture
def open_folder(wheels: Path) -> Iterator[Toy]:
    """A toy clone that any user of this machine can read (pytest's own folders are private)."""
    folder = Path(tempfile.mkdtemp(prefix="course-house-"))
    folder.chmod(0o755)
    shutil.copytree(wheels, folder / "wheels")
    (folder / "wheels").chmod(0o755)  # copied from a private folder
    yield lay_out(folder / "clone", folder / "wheels")
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
    shutil.rmtree(folder)


def ordinary_user() -> tuple[list[str], str]:
    """(prefix of a command that runs it as an ordinary user, a Python that this user can run)."""
    if os.getuid() != 0:
        return [], sys.executable
    if shutil.which("setpriv") is None:
        pytest.skip("root, and no setpriv to become somebody else")
    prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env"]
    for python in (sys.executable, "/usr/bin/python3"):
        question = [
            *prefix,
            python,
            "-c",
            "import sys, ensurepip; print(sys.version_info >= (3, 10))",
        ]
        told = subprocess.run(question, capture_output=True, text=True, check=False)
        if told.stdout.strip() == "True":
            return prefix, python
    pytest.skip("root, and no Python that an ordinary user could run")


def as_ordinary_user(toy: Toy, target: str, **changed: str) -> subprocess.CompletedProcess[str]:
    prefix, python = ordinary_user()
    theirs = {"PYTHON": python, "HOME": str(toy.root), "USER": "somebody"}
    variables = toy.variables(**{**theirs, **changed})
    return subprocess.run(
        [*prefix, "make", "--no-print-directory", target],
        cwd=toy.root, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_read_only_folder(open_folder: Toy) -> None:
    open_folder.root.chmod(0o555)
    done = as_ordinary_user(open_folder, "lab")
    assert done.returncode != 0
    assert f"{open_folder.root} cannot be written by somebody (Permission denied)" in done.stdout
    assert "or set COURSE_VENV to an environment" in done.stdout
    assert "Traceback" not in done.stdout
    assert not open_folder.venv.exists()


def test_an_ordinary_user_in_a_folder_of_theirs(open_folder: Toy) -> None:
    if os.getuid() == 0:
        for one in [open_folder.root, *open_folder.root.rglob("*")]:
            os.chown(one, 65534, 65534)
    done = as_ordinary_user(open_folder, "lab")
    assert done.returncode == 0, done.stdout
    assert "course lab" in done.stdout


def test_a_shared_environment_is_used_and_not_changed(finished: tuple[Toy, str], toy: Toy) -> None:
    shared = finished[0].venv
    before = {
        one: one.stat().st_mtime_ns for one in shared.rglob("*") if "__pycache__" not in str(one)
    }
    done = toy.make("lab", COURSE_VENV=str(shared))
    assert done.returncode == 0, done.stdout
    assert f"COURSE_VENV={shared}: all 2 requirements are met" in done.stdout
    assert f"course lab False {shared}" in done.stdout
    assert not toy.venv.exists()

    (toy.root / "constraints.txt").write_text("torch==2.13.0\nalpha==1.1\n")
    done = toy.make("lab", COURSE_VENV=str(shared))
    assert "1 differ from constraints.txt, within the ranges: alpha 1.0" in done.stdout
    assert done.returncode == 0

    done = toy.make("setup", COURSE_VENV=str(shared))
    assert done.returncode != 0
    assert "is not enough (it is never changed from here):" in done.stdout
    assert "lacks beta>=2.0" in done.stdout

    done = toy.make("lab", COURSE_VENV="/nowhere/at/all")
    assert done.returncode != 0
    assert "holds no Python that runs" in done.stdout
    after = {
        one: one.stat().st_mtime_ns for one in shared.rglob("*") if "__pycache__" not in str(one)
    }
    assert after == before
