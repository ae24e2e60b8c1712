"""HASHES=FILE: what was not seen before is not installed, from whatever index it comes."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from tests.house.toy import Toy, wheel
from tools import hashes
from tools.bootstrap import install

PINS = "# pins\ntorch==2.13.0\nalpha==1.0\nbeta==2.0\n"


@pytest.fixture
def folder(wheels: Path, tmp_path: Path) -> Path:
    """The wheels that are at their pins, as `pip download` leaves them."""
    folder = tmp_path / "downloaded"
    folder.mkdir()
    for file in wheels.iterdir():
        if not file.name.startswith("alpha-1.1"):
            shutil.copy(file, folder)
    return folder


def write(folder: Path, file: Path, *, without: str = "none", wrong: str = "none") -> Path:
    """A file of hashes, whole or spoilt."""
    found = [line for line in hashes.lines(folder, PINS) if not line.startswith(f"{without}==")]
    spoilt = [line[:-8] + "0" * 8 if line.startswith(f"{wrong}==") else line for line in found]
    file.write_text(hashes.HEAD + "\n".join(spoilt) + "\n")
    return file


def test_what_is_not_at_its_pin_is_refused_and_a_build_of_torch_is_left_open(folder: Path) -> None:
    wheel(folder, "torch", "2.13.0+cpu")
    assert [line.split()[0] for line in hashes.lines(folder, PINS)][-1] == "torch==2.13.0+cpu"
    wheel(folder, "alpha", "1.1")
    wheel(folder, "stranger", "3.0")
    with pytest.raises(ValueError, match=r"not at the pins.*: alpha 1\.1, stranger 3\.0;"):
        hashes.lines(folder, PINS)
    with pytest.raises(ValueError, match="holds no package"):
        hashes.lines(folder / "none", PINS)


@pytest.mark.slow
def test_an_environment_that_was_not_verified_is_made_anew(ready: Toy, folder: Path) -> None:
    file = write(folder, ready.root / "hashes.txt")
    done = ready.make("lab", HASHES="hashes.txt")
    assert done.returncode == 0, done.stdout
    assert "is recreated, because its packages were not verified by the requested" in done.stdout
    assert ready.version("alpha") == "1.0"
    assert not list(ready.root.glob(".venv.old-*")), "the old one is gone, not only renamed"
    kept = json.loads((ready.venv / "course-stamp.json").read_text())
    assert kept["hashes"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert ready.make("lab", HASHES="hashes.txt").stdout.startswith("course lab"), "verified now"
    assert ready.make("lab").stdout.startswith("course lab"), "and good for who asks for less"


def test_another_package_under_the_same_name_is_not_installed(toy: Toy, folder: Path) -> None:
    file = write(folder, toy.root / "hashes.txt", wrong="alpha")
    done = toy.make("lab", HASHES=str(file))
    assert done.returncode != 0 and toy.version("alpha") == "none"
    assert "A package does not match any known hash." in done.stdout
    assert "for a different kind of machine" in done.stdout
    write(folder, file, without="alpha")  # which pip would find in its folder of wheels
    done = toy.make("lab", HASHES=str(file))
    assert done.returncode != 0 and toy.version("alpha") == "none"
    assert f"HASHES={file} does not list all needed packages (A version" in done.stdout
    assert "python -m tools.hashes" in done.stdout


def test_a_file_that_is_not_there_and_an_environment_of_others(toy: Toy, tmp_path: Path) -> None:
    done = toy.make("lab", HASHES="nowhere.txt")
    assert "HASHES=nowhere.txt is not a file." in done.stdout and not toy.venv.exists()
    done = toy.make("lab", HASHES="nowhere.txt", COURSE_VENV=str(tmp_path))
    assert "nothing is installed into COURSE_VENV" in done.stdout and done.returncode != 0


class Noting:
    """A pip that notes what it is asked for."""

    name = "pip"

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def install(self, *arguments: str, alone: bool = False) -> None:
        self.asked.append((*arguments, *(["alone"] if alone else [])))


@pytest.mark.parametrize(("torch", "index"), [("2.13.0", ""), ("2.13.0+cpu", install.CPU_INDEX)])
def test_the_cpu_build_is_sought_where_it_is(tmp_path, monkeypatch, torch: str, index: str) -> None:
    monkeypatch.delenv("TORCH_INDEX_URL", raising=False)
    (tmp_path / "h").write_text(f"torch=={torch} --hash=sha256:0\n")
    pip = Noting()
    install._install_verified(tmp_path / "h", pip, ("classroom",))
    first, second = pip.asked
    assert "--require-hashes" in first and (
        index in first if index else "--extra-index-url" not in first
    )
    assert "--no-index" in second and second[-1] == "alone"
