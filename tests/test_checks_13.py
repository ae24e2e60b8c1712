"""What the checks of lesson 13 rest on: `course ds-check`, and one step under FSDP2.

No test needs DeepSpeed: a learner may not have it.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest

from course_lib.classroom.checks.lesson_13 import broken, fsdp_trial
from tests.answers.lesson_13_mend import MEND


def test_ds_check_names_six_of_the_eight_faults_and_nothing_in_what_is_mended(monkeypatch):
    for absent in ("deepspeed", "transformers"):  # a learner may have neither
        monkeypatch.setitem(sys.modules, absent, None)
    space: dict = {}
    exec(MEND, space)
    for case in broken.drawn(broken.PRINTED):
        world = case.facts["world"]
        named = broken.still_wrong(case.config, world)
        assert bool(named) is (case.name not in ("auto", "buckets")), (case.name, named)
        mended = space["mend_config"](case.name, case.config, case.facts)
        assert broken.still_wrong(mended, world) == []


def one_step(me, reshard: bool) -> dict:
    import torch.distributed as dist

    mesh = dist.init_device_mesh("cpu", (me.world,), mesh_dim_names=("dp",))
    return fsdp_trial.measured(mesh, {"reshard_after_forward": reshard})


@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_what_is_held_is_a_shard_where_it_is_freed(pool, world):
    layers = list(pairwise(fsdp_trial.SIZES))
    shard = sum(-(-out // world) * (into + 1) for into, out in layers) * 4  # dims are padded
    for freed in pool.run(world, one_step, True):
        assert (freed["again"], freed["held"]) == (len(layers), shard)
    for kept in pool.run(world, one_step, False):
        assert (kept["again"], kept["held"]) == (0, world * shard)
        assert kept["gathered"] == kept["reduced"] == ["float32"]
