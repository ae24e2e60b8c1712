"""Pictures are drawn from what ran, on real ranks and tensors; what is not so is refused."""

from __future__ import annotations

from collections import namedtuple
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_classroom.figures import (
    blocks,
    course_map,
    fit,
    follow,
    head_map,
    keeping,
    ring_steps,
    schedule,
    timeline,
    who_holds,
    word_rows,
)
from course_classroom.figures.course_map import TITLES
from course_classroom.figures.flat_cut import flat_cut, held
from course_classroom.figures.head_map import axis_label
from course_classroom.figures.loss_curve import loss_curve
from course_classroom.figures.ring_steps import ring_frames
from course_classroom.figures.run_summary import run_summary
from course_classroom.figures.schedule import Call, Visit, token_sharded
from course_classroom.figures.stage_bars import PRECISIONS, stage_bytes
from course_classroom.figures.timeline import ready_times, tracks
from course_lessons.lesson_11.ahead import ahead, begun_before, turns
from course_lessons.lesson_11.memory_line import PHASE, whole_units
from course_lessons.lesson_12.crossings import Crossing, crossing
from course_lessons.lesson_14.logical import logical, owner_of_each
from course_lib import ranks, zero
from course_lib.collectives import all_gather
from course_lib.estimate import per_parameter
from course_lib.gpt import Block, Config
from course_lib.layout import Box, LayoutError, flat, flat_boxes, span
from course_lib.ledger import ledger
from course_lib.memory import tiers
from course_lib.tensor_parallel import parallelize
from course_lib.zero import partition

B, H, F = 2, 5, 7


# What a forward keeps: activations.py


