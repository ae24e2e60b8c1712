"""Mistakes in course_lib/tensor_parallel/randomness.py."""

from tests.mutation import Mutant

FILE = "course_lib/tensor_parallel/randomness.py"
STREAMS = "tests/tensor_parallel/test_randomness.py::"
LOGICAL = "tests/tensor_parallel/test_randomness_logical.py::"

INDEPENDENT = STREAMS + "test_shared_numbers_are_equal_and_private_masks_independent[2]"
ONE_NUMBER = STREAMS + "test_private_costs_the_shared_stream_one_number"
NESTED = STREAMS + "test_private_nests_and_an_exception_leaves_the_shared_stream_where_it_was"
RECOMPUTED = STREAMS + "test_recomputed_is_stored_bit_by_bit[3]"
REPLICAS = STREAMS + "test_replicas_differ_and_their_tensor_parallel_ranks_agree"
SEEDS = STREAMS + "test_no_seed_of_a_replica_is_that_of_another"
IN_STEP = STREAMS + "test_in_step_names_the_rank_that_strayed"
REFUSED = STREAMS + "test_calls_that_are_refused"
PARTS = LOGICAL + "test_a_part_is_dropped_out_as_that_part_of_the_whole"
HEADS = LOGICAL + "test_heads_of_a_rank_are_dropped_out_as_in_the_whole_attention"
AXES = LOGICAL + "test_two_axes_place_a_tensor_together"
LOGICAL_AGAIN = LOGICAL + "test_recomputed_parts_are_parts_of_the_whole"
THREAD = LOGICAL + "test_the_mode_follows_a_backward_into_another_thread"
FAIR = LOGICAL + "test_masks_are_fair_and_no_two_alike"
TORCHS = LOGICAL + "test_attention_with_logical_masks_is_torchs_attention"
NOTHING = LOGICAL + "test_without_dropout_nothing_is_drawn_and_p_1_drops_all"
LOGICAL_REFUSED = LOGICAL + "test_calls_that_are_refused"


def mutant(name: str, old: str, new: str, tests: tuple[str, ...], why: str, trap=None) -> Mutant:
    return Mutant(f"randomness-{name}", FILE, old, new, tests, why, trap)


