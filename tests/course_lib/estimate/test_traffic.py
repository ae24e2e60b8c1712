"""What a step must send, by formula, against the ledger of a real step: equal, to the byte."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib import ranks
from course_lib.estimate.traffic import FAST, LEAN, must_bytes, offload_bytes
from course_lib.ledger import ledger
from course_lib.memory import tier_of
from tests.course_lib.estimate.parts import GPT2, LLAMA, SMALL, engine_of, step_of

CASES = [
    (0, 2, SMALL), (1, 2, SMALL), (2, 3, SMALL),
    (3, 2, {"keep": LEAN, "persist": 0, "prefetch": 0}),
    (3, 1, {"keep": LEAN, "persist": 300, "prefetch": 1}),
    (3, 2, {"keep": FAST, "persist": 300, "prefetch": 2}),
    (3, 1, {"keep": 30_000, "persist": 0, "prefetch": 2}),
]  # fmt: skip


def sent(me):
    for number, (stage, k, options) in enumerate(CASES):
        for config in (GPT2, LLAMA) if stage == 3 else [(GPT2, LLAMA)[number % 2]]:
            engine = engine_of(me, config, stage, accumulate=k, **options)
            for step in range(2):
                step_of(me, engine, config, step)
            with ledger(ranks.mesh(me, dp=me.world, tp=1)) as book:
                step_of(me, engine, config, 2)
            numbers = [r for r in book.records if r.dtype == "float32"]
            got = {op: sum(r.must for r in numbers if r.op == op) for op in {r.op for r in numbers}}
            want = must_bytes(config, stage=stage, n=me.world, accumulate=k, **options)
            assert got == pytest.approx(want, rel=1e-12), (stage, k, options, got, want)
            unit = 4 * engine.partition.padded * (me.world - 1) / me.world
            most = {0: 2, 1: 2, 2: 1 + k, 3: 3 * k}[stage]
            if stage < 3 or options["prefetch"] == 0:
                assert sum(got.values()) <= most * unit * (1 + 1e-12)
            engine.close()


@pytest.mark.parametrize("world", [2, 3])
def test_a_step_sends_what_was_estimated(pool, world):
    pool.run(world, sent, timeout=120)


# ---- between the tiers
CPU, NVME = {"optimizer": "cpu"}, {"optimizer": "nvme"}
OFFLOADS = [  # at stage 3: test_drawn.py
    (GPT2, 1, 2, CPU, SMALL), (LLAMA, 2, 2, CPU, SMALL),
    (GPT2, 1, 2, NVME, SMALL), (LLAMA, 2, 2, NVME, {**SMALL, "precision": "bfloat16"}),
]  # fmt: skip


class Crossings(TorchDispatchMode):
    """Bytes that copies carry from one tier to another, as they arrive."""

    def __init__(self):
        super().__init__()
        self.bytes = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.copy_.default:
            there, here = (tier_of(x.untyped_storage()) for x in args[:2])
            if there != here:
                self.bytes["down" if there == "host" else "up"] += args[0].nbytes
        return func(*args, **(kwargs or {}))


def carried(me, folder):
    for config, stage, k, plan, options in OFFLOADS:
        if "nvme" in plan.values():
            plan = {**plan, "folder": folder, "io": "threads"}
        engine = engine_of(me, config, stage, accumulate=k, offload=plan, **options)
        for step in range(2):
            step_of(me, engine, config, step)
        io = getattr(engine.home, "io", None)
        before = (io.bytes_read, io.bytes_written) if io else (0, 0)
        with Crossings() as found:
            step_of(me, engine, config, 2)
        after = (io.bytes_read, io.bytes_written) if io else (0, 0)
        got = {**found.bytes, "read": after[0] - before[0], "written": after[1] - before[1]}
        want = offload_bytes(
            config, stage=stage, n=me.world, rank=me.rank, accumulate=k, offload=plan, **options
        )
        assert got == want, (stage, k, plan, options, got, want)
        engine.close()


def test_offload_carries_what_was_estimated(pool, tmp_path):
    pool.run(2, carried, tmp_path, timeout=120)