class Half(nn.Module):
    """Two linear layers, with a nonlinearity that belongs to neither."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(H, F), nn.Linear(F, H)

    def forward(self, x):
        return self.down(self.up(x).tanh())


def halves(model: Half) -> dict[str, nn.Module]:
    return {"half": model, "up": model.up, "down": model.down}


def test_each_storage_is_counted_once_at_the_part_that_kept_it_first():
    model, x = Half(), torch.randn(B, H)
    with keeping(halves(model)) as kept:
        y = model(x.requires_grad_())
        z = y * y.exp()
    # up keeps x; tanh its result, which down keeps as well; outside, y and its exp.
    assert kept == {"half": 4 * B * F, "up": 4 * B * H, "down": 0, "between": 2 * 4 * B * H}
    z.sum().backward()
    assert x.grad is not None


# The schedule of a block: schedule.py


PARTS = ["norm_1", "attention.qkv", "attention.core", "attention.out", "dropout", "norm_2"]
PARTS += ["mlp.up", "mlp.down"]


def followed(me):
    """What is said where a part is left out, or is inside another; the hooks that stay."""
    torch.manual_seed(4)
    block = Block(Config.gpt2(hidden=12, heads=4, inner=10, dropout=0.1)).double()
    parallelize(block, ranks.mesh(me, dp=1, tp=me.world))
    parts = {name: block.get_submodule(name) for name in PARTS}
    lost = {name: part for name, part in parts.items() if name != "attention.out"}
    told = []
    for some in (lost, {**parts, "attention": block.attention}):
        x = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
        refused = pytest.raises(ValueError, match=r"collectives were booked|begins its forward")
        with ledger(axes={"tp": dist.group.WORLD}) as book, refused as caught, follow(some, book):
            block(x).square().sum().backward()
        told.append(str(caught.value))
    return told, len(block.norm_1._forward_hooks) + len(block.norm_1._backward_hooks)


def test_parts_that_are_not_all_or_are_in_each_other_are_refused(pool):
    """Lessons 05 and 06 draw what is followed."""
    for (lost, inside), left in pool.run(3, followed):
        assert lost.startswith(
            "4 collectives were booked, but only 3 of them ran inside the followed parts"
        )
        assert "attention.qkv begins its forward while attention is in its forward" in inside
        assert left == 0


def test_a_schedule_is_one_step_that_all_ranks_took():
    visit, back = Visit("norm", "forward", ()), Visit("norm", "backward", ())
    with pytest.raises(ValueError, match="rank 1 took different steps"):
        schedule([[visit], [visit, back]])
    assert "Backward" not in schedule([[visit]]).alt


def test_tokens_are_sharded_between_a_reduce_scatter_and_the_next_gather():
    def forward_of(*ops: str) -> list[Visit]:
        return [Visit("part", "forward", (Call(op, "tp", 6),) if op else ()) for op in ops]

    gather, scatter = "all_gather", "reduce_scatter"
    block = forward_of("", gather, "", scatter, "", gather, scatter, "")
    assert token_sharded(block) == {0, 4, 7}
    assert token_sharded(forward_of(scatter, "")) == {1}
    assert token_sharded(forward_of("", "all_reduce")) == token_sharded(forward_of(gather)) == set()


# A lookup


def test_a_lookup_that_is_none_is_refused():
    ids, whole, spans = torch.tensor([0, 212, 7]), torch.ones(3, 5), [(0, 150), (150, 300)]
    first = whole * torch.tensor([1.0, 0.0, 1.0])[:, None]
    second = whole - first
    with pytest.raises(ValueError, match="do not add up"):
        word_rows(ids, [first, second], whole + 1, spans)
    with pytest.raises(ValueError, match="id 0 of token 0 was found by ranks 0, 1,"):
        word_rows(ids, [first + second / 2, second / 2 + first], 2 * first + second, spans)
    with pytest.raises(ValueError, match="id 212 of token 1 was found by no rank"):
        word_rows(ids, [first, 0 * second], first, spans)


# Who holds what, found in the tensors


def test_whose_values_are_in_a_chunk_is_found_out_or_refused():
    x = [[torch.tensor([1.0, 2.0])], [torch.tensor([5.0, 9.0])]]
    assert "rank 0 holds 0+1" in who_holds({"after": [[x[0][0] + x[1][0]], [None]]}, x).alt
    with pytest.raises(ValueError, match=r"after, rank 0, chunk 0.*no sum of the ranks' own"):
        who_holds({"after": [[2 * x[0][0]], x[1]]}, x)


def test_a_map_of_heads_refuses_what_is_not_so():
    whole, strange = {"q": torch.arange(6.0).view(3, 2)}, torch.full((1, 2), 9.0)
    with pytest.raises(ValueError, match="rank 1: its head 0 of q is not a head of the full"):
        head_map(whole, [{"q": whole["q"][:2]}, {"q": strange}])
    with pytest.raises(ValueError, match="no rank holds head 2 of q"):
        head_map(whole, [{"q": whole["q"][:2]}])
    assert axis_label({"q": [(0,), (1,)], "k": [(0,), (1,)]}, 2) == "query head"
    assert "(a key/value head spans" in axis_label({"q": [(0,), (1,)], "k": [(0, 1)]}, 2)


ROWS = "X[b, h@tp] W[h@tp, f] -> Y[b, f]{tp}"


def by_rows(n: int) -> list[dict[str, torch.Tensor]]:
    made = torch.Generator().manual_seed(3)
    x, w = torch.randn(4, 7, generator=made), torch.randn(7, 5, generator=made)
    found = []
    for rank in range(n):
        over = slice(*span(7, n, rank))
        mine = {"X": x[:, over], "W": w[over], "Y": x[:, over] @ w[over], "B": w[0]}
        found.append(mine | {"C": torch.arange(2.0)[slice(*span(2, n, rank))]})
    return found


def test_blocks_are_of_what_the_ranks_hold():
    cuts = by_rows(3)
    words = blocks([ROWS, "B[f]", "C[f@tp]"], cuts).alt
    assert "W, 7 × 5, is sharded along its rows: 3 on rank 0, 3 on rank 1, 1 on rank 2" in words
    assert "Y, 4 × 5, is a partial sum on each rank: an all-reduce over tp completes it." in words
    assert "B, 5, is replicated" in words
    assert "C, 2, is sharded along its elements: 1 on rank 0, 1 on rank 1, 0 on rank 2" in words
    # A factor that is a partial sum is drawn as it is; only a result is completed.
    for mine in cuts:
        mine |= {"V": torch.ones(5, 2), "Z": mine["Y"] @ torch.ones(5, 2)}
    words = blocks("Y[b, f]{tp} V[f, k] -> Z[b, k]{tp}", cuts).alt
    assert "Y, 4 × 5, is a partial sum on each rank; V" in words


def test_a_layout_that_the_tensors_do_not_have_is_refused():
    cuts = by_rows(3)
    with pytest.raises(LayoutError, match="X has shape"):
        blocks("X[b, h] W[h, f@tp] -> Y[b, f@tp]", cuts)
    with pytest.raises(ValueError, match="a rank has not passed its Z"):
        blocks("Z[b]", cuts)
    with pytest.raises(ValueError, match="declared replicated, but the ranks hold different"):
        blocks("Y[b, f]", cuts)
    total = sum(mine["Y"] for mine in cuts)
    for mine in cuts:
        mine["Y"] = total
    with pytest.raises(ValueError, match="was it already all-reduced"):
        blocks(ROWS, cuts)
    with pytest.raises(ValueError, match="one or two dims"):
        blocks("X[b, s, h]", [{"X": torch.randn(2, 3, 4)}] * 2)


def test_pieces_of_a_bucket_are_those_of_the_library():
    lengths = [("last", 4), ("middle", 13), ("first", 2)]
    named = [(name, torch.nn.Parameter(torch.zeros(k))) for name, k in lengths]
    for n in (1, 3, 4, 30):
        (bucket,) = partition(reversed(named), n).buckets
        starts = {slot.name: slot.start for slot in bucket.slots}
        assert held(lengths, bucket.cut.shard, n) == [
            [
                (p.slot.name, starts[p.slot.name] + p.start, starts[p.slot.name] + p.stop)
                for p in bucket.pieces(rank)
            ]
            for rank in range(n)
        ]
    with pytest.raises(ValueError, match="rounded up"):
        flat_cut({"bucket": (lengths, 6)}, world=3)


def test_each_element_has_the_rank_whose_box_it_is_in():
    flat_shards = [flat_boxes((3, 5), *flat(15, 2).span(rank)) for rank in range(2)]
    assert owner_of_each((3, 5), flat_shards) == [0] * 8 + [1] * 7
    columns = [[Box((0, 0), (3, 2))], [Box((0, 2), (3, 2))]]
    assert owner_of_each((3, 5), columns) == [0, 0, 1, 1, None] * 3
    with pytest.raises(ValueError, match="of rank 0 and rank 1"):
        logical((3, 5), {"": [[Box((0, 0), (2, 2))], [Box((1, 1), (1, 1))]]})
    with pytest.raises(ValueError, match="exceeds a tensor of shape"):
        logical((3, 5), {"": [[Box((0, 4), (1, 2))]]})


# Time: the fit of lesson 01, timelines, a ring


def test_a_fit_finds_the_line_and_weighs_small_messages_as_much_as_large_ones():
    sizes = [1e3, 1e4, 1e5, 1e6, 1e7, 3e7]
    times = [4e-4 + b / 2e9 for b in sizes]
    line = fit(sizes, times)
    assert (line.alpha, line.bytes_per_second, line.half) == pytest.approx((4e-4, 2e9, 8e5))
    times[-2] *= 2  # one large size takes twice as long, as where a cache overflows
    assert fit(sizes, times).alpha == pytest.approx(4e-4, rel=0.05)  # unweighted it were 11e-4
    with pytest.raises(ValueError, match="at least two points"):
        fit([1.0], [1.0])
    with pytest.raises(ValueError, match="all sizes are the same"):
        fit([8.0, 8.0], [1.0, 2.0])


Timed = namedtuple("Timed", "op start end waits")


def test_a_timeline_without_a_completed_call_says_so():
    """One rank's ring sends nothing, and a lesson on one rank goes on."""
    words = "No rank has completed a call. A group of one rank sends no messages."
    assert timeline([[Timed("recv", 5.2, None, ())]], title="A ring").alt == f"A ring. {words}"
    assert timeline([[]]).alt == words


