"""Mistakes in course_lib/tensor_parallel/randomness.py."""

from tests.support.mutation import Mutant

FILE = "course_lib/tensor_parallel/randomness.py"
STREAMS = "tests/course_lib/tensor_parallel/test_randomness.py::"
LOGICAL = "tests/course_lib/tensor_parallel/test_randomness_logical.py::"

INDEPENDENT = STREAMS + "test_shared_numbers_are_equal_and_private_masks_independent[2]"
RECOMPUTED = STREAMS + "test_recomputed_is_stored_bit_by_bit[3]"
REPLICAS = STREAMS + "test_replicas_differ_and_their_tensor_parallel_ranks_agree"
SEEDS = STREAMS + "test_no_seed_of_a_replica_is_that_of_another"
IN_STEP = STREAMS + "test_in_step_names_the_rank_that_strayed"
PARTS = LOGICAL + "test_a_part_is_dropped_out_as_that_part_of_the_whole"
HEADS = LOGICAL + "test_heads_of_a_rank_are_dropped_out_as_in_the_whole_attention"
LOGICAL_AGAIN = LOGICAL + "test_recomputed_parts_are_parts_of_the_whole"
THREAD = LOGICAL + "test_the_mode_follows_a_backward_into_another_thread"
TORCHS = LOGICAL + "test_attention_with_logical_masks_is_torchs_attention"


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
        "recompute-new-masks",
        'torch.randint(2**62, (), device="cpu")',
        'torch.randint(2**62, (), generator=_draw.__dict__.setdefault("own", torch.Generator()))',
        (RECOMPUTED,),
        "private seeds come from a hidden generator, which recomputation does not rewind",
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
        "part-at-the-start",
        "shape[dim], first[dim] = whole, start",
        "shape[dim], first[dim] = whole, 0",
        (PARTS, HEADS),
        "all ranks have the mask of the first part",
        "T14",
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
        "backward-without-the-mode",
        "        elif func in (torch.autograd.backward, torch.autograd.grad, Tensor.backward):\n"
        "            func = functools.partial(self.backward, func)\n",
        "",
        (LOGICAL_AGAIN, THREAD),
        "a recomputation inside backward draws torch's masks",
        "T14",
    ),
    mutant(
        "grouped-queries-tiled",
        "x.repeat_interleave(query.shape[-3] // x.shape[-3], -3)",
        "x.repeat(1, query.shape[-3] // x.shape[-3], 1, 1)",
        (TORCHS,),
        "query head i reads kv head i mod kv",
        "T13",
    ),
]
