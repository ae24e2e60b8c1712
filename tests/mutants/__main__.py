"""The registry of mistakes: each is one that a reader of this course, or its writer, could make.

`python -m tests.mutants.__main__` runs them all, `--id NAME` some, `--list` shows them. A part of course_lib
adds its own in a file of tests/mutants/.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import time
from pathlib import Path

from tests import mutants as mutants_of
from tests.support.mutation import Mutant, run_all

ROOT = Path(__file__).resolve().parents[2]


def gathered() -> list[Mutant]:
    """The mutants of every file in tests/mutants/, in the files' order by name."""
    names = sorted(found.name for found in pkgutil.iter_modules(mutants_of.__path__))
    modules = [importlib.import_module(f"tests.mutants.{name}") for name in names]
    return [mutant for module in modules for mutant in module.MUTANTS]


MUTANTS: list[Mutant] = gathered()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.__main__", description=__doc__)
    parser.add_argument("--id", action="append", default=[], help="a mutant, or the start of some")
    parser.add_argument("--jobs", type=int, default=0, help="runs at a time; 0: one per core")
    parser.add_argument("--list", action="store_true", help="show the mutants and run none")
    chosen = parser.parse_args(arguments)
    mutants = [one for one in MUTANTS if not chosen.id or one.id.startswith(tuple(chosen.id))]
    if not mutants:
        parser.error(f"no mutant begins with {' or '.join(chosen.id)}")
    if chosen.list:
        for one in mutants:
            print(f"{one.id:<34} {one.trap or '':<4} {one.path}: {one.why}")
        return 0
    began, alive = time.monotonic(), 0
    for verdict in run_all(mutants, ROOT, chosen.jobs):
        alive += not verdict.killed
        word = "killed" if verdict.killed else "ALIVE "
        print(f"{word} {verdict.mutant.id:<34} {verdict.seconds:6.1f} s", flush=True)
        if not verdict.killed:
            print(f"       {verdict.mutant.path}: {verdict.mutant.why}\n       {verdict.said}")
    seconds = time.monotonic() - began
    print(f"{len(mutants) - alive} of {len(mutants)} killed in {seconds:.0f} s")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