def test_a_collective_moves_nothing_until_the_last_rank_has_called():
    early = [Timed("all_reduce", 1.0, 4.0, ()), Timed("all_reduce", 2.0, 5.0, ())]
    late = [Timed("all_reduce", 3.0, 4.0, ()), Timed("all_reduce", 3.5, 5.0, ())]
    assert ready_times([early, late], "all_reduce") == [3.0, 3.5]
    assert (
        "A bar of all_reduce is hollow until every rank has called it."
        in timeline([early, late], together=("all_reduce",)).alt
    )
    with pytest.raises(ValueError, match=r"the ranks made \[2, 1\] calls of all_reduce"):
        timeline([early, late[:1]], together=("all_reduce",))
    # Calls under way at one time do not cover each other.
    assert tracks([(0, 2), (1, 3), (2, 4), (2.5, 3), (5, 6)]) == [0, 1, 0, 2, 0]


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_the_messages_of_a_ring_make_the_sums_that_are_drawn(n):
    """The same messages, carried out on random tensors, give the sums that the frames name."""
    made = torch.Generator().manual_seed(n)
    start = torch.randn(n, n, 5, generator=made, dtype=torch.float64)  # (rank, chunk, numbers)
    held, frames = start.clone(), ring_frames(n)
    assert len(frames) == 1 + 2 * (n - 1)
    for number, frame in enumerate(frames[1:], 1):
        before = held.clone()
        assert [send.sender for send in frame.sends] == list(range(n))
        assert len({send.chunk for send in frame.sends}) == n
        for send in frame.sends:
            assert send.receiver == (send.sender + 1) % n
            kept = before[send.receiver, send.chunk] if number < n else 0.0
            held[send.receiver, send.chunk] = before[send.sender, send.chunk] + kept
        assert frame.name == (
            f"reduce-scatter {number}" if number < n else f"all-gather {number + 1 - n}"
        )
        for rank, row in enumerate(frame.held):
            for chunk, owners in enumerate(row):
                torch.testing.assert_close(held[rank, chunk], start[list(owners), chunk].sum(0))
    torch.testing.assert_close(held, start.sum(0).expand(n, n, 5))


