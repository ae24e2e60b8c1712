"""Every stage, offload and precision; accumulation 1 and 4, clipping on and off. Slow."""

from __future__ import annotations

import itertools
import shutil

import pytest

from course_lib.peers.ways.evidence import RunEvidence
from course_lib.peers.ways.setting import NotThere, WaySetting
from course_lib.peers.ways.with_deepspeed import check_can, has_fp16
from course_lib.peers.ways.workload import Workload
from tests.course_lib.peers.ways.runs import (
    ENV,
    MISSING,
    check_curves,
    check_held,
    needs_all,
    several,
)
from tests.course_lib.peers.ways.test_ways import sizes

pytestmark = [pytest.mark.slow, needs_all]
WORKLOAD = Workload(steps=4)
OFFLOADS = {0: [None], 1: [None, "optimizer"], 2: [None, "optimizer"]}
OFFLOADS[3] = [None, "optimizer", "all"]
PLACES = [(stage, offload) for stage, offloads in OFFLOADS.items() for offload in offloads]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize(("stage", "offload"), PLACES)
def test_one_curve_and_the_closed_forms(pool, stage, offload, precision):
    settings = [
        WaySetting(
            stage=stage, offload=offload, precision=precision, accumulate=accumulate, clip=clip
        )
        for accumulate, clip in itertools.product((1, 4), (None, 0.5))
    ]
    per_rank = pool.run(2, several, WORKLOAD, settings, timeout=300, env=ENV, alone=True)
    parameters, tied = sizes(WORKLOAD)
    for runs in per_rank:
        for setting in settings:
            there = check_curves(runs, setting)
            assert {"course_lib", "deepspeed", "trainer+deepspeed"} <= set(there)
            assert ("fsdp2" in there) == (stage >= 2 and offload != "optimizer")
            for (at, _), run in runs.items():
                if at == str(setting) and isinstance(run, RunEvidence):
                    check_held(run, setting, parameters, 2, tied)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("world", [1, 3])
def test_one_curve_at_other_worlds(pool, world, family):
    """Where cuts are uneven the bytes are a piece more or less; the curve is the same."""
    workload = Workload(family, vocabulary=97, steps=4)
    settings = [WaySetting(stage=stage, accumulate=2, clip=0.5) for stage in range(4)]
    runs = pool.run(world, several, workload, settings, timeout=300, env=ENV, alone=True)[0]
    for setting in settings:
        check_curves(runs, setting)


# A partition below a megabyte stays in memory: DeepSpeed's files begin there.
LARGE = Workload(vocabulary=4096, hidden=256, layers=1, steps=4)


def nvme_or_reason() -> str | None:
    try:
        if not MISSING:
            check_can(WaySetting(stage=3, offload="nvme", folder="/"))
    except NotThere as missing:
        return str(missing)
    return None


def fp16(me) -> bool:
    return has_fp16()


def test_deepspeeds_files_round_what_ours_keep(pool, tmp_path):
    """fp32 parameters go to files as bfloat16 in DeepSpeed, without a word; on the host they do
    not, and in our files neither."""
    reason = nvme_or_reason()
    if reason is not None:
        pytest.skip(reason)
    files = WaySetting(stage=3, offload="nvme", folder=str(tmp_path))
    host = WaySetting(stage=3, offload="all")
    names = ("dense", "course_lib", "deepspeed")
    # 300 s: its extension async_io may be compiled now
    args = (LARGE, [files, host], names)
    runs = pool.run(2, several, *args, timeout=580, env=ENV, alone=True)[0]
    dense = runs[str(files), "dense"].losses

    def off(setting: WaySetting, way: str) -> float:
        return max(abs(a - b) for a, b in zip(runs[str(setting), way].losses, dense, strict=True))

    assert off(host, "deepspeed") < 2e-5 > off(files, "course_lib")
    if pool.run(1, fp16, env=ENV, alone=True)[0]:
        assert off(files, "deepspeed") < 2e-5 and list(tmp_path.rglob("float32params"))
    else:  # where its accelerator has no fp16, as on most CPUs
        assert 1e-5 < off(files, "deepspeed") < 5e-2
        assert list(tmp_path.rglob("bfloat16params")), "its folder has another name now"


def test_the_compiled_adam_is_torchs(pool):
    """DeepSpeed's vectorised Adam on the host: the same curve. Compiled now, if it is not there."""
    if shutil.which("g++") is None:
        pytest.skip("no g++: DeepSpeed's CPU Adam is compiled where it is used")
    settings = [
        WaySetting(stage=stage, offload="optimizer", compiled=True, clip=0.5) for stage in (2, 3)
    ]
    args = (WORKLOAD, settings, ("dense", "deepspeed"))
    runs = pool.run(2, several, *args, timeout=580, env=ENV, alone=True)[0]
    for setting in settings:
        assert check_curves(runs, setting) == ["dense", "deepspeed"]


def test_an_encoder_and_a_decoder_go_the_same_ways(pool):
    """A T5 shape, whose loss shifts nothing and whose table is read three times."""
    workload = Workload("t5", steps=4)
    settings = [WaySetting(stage=stage, accumulate=2, clip=0.5) for stage in (2, 3)]
    runs = pool.run(2, several, workload, settings, timeout=300, env=ENV, alone=True)[0]
    for setting in settings:
        assert len(check_curves(runs, setting)) == 6
