"""The cut rule, the notation, the boxes: held against torch, numpy and brute force."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Shard

from course_lib.layout import (
    Box,
    Layout,
    LayoutError,
    Statement,
    box,
    check,
    cut,
    flat,
    flat_boxes,
    heads,
    kv_heads,
    span,
)

lengths, worlds = st.integers(0, 40), st.integers(1, 9)


# ---- the cut rule


@given(lengths, worlds)
def test_cut_is_torch_chunk(total, n):
    chunks = [len(piece) for piece in torch.arange(total).chunk(n)] if total else []
    assert cut(total, n) == chunks + [0] * (n - len(chunks))


@given(lengths, worlds)
def test_cut_and_span_are_dtensors_shard(total, n):
    for rank in range(n):
        length, offset = Shard.local_shard_size_and_offset(total, n, rank)
        start, stop = span(total, n, rank)
        assert cut(total, n)[rank] == length == stop - start
        assert length == 0 or start == offset


@given(lengths, worlds)
def test_flat_shards_are_equal_and_padding_fills_the_last(total, n):
    parts = flat(total, n)
    assert parts.padded == parts.shard * n
    assert 0 <= parts.padded - total < max(n, 1)
    assert sum(parts.pieces) == total
    for rank in range(n):
        start, stop = parts.span(rank)
        assert parts.pieces[rank] == stop - start
        assert parts.pieces[rank] + parts.padding[rank] == parts.shard
        assert start == min(total, rank * parts.shard)


@pytest.mark.parametrize(
    ("n_heads", "n", "counts"),
    [(12, 4, [3, 3, 3, 3]), (5, 4, [2, 1, 1, 1]), (7, 3, [3, 2, 2]), (3, 3, [1, 1, 1])],
)
def test_heads_differ_by_at_most_one(n_heads, n, counts):
    assert heads(n_heads, n) == counts


def test_more_ranks_than_heads_is_refused():
    with pytest.raises(
        ValueError, match="3 heads cannot be distributed over 5 ranks, because 2 of them"
    ):
        heads(3, 5)


@pytest.mark.parametrize(
    ("kv", "n", "spans"),
    [
        (4, 2, [(0, 2), (2, 4)]),
        (5, 3, [(0, 2), (2, 4), (4, 5)]),
        (2, 4, [(0, 1), (0, 1), (1, 2), (1, 2)]),
        (1, 3, [(0, 1)] * 3),
    ],
)
def test_kv_heads_are_spread_or_copied_to_neighbours(kv, n, spans):
    assert kv_heads(kv, n) == spans


def test_kv_heads_that_do_not_divide_the_ranks_are_refused_with_what_fits():
    with pytest.raises(ValueError, match=r"2 key/value heads .* 3 ranks.* axis: 1, 2$"):
        kv_heads(2, 3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cut(4, 0), "over 0 ranks"),
        (lambda: cut(-1, 2), "a length of -1"),
        (lambda: span(4, 2, 2), "no rank 2 among 2"),
        (lambda: span(4, 2, -1), "no rank -1 among 2"),
    ],
)
def test_impossible_cuts_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


# ---- the notation


@pytest.mark.parametrize(
    "text",
    ["X[b, s, h]", "W[h, f@tp]", "Y[b, s, h]{tp}", "W[h, f@(dp, tp)]", "L[]", "b'[3, h]{dp, tp}"],
)
def test_a_layout_survives_reading_and_writing(text):
    assert str(Layout.parse(text)) == text


def test_spaces_and_commas_are_free():
    assert Layout.parse(" W[ h ,f @ ( dp,tp ) ]{ pp } ") == Layout.parse("W[h, f@(dp, tp)]{pp}")
    assert (
        str(Statement.parse("X[b,h], W[h,f@tp]->Y[b,f@tp]")) == "X[b, h] W[h, f@tp] -> Y[b, f@tp]"
    )


def test_the_order_of_axes_is_kept():
    dim = Layout.parse("W[f@(dp, tp)]").dims[0]
    assert dim.axes == ("dp", "tp")
    assert dim != Layout.parse("W[f@(tp, dp)]").dims[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("X", "cannot read 'X'"),
        ("X[b, s", "cannot read"),
        ("X[b s]", "the dim 'b s'"),
        ("X[b,, s]", "the dim ''"),
        ("X[b@]", "the dim 'b@'"),
        ("X[b]{}", "names no axis"),
        ("X[b@(dp,)]", "names no axis"),
        ("X[b@tp, s@tp]", "the axis tp appears twice"),
        ("X[b@tp]{tp}", "shards it and is one of a partial sum"),
    ],
)
def test_unreadable_layouts_say_where(text, words):
    with pytest.raises(ValueError, match=words):
        Layout.parse(text)


def test_a_statement_names_each_tensor_once():
    with pytest.raises(ValueError, match="describes X twice"):
        Statement.parse("X[b] -> X[b]")
    with pytest.raises(ValueError, match="2 arrows"):
        Statement.parse("X[b] -> Y[b] -> Z[b]")
    with pytest.raises(ValueError, match="no tensor"):
        Statement.parse("  ")


# ---- the checker, alone on a rank


def linear(rank, world, f=7):
    """Column-parallel by hand: X whole, W and Y cut."""
    x, w = torch.randn(3, 5), torch.randn(5, f).chunk(world, 1)[rank]
    return {"X": x, "W": w, "Y": x @ w}


@pytest.mark.parametrize("rank", range(3))
def test_right_shapes_pass_and_give_the_logical_sizes(rank):
    statement = "X[b, h] W[h, f@tp] -> Y[b, f@tp]"
    assert check(statement, **linear(rank, 3), axes={"tp": (rank, 3)}, sizes={"f": 7}) == {
        "b": 3,
        "h": 5,
        "f": 7,
    }


def refused(statement, words, **arguments):
    with pytest.raises(LayoutError, match=words) as caught:
        check(statement, **arguments)
    return str(caught.value)


def test_a_wrong_length_names_tensor_dim_rank_and_numbers():
    tensors = linear(2, 3)
    tensors["W"] = torch.randn(5, 2)
    message = refused(
        "X[b, h] W[h, f@tp] -> Y[b, f@tp]",
        r"tp rank 2: W has shape \(5, 2\). Its dim 1, f@tp, should be 1 long but is 2",
        **tensors,
        axes={"tp": (2, 3)},
        sizes={"f": 7},
    )
    assert "f is 7 in all (from sizes)" in message
    assert "Dims are sharded as torch.chunk does: [3, 3, 1]" in message


def test_a_tensor_that_was_never_cut_is_recognised():
    words = r"holds all 7. Is it sharded over tp\?"
    refused("W[f@tp]", words, W=torch.randn(7), axes={"tp": (0, 2)}, sizes={"f": 7})


def test_a_whole_dim_that_is_in_fact_cut_is_recognised():
    words = r"should be 6 long but is 3.*Is it sharded over dp\? Then write b@dp"
    x = torch.randn(3, 5)
    refused("X[b, h]", words, X=x, axes={"dp": (0, 2)}, sizes={"b": 6})


def test_a_transposed_weight_is_recognised():
    words = r"two dims swapped\? torch.nn.Linear keeps its weight as \[out, in\]"
    w = torch.randn(4, 5)
    refused("W[h, f@tp]", words, W=w, axes={"tp": (0, 2)}, sizes={"f": 8, "h": 5})


def test_two_axes_cut_in_the_order_written():
    place = {"dp": (0, 2), "tp": (1, 3)}
    # 7 over dp is 4 and 3; the 4 over tp is 2, 2, 0. Over tp first: 3, 3, 1; the 3 over dp: 2, 1.
    check("W[f@(dp, tp)]", W=torch.randn(2), axes=place, sizes={"f": 7})
    place = {"dp": (1, 2), "tp": (1, 3)}
    check("W[f@(dp, tp)]", W=torch.randn(1), axes=place, sizes={"f": 7})
    place = {"dp": (0, 2), "tp": (2, 3)}
    check("W[f@(dp, tp)]", W=torch.randn(0), axes=place, sizes={"f": 7})
    words = r"looks sharded over tp, then dp; @\(dp, tp\) means the other order"
    refused("W[f@(dp, tp)]", words, W=torch.randn(1), axes=place, sizes={"f": 7})


def test_one_name_is_one_size():
    words = r"Y has shape \(4,\). Its dim 0, b, should be 3 long but is 4. b is 3 in all \(from X\["
    refused("X[b] -> Y[b]", words, X=torch.randn(3), Y=torch.randn(4))


def test_a_name_cut_everywhere_is_held_against_itself():
    words = r"f@tp is 3 long in W"
    arguments = {"W": torch.randn(5, 3), "Y": torch.randn(2, 4), "axes": {"tp": (0, 2)}}
    refused("W[h, f@tp] -> Y[b, f@tp]", words, **arguments)


def test_numbers_are_sizes_and_dims_are_counted():
    check("X[3, h]", X=torch.randn(3, 5))
    refused("X[3, h]", "should be 3 long but is 4", X=torch.randn(4, 5))
    refused("X[b, s, h]", "has 3 dims, but X has 2", X=torch.randn(4, 5))


def test_wrong_use_of_check_is_told_apart_from_a_wrong_layout():
    x = torch.randn(3)
    with pytest.raises(ValueError, match="no tensor was passed for Y and Z does not appear"):
        check("X[b] -> Y[b]", X=x, Z=x)
    with pytest.raises(ValueError, match="names the axis tp, but axes= has dp"):
        check("X[b@tp]", X=x, axes={"dp": (0, 2)})
    with pytest.raises(ValueError, match="no rank 2 on tp, which is 2 long"):
        check("X[b@tp]", X=x, axes={"tp": (2, 2)})
    with pytest.raises(ValueError, match="give axes as process groups"):
        check("X[b]", X=x, values=True, axes={"tp": (0, 2)})
    with pytest.raises(TypeError, match="X is a list"):
        check("X[b]", X=[1.0])


# ---- the checker with values, on ranks


def values_on_ranks(me):
    import torch.distributed as dist

    generator = torch.Generator().manual_seed(7)
    x = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    w = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    mine = slice(*span(5, me.world, me.rank))
    tensors = {"X": x[:, mine], "W": w[mine], "Y": x[:, mine] @ w[mine]}
    arguments = {"axes": {"tp": dist.group.WORLD}, "sizes": {"h": 5}, "values": True}
    said = []

    def ask(statement, **other):
        try:
            check(statement, **{**tensors, **other}, **arguments)
        except LayoutError as error:
            return said.append(str(error))
        return said.append("fine")

    ask("X[b, h@tp] W[h@tp, f] -> Y[b, f]{tp}")
    ask("X[b, h@tp] W[h@tp, f] -> Y[b, f]")
    whole = tensors["Y"].clone()
    dist.all_reduce(whole)
    ask("X[b, h@tp] W[h@tp, f] -> Y[b, f]", Y=whole)
    ask("X[b, h@tp] W[h@tp, f] -> Y[b, f]{tp}", Y=whole)
    drifted = whole.clone()
    drifted[1, 2] += 1e-9 * (me.rank == me.world - 1)
    ask("X[b, h@tp] W[h@tp, f] -> Y[b, f]", Y=drifted)
    # Only rank 0 has a wrong shape: the others must hear of it and not wait for its values.
    ask("X[b, h@tp] W[h@tp, f] -> Y[b, f]", Y=whole[: 3 + (me.rank > 0)])
    return said


@pytest.mark.parametrize("world", [2, 3])
def test_values_tell_a_partial_sum_from_a_whole_one(pool, world):
    for rank, said in enumerate(pool.run(world, values_on_ranks, timeout=15)):
        assert said[0] == "fine"
        assert "Y is declared replicated over tp, but the ranks of tp differ" in said[1]
        assert "Is it a partial sum, still to be all-reduced? Then write Y[b, f]{tp}." in said[1]
        assert said[2] == "fine"
        assert "Was it all-reduced already? Then write Y[b, f]." in said[3]
        assert f"rank {world - 1} from rank 0 by up to 1e-09" in said[4]
        # b is bound by X, so rank 0's Y is too short; all others are told.
        assert ("tp rank 0: Y has shape (3, 3)" in said[5]) and (
            rank == 0 or said[5].startswith("another rank found: ")
        )


def mesh_of_two_axes(me):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dp = mesh.get_local_rank("dp")
    x = torch.arange(3.0) + dp  # different data by dp, the same within tp
    check("X[b@dp]", X=x, axes=mesh, sizes={"b": 6}, values=True)
    try:
        check("X[b]", X=x, axes=mesh, values=True)
    except LayoutError as error:
        return str(error)


@pytest.mark.slow
def test_a_mesh_gives_the_axes(pool):
    for said in pool.run(4, mesh_of_two_axes, timeout=30):
        assert "X is declared replicated over dp" in said


# ---- boxes


@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=2),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(["W[a@(dp, tp), c]", "W[a@dp, c@tp]", "W[a, c@(tp, dp)]", "W[a@tp, c]"]),
)
def test_boxes_of_all_ranks_tile_the_tensor_as_chunk_does(shape, dp, tp, text):
    layout = Layout.parse(text)
    whole = torch.arange(shape[0] * shape[1]).view(shape)
    covered = torch.zeros(shape, dtype=torch.int64)
    for i in range(dp):
        for j in range(tp):
            place = {"dp": (i, dp), "tp": (j, tp)}
            found = box(shape, layout, place)
            expected = whole
            for position, dim in enumerate(layout.dims):
                for axis in dim.axes:
                    rank, world = place[axis]
                    chunks = expected.chunk(world, position)
                    empty = expected.narrow(position, 0, 0)
                    expected = chunks[rank] if rank < len(chunks) else empty
            assert whole[found.slices].equal(expected)
            covered[found.slices] += 1
    copies = dp if "dp" not in layout.axes else 1
    assert (covered == copies).all()


def test_box_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match=r"W\[a, c\] has 2 dims, but the shape \(3,\) has 1"):
        box((3,), "W[a, c]", {})
    with pytest.raises(ValueError, match="a@tp is sharded over the axis tp, but axes= has none"):
        box((3,), "W[a@tp]", {})


@st.composite
def ranges(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    total = torch.Size(shape).numel()
    start = draw(st.integers(0, total))
    return shape, start, draw(st.integers(start, total))


@settings(max_examples=300)
@given(ranges())
def test_flat_boxes_read_in_order_give_the_range_back(case):
    shape, start, stop = case
    whole = torch.arange(torch.Size(shape).numel()).view(shape)
    found = flat_boxes(shape, start, stop)
    read = [whole[piece.slices].reshape(-1) for piece in found]
    # In order and nothing twice: the boxes are disjoint and cover exactly the range.
    assert torch.cat([torch.empty(0, dtype=torch.int64), *read]).equal(torch.arange(start, stop))
    assert all(piece.numel > 0 for piece in found)
    assert len(found) <= max(1, 2 * len(shape) - 1)
    assert sum(piece.numel for piece in found) == stop - start


def test_flat_boxes_worked_by_hand():
    # 3 × 4, elements 2 to 9: the end of row 0, row 1, the beginning of row 2.
    assert flat_boxes((3, 4), 2, 9) == [
        Box((0, 2), (1, 2)),
        Box((1, 0), (1, 4)),
        Box((2, 0), (1, 1)),
    ]
    assert flat_boxes((3, 4), 0, 12) == [Box((0, 0), (3, 4))]
    assert flat_boxes((), 0, 1) == [Box((), ())]
    assert flat_boxes((5,), 2, 2) == []
    with pytest.raises(ValueError, match="5 to 13 is not a range of the 12 elements"):
        flat_boxes((3, 4), 5, 13)


# ---- words that a mutation of every line of the checker found unread


def test_a_balanced_cut_is_told_from_torchs():
    """7 over 3 ranks is 3, 3, 1 by the rule; evenly it would be 3, 2, 2."""
    for rank in (1, 2):
        sizes = {"axes": {"tp": (rank, 3)}, "sizes": {"f": 7}}
        words = r"Dims are sharded as torch.chunk does: \[3, 3, 1\]$"
        refused("W[f@tp]", words, W=torch.randn(2), **sizes)
        for length in (4, 5):  # neither rule gives it: no hint, only the rule's numbers
            words = r"which is \[3, 3, 1\] over the 3 ranks of tp\.$"
            refused("W[f@tp]", words, W=torch.randn(length), **sizes)


def test_a_hint_needs_its_reason():
    places = {"dp": (0, 2), "tp": (1, 3)}
    sizes = {"axes": places, "sizes": {"f": 7}}
    words = r"f is 7 in all \(from sizes\), sharded over dp, then tp\.$"
    refused("W[f@(dp, tp)]", words, W=torch.randn(5), **sizes)
    refused(
        "W[f]",
        r"should be 7 long but is 5\. f is 7 in all \(from sizes\)\.$",
        W=torch.randn(5),
        **sizes,
    )
    refused("W[f]", r"^dp rank 0, tp rank 1: W has shape \(5,\)", W=torch.randn(5), **sizes)
    refused("W[f]", r"^one process: W has shape", W=torch.randn(5), sizes={"f": 7})


def test_tensors_that_are_missing_or_too_many_are_named_alone():
    x = torch.randn(3)
    for tensors, words in (
        ({"X": x}, r"^check\('X\[b\] -> Y\[b\]'\): no tensor was passed for Y$"),
        ({"X": x, "Y": x, "Z": x}, r"^check\('X\[b\] -> Y\[b\]'\): Z does not appear in it$"),
    ):
        with pytest.raises(ValueError, match=words):
            check("X[b] -> Y[b]", **tensors)
    assert str(Statement.parse("X[b], W[b, h]")) == "X[b] W[b, h]"
    with pytest.raises(ValueError, match=r"no rank 3 among 3: ranks are 0 to 2$"):
        span(7, 3, 3)
