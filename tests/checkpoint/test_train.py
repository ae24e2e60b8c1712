"""`course train --resume` at another layout: the same next losses, on the rows that come next."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_lib.train.curve import read
from tests.train.conftest import COURSE, ended
from tests.train.test_layouts import SMALL, trained

BOUND = 1e-5  # relative, of float32
RUN = [*(word for word in SMALL if word != "--json"), "--rows", "6", "--no-pack"]
STEPS = 8
# (ranks, tp, stage, offload): saved at the first, gone on with at the second.
PAIRS = {
    "from one to three": ((1, 1, 0, "none"), (3, 1, 3, "none")),
    "from four to two": ((4, 2, 2, "none"), (2, 1, 1, "none")),
    "tp for dp": ((2, 1, 3, "none"), (2, 2, 0, "none")),
    "dp for tp": ((2, 2, 0, "none"), (2, 1, 2, "cpu")),
    "from three to four": ((3, 1, 1, "nvme"), (4, 2, 3, "none")),
    "to one": ((4, 1, 3, "cpu"), (1, 1, 0, "none")),
}
CHEAP = ("from four to two",)


def ran(me, argv: list[str], out: str) -> list[float]:
    return trained(me, [*argv, "--json"], out)["losses"]


def undisturbed(pool, folder: Path) -> list[float]:
    argv = [*RUN, "--tp", "1", "--steps", str(STEPS)]
    return pool.run(1, ran, argv, str(folder), timeout=60)[0]


def laid_out(tp: int, stage: int, offload: str) -> list[str]:
    return ["--tp", str(tp), "--stage", str(stage), "--offload", offload]


def hold(pool, tmp_path: Path, names, go_on) -> None:
    want = undisturbed(pool, tmp_path / "undisturbed")
    for name in names:
        (world, *first), (other, *second) = PAIRS[name]
        out = tmp_path / name.replace(" ", "-")
        pool.run(world, ran, [*RUN, *laid_out(*first), "--steps", "4"], str(out), timeout=90)
        again = ["--resume", "--steps", str(STEPS), *laid_out(*second)]
        losses = go_on(pool, other, again, out)
        assert losses == pytest.approx(want, rel=BOUND), name
        assert [point.step for point in read(out / "loss.csv")] == list(range(1, STEPS + 1))
        tokens = [point.tokens for point in read(out / "loss.csv")]
        assert tokens == [p.tokens for p in read(tmp_path / "undisturbed/loss.csv")], name


def in_the_pool(pool, world: int, argv: list[str], out: Path) -> list[float]:
    return pool.run(world, ran, argv, str(out), timeout=90)[0]


def test_a_run_goes_on_at_another_layout(pool, tmp_path):
    hold(pool, tmp_path, CHEAP, in_the_pool)


def by_command(pool, world: int, argv: list[str], out: Path) -> list[float]:
    done = ended(COURSE, *argv, "--ranks", world, "--out", out)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "going on after step 4, from" in done.stdout
    return [point.loss for point in read(out / "loss.csv")]


@pytest.mark.slow
def test_course_train_goes_on_at_six_pairs_of_layouts(pool, tmp_path):
    assert len(PAIRS) == 6
    hold(pool, tmp_path, PAIRS, by_command)


def test_weights_alone_begin_another_run(pool, tmp_path):
    """`--from` takes no state, no step and no position in the data."""
    out = tmp_path / "first"
    first = pool.run(2, ran, [*RUN, "--tp", "2", "--steps", "4"], str(out), timeout=60)[0]
    path = out / "checkpoints/step-000004"
    for file in path.glob("optimizer*"):
        file.unlink()  # nothing of it is read
    argv = ["--from", str(path), "--tp", "1", "--rows", "6", "--length", "19", "--steps", "2"]
    argv += ["--corpus-bytes", "60000", "--peak-tflops", "0.01", "--no-pack", "--lr", "0.0001"]
    second = pool.run(2, ran, argv, str(tmp_path / "second"), timeout=60)[0]
    assert second[0] < first[0] - 0.2
    assert [point.step for point in read(tmp_path / "second/loss.csv")] == [1, 2]
