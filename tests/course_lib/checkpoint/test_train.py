"""`course train --resume` at another layout: the same next losses, on the rows that come next."""

from __future__ import annotations

import pytest

from course_lib.train.curve import read
from tests.course_lib.train.test_layouts import SMALL, trained

BOUND = 1e-5  # relative, of float32
RUN = [*(word for word in SMALL if word != "--json"), "--rows", "6", "--no-pack"]
STEPS = 8


def ran(me, argv: list[str], out: str) -> list[float]:
    return trained(me, [*argv, "--json"], out)["losses"]


def test_a_run_goes_on_at_another_layout(pool, tmp_path):
    """From two replicas of two ranks at stage 2 to two replicas of one at stage 1."""
    out, undisturbed = tmp_path / "run", tmp_path / "undisturbed"
    argv = [*RUN, "--tp", "1", "--steps", str(STEPS)]
    want = pool.run(1, ran, argv, str(undisturbed), timeout=60)[0]
    argv = [*RUN, "--tp", "2", "--stage", "2", "--steps", "4"]
    pool.run(4, ran, argv, str(out), timeout=90)
    argv = ["--resume", "--steps", str(STEPS), "--tp", "1", "--stage", "1"]
    assert pool.run(2, ran, argv, str(out), timeout=90)[0] == pytest.approx(want, rel=BOUND)
    mine, others = (read(folder / "loss.csv") for folder in (out, undisturbed))
    assert [point.step for point in mine] == list(range(1, STEPS + 1))
    assert [point.tokens for point in mine] == [point.tokens for point in others]
