"""`course bench tp` and `loss`, small: equal work, exact messages, peers that may be missing.

Nothing here asserts a time.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys

import pytest
from typer.testing import CliRunner

from course_classroom.cli import app
from tests.support.commands import ROOT, python

KEYS = ["name", "ratio", "seconds", "collectives", "must_mb", "moved_mb", "peak_mb", "held_mb"]
MODEL = {"hidden": 24, "heads": 4, "layers": 2, "sequence": 6, "batch": 3, "vocabulary": 34}
LOGITS = {"tokens": 250, "vocabulary": 6000, "hidden": 8}

with_megatron = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None,
    reason="megatron-core, of the extra bench (Linux), is not installed",
)


def bench(name: str, workload: dict, runs: int, path: str = "") -> tuple[dict, str]:
    """What `course bench NAME --json` prints for a small workload, one document and nothing else,
    and what it says on the way."""
    settings = [part for key, value in workload.items() for part in ("--set", f"{key}={value}")]
    words = ("-m", "course_classroom.cli", "bench", name, "--json", *settings, "--runs", runs)
    own = {"PYTHONPATH": os.pathsep.join(filter(None, [path, str(ROOT)]))}
    done = python(*words, cwd=ROOT, env=own)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["name"] == name and result["workload"]["runs"] == runs
    return result, done.stderr


def measured(name: str, workload: dict) -> tuple[dict, dict]:
    """The document, and its methods by name; all of the shape that benchmarks share."""
    result, _ = bench(name, workload, runs=2)
    assert workload.items() <= result["workload"].items()
    assert result["machine"]["cpus"] == os.cpu_count()
    assert result["methods"][0]["ratio"] == 1.0
    for one in result["methods"]:
        assert list(one) == [*KEYS, "losses", "runs", "against"]
        assert one["ratio"] > 0 and one["seconds"] > 0 and one["against"] > 0
        assert len(one["losses"]) == 3
        assert one["losses"] == pytest.approx(result["methods"][0]["losses"], rel=1e-4)
    assert result["methods"][0]["losses"][0] > 0
    return result, {one["name"]: one for one in result["methods"]}


def sent(methods: dict, messages: dict[str, tuple[int, float]]) -> None:
    """How many collectives each method took, and how many float32 numbers they had to send."""
    for name, (calls, numbers) in messages.items():
        assert methods[name]["collectives"] == calls, name
        assert methods[name]["must_mb"] * 1e6 == pytest.approx(4 * numbers, abs=0.6), name


@with_megatron
def test_tp_trains_the_same_model_every_way():
    result, methods = measured("tp", MODEL)
    assert list(methods) == [
        "dense-2-threads", "dense-1-thread", "course_lib", "course_lib-sequence", "megatron-core",
        "dtensor", "dtensor-sequence",
    ]  # fmt: skip
    assert "notes" not in result
    h, _, layers, s, b, v = MODEL.values()
    losses = methods["dense-1-thread"]["losses"]
    assert len(set(losses)) == 3  # it trains, on other words each time
    sums = (4 * layers + 2) * b * s * h + 3 * b * s
    messages = {
        "dense-2-threads": (0, 0),
        "dense-1-thread": (0, 0),
        # Two sums a block each way, the lookup's, the head's; two of the loss, of 1 and 2 a token.
        "course_lib": (4 * layers + 4, sums),
        "megatron-core": (4 * layers + 5, sums),
        "dtensor": (4 * layers + 5, sums),
        # Each sum in two halves; the norms' weights besides, and the table of positions.
        "course_lib-sequence": (10 * layers + 8, sums + (2 * layers + 1) * 2 * h + s * h / 2),
    }
    sent(methods, messages)
    cut = 2 * v * h + layers * (12 * h * h + 7 * h)  # weights, and biases of columns
    whole = s * h + layers * 6 * h + 2 * h  # positions, norms, biases of rows
    for name, one in methods.items():
        numbers = whole + (cut if name.startswith("dense") else cut / 2)
        steps = 4 * 64 * (2 + 12 * layers)  # AdamW counts for every parameter
        assert 0 <= one["held_mb"] * 1e6 - 3 * 4 * numbers <= steps, name
        assert one["peak_mb"] * 1e6 > 4 * numbers, name  # the gradients at least
    dense = methods["dense-2-threads"]
    assert all(one["peak_mb"] < dense["peak_mb"] for one in list(methods.values())[2:])


@with_megatron
@pytest.mark.slow
def test_loss_is_the_same_every_way():
    result, methods = measured("loss", LOGITS)
    assert list(methods) == [
        "course_lib", "gather", "dtensor", "megatron-core", "course_lib-head", "course_lib-fused",
    ]  # fmt: skip
    assert "notes" not in result
    t, v, h = LOGITS.values()
    messages = {
        "course_lib": (2, 3 * t),
        "gather": (1, t * v / 2),
        "dtensor": (3, 3 * t),
        "megatron-core": (3, 3 * t),
        "course_lib-head": (3, 3 * t + t * h),
        "course_lib-fused": (3, 3 * t + t * h),
    }
    shard = 4 * t * v / 2
    sent(methods, messages)
    for name in messages:
        if not name.startswith("course_lib-"):
            assert methods[name]["held_mb"] * 1e6 == pytest.approx(shard + 8 * t, abs=0.6), name
    peaks = {name: one["peak_mb"] * 1e6 / shard for name, one in methods.items()}
    assert 1 <= peaks["course_lib"] <= 1.1  # the gradient, and a few numbers a token
    assert peaks["gather"] > 4
    assert peaks["course_lib-fused"] < 1.2 < 2 <= peaks["course_lib-head"]


@pytest.mark.slow
def test_a_missing_peer_is_left_out_and_named(tmp_path):
    (tmp_path / "megatron").mkdir()
    (tmp_path / "megatron" / "__init__.py").write_text(
        "import os\n"
        "if 'BENCH_ARGUMENTS' in os.environ:\n"  # on a rank
        "    print('a peer that talks', flush=True)\n"
        "raise ImportError('hidden')\n"
    )
    result, said = bench("loss", LOGITS, runs=1, path=str(tmp_path))
    names = [one["name"] for one in result["methods"]]
    assert names == ["course_lib", "gather", "dtensor", "course_lib-head", "course_lib-fused"]
    assert "a peer that talks" in said
    assert result["notes"] == [line for line in said.splitlines() if "left out" in line]
    assert "megatron-core is not installed" in result["notes"][0]


def refused(*arguments: str) -> str:
    """What `course bench` says where it does nothing."""
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    return done.stderr


def test_names_and_settings(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))  # a benchmark puts its folder there

    names = "Benchmarks: checkpoint, classroom, loss, overlap, plan, scale, tp, zero\n"
    assert refused() == names
    for name, wrong, told in (
        ("classroom", "ranks=2", "the settings are none"),
        ("loss", "token=3", "the settings are ranks=2, tokens=2048, vocabulary=50304"),
        ("tp", "hidden=wide", "the settings are ranks=2, hidden=512, heads=8"),
    ):
        assert f"--set {wrong} is not possible ({told}" in refused(name, "--set", wrong)
    assert "classroom has no --limit; leave it out" in refused("classroom", "--limit", "20")
    text = refused("tp", "--set", "ranks=3", "--json")
    assert "hidden=512, heads=8, vocabulary=8192 cannot be sharded evenly over ranks=3" in text
    text = refused("loss", "--set", "vocabulary=13")
    assert "vocabulary=13 cannot be sharded evenly over ranks=2" in text
