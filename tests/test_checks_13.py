"""The checks of lesson 13's functions; answers to them are in `tests/answers`.

Every answer here runs on the judge's real ranks, those of `in_fsdp2` under FSDP2. No test needs
DeepSpeed: a learner may not have it.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_13 import broken, fsdp_trial
from tests.answers.lesson_13_batch import WRONG_FILL
from tests.answers.lesson_13_fsdp import WRONG_WORDS
from tests.answers.lesson_13_mend import MEND, WRONG_MEND

ROOT = Path(__file__).resolve().parent.parent
WRONG = {"mend_config": WRONG_MEND, "fill_batch": WRONG_FILL, "in_fsdp2": WRONG_WORDS}


@pytest.fixture(scope="module")
def desk():
    desk = Desk()
    yield desk
    desk.judge.stop()


def reference(name: str) -> str:
    """The answer cell of the solution, without the magic's line."""
    path = ROOT / "solutions" / "13_deepspeed" / f"{name}.ipynb"
    cells = nbformat.read(path, as_version=4).cells
    return next(c.source for c in cells if c.id == f"{name}-answer").split("\n", 1)[1]


@pytest.mark.slow  # its notebook, which each run executes, says the same
@pytest.mark.parametrize("name", WRONG)
def test_the_reference_is_right(desk, name):
    assert desk.check(name, {name: reference(name)}).outcome == "right"


@pytest.mark.parametrize("name", WRONG)
def test_a_blank_is_not_attempted(desk, name):
    verdict = desk.check(name, {name: f'def {name}(*given):\n    """Later."""\n'})
    assert verdict.outcome == "not attempted"


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_has_a_name_of_its_own(name):
    assert len({called for _, called in WRONG[name].values()}) >= 4


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
