"""Mistakes in the benchmarks: unequal work, figures that belong to another method."""

from tests.mutation import Mutant

TESTS = "tests/test_benchmarks.py::"
EQUAL = f"{TESTS}test_overlap_compares_equal_work"

MUTANTS = [
    Mutant(
        "benchmarks-unequal-work",
        "benchmarks/overlap.py",
        "        torch.manual_seed(0)\n",
        "",
        (EQUAL,),
        "the methods start from different weights, and nobody sees that they do other work",
    ),
    Mutant(
        "benchmarks-ratio-upside-down",
        "benchmarks/_ranks.py",
        "first = seconds[order[0]]",
        "first = seconds[order[-1]]",
        (EQUAL,),
        "ratios are to the last method",
    ),
    Mutant(
        "benchmarks-first-calls-counted",
        "benchmarks/_ranks.py",
        "    with ledger() as book:\n        step()\n",
        "    with ledger() as book:\n        step()\n        step()\n",
        (EQUAL,),
        "the messages of two steps are told as those of one",
    ),
    Mutant(
        "benchmarks-failure-unseen",
        "benchmarks/_ranks.py",
        "            if failed:\n",
        "            if False:\n",
        (f"{TESTS}test_a_benchmark_whose_rank_fails_says_so_and_leaves_nobody",),
        "a failed rank leaves the others waiting and the reader with a missing file",
    ),
]
