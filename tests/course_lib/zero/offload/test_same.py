"""Training with offload is the stage's without it, bit by bit, whatever the optimizer and the data.

Worlds 1 to 4, float32 and float64, half precision with its masters, groups and schedules.
"""

from __future__ import annotations

import pytest
import torch

from tests.course_lib.zero.offload.parts import FLOAT, WAYS, Case, twice

SHORT = FLOAT.but(steps=4)

CASES = {
    "adamw": FLOAT,
    "momentum": FLOAT.but(optimizer="momentum", clip=None, steps=12, accumulate=1),
    "fused": SHORT.but(optimizer="adamw-fused", tokens=True),
    "amsgrad in float64": SHORT.but(optimizer="adam", dtype=torch.float64, decay=False),
    "rmsprop": SHORT.but(optimizer="rmsprop", tied=True),
    "adagrad": SHORT.but(optimizer="adagrad", accumulate=1),
    "unused now and then": SHORT.but(skips="now and then", optimizer="adamw-foreach"),
    "frozen": SHORT.but(frozen=("first", "blocks.1", "last.bias")),
    "frozen in units": SHORT.but(
        frozen=("blocks.0.norm", "blocks.1.linear.weight", "last.weight"), accumulate=1
    ),
}
UNITS = {"prefetch": 0, "persist": 0}, {"prefetch": 2, "persist": 0}, {"persist": 200, "keep": 1200}


def each(me, names, way, folder, precision):
    for number, name in enumerate(names):
        case: Case = CASES[name].but(stage3=UNITS[number % 3])
        twice(me, case, way, folder, precision=precision).close()
        assert not list(folder.glob(f"zero-rank-{me.rank:05d}*")), "files are left"


# The other ways take the same roads to the same tiers, and meet four cases in a normal run.
IN_FULL = ("1-cpu", "3-nvme-nvme")
FEW = ("adamw", "momentum", "unused now and then", "frozen in units")


@pytest.mark.parametrize("way", WAYS)
def test_offload_changes_no_bit(pool, way, tmp_path):
    cases = list(CASES if way in IN_FULL else FEW)
    pool.run(3, each, cases, way, tmp_path, "as is", timeout=180)


@pytest.mark.slow
@pytest.mark.parametrize("way", [way for way in WAYS if way not in IN_FULL])
def test_nor_with_the_other_cases(pool, way, tmp_path):
    cases = [name for name in CASES if name not in FEW]
    pool.run(3, each, cases, way, tmp_path, "as is", timeout=180)


def halves(*kept):
    """Both kinds of 16 bits, every way; but for those `kept`, with what is slow."""
    for way in WAYS:
        for precision in ("bfloat16", "float16"):
            marks = () if (way, precision) in kept else (pytest.mark.slow,)
            yield pytest.param(way, precision, marks=marks)


NOW = (
    ("1-cpu", "float16"),
    ("2-nvme", "float16"),
    ("3-cpu-cpu", "float16"),
    ("3-nvme-nvme", "bfloat16"),
)


@pytest.mark.parametrize(("way", "precision"), list(halves(*NOW)))
def test_masters_go_away_too(pool, way, precision, tmp_path):
    pool.run(2, each, ["adamw", "momentum"], way, tmp_path, precision, timeout=120)


@pytest.mark.parametrize(
    ("way", "world"),
    [
        ("1-cpu", 1),
        ("3-cpu-cpu", 1),
        ("3-nvme-nvme", 1),
        ("1-nvme", 1),
        pytest.param("3-nvme-nvme", 4, marks=pytest.mark.slow),
        ("1-cpu", 4),
        pytest.param("3-cpu-cpu", 4, marks=pytest.mark.slow),
    ],
)
def test_one_rank_and_four(pool, world, way, tmp_path):
    pool.run(world, each, ["adamw", "momentum"], way, tmp_path, "as is", timeout=120)
