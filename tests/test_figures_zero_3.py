"""The pictures of lesson 11: what is whole over a step, and gathers beside the work under them."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn

from course_lib import ranks, zero
from course_lib.figures.ahead import Turn, ahead, begun_before, lanes_of, turns
from course_lib.figures.memory_line import PHASE, Run, memory_line, phases, whole_units
from course_lib.ledger import ledger
from course_lib.ledger.book import Span

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


def noted(me, depth):
    """The moments and spans of a third step, and whether nothing is left on the units."""
    torch.manual_seed(3)
    model = Stack().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mesh = ranks.mesh(me, dp=me.world, tp=1)
    engine = zero.engine(model, optimizer, stage=3, mesh=mesh, prefetch=depth, persist=0)
    x = torch.ones(2, WIDTH, dtype=torch.float64)

    def step():
        engine.backward(engine(x).square().sum())
        engine.step()

    step()
    step()
    mine = engine.shards.units[0]
    forgotten = mine.free
    mine.free = lambda: forgotten()  # somebody else's, which has to be there afterwards
    kept = mine.free
    with ledger(mesh) as book, whole_units(engine) as moments:
        step()
    left = [name for unit in engine.shards.units[1:] for name in ("start", "free")
            if name in vars(unit)]  # fmt: skip
    clean = not left and mine.free is kept and "start" not in vars(mine)
    clean = clean and not {"backward", "step"} & set(vars(engine))
    return [tuple(m) for m in moments], book.spans(), clean


def test_a_phase_that_takes_no_time_is_left_out():
    points = [(0.4, 5, "phase backward"), (0.9, 5, "phase forward"), (0.9001, 0, "phase step")]
    assert [name for name, _, _ in phases(points, 1.0)] == ["forward", "backward", "step"]
    assert phases(points, 1.0, least=0.0)[2] == ("forward", 0.9, 0.9001)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_what_is_noted_is_what_comes_and_goes(pool, depth):
    for moments, spans, clean in pool.run(2, noted, depth):
        assert clean
        begun = [what.removeprefix(PHASE) for _, _, what in moments if what.startswith(PHASE)]
        assert begun == ["backward", "forward", "step", "forward"]
        # However busy the machine is, and however short a phase: the last one may take no time.
        seen = phases(moments, moments[-1][0], least=0.0)
        assert [name for name, _, _ in seen[:4]] == ["forward", "backward", "forward", "step"]
        assert all(before[2] <= after[1] * 1.01 for before, after in pairwise(seen))
        moments = [moment for moment in moments if not moment[2].startswith(PHASE)]
        levels = [nbytes for _, nbytes, _ in moments]
        assert max(levels) == (1 + depth) * UNIT and levels[0] == levels[-1] == 0
        assert {nbytes % UNIT for nbytes in levels} == {0}
        assert all(a != b for a, b in pairwise(levels))
        times = [seconds for seconds, _, _ in moments]
        assert times == sorted(times)
        # Every layer comes forward, and again backward but for the last.
        came = [what for _, _, what in moments if what.startswith("come")]
        assert len(came) == 2 * LAYERS - 1
        early = begun_before(spans)
        in_order = turns(spans)
        assert [turn.unit for turn in in_order] == [1, 2, 3, 4, 3, 2, 1]
        # `depth` units are asked for ahead of their turn; at each end there are fewer to ask for.
        assert max(turn.ahead for turn in in_order) == depth
        assert sum(turn.ahead == depth for turn in in_order) >= len(in_order) - 3 * depth
        assert early == 0 if depth == 0 else early >= LAYERS
        alt = ahead({f"depth {depth}": spans}).alt
        assert f"{2 * LAYERS - 1} × all_gather, {LAYERS} × reduce_scatter; {early} gathers" in alt


def span(op, start, end, *waits):
    return Span(op, "dp", "forward", start, end, True, "", 8, tuple(waits))


def test_a_gather_is_early_when_it_begins_before_the_wait_for_the_one_before():
    late = [span("all_gather", 0, 2, (0.1, 2)), span("all_gather", 3, 4, (3.1, 4))]
    early = [span("all_gather", 0, 2, (1, 2)), span("all_gather", 0.5, 4, (3, 4))]
    inside = [span("all_gather", 0, 2, (0.1, 2)), span("all_gather", 1, 4, (3, 4))]
    other = [span("all_gather", 0, 2, (1, 2)), span("reduce_scatter", 0.5, 4, (3, 4))]
    found = [begun_before(spans) for spans in (late, early, inside, other)]
    assert found == [0, 1, 0, 0]


def test_turns_go_by_the_order_of_asking_and_waiting_and_by_no_clock():
    late = [span("all_gather", 0, 2, (0.1, 2)), span("all_gather", 3, 4, (3.1, 4))]
    assert turns(late) == [Turn(1, "forward", 0), Turn(2, "forward", 0)]
    early = [
        span("all_gather", 0, 2, (1, 2)),
        span("all_gather", 0.5, 4, (3, 4)),
        span("all_gather", 0.7, 4, (3.5, 4)),
        span("reduce_scatter", 3.2, 5, (6, 7)),
    ]
    assert [turn.ahead for turn in turns(early)] == [0, 1, 2]
    slower = [
        one._replace(
            start=7 * one.start, end=7 * one.end,
            waits=tuple((7 * begin, 7 * end) for begin, end in one.waits),
        )
        for one in early
    ]  # fmt: skip
    assert lanes_of(slower) == lanes_of(early)
    lanes = lanes_of(early)
    # Under way ends where the turn begins; a gather that nobody asked for ahead has a gap for it.
    first, second, third = lanes.gathers
    assert first[1] == lanes.starts[0] and first[0] < first[1]
    assert second[0] == third[0] == lanes.starts[0]
    assert second[1] < lanes.starts[1] < third[1] < lanes.starts[2]
    (scatter,) = lanes.scatters
    assert lanes.starts[1] < scatter[0] < scatter[1]


def test_both_pictures_are_drawn_and_say_what_they_show():
    points = [(0.0, 0, "begin"), (0.1, 3_000_000, "come a"), (0.4, 0, "go a"),
              (0.5, 0, f"{PHASE}backward"), (0.6, 2_000_000, "come b"),
              (0.7, 2_000_000, f"{PHASE}step"), (0.8, 0, "go b")]  # fmt: skip
    memory = [(0.0, 0, ""), (0.2, 5_500_000, ""), (1.0, 100, "")]
    run = Run(memory, points, 3_000_000)
    picture = memory_line({"a block": run}, title="A step")
    assert picture.png[:4] == b"\x89PNG" and len(picture.png) < 200_000
    assert picture.alt.startswith("A step. Memory over the time of a step")
    one = {"a block": Run(memory, points, 3_000_000, 4_000_000)}
    assert memory_line(one).png != memory_line({"a block": run}).png  # the shard's bytes are said
    for piece in ("a block: at most 3.00 MB", "by the formula 3.00", "2 hills", "reach 5.5 MB"):
        assert piece in picture.alt
    spans = [span("all_gather", 0, 2, (1, 2)), span("reduce_scatter", 0.5, 4)]
    lanes = ahead({"depth 0": spans, "depth 1": spans})
    assert lanes.png[:4] == b"\x89PNG" and len(lanes.png) < 200_000
    assert "depth 1: 1 × all_gather, 1 × reduce_scatter" in lanes.alt


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="each run needs a gather that was completed"):
        ahead({"depth 0": [span("all_gather", 0, None)]})
    with pytest.raises(ValueError, match="the meter's points and those of its units"):
        memory_line({"a block": Run([(0.0, 1, "")], [], 3)})
