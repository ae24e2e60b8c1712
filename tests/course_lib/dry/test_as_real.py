"""A dry run at the size of a real one counts the same: messages, bytes, what is held, the peak."""

from __future__ import annotations

import pytest

from tests.course_lib.dry.parts import LARGE, measured, shapes
from tests.course_lib.train.test_layouts import LAYOUTS, MORE

SAME = ("held", "held_by_tier", "held_by_kind", "sent", "sent_by_axis", "sent_beside", "estimate")
OVER_TP = {name: ["--tp", "2", *argv] for name, argv in (LAYOUTS | MORE).items()}
OVER_TP |= LARGE
SOME = ["3-wide-bf16-nvme"]
AT_TWO = {
    "1-again": ["--stage", "1", "--recompute", "--dropout", "0.1"],
    "2-cpu": ["--stage", "2", "--offload", "cpu"],
    "tp": ["--tp", "2", "--sequence"],
    "3": ["--stage", "3"],
}


def as_real(pool, tmp_path, runs: dict, world: int) -> None:
    everywhere = pool.run(world, measured, runs, str(tmp_path), timeout=500)
    for rank, reports in enumerate(everywhere):
        for name, argv in runs.items():
            where, real, dry = (name, rank), reports[name], shapes(argv, world, rank)
            for item in SAME:
                assert getattr(dry, item) == real[item], (where, item)
            assert [row._asdict() for row in dry.verbs] == real["verbs"], where
            assert dry.calls() > 0 and dry.sent == sum(dry.sent_by_axis.values()) > 0
            off = 0.10 if "--offload" in argv else 0.01
            assert dry.peak == pytest.approx(real["peak"], rel=off), where
            assert dry.host_peak == pytest.approx(real["host_peak"], rel=off), where


def test_four_ranks_send_hold_and_need_what_was_counted(pool, tmp_path):
    as_real(pool, tmp_path, {name: OVER_TP[name] for name in SOME}, 4)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
@pytest.mark.parametrize("world", [2, 4])
def test_so_they_do_in_every_layout(pool, tmp_path, world, part):
    every = OVER_TP | AT_TWO
    as_real(pool, tmp_path, {name: every[name] for name in list(every)[part::6]}, world)
