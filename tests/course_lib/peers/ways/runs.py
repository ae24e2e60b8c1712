"""Trainings by several ways on one pair of ranks, and what all of them are held to."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from course_lib import ranks
from course_lib.peers.ways.every import WAYS, train
from course_lib.peers.ways.evidence import RunEvidence
from course_lib.peers.ways.expected import expected
from course_lib.peers.ways.setting import NotThere, WaySetting
from course_lib.peers.ways.workload import Workload

NEEDED = ("transformers", "accelerate", "deepspeed")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
needs_all = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (pip install course_lib[…])"
)
ENV = {"TOKENIZERS_PARALLELISM": "false"}

# Sums are taken in other orders, and Adam divides by roots of squares that may be small. In 16 bits
# an order shows in the third digit, and FSDP2 reduces in fp32 what others reduce in bf16.
BOUND = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 5e-3}


def alone(world: int = 1, rank: int = 0, device: str = "cpu") -> ranks.Me:
    """A rank without a group."""
    return ranks.Me(rank, world, rank, world, "gloo", torch.device(device), 1.0, "")


def several(me, workload: Workload, settings: list[WaySetting], names=tuple(WAYS)):
    """{(setting, way): its run, or the sentence that there is none}, of this rank."""
    runs = {}
    for setting in settings:
        for name in names:
            try:
                runs[str(setting), name] = train(name, me, workload, setting)
            except NotThere as missing:
                runs[str(setting), name] = str(missing)
    return runs


def check_curves(runs: dict, setting: WaySetting) -> list[str]:
    """All ways that there are lose what the dense one loses, and the loss moves."""
    mine = {name: run for (at, name), run in runs.items() if at == str(setting)}
    there = [name for name, run in mine.items() if isinstance(run, RunEvidence)]
    dense = mine["dense"].losses
    assert max(dense) - min(dense) > 0.1, "nothing was learnt, and nothing could differ"
    bound = BOUND[setting.precision]
    for name in there:
        off = max(abs(a - b) for a, b in zip(mine[name].losses, dense, strict=True))
        assert off <= bound * dense[0], f"{name} at {setting}: off by {off:.2g}"
        for a, b in zip(mine[name].norms, mine["dense"].norms, strict=False):
            assert abs(a - b) <= 5 * bound * b, f"{name} at {setting}: norm {a} against {b}"
    return there


def check_held(
    run: RunEvidence, setting: WaySetting, parameters: int, world: int, tied: int
) -> None:
    """What is held and sent is the closed form's, to the byte where every cut divides.

    On CPU ranks: on GPUs a way may choose other verbs, and the curve is what is held there."""
    if torch.cuda.is_available():
        return
    want = expected(run.way, setting, parameters, world, tied=tied)
    held = run.evidence.held
    where = f"{run.way} at {setting}"
    got = {kind: held[kind] for kind in want.held}
    assert got == {kind: int(nbytes) for kind, nbytes in want.held.items()}, where
    # batches that the Trainer's loop still has in its hands, counters of 4 bytes
    assert held["other"] <= want.beside + 8_000, f"{where}: {held['other']} beside the forms"
    sent = run.evidence.must
    assert sum(sent.values()) == want.must, f"{where}: {sent} against {int(want.must)}"
