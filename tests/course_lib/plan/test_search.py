"""The search for plans: what fits, what it takes, and that dry runs and real ones need the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from course_lib import dry
from course_lib.estimate import states, step_peak
from course_lib.estimate.backward import Cut
from course_lib.estimate.fit import WAYS
from course_lib.estimate.outline import outline_of_rank
from course_lib.estimate.setting import Setting
from course_lib.estimate.time import Place, costs, step_seconds
from course_lib.plan import search
from course_lib.plan.emit import words_of
from course_lib.plan.report import advice
from course_lib.plan.search import Counts
from course_lib.train.options import parse
from tests.course_lib.plan.parts import CLUSTER, CONSTANTS, GPT2, LLAMA, searched, task_of


def every_way(task, tps):
    """Each way that the cluster allows, without any shortcut."""
    for tp, again, (stage, optimizer, parameters) in product(tps, (False, True), WAYS):
        dp = task.gpus // tp
        if stage and dp == 1 and optimizer is None:
            continue
        rows = task.rows // dp
        for sequence in (False, True)[: 1 + (tp > 1)]:
            for micro in (n for n in range(1, rows + 1) if rows % n == 0):
                setting = Setting(
                    micro, rows // micro, again, stage, optimizer, parameters, stage == 3,
                    task.precision,
                )  # fmt: skip
                yield setting, Place(tp, dp, task.per_node, sequence)


@pytest.mark.parametrize("memory", [3.2e6, 8e6, 10**9])
def test_the_search_finds_what_one_by_one_fits(memory):
    found = searched(machine=CLUSTER.changed(memory=int(memory)), tokens=8 * 64)
    task, counts = found.task, Counts(found.task)
    fitting, out = set(), []
    for setting, place in every_way(task, (1, 2, 4)):
        needs = counts.needs(setting, place)
        if needs.gpu * 1.1 <= memory and needs.host <= 10**8:
            fitting.add((setting, place))
        else:
            out.append(counts.over(needs))
    assert {(plan.setting, plan.place) for plan in found.plans} == fitting
    memory_fell = [one.count for name, one in found.fallen.items() if "memory" in name]
    assert sum(memory_fell) == len(out)
    if out:
        nearest = min(one.distance for name, one in found.fallen.items() if "memory" in name)
        assert nearest == pytest.approx(min(out))
    alone = found.fallen["a stage without replicas"].count
    assert found.considered == len(fitting) + len(out) + alone


@pytest.mark.parametrize("config", [GPT2, LLAMA])
def test_the_figures_of_a_plan_are_those_of_the_forms(config):
    found = searched(config, machine=CLUSTER.changed(memory=10**9))
    kinds = {(p.place.tp, p.place.sequence, p.setting.stage, p.setting.offload is None): p
             for p in found.plans if p.setting.accumulate == 2}  # fmt: skip
    assert len(kinds) > 15
    for plan in kinds.values():
        setting, place = plan.setting, plan.place
        model = config.changed(recompute=setting.recompute)
        outline = outline_of_rank(model, place.tp)
        zero = {"stage": setting.stage, "n": place.dp, "precision": "float32",
                "offload": setting.offload}  # fmt: skip
        top = step_peak(outline, setting.rows, 64, cut=Cut(place.tp, 0, place.sequence),
                        accumulate=2, **zero)  # fmt: skip
        tiers = states(outline, **zero).by_tier(alive=True)
        assert (plan.needs.gpu, plan.needs.host) == (top.total, 4 * tiers["host"]), plan.name
        want = step_seconds(costs(config, setting, place, 64), CLUSTER, CONSTANTS)
        assert plan.seconds.total == pytest.approx(want.total), plan.name


def test_the_fastest_comes_first_and_all_rows_are_used():
    found = searched()
    seconds = [plan.seconds.total for plan in found.plans]
    assert seconds == sorted(seconds) and len(seconds) > 50
    for plan in found.plans:
        assert plan.place.world == 4
        assert plan.setting.rows * plan.setting.accumulate * plan.place.dp == 16
    slower = searched(machine=CLUSTER.changed(inside=replace(CLUSTER.inside, bandwidth=1e6)))
    first = slower.plans[0]
    assert first.place.tp == 1 and first.seconds.total > found.plans[0].seconds.total


def test_the_reasons_are_counted_with_the_nearest_as_example():
    found = searched(
        LLAMA.changed(heads=6, kv_heads=3), gpus=8, tokens=4 * 64,
        machine=CLUSTER.changed(disk=None, host=None, memory=5 * 10**6),
    )  # fmt: skip
    assert set(found.fallen) == {
        "the model cannot be sharded this way", "the rows of a step do not divide over dp",
        "no disk", "no link to the host", "more than a GPU's memory",
    }  # fmt: skip
    assert found.fallen["the model cannot be sharded this way"].count == 2
    assert "3 key/value heads" in found.fallen["the model cannot be sharded this way"].example
    assert "4 sequences per step do not divide over 8 replicas" in (
        found.fallen["the rows of a step do not divide over dp"].example
    )
    short = found.fallen["more than a GPU's memory"]
    assert 0 < short.distance < 0.5 and "of 5.00 MB" in short.example
    across = searched(gpus=12, tokens=12 * 64, machine=CLUSTER.changed(gpus=6, memory=10**9))
    assert "a node of 6 GPUs" in across.fallen["tp groups do not fit the nodes"].example


# ---- nothing fits
def nearest(memory=2 * 10**6, **more):
    machine = CLUSTER.changed(memory=memory, disk=None, host=None)
    return searched(GPT2, machine=machine, gpus=4, tokens=4 * 64, **more)


def test_the_nearest_miss_and_what_would_make_it_fit():
    found = nearest()
    told = advice(found)
    assert found.plans == [] and "MB on each GPU" in told.nearest
    setting, place, needs = found.nearest
    counts = Counts(found.task)
    for other, where in every_way(found.task, (1, 2, 4)):
        if other.offload is None:
            assert counts.over(counts.needs(other, where)) >= counts.over(needs)
    enough = searched(
        GPT2, machine=CLUSTER.changed(memory=int(needs.gpu * 1.1) + 1, disk=None, host=None),
        tokens=4 * 64,
    )  # fmt: skip
    assert any((p.setting, p.place) == (setting, place) for p in enough.plans)
    assert f"GPUs with {needs.gpu * 1.1 / 1e6:,.2f} MB or more each" in told.remedies
    lengths = [int(one.split()[1]) for one in told.remedies if one.startswith("--length")]
    if lengths:
        assert nearest(length=lengths[0]).plans
    assert advice(searched()) is None


def test_more_gpus_are_named_where_they_do():
    leanest = Setting(1, 1, True, 3, lean=True, precision="float32")
    counts = Counts(nearest().task)
    few, some = (counts.needs(leanest, Place(1, n, 4)).gpu * 1.1 for n in (4, 16))
    assert some < few
    found = nearest(stage=3, tp=1, memory=int(some) + 1)
    told = advice(found)
    gpus = [int(one.split()[0]) for one in told.remedies if " nodes with 4 each" in one]
    assert len(gpus) == 1, told
    machine = found.task.machine
    wider = searched(GPT2, machine=machine, gpus=gpus[0], tokens=gpus[0] * 64, stage=3, tp=1)
    fewer = searched(GPT2, machine=machine, gpus=gpus[0] // 2, tokens=gpus[0] * 32, stage=3, tp=1)
    assert wider.plans and not fewer.plans


def test_what_does_not_help_is_not_named():
    told = advice(nearest(memory=1000))
    assert [one.split()[0] for one in told.remedies] == ["GPUs"]


def test_a_host_that_is_too_small_is_the_reason():
    small = searched(machine=CLUSTER.changed(memory=10**9, host_memory=10**6), stage=2)
    away = [plan for plan in small.plans if plan.setting.optimizer == "cpu"]
    assert away == [] and "of a host's 1.00 MB" in small.fallen["more than a host's memory"].example
    assert any(plan.setting.optimizer == "cpu" for plan in searched(stage=2).plans)


# ---- beside a dry run, which test_as_real.py has beside real ones
OF_A_RUN = ("--ranks", "--corpus-bytes")  # what a run with numbers is told beside


def dried(plan, task) -> dry.DryRun:
    words = [str(word) for word in words_of(plan, task.model, task.length)]
    for option in OF_A_RUN:
        if option in words:
            at = words.index(option)
            del words[at : at + 2]
    return dry.run(parse(words), plan.place.world)


@pytest.mark.parametrize(
    ("config", "tp", "stage"),
    [
        (GPT2, 1, 2),
        pytest.param(LLAMA, 2, 1, marks=pytest.mark.slow),
        pytest.param(GPT2, 4, 0, marks=pytest.mark.slow),
        (LLAMA, 2, 3),
    ],
)
def test_a_plan_needs_and_sends_what_its_dry_run_does(config, tp, stage):
    """Of each kind the fastest: with sequence parallelism or not, states here or on the host."""
    roomy = CLUSTER.changed(memory=10**9, host_memory=10**10)
    task = task_of(config, roomy, gpus=32, tokens=64 * 64, tp=tp, stage=stage)
    kinds = {}
    for plan in search(task).plans:
        if plan.setting.optimizer != "nvme" and words_of(plan, task.model, task.length):
            kinds.setdefault((plan.place.sequence, plan.setting.optimizer), plan)
    assert len(kinds) == (1 + (stage > 0)) * (1 + (tp > 1))
    for plan in kinds.values():
        counted = dried(plan, task)
        assert counted.differences() == []
        assert plan.needs.gpu == counted.estimate["peak"]  # the same closed form
        off = 0.05 if plan.setting.optimizer is None and not plan.place.sequence else 0.1
        assert plan.needs.gpu == pytest.approx(counted.peak, rel=off), plan.name
        made = costs(config, plan.setting, plan.place, task.length)
        over = {"dp": sum(size for size, _ in made.dp.values())}
        over["tp"] = plan.setting.accumulate * sum(size for size, _ in made.tp.values())
        for axis, sent in counted.sent_by_axis.items():
            assert over[axis] == pytest.approx(sent, rel=1e-9), (plan.name, axis)
