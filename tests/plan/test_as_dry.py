"""A plan's memory and bytes are those of the dry run of its own command, at any number of ranks."""

from __future__ import annotations

import pytest

from course_lib import dry
from course_lib.estimate.time import costs
from course_lib.plan import search
from course_lib.plan.emit.able import words_of
from course_lib.train.options import parse
from tests.plan.parts import CLUSTER, GPT2, LLAMA, task_of

OF_A_RUN = ("--ranks", "--corpus-bytes")  # what a run with numbers is told beside


def dried(plan, task) -> dry.DryRun:
    words = [str(word) for word in words_of(plan, task.model, task.length)]
    for option in OF_A_RUN:
        if option in words:
            at = words.index(option)
            del words[at : at + 2]
    return dry.run(parse(words), plan.place.world)


@pytest.mark.parametrize(
    ("config", "tp", "stage"), [(GPT2, 1, 2), (LLAMA, 2, 1), (GPT2, 4, 0), (LLAMA, 2, 3)]
)
def test_a_plan_needs_and_sends_what_its_dry_run_does(config, tp, stage):
    roomy = CLUSTER.changed(memory=10**9, host_memory=10**10)
    task = task_of(config, roomy, gpus=32, tokens=64 * 64, tp=tp, stage=stage)
    plans = [p for p in search(task).plans if p.setting.optimizer is None and not p.place.sequence]
    plan = plans[0]
    counted = dried(plan, task)
    assert counted.differences() == []
    assert plan.needs.gpu == counted.estimate["peak"]  # the same closed form
    assert plan.needs.gpu == pytest.approx(counted.peak, rel=0.05)
    made = costs(config, plan.setting, plan.place, task.length)
    over = {"dp": sum(size for size, _ in made.dp.values())}
    over["tp"] = plan.setting.accumulate * sum(size for size, _ in made.tp.values())
    for axis, sent in counted.sent_by_axis.items():
        assert over[axis] == pytest.approx(sent, rel=1e-9), axis
