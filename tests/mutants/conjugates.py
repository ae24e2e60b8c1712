"""Mistakes in course_lib/tensor_parallel/conjugates.py."""

from tests.support.mutation import Mutant

FILE = "course_lib/tensor_parallel/conjugates.py"
TESTS = "tests/course_lib/tensor_parallel/test_conjugates.py::"
SUMS = f"{TESTS}test_pairs_are_the_sum_over_all_ranks_forward_and_backward"
OTHERS = f"{TESTS}test_nothing_that_anybody_else_holds_is_written_into"
HEADS = (
    "tests/course_lib/tensor_parallel/test_attention.py::"
    "test_attention_is_the_dense_one_and_sends_one_sum_each_way"
)
TABLE = f"{TESTS}test_each_pair_sends_what_the_table_says"

MUTANTS = [
    Mutant(
        "conjugates-in-place",
        FILE,
        "        return collectives.all_reduce(x, group)\n",
        "        return collectives.all_reduce(x, group, donated=True)\n",
        (f"{OTHERS}[2]",),
        "the sum is written where a sibling branch, or a saved result, still looks",
        "T1",
    ),
    Mutant(
        "conjugates-f-without-sum",
        FILE,
        "    return _Message.apply(x, _same, partial(_sum, group, sum_in))",
        "    return _Message.apply(x, _same, _same)",
        (f"{SUMS}[2-None]",),
        "each rank keeps its own part of dX; nothing fails, and training drifts",
        "T2",
    ),
    Mutant(
        "conjugates-gather-always-splits",
        FILE,
        "SHARDED: _scatter}",
        "SHARDED: _own_piece}",
        (TABLE,),
        "what other ranks did with this rank's piece is forgotten",
        "T5",
    ),
    Mutant(
        "conjugates-after-has-a-default",
        FILE,
        "*, after: str\n",
        '*, after: str = "replicated"\n',
        (f"{TESTS}test_calls_that_are_refused",),
        "nobody has to say which of the two right backwards is meant",
        "T5",
    ),
    Mutant(
        "conjugates-split-backward-along-the-last",
        FILE,
        "partial(_own_piece, *where), partial(_join, *where))",
        "partial(_own_piece, *where), partial(_join, group, -1, sizes))",
        (f"{SUMS}[3-None]",),
        "the gradient is joined along another dim; square shapes hide it",
        "T29",
    ),
    Mutant(
        "conjugates-split-keeps-the-whole",
        FILE,
        "[group.rank()].clone(memory_format=torch.contiguous_format)",
        "[group.rank()]",
        (f"{OTHERS}[2]",),
        "a view of 1/n keeps all of the whole in memory",
    ),
    Mutant(
        "conjugates-split-unchecked",
        FILE,
        "    if len(sizes) != n or sum(sizes) != x.shape[dim]:",
        "    if False:",
        (f"{TESTS}test_calls_that_are_refused",),
        "sizes that do not fit end in torch's words, or in a wait",
    ),
    Mutant(
        "conjugates-sum-in-ignored",
        FILE,
        "    if dtype is None or dtype == x.dtype:",
        "    if True:",
        (f"{TESTS}test_a_sum_in_float32_neither_overflows_nor_loses_the_small_ones",),
        "float16 overflows on the way to a sum that fits; bfloat16 loses the small ones",
        "T27",
    ),
    Mutant(
        "conjugates-rows-lose-the-others",
        FILE,
        "    return torch.cat((x[:start], _sum(group, dtype, x[start:stop]), x[stop:]))",
        "    grad = torch.zeros_like(x)\n"
        "    grad[start:stop] = _sum(group, dtype, x[start:stop])\n"
        "    return grad",
        (f"{HEADS}[3-None]",),
        "the rows that this rank holds alone get no gradient",
        "T13",
    ),
]
