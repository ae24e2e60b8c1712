"""What the tests of the dry run share: small runs, as shapes and as they are."""

from __future__ import annotations

from pathlib import Path

from course_lib import dry
from course_lib.train import program
from course_lib.train.checks import resolve
from course_lib.train.options import parse

# Uneven on purpose: 5 rows over 2 replicas, sizes and a vocabulary that tp does not divide.
SIZES = [
    *("--hidden", "24", "--heads", "4", "--inner", "26", "--layers", "2", "--length", "19"),
    *("--rows", "5", "--vocabulary", "283", "--clip", "0.8"),
]
RUN = ["--corpus-bytes", "60000", "--peak-tflops", "0.01", "--steps", "2", "--validate-every", "0"]


class Quiet:
    """Shows nothing, and asks for nothing."""

    asked, signal = False, None

    def say(self, text: str) -> None:
        """Not here."""

    step = close = lambda self, *args, **keys: None


def shapes(argv: list[str], world: int, rank: int = 0) -> dry.DryRun:
    """A run of these options, dry."""
    return dry.run(parse([*SIZES, *argv]), world, rank)


def measured(me, runs: dict[str, list[str]], folder: str) -> dict[str, list[dict]]:
    """What every rank of real runs reports of a step, by the runs' names."""
    found = {}
    for name, argv in runs.items():
        out = str(Path(folder) / name)
        options = resolve(parse([*SIZES, *RUN, *argv, "--out", out]), me.world)
        found[name] = program.train(options, me, Quiet(), Quiet())["ranks"]
    return found
