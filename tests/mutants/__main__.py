"""Put the mistakes of the registry in, one at a time: the tests named with each must then fail."""

from __future__ import annotations

import argparse
import sys
import time

from tests.mutants import MUTANTS
from tests.support.commands import ROOT
from tests.support.mutation import run_all


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
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
