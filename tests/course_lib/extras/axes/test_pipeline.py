"""A pipeline of real ranks against the whole model: loss, gradients, bytes, what is kept, order."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_lib import ranks
from course_lib.extras.axes import Pipeline, cut_into_stages
from course_lib.extras.axes.schedule import SCHEDULES
from course_lib.extras.axes.stages import blocks_of_stages
from course_lib.gpt import GPT, Config
from course_lib.ledger import ledger
from tests.course_lib.extras.axes.test_schedule import most_alive, timetable
from tests.course_lib.tensor_parallel.parts import close, randomized, said

B, S, H, V, LAYERS = 7, 5, 12, 31, 5  # rows, tokens, hidden, vocabulary: nothing divides


def dense_gpt(device, **traits):
    traits = {"family": "gpt2", **traits}
    make = getattr(Config, traits.pop("family"))
    sizes = {"vocabulary": V, "length": S, "hidden": H, "heads": 3, "layers": LAYERS}
    return randomized(GPT(make(**{**sizes, **traits})).to(device), "pipeline")


def batch(device):
    made = torch.randint(V, (B, S + 1), generator=torch.Generator().manual_seed(4)).to(device)
    return made[:, :-1], made[:, 1:].clone()


def against_dense(me, schedule, micros, traits):
    n, w = me.world, 8
    dense, (ids, targets) = dense_gpt(me.device, **traits), batch(me.device)
    ends = ranks.new_group(me, [0, n - 1]) if n > 2 else None
    group = dist.group.WORLD
    pipeline = Pipeline(copy.deepcopy(dense), group, ends=ends)
    own = sum(p.numel() for p in pipeline.stage.parameters())
    targets[1, 2:] = -100  # no target: a mean of micro-batches' means would be another number
    optimizers = [torch.optim.SGD(x.parameters(), lr=0.1) for x in (dense, pipeline.stage)]
    for update in range(3):
        if update < 2:  # the last one adds to the gradients that are there
            for one in optimizers:
                one.zero_grad()
        loss = F.cross_entropy(dense(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        with ledger(axes={"pp": group}) as book:
            run = pipeline.step(ids, targets, micros=micros, schedule=schedule)
        assert abs(run.loss - loss.item()) < 1e-10
        whole = {**dict(dense.named_parameters()), "head.weight": dense.head.weight}
        for name, p in pipeline.stage.named_parameters():
            close(f"{update}: grad of {name}", p.grad, whole[name].grad)
            close(f"{update}: {name}", p, whole[name])
        one_way = B * S * H * w
        neighbours = (me.rank > 0) + (me.rank < n - 1)
        assert book.bytes("send", label="") == neighbours * one_way
        assert book.count("send", label="") == neighbours * micros
        at_end = pipeline.stage.table() is not None
        assert book.bytes("all_reduce") == (V * H * w if at_end else 0)
        if not update:
            for one in optimizers:
                one.step()
    assert run.kept.bytes() == 0 and not run.kept.micros()  # the step is over
    every = [None] * n
    dist.all_gather_object(every, run.walked)
    return own, run.kept.most_micros, run.kept.most_bytes, every


CASES = [
    (1, 3, {}),
    (2, 3, {"family": "llama"}),
    (3, 1, {"tied": False}),
    (4, 2, {"family": "llama", "tied": True}),
    (4, 7, {}),
]


@pytest.mark.parametrize(("world", "micros", "traits"), CASES)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_pipeline_is_the_whole_model(pool, world, micros, traits, schedule):
    found = pool.run(world, against_dense, schedule, micros, traits)
    whole = sum(p.numel() for p in dense_gpt("cpu", **traits).parameters())
    for stage, (own, alive, _, every) in enumerate(found):
        steps = [SCHEDULES[schedule](world, micros, i) for i in range(world)]
        assert every == timetable(steps)  # by the clocks that messages carried
        assert alive == most_alive(steps[stage])
        assert world == 1 or own < whole


def kept_bytes(me, micros):
    ids, targets = (x[:6].clone() for x in batch(me.device))
    ends = ranks.new_group(me, [0, me.world - 1])
    found = []
    for schedule, pieces in (("gpipe", micros), ("1f1b", micros), ("gpipe", 1)):
        pipeline = Pipeline(dense_gpt(me.device), dist.group.WORLD, ends=ends)
        rows = ids if pieces > 1 else ids[: 6 // micros]
        owed = targets[: len(rows)]
        found.append(pipeline.step(rows, owed, micros=pieces, schedule=schedule).kept.most_bytes)
    return found


@pytest.mark.parametrize("world", [2, 3])
def test_a_stage_keeps_the_activations_of_so_many_micro_batches(pool, world):
    for stage, (gpipe, one_f_one_b, single) in enumerate(pool.run(world, kept_bytes, 6)):
        assert single > 0
        assert gpipe == 6 * single
        assert one_f_one_b == (world - stage) * single


def refused(me):
    group = dist.group.WORLD
    batches = batch(me.device)
    pipeline = Pipeline(dense_gpt(me.device, tied=False), group)
    return [
        said(ValueError, Pipeline, dense_gpt(me.device, layers=2), group),
        said(ValueError, Pipeline, dense_gpt(me.device, layers=3), group),
        said(ValueError, pipeline.step, *batches, micros=B + 1),
    ]


def test_what_cannot_be_a_pipeline_is_refused(pool):
    for layers, no_ends, micros in pool.run(3, refused):
        assert (
            layers.startswith("3 stages are too many for 2 blocks:") and "Take at most 2" in layers
        )
        assert "the group of the ranks [0, 2], which every rank" in no_ends
        assert micros == f"micros={B + 1} for {B} rows: each micro-batch needs at least one row"


def test_blocks_are_shared_out_in_order():
    assert blocks_of_stages(5, 3) == [range(2), range(2, 4), range(4, 5)]
    with pytest.raises(ValueError, match="stage=3 is not among 3 stages"):
        cut_into_stages(dense_gpt("cpu"), 3, 3)
