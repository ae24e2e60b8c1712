"""A mistake as a replacement of text, and the proof that the tests notice it.

The mistake is made in a copy of the repository, never in the tree itself; there the tests named
with it must fail, one by one and in the middle of a test, and without it they must pass.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

LIMIT = 240.0  # seconds for the tests of one mutant
POOL_TIMEOUT = "9"  # seconds; a mistake that makes ranks wait should not make a reader wait
LEFT_OUT = (".*_cache", ".git", ".venv", "__pycache__", ".ipynb_checkpoints", "work", "*.pyc")


@dataclass(frozen=True)
class Mutant:
    """`old` in the file `path` becomes `new`; each of `tests`, a pytest node id, must then fail."""

    id: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str
    trap: str | None = None  # its number in the list of traps, such as "T29"

    def mutated(self, root: Path) -> str:
        """The file's text with the mistake in it."""
        text = (root / self.path).read_text()
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.id}: the text to replace is {found} times in {self.path}")
        if self.old == self.new:
            raise ValueError(f"{self.id}: old and new are the same")
        return text.replace(self.old, self.new)

    def faults(self, root: Path) -> list[str]:
        """What is wrong with the entry itself, found without running anything."""
        said = []
        try:
            text = self.mutated(root)
            if self.path.endswith(".py"):  # a page and a settings file are no Python
                compile(text, self.path, "exec")
        except (OSError, ValueError, SyntaxError) as error:
            said.append(f"{self.id}: {error}")
        if not self.tests:
            said.append(f"{self.id}: names no test")
        return said + [
            f"{self.id}: there is no test {one}" for one in self.tests if not exists(one, root)
        ]


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant: killed, or the reason why that is not shown."""

    mutant: Mutant
    killed: bool
    said: str
    seconds: float


def exists(node: str, root: Path) -> bool:
    """Whether the function of a node id stands in its file; parameters are left to pytest."""
    file, *names = node.split("[")[0].split("::")
    if not (root / file).is_file():
        return False
    body: Sequence[ast.stmt] = _parsed((root / file).read_text())
    for name in names:
        inside = [one for one in body if getattr(one, "name", None) == name]
        if not inside:
            return False
        body = inside[0].body
    return True


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> Sequence[ast.stmt]:
    """A file's statements; hundreds of entries name the same few files."""
    return ast.parse(text).body


def run_all(mutants: Sequence[Mutant], root: Path, jobs: int = 0) -> Iterator[Verdict]:
    """First all tests named, without a mistake; then each mutant. Verdicts come as they fall."""
    jobs = jobs or max(1, os.cpu_count() or 1)
    with contextlib.ExitStack() as stack:
        copies: queue.SimpleQueue = queue.SimpleQueue()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="course-mutants-")))
        for number in range(jobs):
            shutil.copytree(root, folder / f"{number}", ignore=shutil.ignore_patterns(*LEFT_OUT))
            copies.put(folder / f"{number}")
        healthy = passing(sorted({one for mutant in mutants for one in mutant.tests}), copies, jobs)
        threads = stack.enter_context(ThreadPoolExecutor(jobs))
        yield from threads.map(lambda mutant: judge(mutant, copies, healthy), mutants)


def passing(tests: Sequence[str], copies: queue.SimpleQueue, jobs: int) -> dict[str, str]:
    """Each test's outcome in an untouched copy, in words; "passed" is what it should be."""
    files: dict[str, list[str]] = {}
    for test in tests:
        files.setdefault(test.split("::")[0], []).append(test)
    outcomes: dict[str, str] = {}
    with ThreadPoolExecutor(jobs) as threads:
        reports = threads.map(lambda named: in_a_copy(named, copies), files.values())
        for named, report in zip(files.values(), reports, strict=True):
            for test in named:
                seen = report.outcomes_of(test)
                fine = seen and set(seen) <= {"passed", "skipped"} and "passed" in seen
                outcomes[test] = "passed" if fine else f"{seen or report.trouble}"
    return outcomes


def judge(mutant: Mutant, copies: queue.SimpleQueue, healthy: dict[str, str]) -> Verdict:
    began = time.monotonic()
    sick = [f"{one} ({healthy[one]})" for one in mutant.tests if healthy[one] != "passed"]
    if sick:
        return Verdict(mutant, False, f"without the mistake not passed: {'; '.join(sick)}", 0.0)
    report = in_a_copy(mutant.tests, copies, mutant)
    said = report.trouble
    if not said:
        alive = [one for one in mutant.tests if "failed" not in report.outcomes_of(one)]
        said = f"not noticed by {', '.join(alive)}" if alive else ""
    return Verdict(mutant, not said, said or "killed", time.monotonic() - began)


@dataclass(frozen=True)
class Report:
    """What one run of pytest said: (node id, outcome) in order, and any other trouble."""

    outcomes: tuple[tuple[str, str], ...]
    trouble: str = ""

    def outcomes_of(self, test: str) -> list[str]:
        return [
            how
            for node, how in self.outcomes
            if node == test or node.startswith((f"{test}[", f"{test}::"))
        ]


def in_a_copy(
    tests: Iterable[str], copies: queue.SimpleQueue, mutant: Mutant | None = None
) -> Report:
    """Run the tests in a copy that nobody else uses, with the mistake in it if there is one."""
    copy: Path = copies.get()
    file = copy / (mutant.path if mutant else "")
    try:
        kept = file.read_text() if mutant else ""
        if mutant:
            file.write_text(mutant.mutated(copy))
        try:
            return run_tests(list(tests), copy)
        finally:
            if mutant:
                file.write_text(kept)
    finally:
        copies.put(copy)


def run_tests(tests: list[str], copy: Path) -> Report:
    out = copy / "outcomes.json"
    out.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", "-o", "addopts="),
        *("-p", "no:cacheprovider", "-p", "tests.support.outcomes", *tests),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",  # an old .pyc looks valid for a new file of equal length
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # half of the start, and none is needed
        "OUTCOMES_FILE": str(out),
        "POOL_TIMEOUT": POOL_TIMEOUT,
    }
    environment.pop("PYTEST_ADDOPTS", None)
    environment.pop("PYTEST_CURRENT_TEST", None)
    running = subprocess.Popen(
        command,
        cwd=copy,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = running.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return Report((), f"the tests had not ended after {LIMIT:g} s")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    if not out.exists():
        return Report((), f"pytest ended with {running.returncode}:\n{printed[-2000:]}")
    told = json.loads(out.read_text())
    if not Path(told["course_lib"]).is_relative_to(copy.resolve()):
        return Report((), f"course_lib came from {told['course_lib']}, not from the copy")
    lost = [f"{node}: {why.splitlines()[-1]}" for node, why in told["uncollected"]]
    trouble = f"nothing could be collected: {'; '.join(lost)}" if lost else ""
    if running.returncode not in (0, 1) and not trouble:
        trouble = f"pytest ended with {running.returncode}:\n{printed[-2000:]}"
    return Report(tuple((node, how) for node, how, _ in told["outcomes"]), trouble)
