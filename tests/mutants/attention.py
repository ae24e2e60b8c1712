"""Mistakes in course_lib/tensor_parallel/attention.py, qkv_layout.py, and rows that ranks share."""

from tests.support.mutation import Mutant

FILE = "course_lib/tensor_parallel/attention.py"
LAYOUT = "course_lib/tensor_parallel/qkv_layout.py"
LINEAR = "course_lib/tensor_parallel/linear.py"
TESTS = "tests/course_lib/tensor_parallel/test_attention.py::"
LAYOUTS = "tests/course_lib/tensor_parallel/test_qkv_layout.py::"
DENSE = f"{TESTS}test_attention_is_the_dense_one_and_sends_one_sum_each_way"
HEADS = f"{LAYOUTS}test_every_query_head_has_one_rank_and_its_key_value_head_beside_it"
SPANS = f"{LAYOUTS}test_the_spans_are_the_rows_of_a_ranks_heads"

MUTANTS = [
    Mutant(
        "attention-fused-cut-straight",
        FILE,
        '        "qkv": Columns(joined_rows(share, heads, kv_heads, size), shared),\n',
        '        "qkv": Columns([(3 * share.q[0] * size, 3 * share.q[1] * size)], shared),\n',
        (f"{DENSE}[2-None]",),
        "a straight cut of [q | k | v] gives the first rank queries and no values",
        "T13",
    ),
    Mutant(
        "attention-out-cut-by-numbers",
        FILE,
        '        "out": Rows([(share.q[0] * size, share.q[1] * size)]),\n',
        '        "out": Rows([(rank * heads * size // n, (rank + 1) * heads * size // n)]),\n',
        (f"{DENSE}[3-None]",),
        "the columns of out are cut through the middle of a head",
        "T29",
    ),
    Mutant(
        "attention-shared-rows-not-summed",
        LINEAR,
        "        if self.shared is not None:\n            weight",
        "        if False:\n            weight",
        (f"{DENSE}[2-None]",),
        "copies of a key/value head each learn from their own queries, and drift apart",
        "T13",
    ),
    Mutant(
        "attention-shared-biases-not-summed",
        LINEAR,
        "            if bias is not None:\n                bias = copy_rows",
        "            if False:\n                bias = copy_rows",
        (f"{DENSE}[2-None]",),
        "the weights of a shared head are summed, its biases are forgotten",
        "T16",
    ),
    Mutant(
        "attention-holders-by-halves",
        FILE,
        "    made = {one: dist.new_group(list(one), timeout=timeout_of(group)) "
        "for one in sorted(set(every))}",
        "    made = {own: dist.new_group(list(own), timeout=timeout_of(group), "
        "use_local_synchronization=True)}",
        (f"{TESTS}test_the_ranks_that_hold_a_key_value_head_are_neighbours",),
        "torch names such a group by how many groups a rank is in, and ranks wait for each other",
    ),
    Mutant(
        "attention-one-mask-for-all-heads",
        FILE,
        "        if not (self.training and self.inner.dropout):",
        "        if True:",
        (f"{TESTS}test_heads_drop_out_each_rank_by_itself_and_the_shared_stream_stays_shared",),
        "heads of different ranks drop out at the same places",
        "T14",
    ),
    Mutant(
        "attention-trains-in-evaluation",
        FILE,
        "        self.training = heads.training\n",
        "",
        (f"{TESTS}test_in_evaluation_nothing_is_drawn",),
        "a model in evaluation draws random numbers once it is cut",
        "T14",
    ),
    Mutant(
        "qkv-copies-share-no-queries",
        LAYOUT,
        "        start = a * each + sum(counts[:place])",
        "        start = a * each",
        (HEADS,),
        "all holders of a key/value head take the same queries",
        "T13",
    ),
    Mutant(
        "qkv-values-where-keys-are",
        LAYOUT,
        "(after_q + kv[0], after_q + kv[1]), (after_k + kv[0], after_k + kv[1])]",
        "(after_q + kv[0], after_q + kv[1]), (after_q + kv[0], after_q + kv[1])]",
        (SPANS,),
        "keys twice and values never",
        "T13",
    ),
]
