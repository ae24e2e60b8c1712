"""Every stage, offload and precision is the same training: the same losses, held and sent as the
closed forms say, and gone on with to the last bit on the layout that was saved."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch

from course_lib.train import curve, program
from course_lib.train.checks import resolve
from course_lib.train.options import parse
from course_lib.train.record import Failed
from tests.course_lib.tensor_parallel.parts import said

# Uneven on purpose: 5 rows over 2 replicas, sizes and a vocabulary that tp does not divide.
SMALL = [
    *("--hidden", "24", "--heads", "4", "--inner", "26", "--layers", "2", "--length", "19"),
    *("--rows", "5", "--vocabulary", "283", "--corpus-bytes", "60000", "--tp", "2"),
    *("--peak-tflops", "0.01", "--steps", "6", "--warmup", "3", "--lr", "0.01", "--clip", "0.8"),
    *("--validate-every", "2", "--json"),
]
LAYOUTS = {
    "0": [], "1": ["--stage", "1"], "2": ["--stage", "2"], "3": ["--stage", "3"],
    "1-cpu": ["--stage", "1", "--offload", "cpu"], "1-nvme": ["--stage", "1", "--offload", "nvme"],
    "2-cpu": ["--stage", "2", "--offload", "cpu"], "2-nvme": ["--stage", "2", "--offload", "nvme"],
    "3-cpu": ["--stage", "3", "--offload", "cpu"], "3-nvme": ["--stage", "3", "--offload", "nvme"],
}  # fmt: skip
MORE = {
    "3-fast": ["--stage", "3", "--fast"],
    "3-units": ["--stage", "3", "--units", "blocks.*.mlp,blocks.*.attention,tokens"],
    "3-lent": ["--stage", "3", "--offload", "cpu", "--no-offload-optimizer", "--fast"],
    "3-lent-bf16": [
        *("--stage", "3", "--offload", "cpu", "--no-offload-optimizer"),
        *("--precision", "bfloat16"),
    ],
    "3-optimizer-alone": ["--stage", "3", "--offload", "nvme", "--no-offload-parameters"],
    "2-sequence-fused": ["--stage", "2", "--sequence", "--fused-loss"],
    "3-sequence-fused-again": ["--stage", "3", "--sequence", "--fused-loss", "--recompute"],
    "1-llama": ["--stage", "1", "--family", "llama", "--kv-heads", "2"],
    "3-llama": ["--stage", "3", "--family", "llama", "--kv-heads", "2", "--recompute"],
    "2-accumulated": ["--stage", "2", "--rows", "8", "--accumulate", "2"],
    "3-accumulated": ["--stage", "3", "--rows", "8", "--accumulate", "2", "--no-pack"],
    "1-bf16": ["--stage", "1", "--precision", "bfloat16"],
    "3-bf16-cpu": ["--stage", "3", "--precision", "bfloat16", "--offload", "cpu"],
    "2-fp16": ["--stage", "2", "--precision", "float16"],
    "3-fp16-nvme": ["--stage", "3", "--precision", "float16", "--offload", "nvme"],
    "0-bf16": ["--precision", "bfloat16"],
}
LIKE = {"1-llama": ["--family", "llama", "--kv-heads", "2"], "2-accumulated": ["--rows", "8"]}
LIKE |= {"3-llama": LIKE["1-llama"], "3-accumulated": ["--rows", "8", "--no-pack"]}


def replicas(me, folder: str) -> list:
    """(loss, norm) of each step on so many replicas."""
    argv = [*SMALL, "--tp", "1", "--no-pack", "--steps", "3"]
    trained(me, argv, folder)
    return [(point.loss, point.norm) for point in curve.read(Path(folder) / "loss.csv")]


@pytest.mark.parametrize("world", [2, 3])
def test_replicas_change_neither_loss_nor_gradient(pool, tmp_path, world):
    alone = pool.run(1, replicas, str(tmp_path / "alone"))[0]
    shared = pool.run(world, replicas, str(tmp_path / "shared"))[0]
    for (loss, norm), (other_loss, other_norm) in zip(alone, shared, strict=True):
        assert other_loss == pytest.approx(loss, rel=1e-5)
        assert other_norm == pytest.approx(norm, rel=1e-4)


class Asked:
    """A signal that comes in a step, on rank 0 alone."""

    def __init__(self, me, at: int | None):
        self.calls, self.at = 0, at if me.rank == 0 else None

    @property
    def asked(self) -> bool:
        self.calls += 1
        return self.calls == self.at

    @property
    def signal(self) -> signal.Signals | None:
        return signal.SIGTERM if self.at is not None else None


class Quiet:
    """Shows nothing."""

    def say(self, text: str) -> None:
        """Not here."""

    step = close = lambda self, *args, **keys: None


def trained(me, argv, out, stop_at=None) -> dict:
    options = resolve(parse([*argv, "--out", out]), me.world)
    return program.train(options, me, Asked(me, stop_at), Quiet())


def all_of(me, runs: dict, folder: str) -> dict:
    """What came of several runs, by name."""
    return {
        name: trained(me, [*SMALL, *argv], str(Path(folder) / name)) for name, argv in runs.items()
    }


def as_formulas_say(run: dict) -> None:
    for report in run["ranks"]:
        want = report["estimate"]
        assert report["held_by_tier"] == want["held_by_tier"] and report["held"] == want["held"]
        assert report["sent_by_axis"] == want["sent_by_axis"] and report["sent"] == want["sent"]
        assert report["sent"] > 0 and report["peak"] > report["held_by_tier"]["device"]
        # A GPU's allocator hands out blocks of 512 bytes, and these are small tensors.
        blocks = 50_000 if torch.cuda.is_available() else 0
        assert 0.9 * want["peak"] <= report["peak"] <= 1.1 * want["peak"] + blocks


LATE = ("1-cpu", "2-nvme")  # what they add to the others is little, and a normal run is short


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([name for name in LAYOUTS if name not in LATE], id="most"),
        pytest.param(list(LAYOUTS), id="all", marks=pytest.mark.slow),
    ],
)
def test_all_stages_and_offloads_make_the_same_steps(pool, tmp_path, names):
    wanted = {name: LAYOUTS[name] for name in names}
    everywhere = pool.run(4, all_of, wanted, str(tmp_path), timeout=240)
    runs = everywhere[0]
    whole = runs["0"]["losses"]
    assert len(whole) == 6 and whole[-1] < whole[0] - 0.3
    for name, run in runs.items():
        assert run["losses"] == pytest.approx(whole, rel=1e-5), name
        assert [step for step, _ in run["validation"]] == [2, 4, 6]
        assert len(run["ranks"]) == 4
        as_formulas_say(run)
    held = {name: run["ranks"][0]["held_by_tier"] for name, run in runs.items()}
    for rest in ("device", "host"):
        assert held["0"][rest] >= held["1"][rest] >= held["2"][rest] >= 0
    assert all((held[name]["disk"] > 0) == ("nvme" in name) for name in names)
    assert not list(tmp_path.glob("*/offload"))  # an engine that is closed leaves no file


SOME = ["3-units", "3-sequence-fused-again", "3-accumulated", "2-fp16"]


def as_the_plain_ones(pool, tmp_path, names) -> dict:
    plain = {f"like {name}": LIKE[name] for name in names if name in LIKE}
    wanted = {"0": [], **plain, **{name: MORE[name] for name in names}}
    runs = pool.run(4, all_of, wanted, str(tmp_path), timeout=300)[0]
    for name in names:
        as_formulas_say(runs[name])
        whole = runs.get(f"like {name}", runs["0"])["losses"]
        rel = 1e-2 if "16" in name else 1e-5
        assert runs[name]["losses"] == pytest.approx(whole, rel=rel), name
    return runs


def test_so_does_what_else_a_run_can_be(pool, tmp_path):
    assert as_the_plain_ones(pool, tmp_path, SOME)["2-fp16"]["skipped"] < 4


@pytest.mark.slow
def test_so_does_all_of_it(pool, tmp_path):
    runs = as_the_plain_ones(pool, tmp_path, [name for name in MORE if name not in SOME])
    assert runs["3-fp16-nvme"]["skipped"] < 4


def stopped_and_gone_on(me, runs: dict, folder: str) -> dict:
    """Each run as a whole, and once stopped after its third step: the steps when it was stopped."""
    steps = {}
    for name, argv in runs.items():
        argv = [*SMALL, "--dropout", "0.1", "--save-every", "2", *argv]
        for out, stop_at in ((f"{name} whole", None), (f"{name} stopped", 3)):
            steps[name] = trained(me, argv, str(Path(folder) / out), stop_at)["steps"]
        again = ["--resume", "--json"]
        trained(me, again, str(Path(folder) / f"{name} stopped"))
    return steps


SAVED = {name: {**LAYOUTS, **MORE}[name] for name in ("3-nvme", "2-fp16")}


def goes_on(pool, tmp_path, runs: dict, world: int = 4) -> None:
    steps = pool.run(world, stopped_and_gone_on, runs, str(tmp_path), timeout=300)[0]
    assert set(steps.values()) == {3}
    for name in runs:
        whole, again = tmp_path / f"{name} whole", tmp_path / f"{name} stopped"
        assert (whole / "loss.csv").read_text() == (again / "loss.csv").read_text(), name
        last = [run / "checkpoints" / "step-000006" for run in (whole, again)]
        files = sorted(file.name for file in last[0].glob("*.safetensors"))
        saved = [json.loads((path / "training.json").read_text()) for path in last]
        assert saved[0]["engine"] == saved[1]["engine"] and saved[0]["data"] == saved[1]["data"]
        assert files == ["model.safetensors", "optimizer.safetensors"], name
        for file in files:
            assert (last[0] / file).read_bytes() == (last[1] / file).read_bytes(), (name, file)


def test_a_run_goes_on_to_the_last_bit(pool, tmp_path):
    goes_on(pool, tmp_path, SAVED)


@pytest.mark.slow
def test_so_it_does_in_all_other_layouts(pool, tmp_path):
    goes_on(pool, tmp_path, {n: v for n, v in (LAYOUTS | MORE).items() if n not in SAVED})


def sent(me, folder: str) -> list:
    """Bytes over dp of a fast and a lean run whose blocks are too large to be kept whole."""
    argv = [*SMALL, "--stage", "3", "--hidden", "128", "--inner", "256", "--steps", "3"]
    runs = [trained(me, [*argv, way], f"{folder}/{way}") for way in ("--fast", "--lean")]
    for run in runs:
        as_formulas_say(run)
    return [run["ranks"][0]["sent_by_axis"]["dp"] for run in runs]


def test_fast_gathers_once_and_lean_twice(pool, tmp_path):
    fast, lean = pool.run(4, sent, str(tmp_path))[0]
    assert 1.2 < lean / fast < 1.5  # 3 for 2, less what is small and kept whole either way


def overflowed(me, folder: str) -> list:
    """The second step of a run overflows on every rank."""
    one_step, calls = program.one_step, iter(range(9))

    def fault(options, engine, *rest):
        scale = engine.precision.scale
        scale.value, before = (2.0**60 if next(calls) == 1 else scale.value), scale.value
        result = one_step(options, engine, *rest)
        scale.value = before
        return result

    program.one_step = fault
    try:
        return trained(me, [*SMALL, "--stage", "1", "--precision", "float16"], folder)
    finally:
        program.one_step = one_step


def test_a_step_without_an_update_is_not_what_is_measured(pool, tmp_path):
    run = pool.run(4, overflowed, str(tmp_path / "run"))[0]
    assert run["skipped"] == 1 and len(run["losses"]) == 6
    as_formulas_say(run)


def not_a_number(me, folder: str, argv: list) -> str:
    return said(Failed, trained, me, [*SMALL, "--lr", "1e30", "--warmup", "0", *argv], folder)


@pytest.mark.parametrize("argv", [["--stage", "3"], ["--stage", "1", "--precision", "float16"]])
def test_what_is_not_finite_ends_all_ranks_with_the_step(pool, tmp_path, argv):
    for message in pool.run(4, not_a_number, str(tmp_path / "run"), argv):
        assert message.startswith("step ") and "with a smaller --lr" in message
