"""The ways by name, in the order of the lesson's table. Lesson 13."""

from __future__ import annotations

from collections.abc import Callable

from course_lib import ranks
from course_lib.peers.ways import dense, ours, with_deepspeed, with_fsdp2, with_trainer
from course_lib.peers.ways.evidence import RunEvidence
from course_lib.peers.ways.launched import quiet
from course_lib.peers.ways.setting import WaySetting
from course_lib.peers.ways.workload import Workload

WAYS: dict[str, Callable[[ranks.Me, Workload, WaySetting], RunEvidence]] = {
    "dense": dense.train,
    "course_lib": ours.train,
    "deepspeed": with_deepspeed.train,
    "fsdp2": with_fsdp2.train,
    "trainer+deepspeed": with_trainer.over_deepspeed,
    "trainer+fsdp": with_trainer.over_fsdp,
}


def train(way: str, me: ranks.Me, workload: Workload, setting: WaySetting) -> RunEvidence:
    """Train once in one way; raise NotThere if the way does not support the setting."""
    if way not in WAYS:
        raise ValueError(f"there is no way {way!r}. Use one of {', '.join(WAYS)}")
    with quiet():
        return WAYS[way](me, workload, setting)
