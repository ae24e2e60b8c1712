"""What each make target runs once its environment stands.

Checks go on after one has failed, so that one run tells all; the exit code is honest.
No lesson derives it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Iterator, NamedTuple

from .environment import Environment
from .pip_run import end
from .say import Refusal, Watch, complain, say

COURSE = "import sys; sys.argv[0] = 'course'; from course_lib.cli import main; main()"
NOTHING_COLLECTED = 5  # pytest's exit code where no test was found
# A file's tests share ranks and kernels, so a file is never split over processes.
PARALLEL = ["-n", "auto", "--maxprocesses", "4", "--dist", "loadfile"]
SLOWEST = ["--durations=15", "--durations-min=5"]  # what takes how long, at the end
FAR_BACKSTOP = "900"  # seconds a cell may take before nbval ends it; ranks end far earlier


class Outcome(NamedTuple):
    """How one check ended; a code of 0 is good, None means that there was nothing to check."""

    name: str
    code: int | None
    took: str


def child_environment(root: Path, environment: Environment) -> dict[str, str]:
    """The environment variables of everything that runs inside the environment."""
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
    """The `course` command with these arguments, in the foreground."""
    command = [str(environment.python), "-c", COURSE, *arguments]
    return _run(command, root, child_environment(root, environment))


def lab(root: Path, environment: Environment) -> int:
    """JupyterLab takes this process's place, so that Ctrl-C is a matter between it and the user."""
    more = shlex.split(os.environ.get("LAB_ARGS", ""))
    command = [str(environment.python), "-c", COURSE, "lab", *more]
    os.chdir(str(root))
    os.execve(command[0], command, child_environment(root, environment))


def exercises(root: Path, environment: Environment) -> int:
    return course(root, environment, "release")


def bench(root: Path, environment: Environment) -> int:
    arguments = shlex.split(os.environ.get("BENCH_ARGS", "")) or ["classroom"]
    return course(root, environment, "bench", *arguments)


def accept_gpu(root: Path, environment: Environment) -> int:
    """Everything on a node with GPUs, and one file that tells how it went."""
    arguments = shlex.split(os.environ.get("ACCEPT_ARGS", ""))
    command = [str(environment.python), "-m", "tools.accept_gpu", *arguments]
    return _run(command, root, child_environment(root, environment))


def notebooks(root: Path, environment: Environment) -> int:
    """Execute every notebook anew and write it back normalised."""
    return course(root, environment, "notebooks")


def test(root: Path, environment: Environment) -> int:
    """ruff, pytest without the slow marks, every notebook strictly at world 2."""
    return _all(root, environment, [_format, _lint, _pytest([]), _nbval(2, strict=True)])


def test_all(root: Path, environment: Environment) -> int:
    """The same with the slow marks, and every notebook at worlds 1, 3 and 4."""
    checks = [_format, _lint, _pytest(["-m", ""]), _nbval(2, strict=True)]
    return _all(root, environment, [*checks, *(_nbval(n, strict=False) for n in (1, 3, 4))])


def mutants(root: Path, environment: Environment) -> int:
    """Put every mistake of the registry in; a test has to fail for each."""
    command = [str(environment.python), "-m", "tests.mutants"]
    return _run(command, root, child_environment(root, environment))


Check = Callable[[Path, Environment], Outcome]


def _lint(root: Path, environment: Environment) -> Outcome:
    return _step("ruff check", ["-m", "ruff", "check", "."], root, environment)


def _format(root: Path, environment: Environment) -> Outcome:
    return _step("ruff format", ["-m", "ruff", "format", "--check", "."], root, environment)


def _pytest(more: list[str]) -> Check:
    def run(root: Path, environment: Environment) -> Outcome:
        arguments = [
            "-m",
            "pytest",
            *PARALLEL,
            "--no-loadscope-reorder",  # tests/conftest.py has put the longest first
            *SLOWEST,
            *more,
            *shlex.split(os.environ.get("PYTEST_ARGS", "")),
        ]
        return _step("pytest", arguments, root, environment)

    return run


def _nbval(world: int, *, strict: bool) -> Check:
    def run(root: Path, environment: Environment) -> Outcome:
        name = f"notebooks at world {world}"
        folders = [one for one in ("notebooks", "solutions") if any(root.glob(f"{one}/**/*.ipynb"))]
        if not folders:
            return Outcome(name, None, "no notebook is there")
        arguments = [
            "-m", "pytest", "--nbval" if strict else "--nbval-lax", "--nbval-current-env",
            "--nbval-cell-timeout", FAR_BACKSTOP, *SLOWEST, *PARALLEL, *folders,
        ]  # fmt: skip
        with _private_ipython(root, environment) as variables:
            variables["WORLD_SIZE"] = str(world)
            return _step(name, arguments, root, environment, variables)

    return run


@contextmanager
def _private_ipython(root: Path, environment: Environment) -> Iterator[dict[str, str]]:
    """Child variables with an IPYTHONDIR of their own: no profile of the user's, nothing left."""
    folder = tempfile.mkdtemp(prefix="course-ipython-")
    try:
        yield {**child_environment(root, environment), "IPYTHONDIR": folder}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _step(
    name: str,
    arguments: list[str],
    root: Path,
    environment: Environment,
    variables: dict[str, str] | None = None,
) -> Outcome:
    watch = Watch()
    say(f"--- {name}")
    variables = variables or child_environment(root, environment)
    code = _run([str(environment.python), *arguments], root, variables)
    return Outcome(name, code, f"{watch} (of processors {watch.worked})")


def _all(root: Path, environment: Environment, checks: list[Check]) -> int:
    outcomes = [check(root, environment) for check in checks]
    for one in outcomes:
        word = "nothing to check" if one.code is None else "ok" if one.code == 0 else "FAILED"
        if one.code == NOTHING_COLLECTED:
            word = "FAILED: no test was found"
        elif one.code:
            word += f" (exit {one.code})"
        say(f"{one.name:<22} {word}, {one.took}")
    failed = [one.name for one in outcomes if one.code]
    if failed:
        complain(f"not green: {', '.join(failed)}")
    return 1 if failed else 0


def _run(command: list[str], root: Path, variables: dict[str, str]) -> int:
    """Run to the end; interrupted, give the child time to clear its ranks away, then end it."""
    try:
        child = subprocess.Popen(command, cwd=str(root), env=variables)
    except OSError as error:
        raise Refusal(f"{command[0]} cannot be run ({error.strerror}).", "make setup") from None
    try:
        return child.wait()
    except KeyboardInterrupt:
        end(child, patience=15.0)
        raise
