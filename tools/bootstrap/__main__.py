"""`python3 -m tools.bootstrap TARGET`: prepare the environment, then run the target.

Exit codes: 0 success, 1 refused or failed, 2 no such target (here), 130 interrupted. No lesson
derives it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Callable

from . import shared, tasks
from .environment import Environment, clean, ensure
from .failures import diagnose
from .say import Refusal, complain, say

ROOT = Path(__file__).resolve().parents[2]
CLASSROOM = ("classroom",)  # without the others, cells that need them are skipped with a message
LESSONS = ("classroom", "deepspeed", "huggingface")
EVERYTHING = ("bench", "classroom", "deepspeed", "dev", "huggingface")
# `course handout` puts this file into a learner's copy, which has no tests and no solutions.
MARK = "LEARNERS_COPY"
FOR_AUTHORS = ("test", "test-all", "notebooks", "exercises", "accept-gpu")
INSTEAD = (
    "this is a learner's copy of the course without tests and solutions, but `make {}` needs the "
    "full copy. Use `make lab` here; `.venv/bin/course check 01` checks your answers, and "
    "`.venv/bin/course doctor` checks this machine."
)

HELP = """The targets. Each works on a fresh clone.
  make lab         JupyterLab on the first lesson (loopback, with a token)
  make test        ruff, pytest, every notebook at world 2
  make test-all    also the slow tests, and every notebook at worlds 1, 3 and 4
  make mutants     put known mistakes into the library one by one (a test must fail for each)
  make setup       only create .venv with everything
  make notebooks   execute the lessons again and write them back normalised
  make exercises   generate exercises/ from solutions/
  make bench       the benchmarks
  make accept-gpu  all checks on a node with GPUs (writes accept-gpu-DATE.json to return)
  make clean       remove .venv
Variables: PYTHON=/path/to/python   COURSE_VENV=/a/shared/environment (checked, never changed)
  COURSE_WORK=/your/own/copies (by default work/ here, or ~/course-work if that is read-only)
  HASHES=FILE (only packages with these hashes, written by python -m tools.hashes)
  TORCH_INDEX_URL=...   LAB_ARGS="..."   PYTEST_ARGS="..."   BENCH_ARGS="..."
  ACCEPT_ARGS="--one-gpu --rehearse --out PATH"
  and all of pip's own: PIP_INDEX_URL, PIP_FIND_LINKS, PIP_CERT, HTTPS_PROXY, TMPDIR
If uv is installed, it is used with pip's settings. If it fails, pip is used."""


def _as_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _setup(root: Path, environment: Environment) -> int:
    say(f"ready: {environment.python}")
    return 0


Task = Callable[[Path, Environment], int]
TARGETS: dict[str, tuple[tuple[str, ...], Task]] = {
    "setup": (EVERYTHING, _setup),
    "lab": (LESSONS, tasks.lab),
    "test": (EVERYTHING, tasks.test),
    "test-all": (EVERYTHING, tasks.test_all),
    "mutants": (EVERYTHING, tasks.mutants),
    "notebooks": (EVERYTHING, tasks.notebooks),
    "exercises": (CLASSROOM, tasks.exercises),
    "bench": (EVERYTHING, tasks.bench),
    "accept-gpu": (EVERYTHING, tasks.accept_gpu),
}


def help_text(learners_copy: bool) -> str:
    """Return HELP without the targets that a learner's copy lacks."""
    left_out = tuple(f"  make {one} " for one in FOR_AUTHORS) if learners_copy else ()
    return "\n".join(line for line in HELP.splitlines() if not line.startswith(left_out))


def main(arguments: list[str]) -> int:
    """Run the named target, or print the help."""
    target = arguments[0] if arguments else "help"
    learners_copy = (ROOT / MARK).exists()
    if target in ("help", "-h", "--help"):
        print(help_text(learners_copy))
        return 0
    if len(arguments) > 1 or target not in {"clean", *TARGETS}:
        complain(f"no such target: {' '.join(arguments)}\n{help_text(learners_copy)}")
        return 2
    if learners_copy and target in FOR_AUTHORS:
        complain(INSTEAD.format(target))
        return 2
    signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        if target == "clean":
            clean(ROOT)
            return 0
        extras, task = TARGETS[target]
        named = os.environ.get("COURSE_VENV")
        if named and os.environ.get("HASHES"):
            raise Refusal(
                "HASHES verifies installed packages, but nothing is installed into COURSE_VENV.",
                "unset one of the two",
            )
        if named:
            least = CLASSROOM if extras == LESSONS else extras
            environment = shared.check(ROOT, Path(named).expanduser().absolute(), least)
        else:
            environment = ensure(ROOT, extras)
        return task(ROOT, environment)
    except Refusal as refusal:
        complain(str(refusal))
        return 1
    except OSError as error:
        refusal = diagnose(str(error))
        if refusal is None:
            raise
        complain(str(refusal))
        return 1
    except KeyboardInterrupt:
        complain("interrupted; the next run repairs the incomplete environment")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
