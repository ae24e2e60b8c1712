"""What the checks of lesson 13 rest on: `course ds-check`, a step under FSDP2, the drawn logs.

No test needs DeepSpeed: a learner may not have it. The logs are drawn from a scale that a test
holds to DeepSpeed's own, line by line.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from random import Random

import nbformat
import pytest

from course_lessons.lesson_13 import broken, fsdp_trial, logs
from course_lessons.lesson_13 import read_log as overflows
from course_lib.peers.deepspeed_config.overflow_log import NONE, read_overflows
from course_lib.zero.precision import LossScale
from tests.course_lessons.answers.lesson_13_log import WRONG_LOG
from tests.course_lessons.answers.lesson_13_mend import MEND


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


ROOT = Path(__file__).resolve().parents[2]


def test_a_misreading_has_a_name_of_its_own():
    assert len({called for _, called in WRONG_LOG.values()}) >= 25
    assert {idea.name for idea in overflows.IDEAS} <= {called for _, called in WRONG_LOG.values()}


def test_every_drawn_run_is_what_its_log_says():
    """The run knows what happened; the lines alone say the same to the reader of the library."""
    seen = set()
    for seed in range(10):
        for log in overflows.CASES.drawn(seed):
            wanted, read = logs.happened(log), read_overflows(log.lines)
            verdict = logs.SETTLED if read.verdict == NONE else read.verdict
            got = (read.skipped, len(log.steps) - read.skipped, read.scale, read.grown, verdict)
            assert got == tuple(wanted.values()), "\n".join(log.lines)
            seen.add(verdict)
    assert seen == set(logs.VERDICTS)


def test_the_question_prints_a_short_log_of_rank_0_that_goes_up_and_down():
    page = ROOT / "solutions/13_deepspeed/read_log.ipynb"
    block = nbformat.read(page, as_version=4).cells[0].source.split("```\n")[1].splitlines()
    scale = LossScale(2.0**16, window=3, patience=2)
    run = {"ranks": 1, "first": 1, "every": 5}
    whole = logs._log(Random(13), scale, 8, 1, 5, fits=14, **run).lines
    for line in block:
        assert line == "…" or any(full.endswith(line) for full in whole), line
