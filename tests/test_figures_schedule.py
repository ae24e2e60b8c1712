"""The pictures of lesson 05 are drawn from what ran, and refuse to show what did not."""

from __future__ import annotations

import io

import pytest
import torch
from torch import nn

from course_lib.collectives import all_reduce
from course_lib.figures import follow, head_map, schedule
from course_lib.figures.head_map import axis_label, row_name
from course_lib.figures.schedule import Call, Visit, token_sharded
from course_lib.gpt import Block, Config
from course_lib.ledger import ledger
from course_lib.tensor_parallel import parallelize
from course_lib.tensor_parallel.conjugates import copy, reduce


def parts_of(block: Block) -> dict[str, nn.Module]:
    return {
        "norm_1": block.norm_1,
        "attention.qkv": block.attention.qkv,
        "attention.heads": block.attention.core,
        "attention.out": block.attention.out,
        "dropout": block.dropout,
        "norm_2": block.norm_2,
        "mlp.up": block.mlp.up,
        "mlp.down": block.mlp.down,
    }


def step(me, parts=parts_of):
    from course_lib import ranks

    torch.manual_seed(4)
    block = Block(Config.gpt2(hidden=12, heads=4, inner=10, dropout=0.1)).double()
    parallelize(block, ranks.mesh(me, dp=1, tp=me.world))
    x = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
    with (
        ledger(axes={"tp": torch.distributed.group.WORLD}) as book,
        follow(parts(block), book) as visits,
    ):
        block(x).square().sum().backward()
    return visits


def without_out(block: Block) -> dict[str, nn.Module]:
    return {k: v for k, v in parts_of(block).items() if k != "attention.out"}


def one_inside_another(block: Block) -> dict[str, nn.Module]:
    return {**parts_of(block), "attention": block.attention}


def refusals(me):
    found = []
    for parts in (without_out, one_inside_another):
        try:
            step(me, parts)
        except ValueError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("world", [1, 3])
def test_follow_finds_each_collective_in_the_part_that_made_it(pool, world):
    every = pool.run(world, step)
    visits = every[0]
    assert all(one == visits for one in every)
    order = [visit.part for visit in visits if visit.phase == "forward"]
    backward = [visit.part for visit in visits if visit.phase == "backward"]
    assert order == [
        "norm_1", "attention.qkv", "attention.heads", "attention.out", "dropout",
        "norm_2", "mlp.up", "mlp.down", "dropout",
    ]  # fmt: skip
    assert backward == order[::-1]
    made = {(v.part, v.phase): v.calls for v in visits if v.calls}
    sum_of_x = (Call("all_reduce", "tp", 2 * 5 * 12),)
    assert made == {
        ("attention.out", "forward"): sum_of_x,
        ("mlp.down", "forward"): sum_of_x,
        ("mlp.up", "backward"): sum_of_x,
        ("attention.qkv", "backward"): sum_of_x,
    }
    words = schedule(every, title="A block").alt
    assert words.startswith(
        "A block. The parts of a block in the order in which they ran. Forward:"
    )
    assert "attention.out with all_reduce of 120 over tp, dropout" in words
    assert "Backward: dropout, mlp.down, mlp.up with all_reduce of 120 over tp, norm_2" in words


def test_a_collective_between_the_parts_or_a_part_inside_another_is_refused(pool):
    lost, inside = pool.run(2, refusals)[0]
    assert lost.startswith("4 collectives were booked and 3 of them fell into the parts")
    assert "attention.qkv begins its forward while attention is in its forward" in inside


class Twice(nn.Module):
    """A part with two collectives on its way, through autograd alone."""

    def forward(self, x):
        group = torch.distributed.group.WORLD
        return reduce(copy(x, group), group) + all_reduce(x.detach(), group)


def several(me):
    model, x = Twice(), torch.ones(3, requires_grad=True)
    with ledger() as book, follow({"twice": model}, book) as visits:
        model(x).sum().backward()
    with ledger() as book, follow({"twice": model}, book) as again:
        model(x)
    left = len(model._forward_hooks) + len(model._backward_hooks)
    return visits, again, left


def test_several_calls_in_a_part_and_a_step_without_a_backward(pool):
    visits, again, left = pool.run(2, several)[0]
    assert [len(visit.calls) for visit in visits] == [2, 1]
    assert [visit.phase for visit in again] == ["forward"]
    assert "Backward" not in schedule([again]).alt
    assert left == 0  # no hook stays behind


def test_a_schedule_is_one_step_that_all_ranks_took():
    visit = Visit("norm", "forward", ())
    back = Visit("norm", "backward", ())
    with pytest.raises(ValueError, match="rank 1 took another step"):
        schedule([[visit], [visit, back]])
    with pytest.raises(ValueError, match="takes its parts in turn"):
        schedule([[visit, Visit("mlp", "forward", ()), back]])
    with pytest.raises(ValueError, match="needs a forward"):
        schedule([])


