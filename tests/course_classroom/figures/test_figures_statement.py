"""A statement's picture: blocks, ranks and the collective are decided by the notation alone."""

from __future__ import annotations

import pytest

from course_classroom.figures.needed import Move, collective, collectives
from course_classroom.figures.statement import _entries, labels_of
from course_classroom.figures.statement_rows import axis_sizes, sheets, steps
from course_lib.layout import Layout
from course_lib.layout.boxes import box

ROWS = "X[b, h@tp] W[h@tp, f] -> Y[b, f]{tp}"


def read(*texts: str) -> list[Layout]:
    return [Layout.parse(text) for text in texts]


def test_each_change_of_layout_has_its_collective():
    expected = {
        ("Y[b, f]{tp}", "Y[b, f]"): "all-reduce",
        ("Y[b, f]{tp}", "Y[b, f@tp]"): "reduce-scatter",
        ("X[b@tp, h]", "X[b, h]"): "all-gather",
        ("X[b, h]", "X[b@tp, h]"): "slice",
        ("X[b@tp, h]", "X[b, h@tp]"): "all-to-all",
    }
    for (before, after), op in expected.items():
        move = collective(*read(before, after), "tp")
        assert move == Move(op, "tp")
        assert move.sends == (op != "slice")
        assert collective(*read(before, after), "dp") is None
    assert collective(*read("X[b@tp, h]", "X[b@tp, h]"), "tp") is None
    with pytest.raises(ValueError, match="a tensor sharded along h does not become a partial sum"):
        collective(*read("X[b, h@tp]", "X[b, h]{tp}"), "tp")


def test_two_axes_move_one_after_the_other_and_the_inner_one_first():
    assert collectives(*read("G[h, f@tp]{dp}", "G[h@dp, f]")) == (
        Move("reduce-scatter", "dp"), Move("all-gather", "tp"),
    )  # fmt: skip
    assert collectives(*read("G[g@(dp, tp)]", "G[g]")) == (
        Move("all-gather", "tp"), Move("all-gather", "dp"),
    )  # fmt: skip
    assert collectives(*read("G[g@(dp, tp)]", "G[g@dp]")) == (Move("all-gather", "tp"),)
    with pytest.raises(ValueError, match="the axis that is written last is gathered first"):
        collectives(*read("G[g@(dp, tp)]", "G[g@tp]"))
    with pytest.raises(ValueError, match="keeps the dims and their order"):
        collectives(*read("X[b, h]", "X[h, b]"))


def test_a_tensor_that_changes_between_rows_is_moved_where_it_was_computed():
    first, second = steps([ROWS, "Y[b@tp, f] V[f, k] -> Z[b@tp, k]"])
    assert [s.moves for s in first if s.moves] == [(Move("reduce-scatter", "tp"),)]
    assert str(first[-1].layout) == "Y[b@tp, f]"
    assert str(second[0].layout) == "Y[b@tp, f]"
    first, second = steps([ROWS, "Y[b, f]{tp} -> Y[b, f]"])
    assert not any(s.moves for s in first)
    assert second[1].moves == (Move("all-reduce", "tp"),)
    _, second = steps(["W[h@dp, f]", "X[b, h] W[h, f] -> Y[b, f]"])
    assert [str(s.layout or s.sign or s.moves[0].op) for s in second[:5]] == [
        "X[b, h]", "×", "W[h@dp, f]", "all-gather", "W[h, f]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("X[b, h@tp] W[h@tp, f] -> Y[b, f]", r"contracts h, which is sharded over tp, so each "
         r"rank holds a partial sum. Therefore \{tp\} is missing: write "
         r"Y\[b, f\]\{tp\}, then -> Y\[b, f\]"),
        ("O[b, h@tp] W[h@tp, h] -> Y[b, h]", r"Therefore \{tp\} is missing"),
        ("X[b, h@tp] W[h, f] -> Y[b, f]{tp}", r"h is sharded over tp in X but replicated in W.*"
         r"slice W \(write h@tp in it: no message\), or all-gather"),
        ("X[b, h@dp] W[h@tp, f] -> Y[b, f]{tp}", "h is sharded over dp in X but sharded over tp"),
        ("X[b@tp, h] W[h, f@tp] -> Y[b, f]", "tp shards b and f, two dims of one product"),
        ("X[b, h] W[h, f@tp] -> Y[b, f]",
         r"compute Y\[b, f@tp\], so write that first, then -> Y\[b, f\]"),
        ("X[b, h] W[h, f] -> Y[b, f@tp]",
         r"f is replicated in the factors but sharded over tp in the result"),
        ("X[b, h] W[h, f] -> Y[b, f]{tp}", "nothing is summed over tp"),
        ("X[b, h]{tp} W[h, f]{tp} -> Y[b, f]{tp}", "two factors are partial sums over tp"),
        ("X[b, h]{tp} W[h, f] -> Y[b, f]", r"a factor is a partial sum over tp.*\{tp\}"),
        ("X[b, h] W[h, f] -> Y[b, f] Z[b, f]", "2 results after an arrow"),
        ("X[a, b, c, d] -> Y[a, b, c, d]", "4 dims instead of 1 to 3"),
        ("X[b, s, h] W[rows@tp, h] -> Q[b, s, a@tp]", "has a dim a that no factor has"),
        ("X[b, h] ->", "one side of an arrow is empty"),
    ],
    ids=["contracted", "one name", "one factor", "two axes", "diagonal", "result replicated",
         "result sharded", "nothing summed", "two sums", "sum lost", "two results", "four dims",
         "new dim", "no result"],
)  # fmt: skip
def test_what_cannot_be_says_what_is_missing(line: str, message: str):
    with pytest.raises(ValueError, match=message):
        steps([line])