MUTANTS = [
    mutant(
        "heads-alike",
        "seed = mix(_draw(), rank)",
        "seed = mix(_draw(), 0)",
        (INDEPENDENT, RECOMPUTED),
        "every rank drops the same elements of its own heads",
        "T14",
    ),
    mutant(
        "copies-apart",
        "    with torch.random.fork_rng(gpus):",
        "    with torch.enable_grad():",
        (INDEPENDENT, ONE_NUMBER, NESTED),
        "after private numbers the shared stream differs by rank, and copies drift apart",
        "T14",
    ),
    mutant(
        "recompute-new-masks",
        'torch.randint(2**62, (), device="cpu")',
        'torch.randint(2**62, (), generator=_draw.__dict__.setdefault("own", torch.Generator()))',
        (RECOMPUTED,),
        "private seeds come from a hidden generator, which recomputation does not rewind",
        "T14",
    ),
    mutant(
        "same-masks-each-time",
        "seed = mix(_draw(), rank)",
        "seed = mix(torch.initial_seed(), rank)",
        (INDEPENDENT, ONE_NUMBER),
        "each layer and step drops the same elements",
        "T14",
    ),
    mutant(
        "seed-plus-replica",
        "    first, second = _scramble(key & _LOW), (key >> 32) & _LOW\n"
        "    return _scramble((_scramble((number + first) & _LOW) + second) & _LOW)",
        "    return (key + number) & _LOW",
        (SEEDS,),
        "seed 1 of replica 0 is seed 0 of replica 1",
    ),
    mutant(
        "high-half-of-the-seed-lost",
        "first, second = _scramble(key & _LOW), (key >> 32) & _LOW",
        "first, second = _scramble(key & _LOW), 0",
        (SEEDS,),
        "seeds that differ above 32 bits are one seed",
    ),
    mutant(
        "replicas-alike",
        "torch.manual_seed(mix(seed, replica))",
        "torch.manual_seed(mix(seed, 0))",
        (REPLICAS,),
        "replicas drop the same elements of different data",
    ),
    mutant(
        "first-rank-is-right",
        "most = max(said, key=said.count)",
        "most = said[0]",
        (IN_STEP,),
        "where rank 0 has strayed all others are accused",
    ),
    mutant(
        "numbers-in-the-group",
        "dist.get_global_rank(group, rank)",
        "rank",
        (IN_STEP,),
        "a group's ranks are named by numbers that nobody else uses",
    ),
    mutant(
        "half-a-part",
        "    part.check()\n",
        "",
        (REFUSED,),
        "a part without its whole length is taken without a word",
    ),
    mutant(
        "not-a-member",
        "    n, rank = size_and_rank(group)\n    part =",
        "    n, rank = (group.size(), group.rank()) if group else (1, 0)\n    part =",
        (REFUSED,),
        "a rank outside the group draws as its rank 0",
    ),
    mutant(
        "negative-replica",
        "if not 0 <= replica <= _LOW:",
        "if not replica <= _LOW:",
        (REFUSED,),
        "replica=-1 seeds something",
    ),
    mutant(
        "part-at-the-start",
        "shape[dim], first[dim] = whole, start",
        "shape[dim], first[dim] = whole, 0",
        (PARTS, HEADS),
        "all ranks have the mask of the first part",
        "T14",
    ),
    mutant(
        "part-for-the-whole",
        "shape[dim], first[dim] = whole, start",
        "first[dim] = start",
        (PARTS,),
        "the index counts by the part's length, not by the whole's",
    ),
    mutant(
        "inner-axis-alone",
        "(*mode.parts, *part.unless_whole(n))",
        "part.unless_whole(n)",
        (AXES,),
        "of two axes that cut a tensor only one places it",
    ),
    mutant(
        "everything-has-to-be-said",
        "return () if n == 1 and self.dim is None else (self,)",
        "return (self,)",
        (PARTS + "[1]",),
        "a rank that holds everything is refused",
    ),
    mutant(
        "empty-part-draws-nothing",
        "        kept = self.kept(input, p)\n",
        "        kept = self.kept(input, p) if input.numel() else input\n",
        (PARTS,),
        "a rank with an empty part falls out of step",
        "T24",
    ),
    mutant(
        "test-mode-draws-in-private",
        "        outer, mode.parts =",
        "        _draw()\n        outer, mode.parts =",
        (PARTS, HEADS),
        "with private contexts other keys are drawn than in the dense model",
    ),
    mutant(
        "one-key-for-all",
        "chance = mix(_draw(), index)",
        "chance = mix(_draw() * 0, index)",
        (HEADS, FAIR),
        "all dropouts of a model have the same mask",
        "T14",
    ),
    mutant(
        "drops-what-it-should-keep",
        "(chance >= round(p * 2**32))",
        "(chance < round(p * 2**32))",
        (FAIR,),
        "keeps with probability p",
    ),
    mutant(
        "not-scaled",
        " / (1 - p if p < 1 else 1)",
        "",
        (FAIR,),
        "what is kept is not scaled up",
    ),
    mutant(
        "p-1-divides-by-zero",
        " / (1 - p if p < 1 else 1)",
        " / (1 - p)",
        (NOTHING,),
        "p = 1 gives NaN",
    ),
    mutant(
        "drops-in-eval",
        "if not training or not 0 < p <= 1:",
        "if not 0 < p <= 1:",
        (NOTHING,),
        "a model in eval mode is dropped out",
    ),
    mutant(
        "backward-without-the-mode",
        "        elif func in (torch.autograd.backward, torch.autograd.grad, Tensor.backward):\n"
        "            func = functools.partial(self.backward, func)\n",
        "",
        (LOGICAL_AGAIN, THREAD),
        "a recomputation inside backward draws torch's masks",
        "T14",
    ),
    mutant(
        "part-left-behind",
        "        try:\n            yield\n        finally:\n            mode.parts = outer\n",
        "        yield\n        mode.parts = outer\n",
        (LOGICAL_REFUSED,),
        "after an exception all later masks are those of a part",
    ),
    mutant(
        "part-that-does-not-fit",
        "            if not fits or shape[dim] != x.shape[dim]:",
        "            if False:",
        (LOGICAL_REFUSED,),
        "a tensor longer than the whole is given some mask",
    ),
    mutant(
        "unknown-dropout-passes",
        "if func in _NOT_ANSWERED:",
        "if False:",
        (LOGICAL_REFUSED,),
        "a dropout that the mode does not know draws by rank",
    ),
    mutant(
        "sees-itself-not",
        ".triu(1)",
        ".triu(0)",
        (TORCHS,),
        "causal attention hides the query's own place",
    ),
    mutant(
        "grouped-queries-tiled",
        "x.repeat_interleave(query.shape[-3] // x.shape[-3], -3)",
        "x.repeat(1, query.shape[-3] // x.shape[-3], 1, 1)",
        (TORCHS,),
        "query head i reads kv head i mod kv",
        "T13",
    ),
    mutant(
        "query-that-sees-nothing",
        "weights = scores.softmax(-1).masked_fill(hidden, 0.0)",
        "weights = scores.softmax(-1)",
        (TORCHS,),
        "a query that sees nothing averages everything",
    ),
    mutant(
        "scale-ignored",
        "scale = query.shape[-1] ** -0.5 if scale is None else scale",
        "scale = query.shape[-1] ** -0.5",
        (TORCHS,),
        "the scale asked for is not used",
    ),
]
