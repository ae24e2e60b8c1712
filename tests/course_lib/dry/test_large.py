"""At sizes that no test machine has: counted as the closed forms say, in little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from course_lib import dry, estimate
from course_lib.gpt import Config
from course_lib.train.options import parse
from tests.course_lib.dry.parts import ROOT

HIDDEN, LAYERS, HEADS, WORDS, LENGTH = 3072, 72, 32, 51200, 1024
CONFIG = {
    "model_type": "gpt2", "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS,
    "n_positions": LENGTH, "vocab_size": WORDS, "resid_pdrop": 0.1, "attn_pdrop": 0.1,
}  # fmt: skip
GIB = 1 << 30


def command(*words: object) -> tuple[dict, int]:
    """What `course dry-run --json` prints in a process of its own, and its most bytes of memory."""
    argv = [sys.executable, "-m", "course_classroom.cli", "dry-run", "--json", *map(str, words)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT, env=env) as process:
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return json.loads(text), usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def as_formulas(run: dict, layers: int) -> None:
    """Bytes over tp as lesson 08 has them, and all else as `estimate` says."""
    n, phi = run["tp"], LENGTH * HIDDEN
    moved = (8 * layers + 4) * phi + 2 * 3 * LENGTH  # blocks, table and head; three sums a token
    assert run["sent_by_axis"]["tp"] == 4 * moved * (n - 1) // n
    for item in ("held", "held_by_tier", "held_by_kind", "sent", "sent_by_axis"):
        assert run[item] == run["estimate"][item], item
    assert run["peak"] == pytest.approx(run["estimate"]["peak"], rel=0.01)


SIZES = [3, pytest.param(LAYERS, id="8.3B", marks=pytest.mark.slow)]


@pytest.mark.parametrize("layers", SIZES)
def test_a_rank_of_512(tmp_path: Path, layers: int):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**CONFIG, "n_layer": layers}))
    words = ["--world", 512, "--tp", 8, "--rank", 9, "--config", file]
    run, most = command(*words, "--stage", 3)
    assert most < 4 * GIB and run["peak"] > (5.6e9 if layers == LAYERS else 4e8)
    assert (run["world"], run["dp"], run["tp"], run["rank"]) == (512, 64, 8, 9)
    as_formulas(run, layers)
    own = (12 * layers * HIDDEN**2 + WORDS * HIDDEN) / 8 + LENGTH * HIDDEN  # positions are whole
    assert run["parameters"] == pytest.approx(own, rel=0.002)
    # 3Ψ(N−1)/N over dp, but for what is kept whole, or stays from the forward to the backward.
    assert run["sent_by_axis"]["dp"] == pytest.approx(
        3 * 4 * run["parameters"] * 63 / 64, rel=0.02 if layers == LAYERS else 0.2
    )


def test_ranks_of_one_run_differ_where_the_cut_is_uneven():
    config = Config.gpt2(vocabulary=509, length=64, hidden=96, layers=2, heads=6, inner=130)
    options = dry.sized(parse(["--tp", "4", "--stage", "3", "--rows", "21"]), 16, config=config)
    runs = [dry.run(options, 16, rank) for rank in (0, 3, 15)]
    assert all(run.differences() == [] for run in runs)
    assert len({run.held for run in runs}) == len({run.peak for run in runs}) == 3
    sent = runs[0].sent_by_axis
    assert sent["tp"] == estimate.tensor_parallel_bytes(config, 6, 64, 4)
    assert 0 < sent["dp"] < runs[0].sent == sum(sent.values())
    assert runs[0].calls("tp", "all_reduce") == 4 * 2 + 2 + 2 == runs[0].calls("tp")


def test_a_difference_is_found():
    run = dry.run(parse(["--layers", "1", "--hidden", "16"]), 2)
    assert run.differences() == []
    other = replace(run, held_by_tier={**run.held_by_tier, "device": 1})
    (difference,) = other.differences()
    assert difference.startswith("held_by_tier {'device': 1, ") and "by formula" in difference