def forward_of(*parts: tuple[str, str]) -> list[Visit]:
    return [Visit(name, "forward", (Call(op, "tp", 6),) if op else ()) for name, op in parts]


def test_tokens_are_sharded_between_a_reduce_scatter_and_the_next_gather():
    block = forward_of(
        ("norm", ""), ("qkv", "all_gather"), ("heads", ""), ("out", "reduce_scatter"),
        ("dropout", ""), ("up", "all_gather"), ("down", "reduce_scatter"), ("last", ""),
    )  # fmt: skip
    assert token_sharded(block) == {0, 4, 7}
    words = schedule([block]).alt
    assert "In norm, dropout, last a rank has a shard of the tokens, in the other parts" in words
    opens = forward_of(("embedding", "reduce_scatter"), ("norm", ""))
    assert token_sharded(opens) == {1}
    plain = forward_of(("norm", ""), ("qkv", ""), ("out", "all_reduce"))
    assert (
        token_sharded(plain) == token_sharded(forward_of(("w", "all_gather"), ("x", ""))) == set()
    )
    assert "shard" not in schedule([plain]).alt


LONG = "A title that is a good deal wider than what it stands above, by far"


def numbers(heads: int, seed: int = 2) -> torch.Tensor:
    return torch.randn(heads, 2, 5, generator=torch.Generator().manual_seed(seed))


def test_a_map_of_heads_is_found_from_the_weights():
    whole = {"q": numbers(4), "k": numbers(2, 3)}
    held = [{"q": whole["q"][r : r + 1], "k": whole["k"][r // 2 :][:1]} for r in range(4)]
    words = head_map(whole, held, title="Four ranks").alt
    assert words == (
        "Four ranks. Which rank holds which head. "
        "q: head 0 on rank 0; head 1 on rank 1; head 2 on rank 2; head 3 on rank 3. "
        "k: head 0 on rank 0 and rank 1; head 1 on rank 2 and rank 3."
    )


def test_rows_say_which_heads_they_have():
    assert [row_name(part) for part in ("q", "k", "experts")] == [
        "q: query heads", "k: key/value heads", "experts",
    ]  # fmt: skip


def test_the_axis_says_what_a_wide_tile_is():
    alone = [(0,), (1,)]
    assert axis_label({"experts": alone}, 2) == "head"
    assert axis_label({"q": alone, "k": alone}, 2) == "query head"
    assert "(a key/value head spans" in axis_label({"q": alone, "k": [(0, 1)]}, 2)


def test_a_map_of_heads_refuses_what_is_not_so():
    whole = {"q": numbers(3)}
    with pytest.raises(ValueError, match="rank 1: its head 0 of q is none of the whole"):
        head_map(whole, [{"q": whole["q"][:2]}, {"q": numbers(1, 9)}])
    with pytest.raises(ValueError, match="no rank holds head 2 of q"):
        head_map(whole, [{"q": whole["q"][:2]}])
    with pytest.raises(ValueError, match="2 heads of k cannot stand below 3"):
        head_map({**whole, "k": numbers(2)}, [])


def drawn() -> list:
    calls = (Call("all_reduce", "tp", 1234567),)
    there = [Visit(name, "forward", calls) for name in ("norm_1", "mlp.up", "mlp.down")]
    back = [Visit(name, "backward", calls * 2) for name in ("mlp.down", "mlp.up", "norm_1")]
    whole = {"q": numbers(4), "k": numbers(2, 3)}
    held = [{"q": whole["q"][r::2], "k": whole["k"]} for r in range(2)]
    three = {"q": numbers(2), "k": numbers(2), "v": numbers(2)}
    return [
        *(schedule([there + back], title=title) for title in ("", "x", LONG)),
        *(head_map(whole, held, title=title) for title in ("", "x", LONG)),
        *(head_map(three, [three], title=title) for title in ("", LONG)),
    ]


def test_pictures_are_cards_that_read_in_any_mode_and_cut_nothing_off():
    from PIL import Image

    for picture in drawn():
        image = Image.open(io.BytesIO(picture.png)).convert("RGB")
        wide, high = image.size
        edge = [image.getpixel((x, y)) for x in range(wide) for y in (0, high - 1)]
        edge += [image.getpixel((x, y)) for x in (0, wide - 1) for y in range(high)]
        assert set(edge) == {(255, 255, 255)}  # the card's own margin, all round
        assert len(picture.png) < 200_000


def test_each_rank_has_its_hatch_as_well_as_its_colour():
    """In grey, two ranks' tiles still differ: the hatch says what the colour says."""
    from PIL import Image

    whole = {"q": numbers(2)}
    one = head_map(whole, [{"q": whole["q"]}])
    two = head_map(whole, [{"q": whole["q"][:0]}, {"q": whole["q"]}])
    grey = [Image.open(io.BytesIO(p.png)).convert("L") for p in (one, two)]
    shades = [len(image.crop((350, 20, 420, 60)).getcolors()) for image in grey]
    assert shades[1] > shades[0]
