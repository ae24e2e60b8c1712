"""Mistakes in course_lib/norms.py."""

from tests.mutation import Mutant

FILE = "course_lib/norms.py"
TESTS = "tests/test_norms.py::"

ONCE = TESTS + "test_a_norm_counts_every_logical_number_once[1-2]"
MESH = TESTS + "test_a_norm_counts_every_logical_number_once[2-2]"
CLIPPED = TESTS + "test_clipping_leaves_what_torch_leaves_of_the_whole[1-3]"
FACTOR = TESTS + "test_the_factor_is_not_rounded_to_the_pieces_dtype"
BROKEN = TESTS + "test_what_is_not_finite_on_one_rank_is_known_to_all[1-3]"
COUNTED = TESTS + "test_one_small_sum_for_each_axis"
REFUSED = TESTS + "test_what_would_be_another_norm_is_refused"
SHARED = TESTS + "test_a_model_is_clipped_as_one[1-2-config1-False-1]"


def mutant(name: str, old: str, new: str, tests: tuple[str, ...], why: str, trap="T18") -> Mutant:
    return Mutant(f"norms-{name}", FILE, old, new, tests, why, trap)


MUTANTS = [
    mutant(
        "copies-counted",
        "    return all(group.group_name in names or group.rank() == 0 for group in groups)",
        "    return True",
        (ONCE, MESH),
        "a copy counts once for each rank",
    ),
    mutant(
        "one-axis-is-enough",
        "    return all(group.group_name in names",
        "    return any(group.group_name in names",
        (MESH,),
        "what is cut over tp counts once for each replica",
    ),
    mutant(
        "shards-not-summed",
        "            total = collectives.all_reduce(total, group, donated=True)\n",
        "",
        (ONCE, COUNTED),
        "each rank clips by the norm of its own shards, and copies drift apart",
    ),
    mutant(
        "shards-averaged",
        "collectives.all_reduce(total, group, donated=True)",
        "collectives.all_reduce(total, group) / group.size()",
        (ONCE,),
        "squares are averaged over the ranks",
    ),
    mutant(
        "largest-by-sum",
        "            if p != math.inf:\n                total = collectives",
        "            if True:\n                total = collectives",
        (ONCE, COUNTED),
        "the largest of all is a sum of the ranks' largest",
    ),
    mutant(
        "largest-of-a-rank-by-sum",
        "stacked.amax() if p == math.inf else stacked.sum()",
        "stacked.sum()",
        (ONCE,),
        "the largest of a rank is a sum over its tensors",
    ),
    mutant(
        "tied-twice",
        "        seen.setdefault(id(piece.tensor), piece)\n    return list(seen.values())",
        "        seen[len(seen)] = piece\n    return list(seen.values())",
        (ONCE, CLIPPED),
        "a shared parameter counts twice, and is scaled twice",
        "T17",
    ),
    mutant(
        "padding-counted",
        "x.reshape(-1)[: piece.real] if piece.real is not None else x",
        "x",
        (ONCE, CLIPPED),
        "the padding's numbers are part of the norm",
    ),
    mutant(
        "holders-counted",
        "    if piece.holders is not None and piece.holders.rank() != 0:\n        return False\n",
        "",
        (SHARED,),
        "a key/value head that two ranks hold counts twice",
    ),
    mutant(
        "norm-not-root",
        "return total if p == math.inf else total ** (1.0 / p)",
        "return total if p == math.inf else total**0.5",
        (ONCE,),
        "every norm takes the square root",
    ),
    mutant(
        "nan-lost-on-the-way",
        "total = torch.where(bad > 0, math.nan, most)",
        "total = most",
        (BROKEN,),
        "a rank's NaN is no maximum: the others clip as if all were well",
    ),
    mutant(
        "infinity-lost",
        "total.nan_to_num(0.0, math.inf)",
        "total.nan_to_num(0.0)",
        (BROKEN,),
        "an infinity becomes the largest finite number",
    ),
    mutant(
        "scaled-up",
        ".clamp(max=1.0)",
        "",
        (CLIPPED,),
        "gradients that are small are made larger",
    ),
    mutant(
        "squares-clipped",
        "factor = (most / (total + 1e-6))",
        "factor = (most / (total**2 + 1e-6))",
        (CLIPPED,),
        "the factor is by the square of the norm",
    ),
    mutant(
        "factor-rounded",
        "        piece.tensor.mul_(factor)  #",
        "        piece.tensor.mul_(factor.to(piece.tensor.dtype))  #",
        (FACTOR,),
        "in bf16 the factor itself is off by up to 0.4 %",
    ),
    mutant(
        "narrow-norm",
        "wide = x if x.dtype == torch.float64 else x.float()",
        "wide = x",
        (ONCE,),
        "in bf16 the norm of a tensor is rounded to three digits",
    ),
    mutant(
        "axis-left-out",
        "    if not names <= summed:\n",
        "    if not names:\n",
        (REFUSED,),
        "a shard that is not summed is a wrong norm without a word",
    ),
    mutant(
        "no-limit",
        "    if not most > 0:\n",
        "    if most < 0:\n",
        (REFUSED,),
        "clipping to nothing, or to a NaN, sets all gradients to it",
    ),
    mutant(
        "each-part-by-itself",
        "torch.cat([torch.stack(some).to(device) for some in by_device.values()])",
        "torch.stack([part.to(device) for part in parts])",
        (f"{TESTS}test_parts_on_the_host_leave_it_in_one_copy",),
        "the host waits for the GPU once for each gradient",
    ),
]
