"""What the tests of the dry run share: small runs, as shapes and as they are."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path

from course_lib import dry
from course_lib.ledger.torch_calls.waits import WaitListener, listening
from course_lib.train import program
from course_lib.train.checks import resolve
from course_lib.train.options import parse
from course_lib.train.step_meter import Meter
from tests.course_lib.train.test_layouts import Asked, Quiet

ROOT = Path(__file__).resolve().parents[3]
# Uneven on purpose: 5 rows over 2 replicas, sizes and a vocabulary that tp does not divide.
SIZES = [
    *("--hidden", "24", "--heads", "4", "--inner", "26", "--layers", "2", "--length", "19"),
    *("--rows", "5", "--vocabulary", "283", "--clip", "0.8"),
]
# So wide that a block's weights are too large to be kept whole at stage 3.
WIDE = ["--tp", "2", "--stage", "3", "--hidden", "128", "--inner", "256"]
LARGE = {
    "3-wide": WIDE,
    "3-wide-fast": [*WIDE, "--fast"],
    "3-wide-again": [*WIDE, "--recompute", "--sequence"],
    "3-wide-cpu": [*WIDE, "--offload", "cpu"],
    "3-wide-lent": [*WIDE, "--offload", "cpu", "--no-offload-optimizer"],
    "3-wide-nvme": [*WIDE, "--offload", "nvme"],
    "3-wide-bf16-nvme": [*WIDE, "--offload", "nvme", "--precision", "bfloat16"],
    "3-wide-accumulated": [*WIDE, "--rows", "8", "--accumulate", "2"],
}
RUN = ["--corpus-bytes", "60000", "--peak-tflops", "0.01", "--steps", "4", "--validate-every", "0"]


def shapes(argv: list[str], world: int, rank: int = 0) -> dry.DryRun:
    """A run of these options, dry."""
    return dry.run(parse([*SIZES, *argv]), world, rank)


class Patient(WaitListener):
    """Gives gloo's threads time to let go of what they have sent: a real peak depends on it."""

    def after_wait(self, *told: object) -> None:
        time.sleep(0.002)


class Often(Meter):
    """Measures every step after the first, and keeps the lowest peak: more was let go late."""

    @contextmanager
    def step(self, engine):
        least, self.report = self.report, None
        with super().step(engine):
            yield
        if least is not None and (self.report is None or least["peak"] < self.report["peak"]):
            self.report = least


def measured(me, runs: dict[str, list[str]], folder: str) -> dict[str, dict]:
    """What this rank of real runs reports of a step, by the runs' names."""
    reports, meters, kind = {}, [], program.Meter

    def often(*args) -> Often:
        meters.append(Often(*args))
        return meters[-1]

    program.Meter = often
    try:
        for name, argv in runs.items():
            out = str(Path(folder) / name)
            options = resolve(parse([*SIZES, *RUN, *argv, "--out", out]), me.world)
            with listening(Patient()):
                program.train(options, me, Asked(me, None), Quiet())
            reports[name] = meters[-1].report
    finally:
        program.Meter = kind
    return reports
