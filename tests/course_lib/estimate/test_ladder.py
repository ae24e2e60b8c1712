"""The ladder by the numbers: its order, its sums, and the first rung that fits beside the meter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from course_lib.estimate import ladder
from course_lib.estimate.activations import kept
from course_lib.estimate.ladder import Nodes, OurEngine
from course_lib.estimate.shape import shape_of
from course_lib.gpt import Config
from course_lib.peers.deepspeed_config.ours import train
from tests.course_lib.estimate.parts import SHORT
from tests.course_lib.train.test_layouts import trained

GPT2 = Config.gpt2(vocabulary=600, length=64, hidden=96, layers=4, heads=4)
LLAMA = Config.llama(vocabulary=400, length=64, hidden=96, layers=6, heads=4, kv_heads=2, inner=256)
WIDE = Config.llama(vocabulary=300, length=32, hidden=192, layers=3, heads=4, inner=512)
LARGE = Config.llama(vocabulary=32000, length=512, hidden=1024, layers=8, heads=8, inner=2752)
ORDER = [  # of the rungs: stage, where states and parameters are, what else has changed by then
    (0, None, None, "as asked"), (0, None, None, "accumulated"), (0, None, None, "checkpointing"),
    (2, None, None, "stage 2"), (2, "cpu", None, "offload_optimizer"), (3, None, None, "stage 3"),
    (3, None, "cpu", "offload_param"), (3, "cpu", "cpu", "offload_optimizer"),
    (3, "cpu", "cpu", "lower limits"), (3, "cpu", "cpu", "half precision"),
    (3, "nvme", "nvme", "NVMe"),
]  # fmt: skip


def test_the_rungs_come_in_the_pages_order_each_on_top_of_the_last():
    rungs = list(ladder.settings(8, "float32"))
    got = [(one.stage, one.optimizer, one.parameters) for _, one in rungs]
    assert got == [row[:3] for row in ORDER]
    assert all(row[3] in name for row, (name, _) in zip(ORDER, rungs, strict=True))
    assert all(one.rows * one.accumulate == 8 for _, one in rungs)
    assert [one.rows for _, one in rungs] == [8] + [1] * 10
    assert [one.recompute for _, one in rungs] == [False] * 2 + [True] * 9
    assert [one.lean for _, one in rungs] == [False] * 8 + [True] * 3
    assert [one.precision for _, one in rungs] == ["float32"] * 9 + ["bfloat16"] * 2
    half = [one for _, one in ladder.settings(1, "bfloat16")]
    assert len(half) == 9 and {one.precision for one in half} == {"bfloat16"}  # two have no object


def test_a_rung_holds_saves_and_costs_what_the_forms_say():
    rungs = ladder.ladder(OurEngine(LARGE), Nodes(10**9, gpus=4, nodes=2), 4, 512)
    by = {rung.name.split(":")[0]: rung for rung in rungs}
    two, away = by["stage 2"], by["stage 2 + offload_optimizer cpu"]
    phi, n, k = 2 * shape_of(LARGE).params, 8, 4
    assert rungs[0].needs.sent == pytest.approx(2 * phi * (n - 1) / n, rel=1e-3)
    assert two.needs.sent == pytest.approx((1 + k) * phi * (n - 1) / n, rel=1e-3)
    fast, lean = by["stage 3"].needs.sent, by["no parameter stays gathered (lower limits)"]
    assert fast == pytest.approx(2 * k * phi * (n - 1) / n, rel=0.01)
    assert 2.6 * k * phi * (n - 1) / n < lean.needs.sent <= 3 * k * phi * (n - 1) / n
    assert two.needs.down == two.needs.up == 0
    assert away.needs.down == pytest.approx(k * phi / n, rel=1e-3)
    assert away.needs.up == pytest.approx(phi / n, rel=1e-3)
    assert away.needs.host == pytest.approx(4 * 16 * phi / 2 / n, rel=0.01)  # of a node's 4 ranks
    assert rungs[0].needs.activations == kept(LARGE, 4, 512, width=2).total
    assert rungs[2].again == pytest.approx(1 / 3) and rungs[1].again == 0
    assert rungs[-1].needs.disk > 0 and rungs[-1].needs.read > rungs[-1].needs.written > 0
    assert away.saves == two.needs.gpu - away.needs.gpu > 0
    assert by["stage 3"].saves == away.needs.gpu - by["stage 3"].needs.gpu


def test_the_first_that_fits_and_back_up_in_rows():
    model = OurEngine(GPT2)
    rungs = ladder.ladder(model, Nodes(1, gpus=2), 8, 64, precision="float32")
    needs = [rung.needs.gpu for rung in rungs]
    for budget in (min(needs) - 1, needs[0], needs[4], needs[7]):
        machine = Nodes(budget, gpus=2)
        found = ladder.ladder(model, machine, 8, 64, precision="float32")
        first = ladder.first_that_fits(found)
        want = next((i for i, size in enumerate(needs) if size <= budget), None)
        assert (None if first is None else found.index(first)) == want
        if first is None:
            continue
        more = ladder.back_up(model, machine, first, 64)
        assert more.rows * more.accumulate == 8
        assert replace(more, rows=1, accumulate=1) == replace(first.setting, rows=1, accumulate=1)
        spared = machine.holds(model.needs(more, machine, 64), spare=ladder.SPARE)
        assert spared or more == first.setting
    roomy = ladder.back_up(model, Nodes(10**9, gpus=2), rungs[4], 64)
    assert roomy.rows == 8 and roomy.accumulate == 1
    just = Nodes(model.needs(roomy, Nodes(1, gpus=2), 64).gpu, gpus=2)
    assert ladder.back_up(model, just, rungs[4], 64).rows < 8  # by an estimate's last byte


# ---- beside the meter
APART = 1.08  # how far a budget lies at least from what a rung is estimated to need


def peaks(me, runs: list, folder: str) -> list[int]:
    """The most that any rank held in a step, by the meter of `course train`, for each run."""
    found = []
    for i, argv in enumerate(runs):
        argv = [*argv, *SHORT.split(), "--json"]
        done = trained(me, argv, str(Path(folder) / f"{me.world}-{i}"))
        found.append(max(report["peak"] for report in done["ranks"]))
    return found


def budgets(rungs: list) -> dict[int, int]:
    """For every rung that some budget makes the first that fits: such a budget, halfway to what
    the leanest before it needs."""
    found = {}
    for i, rung in enumerate(rungs[1:], 1):
        before = min(one.needs.gpu for one in rungs[:i])
        if before >= rung.needs.gpu * APART**2:
            found[i] = int((before * rung.needs.gpu) ** 0.5)
    return found


def held_against_the_meter(pool, folder, config, world, precision, chosen=None) -> None:
    """Under each budget the first rung that fits trains within it, and the one before does not."""
    how = (OurEngine(config), Nodes(1, gpus=world), 4, config.length)
    rungs = ladder.ladder(*how, precision=precision)
    every = budgets(rungs)
    assert len(every) >= 3, [rung.needs.gpu for rung in rungs]
    wanted = {i: every[i] for i in every if chosen is None or i in chosen}
    runs: dict[int, list] = {}
    for i, budget in wanted.items():
        assert next(j for j, rung in enumerate(rungs) if rung.needs.gpu <= budget) == i
        for j in (i - 1, i):
            runs[j] = train(config, config.length, world, rungs[j].setting)
    got = dict(zip(runs, pool.run(world, peaks, list(runs.values()), str(folder), timeout=280)[0],
                   strict=True))  # fmt: skip
    for i, budget in wanted.items():
        about = f"{rungs[i].name}: {budget} bytes, {got[i]} held; before it {got[i - 1]}"
        assert got[i] <= budget < got[i - 1], about
    for j, most in got.items():
        assert rungs[j].needs.gpu == pytest.approx(most, rel=0.06), rungs[j].name


def test_the_first_that_fits_trains_and_the_one_before_does_not(pool, tmp_path):
    """Stage 2 with its states on the host, and stage 3 with both there, in float32."""
    held_against_the_meter(pool, tmp_path, GPT2, 2, "float32", chosen=(4, 7))


CASES = [
    (GPT2, 2, "float32"), (GPT2, 3, "bfloat16"), (LLAMA, 2, "float32"), (LLAMA, 3, "float32"),
    (LLAMA, 2, "bfloat16"), (WIDE, 2, "bfloat16"), (WIDE, 3, "float32"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("config", "world", "precision"), CASES)
def test_so_it_does_under_every_budget(pool, tmp_path, config, world, precision):
    held_against_the_meter(pool, tmp_path, config, world, precision)
