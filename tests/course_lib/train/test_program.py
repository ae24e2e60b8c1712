"""The program from end to end, on ranks that a launcher starts: it learns, and what disturbs it
costs nothing: signals, a rank killed in a step or in a save, a disk that takes no more."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from course_lib import pretrained
from course_lib.train import curve
from tests.course_lib.train.conftest import (
    ALONE,
    COURSE,
    LIMIT,
    SMALL,
    STEPS,
    TORCHRUN,
    ended,
    environment,
)

pytestmark = pytest.mark.own_ranks("those of course train")


def losses(out: Path) -> list[curve.CurvePoint]:
    return curve.read(out / "loss.csv")


def processes(word: str) -> list[int]:
    """Those whose command line holds the word."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word in one.read_bytes().decode(errors="replace"):
                found.append(int(one.parent.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def same_run(one: Path, other: Path) -> None:
    """The same curve, weights and optimizer states, to the last bit."""
    assert (one / "loss.csv").read_text() == (other / "loss.csv").read_text()
    last = [out / "checkpoints" / (out / "checkpoints/latest").read_text().strip()
            for out in (one, other)]  # fmt: skip
    assert last[0].name == last[1].name
    files = sorted(path.name for path in last[0].glob("*.safetensors"))
    assert files == ["model.safetensors", "optimizer.safetensors"]
    for name in files:
        assert (last[0] / name).read_bytes() == (last[1] / name).read_bytes(), name


def test_it_learns_tells_and_leaves_a_curve_a_picture_and_a_checkpoint(undisturbed):
    printed = (undisturbed / "printed.txt").read_text()
    lines = [line for line in printed.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in lines] == ["1/12", "5/12", "10/12", "12/12"]
    assert all("tokens/s" in line and "MFU" in line for line in lines)
    assert (
        "2 rank(s), dp 1 × tp 2, ZeRO stage 0, float32" in printed
        and "percentage of 0.020 TFLOP/s" in printed
    )
    points = losses(undisturbed)
    assert [point.step for point in points] == list(range(1, STEPS + 1))
    assert points[-1].loss < points[0].loss - 0.15
    assert abs(points[0].loss - math.log(283)) < 0.3
    assert [round(point.lr, 6) for point in points[:5]] == [0.00075, 0.0015, 0.00225, 0.003, 0.003]
    assert (undisturbed / "run.png").read_bytes().startswith(b"\x89PNG")
    folder = undisturbed / "checkpoints" / "step-000012"
    assert sorted(one.name for one in (undisturbed / "checkpoints").iterdir()) == [
        "latest", folder.name,
    ]  # fmt: skip
    names = {one.name for one in folder.iterdir()}
    assert not [name for name in names if name.endswith((".pt", ".bin", ".pkl"))]
    assert json.loads((folder / "training.json").read_text())["step"] == STEPS


def test_transformers_reads_the_checkpoint(undisturbed):
    transformers = pytest.importorskip("transformers")
    folder = undisturbed / "checkpoints" / "step-000012"
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ours = pretrained.from_pretrained(folder)
    ids = torch.arange(19)[None] * 7 % 283
    with torch.no_grad():
        torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-5, atol=1e-5)
    from tokenizers import Tokenizer

    assert Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size() == 283


def test_under_torchrun_it_is_the_same_run(undisturbed, tmp_path):
    done = ended(TORCHRUN, "--tp", 2, *SMALL, "--steps", STEPS, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    same_run(undisturbed, tmp_path / "run")


@pytest.mark.slow
def test_under_slurm_each_task_finds_its_place(tmp_path):
    """srun's variables, without srun: two replicas; a port that the job's number gives."""
    for attempt in range(3):
        out = tmp_path / f"run-{attempt}"
        job = str(3000 + os.getpid() + 977 * attempt)
        tasks = []
        for rank in range(2):
            names = {"PROCID": rank, "LOCALID": rank, "NTASKS": 2, "NODEID": 0, "JOB_ID": job}
            names |= {"TASKS_PER_NODE": 2, "JOB_NODELIST": "localhost"}
            variables = {f"SLURM_{name}": str(value) for name, value in names.items()}
            tasks.append(
                subprocess.Popen(
                    [*ALONE, *SMALL, "--steps", "4", "--timeout", "40", "--out", str(out)],
                    env=environment(**variables),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        said = [task.communicate(timeout=LIMIT) for task in tasks]
        if "is used by a different" in said[0][1]:
            continue
        assert [task.returncode for task in tasks] == [0, 0], said
        assert "dp 2 × tp 1" in said[0][0] and said[1] == ("", "")
        assert len(losses(out)) == 4
        return
    pytest.skip("three ports in a row were taken")


def test_a_rank_killed_in_a_step_costs_the_steps_since_the_last_checkpoint(undisturbed, tmp_path):
    out = tmp_path / "run"
    arguments = ["--tp", 2, *SMALL, "--steps", STEPS, "--save-every", 3, "--out", out]
    done = ended(COURSE, *arguments, fault="kill:8:1")
    assert done.returncode == 1
    assert "rank 1 was ended by SIGKILL" in done.stderr and "--resume" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1  # no complaint of who was left behind
    assert not processes(str(out))
    assert (out / "checkpoints/latest").read_text() == "step-000006\n"
    assert [point.step for point in losses(out)] == list(range(1, 8))
    done = ended(COURSE, "--resume", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "going on after step 6" in done.stdout
    same_run(undisturbed, out)
    kept = sorted(one.name for one in (out / "checkpoints").iterdir())
    assert kept == ["latest", "step-000009", "step-000012"]


@pytest.mark.slow  # the pieces: a killed rank above, killed saves in checkpoint/test_killed.py
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_in_a_save_leaves_the_checkpoint_before(undisturbed, tmp_path, rank):
    out = tmp_path / "run"
    arguments = ["--tp", 2, *SMALL, "--steps", STEPS, "--save-every", 4, "--out", out]
    done = ended(COURSE, *arguments, fault=f"save:2:{rank}")
    assert done.returncode != 0
    assert (out / "checkpoints/latest").read_text() == "step-000004\n"
    # Rank 0, if it lives, takes away what was being written; else that stays until the next run.
    assert rank or list((out / "checkpoints").glob(".*"))
    done = ended(COURSE, "--resume", "--out", out)
    assert done.returncode == 0, done.stderr
    same_run(undisturbed, out)
    assert not list((out / "checkpoints").glob(".*"))


def started(command, out, *arguments, fault="slow:0.3:", steps=9999, variables=None):
    """A run, as a subprocess.Popen, that has taken two steps of many."""
    run = subprocess.Popen(
        [*command, *SMALL, "--steps", str(steps), "--out", str(out), *arguments],
        env=environment(fault, **(variables or {})),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = time.monotonic() + LIMIT
    while len(losses(out)) < 2:
        assert time.monotonic() < limit and run.poll() is None, run.communicate()
        time.sleep(0.05)
    return run


@pytest.mark.parametrize("to", ["one rank", pytest.param("launcher", marks=pytest.mark.slow)])
def test_a_signal_ends_it_after_the_step_and_nothing_is_lost(undisturbed, tmp_path, to):
    out = tmp_path / "run"
    run = started(COURSE, out, "--tp", "2")
    ranks = [pid for pid in processes(str(out)) if pid != run.pid]
    assert len(ranks) == 2
    number = signal.SIGTERM if to == "one rank" else signal.SIGINT
    os.kill(ranks[-1] if to == "one rank" else run.pid, number)
    printed, complaints = run.communicate(timeout=LIMIT)
    assert (run.returncode, complaints) == (0, "")
    steps = len(losses(out))
    assert f"stopped after step {steps} by {number.name}" in printed
    assert (out / "checkpoints/latest").read_text() == f"step-{steps:06d}\n"
    assert not processes(str(out))
    assert steps < STEPS
    done = ended(COURSE, "--resume", "--steps", STEPS, "--out", out)
    assert done.returncode == 0, done.stderr
    same_run(undisturbed, out)


def test_a_second_signal_ends_it_at_once(tmp_path):
    """Rank 1 is asleep in a step and rank 0 waits for it: no line of Python runs on either."""
    out = tmp_path / "run"
    run = started(COURSE, out, "--tp", "2", fault="late:3:1")
    time.sleep(1.0)  # into the third step, from which rank 1 does not come back
    os.kill(run.pid, signal.SIGTERM)
    time.sleep(2.0)
    assert run.poll() is None
    os.kill(run.pid, signal.SIGTERM)
    _, complaints = run.communicate(timeout=LIMIT)
    assert run.returncode == 128 + signal.SIGTERM
    # By itself, and not because the launcher has lost patience and killed it.
    assert complaints == "course train: ended at once by a second signal, SIGTERM\n"
    assert not processes(str(out))


@pytest.mark.slow  # every kind of full disk is in checkpoint/test_disk.py
def test_a_disk_that_takes_no_more_leaves_the_checkpoint_before(tmp_path):
    out = tmp_path / "run"
    done = ended(ALONE, *SMALL, "--steps", 3, "--out", out)
    assert done.returncode == 0, done.stderr

    def full():  # of a single file, which is the kind of full that a test can have
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = ended(ALONE, "--resume", "--steps", 5, "--out", out, preexec_fn=full)
    assert done.returncode == 1
    assert (
        done.stderr.startswith("course train: step 5 could not be saved")
        and done.stderr.count("\n") == 1
    )
    assert [one.name for one in sorted((out / "checkpoints").iterdir())] == [
        "latest",
        "step-000003",
    ]
    done = ended(ALONE, "--resume", "--steps", 5, "--json", "--out", out)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)  # one document, and nothing else there
    assert told["losses"] == [point.loss for point in losses(out)]
    assert (told["steps"], told["stopped"]) == (5, None) and 0 < told["mfu"] < 10
    assert told["steps_counted"] == 2  # those of this start, which are one stretch
    assert "step 5/5" in done.stderr
