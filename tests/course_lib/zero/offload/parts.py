"""What the tests of offload share: the same training twice, once offloaded, bit by bit the same.

The oracle is the stage without offload, which tests/course_lib/zero/ holds against one process. Its
update is the same arithmetic on the same numbers, so nothing may differ.
"""

from __future__ import annotations

import contextlib

import torch

from course_lib.zero import LossScale, Precision
from tests.course_lib.zero.parts import Case, engine_of, made_for, optimizer_of, train

__all__ = [
    "FLOAT",
    "WAYS",
    "Case",
    "engine_of",
    "files",
    "offloaded",
    "trained",
    "twice",
    "weights",
]

FLOAT = Case(steps=10, dtype=torch.float32, clip=0.3, accumulate=2, decay=True, schedule=True)
CPU, NVME = {"optimizer": "cpu"}, {"optimizer": "nvme"}
WAYS = {  # the stage, and what goes where
    "1-cpu": (1, CPU),
    "2-cpu": (2, CPU),
    "1-nvme": (1, NVME),
    "2-nvme": (2, NVME),
    "3-cpu": (3, CPU),
    "3-cpu-cpu": (3, {"optimizer": "cpu", "parameters": "cpu"}),
    "3-lent": (3, {"parameters": "cpu"}),
    "3-nvme": (3, NVME),
    "3-nvme-cpu": (3, {"optimizer": "nvme", "parameters": "cpu"}),
    "3-nvme-nvme": (3, {"optimizer": "nvme", "parameters": "nvme"}),
}


def offloaded(way: str, folder, **more) -> dict:
    """A way's `offload=`."""
    plan = WAYS[way][1]
    return {**plan, **({"folder": folder} if "nvme" in plan.values() else {}), **more}


def trained(me, case: Case, **options):
    """An engine after a case's training, and its losses and norms."""
    if options.get("precision") == "float16":  # with a scale that grows and at times overflows
        options["precision"] = Precision(torch.float16, True, LossScale(value=64.0, window=3))
    model = made_for(case)
    optimizer, schedule = optimizer_of(case, model)
    engine = engine_of(me, case, model, optimizer, **options)
    losses, norms = train(me, case, engine, schedule)
    return engine, losses, norms


def weights(engine) -> dict[str, torch.Tensor]:
    """Every parameter, whole."""
    with engine.gathered(engine.model) if engine.stage == 3 else contextlib.nullcontext():
        return {name: p.detach().clone() for name, p in engine.model.named_parameters()}


_seen: dict[str, tuple] = {}  # what training without offload came to, by everything it depends on


def without(me, case: Case, **options) -> tuple:
    """Losses, norms, steps skipped and weights of a case without offload, trained once a process:
    every way of a stage is held against the same."""
    key = f"{case} {options} {me.rank} of {me.world}"
    if key not in _seen:
        engine, losses, norms = trained(me, case, **options)
        _seen[key] = losses, norms, engine.skipped, weights(engine)
        engine.close()
    return _seen[key]


def twice(me, case: Case, way: str, folder, **options):
    """Train without and with offload; the same losses, norms and weights. Returns the engine."""
    case = case.but(stage=WAYS[way][0])
    losses, norms, skipped, want = without(me, case, **options)
    engine, mine, own = trained(me, case, offload=offloaded(way, folder), **options)
    label = f"{way} of {case}"
    assert own == norms and engine.skipped == skipped, f"{label}: {own}, not {norms}"
    for i, (a, b) in enumerate(zip(mine, losses, strict=True)):
        assert torch.equal(a, b), f"{label}: loss {i} is {a}, not {b}"
    for name, x in weights(engine).items():
        off = (x - want[name]).abs().max()
        assert torch.equal(x, want[name]), f"{label}: {name} is off by {off}"
    start = dict(made_for(case).to(next(iter(want.values())).dtype).named_parameters())
    assert any(not torch.equal(x, start[name]) for name, x in want.items()), "nothing was trained"
    return engine


def files(folder) -> dict[str, bytes]:
    """What the files of every rank hold, by name."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.suffix == ".states"}