def test_axes_have_sizes_and_dp_is_outermost():
    used = read("X[b@dp, h]", "W[h, f@tp]")
    assert list(axis_sizes(used, {"tp": 3, "dp": 2})) == ["dp", "tp"]
    assert axis_sizes(read("X[b, h@tp]"), {}) == {"tp": 2}
    assert axis_sizes(read("X[b, h@tp]"), {"tp": 2, "dp": 1}) == {"tp": 2}
    with pytest.raises(
        ValueError, match=r"X\[b@dp, h\], but the axis dp has no size \(axes given: tp"
    ):
        axis_sizes(used, {"tp": 2})
    with pytest.raises(ValueError, match="tp=1: an axis of size 1 shards nothing"):
        axis_sizes(read("X[b, h@tp]"), {"tp": 1})
    with pytest.raises(ValueError, match="one rank holds all"):
        axis_sizes(read("X[b, h]"), {"tp": 1})


@pytest.mark.parametrize(
    "text",
    ["X[b@dp, h]", "W[h, f@tp]", "Y[b@dp, f@tp]", "G[g@(dp, tp)]"],
    ids=["rows", "columns", "both", "one dim"],
)
def test_blocks_are_on_the_ranks_that_the_layout_says(text: str):
    (layout,), sizes = read(text), {"dp": 2, "tp": 3}
    board = sheets(layout, sizes)
    shape = (board.rows, board.columns) if len(layout.dims) == 2 else (board.columns,)
    for rank in range(6):
        coords = {"dp": (rank // 3, 2), "tp": (rank % 3, 3)}
        mine = box(shape, layout, coords)
        held = {(c.row, c.column)[-len(shape) :] for c in board.cells[0] if rank in c.ranks}
        assert held == {
            at for at in held if all(o <= i < o + n for i, o, n in zip(at, *mine, strict=True))
        }
        assert len(held) == mine.numel


def test_a_partial_sum_is_a_sheet_for_each_summand_and_folded_dims_are_rows():
    (partial, inner) = read("Z[b, s, h]{tp}", "Z[b, s@tp, h]")
    board = sheets(partial, {"tp": 3})
    assert [sheet[0].ranks for sheet in board.cells] == [(0,), (1,), (2,)]
    assert labels_of(board) == ["0 + 1 + 2"]
    board = sheets(inner, {"tp": 3})  # two sequences, and each is sharded
    assert labels_of(board) == ["0", "1", "2", "0", "1", "2"]
    assert labels_of(sheets(*read("X[b, h]"), {"tp": 3})) == ["all"]
    mesh = sheets(*read("G[h, f@tp]{dp}"), {"dp": 2, "tp": 2})
    assert labels_of(mesh) == ["0 + 2", "1 + 3"]
    assert labels_of(sheets(*read("Y[b]{tp}"), {"dp": 2, "tp": 2})) == ["(0, 2) + (1, 3)"]


def test_the_legend_says_that_ranks_of_a_block_have_a_copy_each():
    sizes = {"dp": 2, "tp": 2}
    said = _entries([sheets(Layout.parse("W[h, f@tp]"), sizes)], sizes)
    assert ((0, 2), "a copy on each") in said, said
