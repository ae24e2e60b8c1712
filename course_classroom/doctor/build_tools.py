"""Checks of the tools that build DeepSpeed's extensions: C++ and CUDA compilers, and libaio.

C++ and libaio are tested with a three-line program. Lesson 12 offloads to a disk.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from course_classroom.doctor.finding import Finding
from course_classroom.doctor.gpus import has_driver
from course_classroom.leases.smi import Answer, ask

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
NO_NVME = "offload to NVMe (lesson 12) cannot be built"


def compiler() -> list[Finding]:
    name, command = "C++ compiler", find_compiler()
    if not command:
        return [Finding(name, "note", f"none found on the PATH; {NO_NVME}", GET_COMPILER)]
    tried = build_and_run(command, HELLO)
    if tried.out != "42":
        named = " (named by CXX)" if os.environ.get("CXX") else ""
        told = f"{command[0]}{named} cannot build a three-line program: "
        remedy = f"unset CXX, or {GET_COMPILER}" if named else GET_COMPILER
        return [Finding(name, "bad", told + _first_line(tried.said), remedy)]
    version = _first_line(ask([*command, "--version"]).out)
    return [Finding(name, "ok", f"{version}; it builds and runs a test program")]


def libaio() -> list[Finding]:
    command = find_compiler()
    tried = build_and_run(command, ASYNC, "-laio") if command else Answer(None, said="no compiler")
    if tried.out == "42":
        return [Finding("libaio", "ok", "a program that uses it builds and runs")]
    told = f"{NO_NVME}: {_first_line(tried.said)}"
    return [Finding("libaio", "note", told, GET_LIBAIO if command else GET_COMPILER)]


def cuda_compiler(driver: Callable[[], bool] = has_driver) -> list[Finding]:
    """Report on nvcc if there is an NVIDIA driver; otherwise report nothing.

    It searches CUDA_HOME, the PATH and /usr/local/cuda, as torch's extension builder does.
    """
    if not driver():
        return []
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    found = shutil.which("nvcc")
    nvcc = Path(home, "bin", "nvcc") if home else Path(found or "/usr/local/cuda/bin/nvcc")
    if nvcc.exists():
        release = [line for line in ask([str(nvcc), "--version"]).out.splitlines() if "V" in line]
        return [Finding("CUDA compiler", "ok", f"{nvcc}: {' '.join(release[-1:])}")]
    where = f"CUDA_HOME={home} has no bin/nvcc" if home else "no nvcc, and CUDA_HOME is not set"
    told = f"{where}; DeepSpeed's extensions (FusedAdam, CPUAdam with CUDA) cannot be built"
    remedy = "install the CUDA toolkit for torch's version (`python -c 'import torch; "
    remedy += "print(torch.version.cuda)'`), then export CUDA_HOME=/its/folder"
    return [Finding("CUDA compiler", "note", told, remedy)]


def find_compiler() -> list[str]:
    """Return the command in CXX, or the first compiler on the PATH, or an empty list."""
    named = shlex.split(os.environ.get("CXX", ""))
    return named or next(([one] for one in COMPILERS if shutil.which(one)), [])


def build_and_run(command: list[str], source: str, *options: str) -> Answer:
    """Compile and run a program; return its output, or the compiler's error message."""
    try:
        with tempfile.TemporaryDirectory(prefix="course-doctor-") as name:
            folder = Path(name)
            (folder / "a.cpp").write_text(source)
            built = ask([*command, "-std=c++17", "a.cpp", "-o", "a", *options], 60.0, folder)
            return ask([str(folder / "a")], 10.0) if built.good else Answer(1, said=built.said)
    except OSError as error:
        return Answer(None, said=str(error))


def _first_line(text: str) -> str:
    """Return the first line that mentions an error, or the first line if no line does."""
    lines = text.splitlines() or ["it printed nothing"]
    return next((line for line in lines if "error" in line), lines[0])
