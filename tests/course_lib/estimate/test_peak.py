"""The highest point of a step against the meter: within 10 %, at every stage, on the device."""

from __future__ import annotations

import pytest

from course_lib.estimate.memory import states
from course_lib.estimate.peak import step_peak
from course_lib.gpt import Config
from course_lib.memory import budget
from tests.course_lib.estimate.parts import engine_of, step_of

GPT2 = Config.gpt2(vocabulary=211, length=40, hidden=48, layers=6, heads=4, inner=180)
LLAMA = Config.llama(
    vocabulary=190, length=40, hidden=56, layers=6, heads=4, kv_heads=2, inner=150, recompute=True
)
PLAIN = LLAMA.changed(recompute=False)
WORDS = GPT2.changed(vocabulary=4001, layers=1)  # the logits and their gradient are most of it
# Attention lies below `persist`: a block's unit is its MLP, and leaves before attention's backward.
DEEP = {"vocabulary": 600, "length": 32, "hidden": 64, "layers": 8, "recompute": True}
DEEP_GPT2, DEEP_LLAMA = Config.gpt2(**DEEP, heads=4), Config.llama(**DEEP, heads=4, kv_heads=2)
ROWS, LENGTH = 4, 32
SMALL = {"bucket_bytes": 60_000}
BOTH, FILES = {"optimizer": "cpu", "parameters": "cpu"}, {"optimizer": "nvme"}
CASES = [
    (GPT2, 0, {}), (GPT2, 1, SMALL), (GPT2, 3, {"persist": 0}), (LLAMA, 0, {}), (LLAMA, 2, SMALL),
    (LLAMA, 3, {"persist": 0}), (LLAMA, 3, {"persist": 1000, "keep": 1 << 60, "prefetch": 0}),
    (LLAMA, 2, {"offload": "cpu", **SMALL}), (LLAMA, 3, {"persist": 0, "offload": BOTH}),
    (PLAIN, 2, SMALL), (PLAIN, 3, {"persist": 0}), (WORDS, 3, {"persist": 0}),
    (GPT2, 2, {"offload": FILES, **SMALL}), (DEEP_GPT2, 3, {}), (DEEP_LLAMA, 3, {}),
    (DEEP_LLAMA, 3, {"offload": "cpu"}),
]  # fmt: skip


def test_the_last_micro_batch_finds_sums():
    """From stage 2 on, where they lie on the device; here the highest point is the loss's."""
    for stage, options, wide in (
        (2, SMALL, 4), (3, {"persist": 0}, 4), (2, {"precision": "bfloat16", **SMALL}, 4),
        (1, SMALL, 0), (2, {"offload": "cpu", **SMALL}, 0),
    ):  # fmt: skip
        one, two = (
            step_peak(WORDS, ROWS, LENGTH, stage=stage, n=2, accumulate=k, **options)
            for k in (1, 2)
        )
        assert one.where == two.where == "loss"
        buckets = states(WORDS, stage=stage, n=2, persist=0, **SMALL).partition.buckets
        sums = sum(wide * bucket.padded // 2 for bucket in buckets)
        assert two.total - one.total == pytest.approx(sums, abs=64), (stage, options)


def measured(me, folder):
    found = []
    for config, stage, options in CASES:
        if options.get("offload") is FILES:
            options = {**options, "offload": {**FILES, "folder": folder}}
        engine = engine_of(me, config, stage, **options)
        for step in range(2):
            step_of(me, engine, config, step, rows=ROWS, length=LENGTH)
        with budget() as watched:
            before = watched.in_use()
            step_of(me, engine, config, 2, rows=ROWS, length=LENGTH)
            most = watched.most() - before
        want = step_peak(config, ROWS, LENGTH, stage=stage, n=me.world, rank=me.rank, **options)
        found.append((config.tied, stage, options, want, most))
        engine.close()
    return found


def test_the_peak_of_a_step(pool, tmp_path):
    for found in pool.run(2, measured, tmp_path, timeout=120):
        for tied, stage, options, want, most in found:
            where = f"tied={tied}, stage {stage}, {options}: {want}, and {most} above it"
            assert want.total == pytest.approx(want.held + most, rel=0.10), where
            assert want.total - want.held == pytest.approx(most, rel=0.15), where
