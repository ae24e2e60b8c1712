"""The ladder by the numbers: its order, its sums, and the first rung that fits beside the meter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from course_lib.deepspeed_config import walk
from course_lib.estimate import ladder
from course_lib.gpt import Config
from course_lib.pretrained.config import to_transformers
from tests.train.test_layouts import trained

SHORT = [
    *("--steps", "2", "--corpus-bytes", "60000", "--peak-tflops", "0.01", "--validate-every", "0"),
    "--json",
]


def peaks(me, runs: list, folder: str) -> list[int]:
    """The most that any rank held in a step, by the meter of `course train`, for each run."""
    found = []
    for i, argv in enumerate(runs):
        done = trained(me, [*argv, *SHORT], str(Path(folder) / f"{me.world}-{i}"))
        found.append(max(report["peak"] for report in done["ranks"]))
    return found
