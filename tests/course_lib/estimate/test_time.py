"""The cost model: its work against torch's and the ranks', its rings by hand, its eight bars."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from course_lib import ranks
from course_lib.estimate import must_bytes, offload_bytes, tensor_parallel_bytes
from course_lib.estimate.setting import Setting
from course_lib.estimate.time import (
    Constants,
    Costs,
    Link,
    Machine,
    ModelCounts,
    Passes,
    Place,
    Rate,
    Work,
    bars,
    calibrate,
    costs,
    passes,
    presets,
    slowest,
    step_seconds,
    update_bytes,
)
from course_lib.estimate.time.costs import tp_messages
from course_lib.gpt import GPT, Config
from course_lib.ledger import ledger
from course_lib.step.losses import loss_sum
from course_lib.tensor_parallel import parallelize

ROOT = Path(__file__).resolve().parents[3]
GPT2 = Config.gpt2(vocabulary=47, length=12, hidden=24, layers=2, heads=4, inner=34)
LLAMA = Config.llama(vocabulary=53, length=12, hidden=24, layers=2, heads=4, kv_heads=2, inner=29)
NODE = Machine(
    "node", 4, 10**9, (Rate(4, 100.0, 10.0),), Link(8.0, 0.001), Link(2.0, 0.01), host=4.0,
    host_memory=10**9, host_moved=16.0, disk=1.0,
)  # fmt: skip


# ---- work
@pytest.mark.parametrize("config", [GPT2, LLAMA, LLAMA.changed(recompute=True)])
def test_the_ranks_share_out_the_products_and_not_all_of_the_rest(config):
    """Products come to the dense model's over the ranks; norms and sums are every rank's."""
    dense = passes(config, 3, 8)
    parts = [passes(config, 3, 8, tp=2, rank=rank) for rank in range(2)]
    assert sum(part.flops for part in parts) == dense.flops
    for which in range(2):
        moved = [part[which].moved for part in parts]
        assert all(dense[which].moved / 2 < one < dense[which].moved for one in moved)
    cut = [passes(config, 3, 8, tp=2, rank=rank, sequence=True) for rank in range(2)]
    assert sum(part.flops for part in cut) == dense.flops
    laid = 2 * config.layers * 4 * 2 * 3 * 8 * config.hidden * 4  # both ranks; read, written
    for which in range(2):
        times = 1 + (config.recompute and which)
        moved = sum(part[which].moved for part in cut)
        assert moved == pytest.approx(dense[which].moved + times * laid)


def test_a_block_that_is_recomputed_goes_forward_twice():
    """And head, loss and table once."""
    once, again = (passes(LLAMA.changed(recompute=r, layers=n), 2, 8)
                   for r in (False, True) for n in (5,))  # fmt: skip
    deeper = passes(LLAMA.changed(layers=6), 2, 8)
    block = deeper.forward.flops - once.forward.flops
    assert again.forward == once.forward
    assert again.backward.flops == once.backward.flops + 5 * block
    moved = deeper.forward.moved - once.forward.moved
    assert again.backward.moved == once.backward.moved + 5 * moved


def test_the_rest_of_a_step_by_hand():
    """One block of one head, one token: every read and every write, in numbers."""
    config = Config.gpt2(vocabulary=1, length=1, hidden=2, layers=1, heads=1, inner=3)
    none = config.changed(layers=2)
    one, two = (passes(c, 1, 1, width=1) for c in (config, none))
    weights = 2 * (3 * 2 + 2 + 2 * 3)
    # norms 2·2, sums 2·3; q k v and the output, laid anew; the activation; weights, read
    assert two.forward.moved - one.forward.moved == 10 * 2 + (6 + 2) + 2 * 2 + 2 * 3 + weights
    # norms 2·5, sums 2·3; q k v, output, and their gradients; biases' sums; weights, read, and
    # their gradients: written, read and written again
    back = 16 * 2 + (2 * 6 + 2 * 2) + 2 * 2 + 3 * 3 + (6 + 3 + 2 * 2) + 4 * weights
    assert two.backward.moved - one.backward.moved == back
    dropped = passes(none.changed(dropout=0.5), 1, 1, width=1).forward.moved
    dropped -= passes(config.changed(dropout=0.5), 1, 1, width=1).forward.moved
    assert dropped - (two.forward.moved - one.forward.moved) == 6 * 2
    assert update_bytes(10, width=4, master=False) == 10 * 4 * (3 + 7)
    assert update_bytes(10, width=2, master=True) == 10 * (4 * 10 + 2 * 2 + 4)


# ---- costs
SETTINGS = [
    Setting(1, precision="float32"), Setting(1, stage=1), Setting(1, stage=2, recompute=True),
    Setting(1, stage=2, optimizer="cpu"), Setting(1, stage=3, lean=True),
    Setting(1, stage=3, optimizer="cpu", parameters="cpu", lean=True), Setting(1, stage=3),
    Setting(1, stage=3, optimizer="nvme", parameters="nvme", lean=True),
]  # fmt: skip


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: f"{s.stage}-{s.optimizer}-{s.lean}")
@pytest.mark.parametrize("tp", [1, 2])
def test_bytes_are_those_of_the_forms_for_any_number_of_micro_batches(setting, tp):
    place = Place(tp, 3, 8)
    counted = ModelCounts(LLAMA, setting, place)
    keep = 0 if setting.lean else 1 << 60
    zero = {"stage": setting.stage, "n": 3, "precision": setting.precision, "keep": keep}
    for k in (1, 2, 5):
        want = must_bytes(counted.outline, accumulate=k, **zero)
        assert counted.dp_bytes(k) == pytest.approx(want)
        made = costs(LLAMA, replace(setting, accumulate=k), place, 8, counted=counted)
        assert {verb: sent for verb, (sent, _) in made.dp.items()} == pytest.approx(want)
        buckets = len(counted.held.partition.buckets)
        if setting.stage < 3:
            times = k if setting.stage == 2 else 1
            calls = {"all_reduce": buckets, "reduce_scatter": times * buckets}
            calls["all_gather"] = buckets
            assert all(n == calls[verb] for verb, (_, n) in made.dp.items())
        if setting.offload is not None:
            want = offload_bytes(counted.outline, accumulate=k, offload=setting.offload, **zero)
            assert counted.moved(k) == pytest.approx(want)
            assert (made.down, made.up) == pytest.approx((want["down"], want["up"]))
            assert made.files == pytest.approx(want["read"] + want["written"])
        assert made.away == (setting.optimizer is not None)
    width = 4 if setting.precision == "float32" else 2
    recomputed = LLAMA.changed(recompute=setting.recompute)
    if tp > 1:
        want = tensor_parallel_bytes(recomputed, 1, 8, tp, width=width)
        assert made.tp["all_reduce"][0] == want and made.tp["halves"] == (0, 0)
    held = counted.held.partition.numel / (3 if setting.stage else 1)
    assert made.updated == update_bytes(held, width=width, master=width == 2)


def messages(me, cases):
    found = []
    for config, sequence in cases:
        torch.manual_seed(3)
        mesh = ranks.mesh(me, dp=1, tp=me.world)
        model = parallelize(GPT(config), mesh, sequence=sequence)
        ids = torch.randint(config.vocabulary, (2, 9))
        with ledger(mesh) as book:
            loss_sum(model, ids[:, :-1], ids[:, 1:]).backward()
        sums = {"axis": "tp", "op": "all_reduce"}
        found.append((book.count(axis="tp"), book.count(**sums), book.bytes(**sums)))
    return found


def test_messages_over_tp_are_as_many_as_the_ledger_counts(pool):
    again = GPT2.changed(recompute=True)
    cases = [(GPT2, False), (again, False), (GPT2, True), (again, True), (LLAMA, True)]
    for found in pool.run(2, messages, cases):
        for (config, sequence), got in zip(cases, found, strict=True):
            setting = Setting(2, precision="float32", recompute=config.recompute)
            made = costs(config, setting, Place(2, 1, 8, sequence), 8)
            sums, halves = tp_messages(config, made.place)
            assert (sums + halves, sums) == got[:2], (config, sequence)
            assert made.tp["all_reduce"] == (got[2], sums), (config, sequence)
            assert made.tp["halves"][1] == halves and (halves > 0) == sequence


# ---- rings
def test_a_ring_inside_a_node_and_across():
    ring = Place(2, 2, 4).ring("tp")
    assert (ring.size, ring.here, ring.sharing, ring.nodes) == (2, 2, 2, 1)
    # an all-reduce takes two rounds of n - 1 steps
    took = ring.seconds(NODE, Constants(0.5), "all_reduce", 16.0, 3)
    assert took == pytest.approx(16 / 8 / 0.5 + 3 * 2 * 0.001)
    wide = Place(2, 4, 4).ring("dp")  # 8 ranks on two nodes: two of a group on each, two groups
    assert (wide.size, wide.here, wide.sharing, wide.nodes) == (4, 2, 2, 2)
    took = wide.seconds(NODE, Constants(), "reduce_scatter", 16.0, 1)
    assert took == pytest.approx(max(16 / 8, 2 * 16 / 2) + 1 * 0.01 + 2 * 0.001)
    across = Place(8, 1, 4).ring("tp")
    assert (across.size, across.here, across.sharing, across.nodes) == (8, 4, 1, 2)
    lone = Place(4, 3, 4).ring("dp")  # one rank of each group on a node: nothing inside
    assert (lone.here, lone.sharing, lone.nodes) == (1, 4, 3)
    assert lone.seconds(NODE, Constants(), "all_gather", 2.0, 0) == pytest.approx(4 * 2 / 2)
    assert Place(1, 1, 4).ring("dp").seconds(NODE, Constants(), "all_gather", 0.0, 0) == 0


def test_without_a_link_between_nodes_no_ring_crosses():
    ring = Place(1, 8, 4).ring("dp")
    with pytest.raises(ValueError, match=r"2 nodes with 4 GPUs each, but .*--gpus-per-node"):
        ring.seconds(NODE.changed(across=None), Constants(), "all_reduce", 1.0, 1)


@pytest.mark.parametrize("bad", [0, -1.0, float("inf"), float("nan")])
def test_a_link_carries_something(bad):
    with pytest.raises(ValueError, match="carries nothing"):
        Link(bad)
    with pytest.raises(ValueError, match="latency"):
        Link(1.0, -0.1 if bad != bad else 1.0)
    with pytest.raises(ValueError, match="a wait of"):
        Link(1.0, 0.1, 1.0)


# ---- a step
def made(**changes) -> Costs:
    plain = Costs(
        Place(1, 4, 4), 0, 2, Passes(Work(100.0, 10.0), Work(300.0, 10.0)), {}, {}, 0.0, 20.0
    )
    return replace(plain, **changes)


def test_the_backward_hides_all_but_the_last_message():
    """Forward 1 + 1 s, backward 3 + 1 s, two micro-batches; a link of 8 bytes a second."""
    free = NODE.changed(inside=Link(8.0))
    bare = step_seconds(made(), free, Constants())
    assert bare.compute == pytest.approx(2 * 6) and bare.update == pytest.approx(2.0)
    assert (bare.dp, bare.tp, bare.wait, bare.tiers) == (0, 0, 0, 0) and bare.total == 14
    for sent, shown in ((16.0, 0.5), (32.0, 0.5), (48.0, 2.0)):  # 2, 4, 6 s behind 4
        took = step_seconds(made(dp={"all_reduce": (sent, 4)}, last=4.0), free, Constants())
        assert took.dp == pytest.approx(shown) and took.hidden == pytest.approx(sent / 8 - shown)
        assert took.total == pytest.approx(14 + shown)
    crowded = free.changed(overlaps=False)
    took = step_seconds(made(dp={"all_reduce": (16.0, 4)}, last=4.0), crowded, Constants())
    assert took.dp == pytest.approx(2.0) and took.hidden == 0


def test_what_each_stage_hides():
    free = NODE.changed(inside=Link(8.0))

    def shown(stage: int, reduced: float) -> float:
        both = {"reduce_scatter": (reduced, 4), "all_gather": (16.0, 2)}
        return step_seconds(made(dp=both, last=16.0, stage=stage), free, Constants()).dp

    # 10 s of sums behind 4 of backward, or 2 s, of which the last message takes all
    assert shown(1, 80.0) == pytest.approx((10 - 4) + 2)  # what was updated is gathered bare
    assert shown(1, 16.0) == pytest.approx(2 + 2)
    assert shown(2, 80.0) == pytest.approx(2 * max(2, 5 - 4) + 2)  # each micro-batch's own
    assert shown(2, 160.0) == pytest.approx(2 * (10 - 4) + 2)
    assert shown(3, 160.0) == pytest.approx(2 * (0.5 + 10 - 4))  # half the gathers in each pass


def test_sums_over_tp_block():
    free = NODE.changed(inside=Link(8.0, 0.001))
    sent = {"all_reduce": (16.0, 5), "halves": (8.0, 4)}
    costed = made(place=Place(4, 1, 4), tp=sent)
    took = step_seconds(costed, free, Constants(0.5))
    assert took.tp == pytest.approx(2 * ((16 + 8) / 8 / 0.5 + (5 * 6 + 4 * 3) * 0.001))
    assert took.hidden == 0
    apart = free.changed(halves=Link(2.0, 0.01, 0.2))  # what a gather or a scatter gets
    took = step_seconds(costed, apart, Constants(0.5))
    halves = 8 / 2 / 0.5 + 4 * (3 * 0.01 + 0.2)
    assert took.tp == pytest.approx(2 * (16 / 8 / 0.5 + 5 * 6 * 0.001 + halves))


def test_offload_goes_over_the_hosts_link():
    setting = made(away=True, down=8.0, up=4.0, updated=20.0)
    took = step_seconds(setting, NODE, Constants())
    # 2 s down behind 8 of backward; 1 s up; four ranks' updates by one host
    assert took.update == 0 and took.tiers == pytest.approx(0 + 1 + 20 * 4 / 16)
    fetched = step_seconds(replace(setting, fetches=True, up=60.0), NODE, Constants())
    assert fetched.tiers == pytest.approx((15 - 12) + 20 * 4 / 16)
    files = step_seconds(replace(setting, files=3.0), NODE, Constants())
    assert files.tiers == pytest.approx(took.tiers + 3 * 4 / 1)
    for missing, word in (("host", r"\(host\)"), ("disk", r"\(disk\)"), ("host_moved", "memory")):
        with pytest.raises(ValueError, match=word):
            step_seconds(replace(setting, files=3.0), NODE.changed(**{missing: None}), Constants())


def test_a_step_waits_for_the_slowest_rank():
    assert slowest(1) == 0
    assert slowest(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-6)
    assert slowest(3) == pytest.approx(1.5 / math.sqrt(math.pi), abs=1e-6)
    drawn = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0)).amax(1).mean()
    assert slowest(64) == pytest.approx(float(drawn), abs=0.05)
    took = step_seconds(made(), NODE, Constants(spread=0.1))
    assert took.wait == pytest.approx(12 * 0.1 * slowest(4))


def test_more_ranks_than_cores_each_take_as_much_longer():
    two = NODE.changed(cores=2, rates=(Rate(1, 100.0, 10.0), Rate(2, 80.0, 8.0)), inside=Link(8.0))
    assert [two.rate(n).ranks for n in (1, 2, 3, 4)] == [1, 2, 2, 2]
    assert [two.oversubscribed(n) for n in (1, 2, 3, 4)] == [1, 1, 1.5, 2]
    times = {n: step_seconds(made(place=Place(1, n, 4)), two, Constants()) for n in (1, 2, 3, 4)}
    assert times[2].compute == pytest.approx(1.25 * times[1].compute)
    assert times[3].total == pytest.approx(1.5 * times[2].total)
    assert times[4].total == pytest.approx(2 * times[2].total) and times[4].oversubscribed == 2
    sums = [
        step_seconds(made(place=Place(n, 1, 4), tp={"all_reduce": (16.0, 5)}), two, Constants()).tp
        for n in (2, 4)
    ]
    assert sums[1] == pytest.approx(2 * sums[0])
    slow = two.changed(inside=Link(8.0, 0.1, 0.03))  # whoever waits leaves the core to others
    for n, crowd in ((2, 1), (4, 2)):
        took = step_seconds(
            made(place=Place(n, 1, 4), tp={"all_reduce": (16.0, 5)}), slow, Constants()
        )
        assert took.tp == pytest.approx(2 * (crowd * 2 + 5 * (2 * (n - 1) * 0.1 + 0.03)))


# ---- the bars
def test_three_bars_are_predicted_within_seven_points():
    """From the four of tensor parallelism alone and one with replicas."""
    five = (*bars.ALONE, bars.ONE)
    constants = bars.fit(five)
    held_back = [bar for bar in bars.BARS if bar not in five]
    assert len(held_back) == 3
    assert max(map(abs, bars.residuals(constants, held_back))) < 7
    assert max(map(abs, bars.residuals(constants, five))) < 3
    assert 0 < constants.reach <= 1 and 0 < constants.spread < 0.1


def tables() -> list[list[list[str]]]:
    """The rows of each table in docs/cost_model.md, its head left out."""
    text = (ROOT / "docs" / "cost_model.md").read_text()
    found = [part for part in text.split("\n\n") if part.startswith("|")]
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()[2:]]
        for part in found
    ]


def test_the_page_says_what_the_model_gives():
    _, eight, choices = tables()[:3]
    fits = (bars.fit((*bars.ALONE, bars.ONE)), bars.fit(bars.BARS), bars.fit(bars.BARS, worst=True))
    for row, bar in zip(eight, bars.BARS, strict=True):
        assert row[:4] == [bar.name, str(bar.tp), str(bar.dp), str(bar.percent)]
        for cell, constants in zip(row[4:], fits, strict=True):
            assert float(cell) == pytest.approx(bars.percent(bar, constants), abs=0.06)
    for row, bar in zip(choices, bars.REPLICATED, strict=True):
        constants = bars.fit((*bars.ALONE, bar))
        assert row[0] == bar.name and float(row[1]) == pytest.approx(constants.reach, abs=0.006)
        assert float(row[2]) == pytest.approx(constants.spread, abs=0.0006)
        found = bars.residuals(constants, bars.REPLICATED)
        assert [float(cell) for cell in row[3:]] == pytest.approx(found, abs=0.06)


# ---- machines
@pytest.mark.parametrize("name", presets.PRESETS)
def test_a_preset_is_whole_and_goes_through_json(name):
    machine = presets.preset(name)
    assert Machine.from_dict(machine.as_dict()) == machine and machine.source
    if machine.peak is not None:
        assert all(0.3 <= rate.products(4096) / machine.peak <= 0.85 for rate in machine.rates)
    single = machine.in_precision("float32")
    if machine.single is not None:
        share = machine.single / machine.peak
        assert single.rate(1).flops == pytest.approx(share * machine.rate(1).flops)
        assert single.rate(1).moved == machine.rate(1).moved
    assert single.precision == "float32" and machine.in_precision(machine.precision) is machine


def test_an_unknown_machine_is_refused():
    with pytest.raises(ValueError, match=r"none of dgx-2h, .*nor a file"):
        presets.preset("dgx-1")
    with pytest.raises(ValueError, match="1 or more"):
        NODE.changed(gpus=0)
    with pytest.raises(ValueError, match="holds nothing"):
        NODE.changed(memory=0)


@pytest.mark.parametrize("like", [None, LLAMA])
def test_a_machine_from_its_probes(like):
    """Seconds that a made-up machine would need give its figures back."""
    flops, moved, alpha, beta = 4e10, 3e9, 2e-4, 1e-9
    config, rows = calibrate.sample(like)
    work = passes(config, rows, config.length)
    params = sum(p.numel() for p in GPT(config).parameters())
    every = work.forward.moved + work.backward.moved + update_bytes(params, width=4, master=False)
    product = calibrate.TIMES * 2 * rows * config.length * config.hidden * config.inner
    seconds = {}
    for when, slower in (("alone", 1), ("together", 2)):
        seconds[f"product, {when}"] = slower * product / flops
        seconds[f"step, {when}"] = slower * (work.flops / flops + every / moved)
    for name, size in (("small", calibrate.SMALL), ("large", calibrate.LARGE)):
        # two ranks: an all-reduce sends all of its bytes, in two steps; a half sends half, in one
        seconds[f"sum, {name}"] = calibrate.TIMES * (2 * alpha + 4 * size * beta)
        seconds[f"halves, {name}"] = calibrate.TIMES * (3 * alpha + 2 * size * 2 * beta)
    for name, waits in (("sum", 5), ("halves", 7)):
        seconds[f"{name}, after work"] = seconds[f"{name}, small"] + calibrate.TIMES * waits * alpha
        seconds[f"{name}, after work"] += seconds["product, together"]
    here = calibrate.machine(seconds, 2, 2, 10**9, like)
    assert [rate.ranks for rate in here.rates] == [1, 2]
    assert [rate.flops for rate in here.rates] == pytest.approx([flops, flops / 2])
    assert [rate.moved for rate in here.rates] == pytest.approx([moved, moved / 2])
    assert here.inside.bandwidth == pytest.approx(1 / beta)
    assert here.inside.latency == pytest.approx(alpha)
    assert here.halves.bandwidth == pytest.approx(1 / beta / 2)
    assert here.halves.latency == pytest.approx(3 * alpha)
    assert [link.wait for link in (here.inside, here.halves)] == pytest.approx([5e-4 * 2, 7e-4 * 2])
    assert not here.overlaps and here.cores == 2 and here.precision == "float32"


def probed(me):
    return [(probe.name, probe.ranks, calibrate.timed(probe)) for probe in calibrate.probes(2)]


def test_every_probe_runs_on_the_ranks_it_is_for(pool):
    for found in pool.run(3, probed, timeout=60):
        assert [name for name, *_ in found] == [
            "product, alone", "step, alone", "product, together", "step, together",
            "sum, small", "sum, after work", "halves, small", "halves, after work", "sum, large",
            "halves, large",
        ]  # fmt: skip
        assert [n for _, n, _ in found] == [1, 1] + [2] * 8
        assert all(took > 0 for *_, took in found)


ON_ONE_GPU = """
import os, pathlib, sys
import torch
from course_lib.estimate.time import calibrate
def claimed(device):
    sys.exit(f"a context on {device}")
torch.cuda.device_count = lambda: 0 if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else 1
torch.cuda.set_device = claimed
calibrate.probes = lambda world, like: []
calibrate._rank(0, 1, None, sys.argv[1], 1)
assert pathlib.Path(sys.argv[1], calibrate.SECONDS).read_text() == "{}"
"""


def test_measuring_the_processors_claims_no_gpu(tmp_path):
    """Each process would take half a gigabyte of it, and a second."""
    env = {name: text for name, text in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, "-c", ON_ONE_GPU, str(tmp_path)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_this_machine_can_be_measured():
    here = calibrate.calibrate(2, turns=2)
    assert all(rate.flops > 1e8 and rate.moved > 1e7 for rate in here.rates)
    assert 1e6 < here.inside.bandwidth < 1e12 and 1e6 < here.halves.bandwidth < 1e12
    assert here.memory > 0 and here.gpus == here.cores
