"""Mistakes in course_lib/norms.py."""

from tests.support.mutation import Mutant

FILE = "course_lib/norms.py"
TESTS = "tests/course_lib/test_norms.py::"

ONCE = TESTS + "test_a_norm_counts_every_logical_number_once[1-2]"
MESH = TESTS + "test_a_norm_counts_every_logical_number_once[2-2]"
CLIPPED = TESTS + "test_clipping_leaves_what_torch_leaves_of_the_whole[1-3]"
COUNTED = TESTS + "test_one_small_sum_for_each_axis"


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
        "shards-not-summed",
        "            total = collectives.all_reduce(total, group, donated=True)\n",
        "",
        (ONCE, COUNTED),
        "each rank clips by the norm of its own shards, and copies drift apart",
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
        "scaled-up", ".clamp(max=1.0)", "", (CLIPPED,), "gradients that are small are made larger"
    ),
    mutant(
        "each-part-by-itself",
        "torch.cat([torch.stack(some).to(device) for some in by_device.values()])",
        "torch.stack([part.to(device) for part in parts])",
        (f"{TESTS}test_parts_on_the_host_leave_it_in_one_copy",),
        "the host waits for the GPU once for each gradient",
    ),
]
