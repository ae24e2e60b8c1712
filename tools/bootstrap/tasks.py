"""The work of each make target after its environment is ready.

Checks continue after a failure, so that one run reports everything; the exit code reflects any
failure. No lesson derives it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from .environment import Environment
from .install import end
from .say import Refusal, Watch, complain, say

COURSE = "import sys; sys.argv[0] = 'course'; from course_classroom.cli import main; main()"
NOTHING_COLLECTED = 5  # pytest's exit code if no test was found
# A file's tests share ranks and kernels, so a file is never split over processes.
PARALLEL = ["-n", "auto", "--maxprocesses", "4", "--dist", "loadfile"]
SLOWEST = ["--durations=15", "--durations-min=5"]  # durations, reported at the end
FAR_BACKSTOP = "900"  # seconds before nbval ends a cell; ranks end much earlier


class Check(NamedTuple):
    """A check's Python arguments; notebooks also get their world size."""

    name: str
    arguments: list[str]
    world: str = ""


RUFF = [
    Check("ruff format", ["-m", "ruff", "format", "--check", "."]),
    Check("ruff check", ["-m", "ruff", "check", "."]),
]


def child_environment(root: Path, environment: Environment) -> dict[str, str]:
    """Build the environment variables of all programs that run inside the environment."""
    kept = dict(os.environ)
    kept.pop("PYTHONHOME", None)
    kept.pop("PYTHONPATH", None)
    kept["PATH"] = os.pathsep.join([str(environment.python.parent), kept.get("PATH", "")])
    kept["VIRTUAL_ENV"] = str(environment.folder)
    if environment.ours:
        kept["PYTHONNOUSERSITE"] = "1"
    else:
        kept["PYTHONPATH"] = str(root)  # a shared environment need not hold course_lib itself
    return kept


def course(root: Path, environment: Environment, *arguments: str) -> int:
    """Run the `course` command with these arguments in the foreground."""
    command = [str(environment.python), "-c", COURSE, *arguments]
    return _run(command, root, child_environment(root, environment))


def lab(root: Path, environment: Environment) -> int:
    """Replace this process by JupyterLab, so that Ctrl-C goes directly to it."""
    command = [str(environment.python), "-c", COURSE, "lab", *_words("LAB_ARGS")]
    os.chdir(str(root))
    os.execve(command[0], command, child_environment(root, environment))


def exercises(root: Path, environment: Environment) -> int:
    return course(root, environment, "release")


def bench(root: Path, environment: Environment) -> int:
    return course(root, environment, "bench", *(_words("BENCH_ARGS") or ["classroom"]))


def accept_gpu(root: Path, environment: Environment) -> int:
    """Run everything on a node with GPUs, and write one file with the results."""
    command = [str(environment.python), "-m", "tools.accept_gpu", *_words("ACCEPT_ARGS")]
    return _run(command, root, child_environment(root, environment))


def notebooks(root: Path, environment: Environment) -> int:
    """Execute every notebook again and write it back normalised."""
    return course(root, environment, "notebooks")


def test(root: Path, environment: Environment) -> int:
    """Run ruff, pytest without the slow marks, and every notebook strictly at world 2."""
    return _all(root, environment, [*RUFF, _pytest(), *_nbval(root, 2, "--nbval")])


def test_all(root: Path, environment: Environment) -> int:
    """Run the same with the slow marks, and every notebook at worlds 1, 3 and 4."""
    checks = [*RUFF, _pytest("-m", ""), *_nbval(root, 2, "--nbval")]
    checks += [check for world in (1, 3, 4) for check in _nbval(root, world, "--nbval-lax")]
    return _all(root, environment, checks)


def mutants(root: Path, environment: Environment) -> int:
    """Insert each registered mistake; a test must fail for each."""
    command = [str(environment.python), "-m", "tests.mutants"]
    return _run(command, root, child_environment(root, environment))


def _pytest(*more: str) -> Check:
    # tests/conftest.py puts the longest first, so pytest-xdist must keep that order.
    words = ["-m", "pytest", *PARALLEL, "--no-loadscope-reorder", *SLOWEST, *more]
    return Check("pytest", [*words, *_words("PYTEST_ARGS")])


def _nbval(root: Path, world: int, mode: str) -> list[Check]:
    folders = [one for one in ("notebooks", "solutions") if any(root.glob(f"{one}/**/*.ipynb"))]
    words = ["-m", "pytest", mode, "--nbval-current-env", "--nbval-cell-timeout", FAR_BACKSTOP]
    words += [*SLOWEST, *PARALLEL, *folders]
    return [Check(f"notebooks at world {world}", words, str(world))] if folders else []


def _words(variable: str) -> list[str]:
    return shlex.split(os.environ.get(variable, ""))


def _all(root: Path, environment: Environment, checks: list[Check]) -> int:
    """Run every check, and print a summary at the end."""
    lines, failed = [], []
    for check in checks:
        watch, variables = Watch(), child_environment(root, environment)
        say(f"--- {check.name}")
        with tempfile.TemporaryDirectory(prefix="course-ipython-") as folder:
            if check.world:  # not the user's profile, and nothing remains in it
                variables.update(WORLD_SIZE=check.world, IPYTHONDIR=folder)
            code = _run([str(environment.python), *check.arguments], root, variables)
        word = f"FAILED (exit {code})" if code else "ok"
        word = "FAILED, no test was found" if code == NOTHING_COLLECTED else word
        lines.append(f"{check.name:<22} {word}, {watch} (of processors {watch.worked})")
        failed += [check.name] if code else []
    for line in lines:
        say(line)
    if failed:
        complain(f"not green: {', '.join(failed)}")
    return 1 if failed else 0


def _run(command: list[str], root: Path, variables: dict[str, str]) -> int:
    """Run to the end; after an interrupt, give the child time to end its ranks, then end it."""
    try:
        child = subprocess.Popen(command, cwd=str(root), env=variables)
    except OSError as error:
        raise Refusal(f"{command[0]} cannot be run ({error.strerror}).", "make setup") from None
    try:
        return child.wait()
    except KeyboardInterrupt:
        end(child, patience=15.0)
        raise
