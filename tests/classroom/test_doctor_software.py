"""The doctor's look at software: Python, packages, compiler, libaio, JupyterLab and its kernel."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from course_lib.classroom.doctor import build_tools, jupyter, software
from course_lib.classroom.doctor.finding import Finding

PROJECT = """
[project]
requires-python = ">=3.10,<3.14"
dependencies = ["torch>=2.11"]
[project.optional-dependencies]
classroom = ["numpy>=2.0", "rich>=13.9", "tomli>=2 ; python_version < '3.0'"]
deepspeed = ["deepspeed>=0.18"]
bench = ["rich>=13.9"]
"""
PINS = "# pins\ntorch==2.13.0\nnumpy==2.4.6\nrich==15.0.0\ndeepspeed==0.19.8\nMark_Up==1.0\n"
AT_PINS = {"torch": "2.13.0+cpu", "numpy": "2.4.6", "rich": "15.0.0", "deepspeed": "0.19.8"}


def only(found: list[Finding]) -> Finding:
    assert len(found) == 1, found
    assert found[0].level == "ok" or found[0].remedy
    return found[0]


# --- Python and packages -------------------------------------------------------------------------


@pytest.fixture
def course(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "constraints.txt").write_text(PINS)
    return tmp_path


def packages(course: Path, **other: str | None) -> dict[str, Finding]:
    installed = {**AT_PINS, "mark-up": "1.0", **{k.replace("_", "-"): v for k, v in other.items()}}
    return {one.name: one for one in software.packages(course, installed.get)}


def test_packages_at_their_pins_are_well_whatever_torchs_build(course: Path) -> None:
    for build in ("2.13.0", "2.13.0+cpu", "2.13.0+cu130"):
        found = packages(course, torch=build)
        assert set(found) == {"packages"} and found["packages"].level == "ok"
        assert found["packages"].found.startswith("4 of 4 ")


@pytest.mark.parametrize(
    ("other", "name", "level", "says"),
    [
        ({"numpy": None}, "package numpy", "bad", "not installed; the course needs numpy>=2.0"),
        ({"torch": None}, "package torch", "bad", "not installed; the course needs torch>=2.11"),
        ({"torch": "2.10.0"}, "package torch", "bad", "2.10.0 is installed; the course needs"),
        ({"deepspeed": "0.9"}, "package deepspeed", "bad", "0.9 is installed; the course needs"),
        ({"numpy": "2.5.0"}, "package numpy", "note", "within the range >=2.0; tested with 2.4.6"),
        ({"deepspeed": None}, "packages [deepspeed]", "note", "not installed: deepspeed; what"),
        ({"mark_up": "2"}, "packages that come along", "note", "mark-up 2 (tested with 1.0)"),
    ],
)
def test_a_package_that_is_not_as_it_should_be(
    course: Path, other: dict[str, str | None], name: str, level: str, says: str
) -> None:
    found = packages(course, **other)
    assert set(found) == {"packages", name}
    assert (found[name].level, says in found[name].found) == (level, True), found[name]
    assert "python -m pip install -c constraints.txt" in found[name].remedy


def test_the_real_packages_against_a_copy_with_other_pins(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    text = (root / "constraints.txt").read_text()
    shutil.copy(root / "pyproject.toml", tmp_path)
    version = software.installed_version("psutil")
    lines = [line for line in text.splitlines() if not line.startswith("psutil==")]
    (tmp_path / "constraints.txt").write_text("\n".join([*lines, "psutil==6.0.1"]))
    found = {one.name: one for one in software.packages(tmp_path)}
    assert found["package psutil"].level == "note"
    assert found["package psutil"].found.startswith(f"{version} is installed")
    (tmp_path / "pyproject.toml").write_text(
        (root / "pyproject.toml").read_text().replace('"psutil>=6.0"', '"psutil>=600"')
    )
    assert {one.name: one.level for one in software.packages(tmp_path)}["package psutil"] == "bad"


@pytest.mark.parametrize(
    ("version", "level"),
    [("3.9.18", "bad"), ("3.10.0", "ok"), ("3.13.1", "ok"), ("3.14.0", "bad")],
)
def test_python_against_the_range(course: Path, version: str, level: str) -> None:
    found = only(software.python(course, version))
    assert found.level == level and version in found.found and ">=3.10" in found.found


# --- compiler, libaio, JupyterLab ----------------------------------------------------------------

needs_compiler = pytest.mark.skipif(
    not build_tools.find_compiler(), reason="no C++ compiler is on the PATH"
)


def test_no_compiler_is_a_note_and_a_broken_one_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = only(build_tools.compiler())
    assert found.level == "note" and "apt-get install g++" in found.remedy
    for body in ("echo >&2 'a.cpp: no vector'; exit 1", "exit 0"):
        (tmp_path / "g++").write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "g++").chmod(0o755)
        found = only(build_tools.compiler())
        assert found.level == "bad" and "cannot build a program of three lines" in found.found
        assert ("no vector" in found.found) == ("no vector" in body)


@needs_compiler
def test_a_real_compiler_builds_a_program() -> None:
    found = only(build_tools.compiler())
    assert found.level == "ok" and "it builds and runs a program" in found.found


LIBAIO_HEADER = """
typedef struct io_context* io_context_t;
extern "C" int io_destroy(io_context_t);
"""


@needs_compiler
def test_libaio_is_tried_by_building_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A libaio of our own, whole and then without its header or its library."""
    (tmp_path / "libaio.h").write_text(LIBAIO_HEADER)
    (tmp_path / "aio.cpp").write_text(
        '#include "libaio.h"\nextern "C" int io_destroy(io_context_t) { return 0; }\n'
    )
    library = tmp_path / "libaio.so"
    options = ["-shared", "-fPIC", str(tmp_path / "aio.cpp"), "-o", str(library)]
    assert build_tools.ask([*build_tools.find_compiler(), *options], 60.0).good
    monkeypatch.setenv("CPATH", str(tmp_path))
    monkeypatch.setenv("LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert only(build_tools.libaio()).level == "ok"
    (tmp_path / "libaio.h").write_text("#error none\n")
    monkeypatch.setattr(build_tools, "LIBRARIES", (str(library),))
    header = only(build_tools.libaio())
    assert header.level == "note" and header.found.startswith("its header is missing")
    monkeypatch.setattr(build_tools, "LIBRARIES", (str(tmp_path / "gone.so"),))
    gone = only(build_tools.libaio())
    assert gone.found.startswith("it is not installed") and "libaio-dev" in gone.remedy


def test_jupyterlab_that_does_not_start_is_bad(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho No module named jupyterlab >&2\nexit 1\n")
    bare.chmod(0o755)
    found = only(jupyter.jupyterlab(str(bare)))
    assert found.level == "bad" and found.found.endswith("No module named jupyterlab")
    gone = only(jupyter.jupyterlab(str(tmp_path / "gone")))
    assert gone.level == "bad" and "make setup" in gone.remedy


def test_a_kernel_that_runs_another_python_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kernels" / "toy"
    folder.mkdir(parents=True)
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    levels = {"python": "ok", sys.executable: "ok", "/bin/sh": "note", "/no/python": "bad"}
    for program, level in levels.items():
        spec = f'{{"argv": ["{program}", "-m", "x"], "display_name": "toy"}}'
        (folder / "kernel.json").write_text(spec)
        assert only(jupyter.kernel("toy")).level == level, program
    assert only(jupyter.kernel("no-such-kernel")).level == "bad"
