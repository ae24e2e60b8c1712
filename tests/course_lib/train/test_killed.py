"""Whatever ends a run, at whatever moment: the last checkpoint is whole, no process and no file is
left, and the run that goes on gives the undisturbed curve, weights and states to the last bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from course_lib import checkpoint
from course_lib.checkpoint import checksums
from course_lib.train import record
from tests.course_lib.train.conftest import COURSE, LIMIT, SMALL, ended, environment
from tests.course_lib.train.test_layouts import LAYOUTS
from tests.course_lib.train.test_program import processes

pytestmark = pytest.mark.own_ranks("those of course train")

STEPS = 10
RUN = [*SMALL, "--rows", "4", "--ranks", "2", "--steps", str(STEPS), "--save-every", "2"]
WAYS = ("a rank", "all", "launcher", "SIGTERM", "SIGTERM")


def disturbed(out: Path, argv: list[str], way: str, after: float) -> None:
    """Start or go on, and end it so many seconds later."""
    goes_on = (out / "checkpoints" / "latest").exists()
    arguments = ["--resume", "--out", str(out)] if goes_on else [*RUN, *argv, "--out", str(out)]
    run = subprocess.Popen(
        [*COURSE, *arguments], env=environment("slow:0.15:"), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(after)
    try:
        ranks = psutil.Process(run.pid).children()
    except psutil.NoSuchProcess:
        ranks = []
    victims = {"launcher": [run.pid], "all": [run.pid, *(rank.pid for rank in ranks)]}
    victims |= {"a rank": [rank.pid for rank in ranks[-1:]], "SIGTERM": [run.pid]}
    for pid in victims[way]:
        if psutil.pid_exists(pid) and run.poll() is None:
            os.kill(pid, signal.SIGTERM if way == "SIGTERM" else signal.SIGKILL)
    _, complaints = run.communicate(timeout=LIMIT)
    assert "Traceback" not in complaints, complaints
    limit = time.monotonic() + 20
    while processes(str(out)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not processes(str(out))


def check_whole(out: Path) -> None:
    """Every file of the last checkpoint is what was written, and no rank's is missing."""
    path, _ = record.last(out)
    checkpoint.check(path)
    tensors = {"model.safetensors", "optimizer.safetensors"}
    assert {*checksums.read(path, str), checksums.SUMS} | tensors == {
        file.name for file in path.iterdir()
    }


def same(out: Path, other: Path) -> None:
    assert (out / "loss.csv").read_text() == (other / "loss.csv").read_text()
    last = [run / "checkpoints" / f"step-{STEPS:06d}" for run in (out, other)]
    for file in last[0].glob("*.safetensors"):
        assert file.read_bytes() == (last[1] / file.name).read_bytes(), file.name
    saved = [json.loads((path / "training.json").read_text()) for path in last]
    assert saved[0]["engine"] == saved[1]["engine"] and saved[0]["data"] == saved[1]["data"]


def endures(tmp_path: Path, name: str, ways: tuple, seed: int) -> None:
    whole, out = tmp_path / "whole", tmp_path / "run"
    began = time.monotonic()
    done = ended(COURSE, *RUN, *LAYOUTS[name], "--out", whole, fault="slow:0.15:")
    assert done.returncode == 0, done.stderr
    lasted, dice = time.monotonic() - began, random.Random(seed)
    for way in ways:
        disturbed(out, LAYOUTS[name], way, dice.uniform(0.3, 1.0) * lasted)
        if (out / "checkpoints" / "latest").exists():
            check_whole(out)
    goes_on = ["--resume"] if (out / "checkpoints" / "latest").exists() else [*RUN, *LAYOUTS[name]]
    done = ended(COURSE, *goes_on, "--out", out)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    same(whole, out)
    assert not list(out.glob("offload/*")) and not list((out / "checkpoints").glob(".*"))


def test_a_sharded_run_with_its_states_in_files_endures(tmp_path):
    endures(tmp_path, "3-nvme", ("a rank", "SIGTERM"), seed=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_endures_every_end_at_random_moments(tmp_path, name):
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed={seed}")  # shown where it fails
    endures(tmp_path, name, WAYS, seed)
