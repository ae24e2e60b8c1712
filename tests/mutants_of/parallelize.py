"""Mistakes in course_lib/tensor_parallel/parallelize.py."""

from tests.mutation import Mutant

FILE = "course_lib/tensor_parallel/parallelize.py"
TESTS = "tests/tensor_parallel/test_parallelize.py::"
DENSE = f"{TESTS}test_a_whole_model_trains_as_the_dense_one"
BLOCK = f"{TESTS}test_a_block_sends_two_sums_forward_and_two_backward"
DRIFT = f"{TESTS}test_copies_that_differ_are_found_and_named"
REFUSED = f"{TESTS}test_what_cannot_be_cut_is_refused_before_anything_is_changed"

MUTANTS = [
    Mutant(
        "parallelize-the-other-axis",
        FILE,
        '    group = axis(mesh, "tp")',
        '    group = axis(mesh, "dp")',
        (f"{DENSE}[2-1]", f"{BLOCK}[gpt2-2]"),
        "cut over the replicas, or, with one of them, not at all: every number is right",
    ),
    Mutant(
        "parallelize-copies-unchecked",
        FILE,
        "    check_replicas(model, group)\n    attention",
        "    attention",
        (REFUSED,),
        "each rank brings another model, and the parts of no model train together",
        "T15",
    ),
    Mutant(
        "parallelize-only-the-sum",
        FILE,
        "((bits ^ (bits >> 17)) * odd * 0x9E3779B1).sum()))",
        "bits.sum()))",
        (DRIFT,),
        "numbers that have changed places have the same sum",
        "T15",
    ),
    Mutant(
        "parallelize-nan-is-drift",
        FILE,
        "    every = x.detach().contiguous().view(-1).view(kinds[x.element_size()])",
        "    bits = x.detach().contiguous().view(-1).double()\n"
        "    return torch.stack((bits.sum(), bits.sum() / bits.sum()))",
        (DRIFT,),
        "copies that hold the same NaN are said to have drifted apart",
    ),
    Mutant(
        "parallelize-a-sum-of-floats",
        FILE,
        "    every = x.detach().contiguous().view(-1).view(kinds[x.element_size()])",
        "    every = (x.detach().reshape(-1).double() * 2**20).nan_to_num().long()",
        (DRIFT,),
        "the last bit of a number is lost in the sum of them, and drift begins with it",
        "T15",
    ),
    Mutant(
        "parallelize-shared-heads-unchecked",
        FILE,
        "    for holders, named in shared.values():",
        "    for holders, named in []:",
        (f"{TESTS}test_a_shared_head_that_drifts_is_found_and_named",),
        "a key/value head held twice becomes two heads, and nothing says so",
        "T13",
    ),
    Mutant(
        "parallelize-other-layers-elsewhere",
        FILE,
        "    if len(set(counts.tolist())) > 1:",
        "    if False:",
        (f"{TESTS}test_a_model_with_other_layers_is_refused_in_words",),
        "ranks with other configs end in an abort of gloo",
        "T15",
    ),
    Mutant(
        "parallelize-row-bias-forgotten",
        FILE,
        '                isinstance(module, RowParallelLinear) and name == "weight"',
        "                isinstance(module, RowParallelLinear)",
        (DRIFT,),
        "the bias of a row-parallel layer is a copy, and nobody looks at it",
        "T16",
    ),
    Mutant(
        "parallelize-parts-are-copies",
        FILE,
        "            cut = isinstance(module, CUT) or (",
        "            cut = False and (",
        (f"{DENSE}[2-1]",),
        "the check compares parts of a weight that have to differ",
    ),
    Mutant(
        "parallelize-twice",
        FILE,
        "    if any(isinstance(block.mlp.down, RowParallelLinear) for block in blocks):",
        "    if False:",
        (REFUSED,),
        "a second plan over the first fails halfway",
    ),
    Mutant(
        "parallelize-attention-left-whole",
        FILE,
        "        shard_attention(block.attention, group, holders=holders, overlap=overlap)\n",
        "",
        (f"{BLOCK}[gpt2-2]",),
        "the attention is computed whole on every rank: right, and for nothing",
        "T4",
    ),
    Mutant(
        "parallelize-overlap-forgotten",
        FILE,
        "        shard_mlp(block.mlp, group, overlap=overlap)\n",
        "        shard_mlp(block.mlp, group)\n",
        ("tests/tensor_parallel/test_overlap.py::"
         "test_the_choice_reaches_every_plans_first_layer",),
        "whoever measures without overlap measures with it",
    ),
    Mutant(
        "parallelize-residual-masks-private",
        "course_lib/gpt/model.py",
        "        return x + self.dropout(self.mlp(self.norm_2(x)))",
        "        if self.training and torch.distributed.is_initialized():\n"
        "            torch.rand(torch.distributed.get_rank())\n"
        "        return x + self.dropout(self.mlp(self.norm_2(x)))",
        (f"{TESTS}test_dropout_on_copies_is_shared_and_inside_heads_is_not[3-config1-False]",),
        "the masks of the residual differ by rank: copies drift while the loss still falls",
        "T14",
    ),
]  # fmt: skip