def test_one_step_of_a_ring_stands_alone_and_a_ring_has_2_to_8_ranks():
    one = ring_steps(3, step=2).alt
    assert "reduce-scatter 2: 0 sends chunk 2 to 1" in one and "all-gather" not in one
    for n in (1, 9):
        with pytest.raises(ValueError, match="2 to 8 ranks"):
            ring_steps(n)


# Losses, rates, a run


def test_only_runs_that_agree_have_distances_said_with_a_bound_that_noise_does_not_move():
    one = [(step, 5.0 - 0.1 * step) for step in range(1, 21)]
    for gap, said in ((3e-11, "1e-9"), (5e-7, "1e-4"), (9e-3, "a percent")):
        words = loss_curve({"one": one, "other": [(s, loss + gap) for s, loss in one]}).alt
        assert f"other differs from one by less than {said} at every step" in words
    far = [(step, loss + 0.02 * step) for step, loss in one]
    for others in ({}, {"far": far}, {"same": one, "far": far}, {"short": one[:3]}):
        assert "differs" not in loss_curve({"one": one, **others}).alt
    with pytest.raises(ValueError, match="bound= is for runs that agree"):
        loss_curve({"one": one, "far": far}, bound=1e-9)


def test_a_run_without_a_measured_step_is_its_loss_alone():
    assert run_summary([(1, 5.5)], [], []).alt == "Loss from 5.500 at step 1 to 5.500 at step 1."
    with pytest.raises(ValueError, match="at least one step"):  # `course train` says it and goes on
        run_summary([], [], [])


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 0), ("momentum", 1), ("adamw", 2)])
def test_each_kind_of_bytes_is_a_part_of_the_library_s_form(optimizer, states):
    for stage in range(4):
        row = stage_bytes(stage, 8, precision="float32", optimizer=optimizer)
        whole = per_parameter(stage, 8, states=states, alive=True)
        assert sum(row.values()) == pytest.approx(whole)
        assert row["parameters"] == pytest.approx(4 / (8 if stage == 3 else 1))
        assert row["gradients"] == pytest.approx(4 / (8 if stage > 1 else 1))
    masters = stage_bytes(0, 8, optimizer=optimizer)["optimizer states"]
    assert masters == pytest.approx(4 * states + 4)


def test_megatron_keeps_eighteen_bytes_and_float32_sixteen():
    bytes_ = {name: sum(stage_bytes(0, 1, precision=name).values()) for name in PRECISIONS}
    assert bytes_ == {"float32": 16, "bf16": 16, "bf16, float32 gradients": 18}


