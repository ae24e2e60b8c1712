"""What tests of the whole program share: how it is started, and one run that went undisturbed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pool import ROOT

STEPS = 12
LIMIT = 200  # seconds; importing torch on a busy machine takes a while
# Uneven on purpose: 3 rows over 2 replicas, a vocabulary that no number of ranks divides.
SMALL = [
    *("--hidden", "24", "--heads", "4", "--inner", "26", "--layers", "2", "--length", "19"),
    *("--rows", "3", "--vocabulary", "283", "--corpus-bytes", "60000", "--log-every", "5"),
    *("--peak-tflops", "0.01", "--dropout", "0.1", "--no-pack", "--warmup", "4", "--lr", "0.003"),
    *("--validate-every", "5"),
]
COURSE = [sys.executable, "-m", "course_classroom.cli", "train"]
ALONE = [sys.executable, "-m", "course_lib.train"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
TORCHRUN += ["--nproc-per-node", "2", "-m", "course_lib.train"]


def environment(fault: str = "", **more: str) -> dict[str, str]:
    paths = [str(ROOT), str(Path(__file__).parent / "faults")]
    own = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "TRAIN_FAULT": fault}
    launchers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    kept = {k: v for k, v in os.environ.items() if k not in launchers and k[:5] != "SLURM"}
    return {**kept, **own, **more}


def ended(
    command: list, *arguments: object, fault: str = "", **options: object
) -> subprocess.CompletedProcess:
    """A run that has ended by itself, with what it printed."""
    return subprocess.run(
        [*command, *map(str, arguments)],
        env=environment(fault, **options.pop("variables", {})),
        capture_output=True, text=True, timeout=LIMIT, check=False, **options,
    )  # fmt: skip


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory) -> Path:
    """The folder of a run of two ranks and STEPS steps that nobody disturbed."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    done = ended(COURSE, "--tp", 2, *SMALL, "--steps", STEPS, "--plot", "--out", out)
    assert done.returncode == 0, done.stderr
    (out / "printed.txt").write_text(done.stdout)
    assert done.stderr == ""
    return out
