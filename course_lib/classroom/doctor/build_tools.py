"""A C++ compiler and libaio: what DeepSpeed needs to build its offload to NVMe on first use.

Both are tried by compiling and running a program of three lines. Lesson 12 offloads to a disk.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from course_lib.classroom.doctor.commands import Answer, ask
from course_lib.classroom.doctor.finding import Finding
from course_lib.classroom.doctor.places import FREE_SOME, no_room

COMPILERS = ("c++", "g++", "clang++")
GET_COMPILER = "sudo apt-get install g++ (conda: conda install -c conda-forge cxx-compiler)"
GET_LIBAIO = "sudo apt-get install libaio-dev (conda: conda install -c conda-forge libaio)"
HELLO = """#include <vector>
#include <cstdio>
int main() { std::vector<int> all{40, 2}; std::printf("%d", all[0] + all[1]); }
"""
ASYNC = """#include <libaio.h>
#include <cstdio>
int main() { io_context_t c = nullptr; std::printf("%d", 42 + 0 * io_destroy(c)); }
"""
NOT_TRIED = "could not be tried: compilers write into the folder for temporary files"
LIBRARIES = ("libaio.so.1", "libaio.so.1t64", "libaio.so")


def compiler() -> list[Finding]:
    """Whether a C++ program can be compiled and run."""
    name = "C++ compiler"
    command = find_compiler()
    if not command:
        told = "none on the PATH; offload to NVMe (lesson 12) cannot be built"
        return [Finding(name, "note", told, GET_COMPILER)]
    tried = build_and_run(command, HELLO)
    if tried.out != "42":
        if full := no_room():
            return [Finding(name, "bad", f"{NOT_TRIED}; {full}", FREE_SOME)]
        named = " (named by CXX)" if os.environ.get("CXX") else ""
        told = f"{command[0]}{named} cannot build a program of three lines: "
        remedy = f"unset CXX, or {GET_COMPILER}" if named else GET_COMPILER
        return [Finding(name, "bad", told + _first_line(tried.said), remedy)]
    version = _first_line(ask([*command, "--version"]).out)
    return [Finding(name, "ok", f"{version}; it builds and runs a program")]


def libaio() -> list[Finding]:
    """Whether a program with libaio can be built, or else which half of it is missing."""
    command = find_compiler()
    if command and build_and_run(command, ASYNC, "-laio").out == "42":
        return [Finding("libaio", "ok", "a program that uses it can be built and runs")]
    if command and (full := no_room()):
        return [Finding("libaio", "note", f"{NOT_TRIED}; {full}", FREE_SOME)]
    library = any(_loads(one) for one in LIBRARIES)
    if library and not command:
        told = "the library is there; without a compiler its header could not be tried"
        return [Finding("libaio", "note", told, GET_COMPILER)]
    what = "its header is missing" if library else "it is not installed"
    told = f"{what}; offload to NVMe (lesson 12) cannot be built"
    return [Finding("libaio", "note", told, GET_LIBAIO)]


def find_compiler() -> list[str]:
    """The command in CXX, else the first compiler on the PATH; empty where there is none."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        return named
    return next(([one] for one in COMPILERS if shutil.which(one)), [])


def build_and_run(command: list[str], source: str, *options: str) -> Answer:
    """The program's own answer, or the compiler's complaint."""
    try:
        with tempfile.TemporaryDirectory(prefix="course-doctor-") as folder:
            return _build_and_run(command, source, options, Path(folder))
    except OSError as error:
        return Answer(None, said=str(error))


def _build_and_run(command: list[str], source: str, options: Sequence[str], folder: Path) -> Answer:
    (folder / "a.cpp").write_text(source)
    built = ask([*command, "-std=c++17", "a.cpp", "-o", "a", *options], 60.0, folder)
    if not built.good:
        return Answer(built.code, said=built.said)
    if not (folder / "a").exists():
        return Answer(1, said="it ended well and made no program")
    return ask([str(folder / "a")], 10.0)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "it said nothing")