# The map


def test_the_map_holds_every_notebook_and_refuses_another():
    there = set()
    for file in (Path(__file__).resolve().parents[3] / "notebooks").glob("*.ipynb"):
        first, second, *_ = file.stem.split("_")
        there.add(second.upper() if first == "appendix" else first)
    assert set(TITLES) == there
    assert "You are here: appendix E4, pipeline, context, expert." in course_map("e4").alt
    assert len(course_map("15").png) < 40_000
    with pytest.raises(ValueError, match=r"no lesson or appendix '16'; the course has 00, 01, "):
        course_map("16")


# Stage 3: parameter_life.py, memory_line.py, ahead.py

WIDTH, LAYERS = 24, 4
UNIT = 8 * (WIDTH * WIDTH + WIDTH)  # bytes in float64; even, so that nothing is padded


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def stage_3(me, depth: int):
    torch.manual_seed(3)
    model = Stack().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mesh = ranks.mesh(me, dp=me.world, tp=1)
    engine = zero.engine(model, optimizer, stage=3, mesh=mesh, prefetch=depth, persist=0)

    def step():
        engine.backward(engine(torch.ones(2, WIDTH, dtype=torch.float64)).square().sum())
        engine.step()

    return engine, mesh, step


def noted(me, depth):
    """The moments and spans of a third step, and whether nothing is left on the units."""
    engine, mesh, step = stage_3(me, depth)
    step()
    step()
    mine = engine.shards.units[0]
    forgotten = mine.free
    mine.free = lambda: forgotten()  # somebody else's, which has to be there afterwards
    kept = mine.free
    with ledger(mesh) as book, whole_units(engine) as moments:
        step()
    left = {"start", "free"} & {name for unit in engine.shards.units[1:] for name in vars(unit)}
    clean = not left and mine.free is kept and "start" not in vars(mine)
    return [tuple(m) for m in moments], book.spans(), clean and "step" not in vars(engine)


@pytest.mark.parametrize("depth", [0, 2])
def test_what_is_noted_of_units_is_what_comes_and_goes(pool, depth):
    for moments, spans, clean in pool.run(2, noted, depth):
        assert clean
        begun = [what.removeprefix(PHASE) for _, _, what in moments if what.startswith(PHASE)]
        assert begun == ["backward", "forward", "step", "forward"]
        moments = [moment for moment in moments if not moment[2].startswith(PHASE)]
        levels = [nbytes for _, nbytes, _ in moments]
        assert max(levels) == (1 + depth) * UNIT and levels[0] == levels[-1] == 0
        assert {nbytes % UNIT for nbytes in levels} == {0}
        assert all(a != b for a, b in pairwise(levels))
        # Every layer comes forward, and again backward but for the last.
        assert sum(what.startswith("come") for _, _, what in moments) == 2 * LAYERS - 1
        early, in_order = begun_before(spans), turns(spans)
        assert [turn.unit for turn in in_order] == [1, 2, 3, 4, 3, 2, 1]
        # `depth` units are asked for ahead of their turn; at each end there are fewer to ask for.
        assert max(turn.ahead for turn in in_order) == depth
        assert sum(turn.ahead == depth for turn in in_order) >= len(in_order) - 3 * depth
        assert early == 0 if depth == 0 else early >= LAYERS
        alt = ahead({f"depth {depth}": spans}).alt
        assert f"{2 * LAYERS - 1} × all_gather, {LAYERS} × reduce_scatter; {early} gathers" in alt


# Offload: crossings.py


def gather_through_the_host(me):
    """An all-gather into memory of another device: its result lies on the host, and is copied."""
    into = torch.empty(3 * me.world, device="meta")
    on_gpu = mock.patch.object(tiers, "rank_computes_on", return_value="cuda")
    engine = SimpleNamespace(home=None, step=None)
    with on_gpu, crossing(engine) as noted:  # memory of the CPU is then the host's
        all_gather(torch.ones(3), dist.group.WORLD, into=into, async_op=True).wait()
        into.copy_(torch.ones(3 * me.world))
    return noted


def test_what_a_collective_copies_for_its_own_sake_crosses_nothing(pool):
    for noted in pool.run(2, gather_through_the_host):
        assert noted == [Crossing("up", 24, "forward")]
