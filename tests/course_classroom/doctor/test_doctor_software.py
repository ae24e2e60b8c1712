"""The doctor's look at software: Python, packages, compiler, libaio, JupyterLab and its kernel."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from course_classroom.doctor import build_tools, software
from course_classroom.doctor.finding import Finding
from course_classroom.grading.walls import Walls
from tests.course_classroom.conftest import only

PROJECT = """
[project]
requires-python = ">=3.10,<3.14"
dependencies = ["torch>=2.11"]
[project.optional-dependencies]
classroom = ["numpy>=2.0", "rich>=13.9", "tomli>=2 ; python_version < '3.0'", "ipy_kernel>=1"]
deepspeed = ["deepspeed>=0.18"]
bench = ["rich>=13.9"]
"""
PINS = "# pins\ntorch==2.13.0\nnumpy==2.4.6\nrich==15.0.0\ndeepspeed==0.19.8\nipy-kernel==1.5\n"
AT_PINS = {
    "torch": "2.13.0+cpu",
    "numpy": "2.4.6",
    "rich": "15.0.0",
    "deepspeed": "0.19.8",
    "ipy_kernel": "1.5",
}


# --- Python and packages -------------------------------------------------------------------------


@pytest.fixture
def course(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "constraints.txt").write_text(PINS)
    return tmp_path


def packages(course: Path, **other: str | None) -> dict[str, Finding]:
    installed = {**AT_PINS, **other}
    return {one.name: one for one in software.packages(course, installed.get)}


def test_packages_at_their_pins_are_well_whatever_torchs_build(course: Path) -> None:
    for build in ("2.13.0", "2.13.0+cpu", "2.13.0+cu130"):
        found = packages(course, torch=build)
        assert set(found) == {"packages"} and found["packages"].level == "ok"
        assert found["packages"].found.endswith("0 remark(s)")


@pytest.mark.parametrize(
    ("other", "name", "level", "says"),
    [
        ({"numpy": None}, "package numpy", "bad", "not installed; the course needs numpy>=2.0"),
        ({"torch": None}, "package torch", "bad", "not installed; the course needs torch>=2.11"),
        ({"torch": "2.10.0"}, "package torch", "bad", "2.10.0 is installed; the course needs"),
        ({"deepspeed": "0.9"}, "package deepspeed", "bad", "0.9 is installed; the course needs"),
        (
            {"numpy": "2.5.0"},
            "package numpy",
            "note",
            "within the range >=2.0, but tested with 2.4.6",
        ),
        ({"ipy_kernel": "1.4"}, "package ipy_kernel", "note", "tested with 1.5"),  # ipy-kernel
        ({"deepspeed": None}, "packages [deepspeed]", "note", "not installed: deepspeed, so"),
    ],
)
def test_a_package_that_is_not_as_it_should_be(
    course: Path, other: dict[str, str | None], name: str, level: str, says: str
) -> None:
    found = packages(course, **other)
    assert set(found) == {"packages", name}
    assert (found[name].level, says in found[name].found) == (level, True), found[name]
    assert "python -m pip install -c constraints.txt" in found[name].remedy


@pytest.mark.parametrize(
    ("version", "level"), [("3.9.18", "bad"), ("3.10.0", "ok"), ("3.13.1", "ok"), ("3.14.0", "bad")]
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
    (tmp_path / "g++").write_text("#!/bin/sh\necho >&2 'a.cpp: no vector'; exit 1\n")
    (tmp_path / "g++").chmod(0o755)
    found = only(build_tools.compiler())
    assert found.level == "bad" and found.found.endswith("a three-line program: a.cpp: no vector")


@needs_compiler
def test_libaio_is_tried_by_building_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A libaio of our own, whole and then without its header."""
    header = 'typedef struct io_context* io_context_t;\nextern "C" int io_destroy(io_context_t);\n'
    (tmp_path / "libaio.h").write_text(header)
    (tmp_path / "aio.cpp").write_text(
        '#include "libaio.h"\nextern "C" int io_destroy(io_context_t) { return 0; }\n'
    )
    options = ["-shared", "-fPIC", str(tmp_path / "aio.cpp"), "-o", str(tmp_path / "libaio.so")]
    assert build_tools.ask([*build_tools.find_compiler(), *options], 60.0).good
    for name in ("CPATH", "LIBRARY_PATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    assert only(build_tools.libaio()).level == "ok"
    (tmp_path / "libaio.h").write_text("#error none\n")
    found = only(build_tools.libaio())
    assert found.level == "note" and "libaio.h" in found.found and "libaio-dev" in found.remedy


def test_a_missing_cuda_compiler_is_told_where_a_driver_is(tmp_path: Path, monkeypatch) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert build_tools.cuda_compiler(lambda: False) == []
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    found = only(build_tools.cuda_compiler(lambda: True))
    assert found.level == "note" and f"CUDA_HOME={tmp_path} has no bin/nvcc" in found.found
    assert "DeepSpeed's extensions" in found.found and "export CUDA_HOME=" in found.remedy
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text("#!/bin/sh\necho release 13.0, V13.0.48\n")
    (tmp_path / "bin" / "nvcc").chmod(0o755)
    for named in (str(tmp_path), None):
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
        monkeypatch.setenv("CUDA_HOME", named) if named else monkeypatch.delenv("CUDA_HOME")
        found = only(build_tools.cuda_compiler(lambda: True))
        assert found.level == "ok" and "V13.0.48" in found.found


@pytest.mark.parametrize(
    ("standing", "level", "word"),
    [
        (Walls(7, True, True), "ok", "Landlock (release 7)"),
        (Walls(7, True, False), "note", "they share the network"),
        (Walls(), "note", "not confined"),
    ],
)
def test_what_could_be_kept_from_answers_is_told(standing, level, word) -> None:
    found = only(software.grading(standing))
    assert found.level == level and word in found.found and bool(found.remedy) == (level == "note")


def test_jupyterlab_that_does_not_start_is_bad(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho No module named jupyterlab >&2\nexit 1\n")
    bare.chmod(0o755)
    found = only(software.jupyterlab(str(bare)))
    assert found.level == "bad" and found.found.endswith("No module named jupyterlab")
    gone = only(software.jupyterlab(str(tmp_path / "gone")))
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
        assert only(software.kernel("toy")).level == level, program
    assert only(software.kernel("no-such-kernel")).level == "bad"
