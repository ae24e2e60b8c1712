"""Mistakes in the harnesses of lessons 03 to 05: an assert that could no longer fail."""

from tests.mutation import Mutant

HARNESS = "course_lib/classroom/harness/"
TESTS = "tests/classroom/test_harness_03_to_05.py::"

MUTANTS = [
    Mutant(
        "harness-03-replicated-counts-n-times",
        HARNESS + "lesson_03.py",
        "return here if space == REPLICATED else all_reduce(here, self.group)",
        "return all_reduce(here, self.group)",
        (f"{TESTS}test_a_replicated_vector_counts_once_and_the_parts_of_the_others_add_up",),
        "every copy of a replicated vector counts, and no transpose fits",
    ),
    Mutant(
        "harness-03-terms-all-alike",
        HARNESS + "lesson_03.py",
        "term = 1 + self.rank if space == PARTIAL else 0",
        "term = 0",
        (f"{TESTS}test_a_replicated_vector_counts_once_and_the_parts_of_the_others_add_up",),
        "the terms of a sum are equal, so that a mean and a sum left out look alike",
    ),
    Mutant(
        "harness-03-back-in-the-order-of-the-forward",
        HARNESS + "lesson_03.py",
        "sent.insert(0, (name, there, book.spans()))",
        "sent.append((name, there, book.spans()))",
        (f"{TESTS}test_a_program_goes_back_in_reverse_order_and_each_step_has_its_own_spans",),
        "the picture shows each step's backward below another step",
    ),
    Mutant(
        "harness-04-records-of-the-part-before",
        HARNESS + "lesson_04.py",
        "book.records[backs[i + 1] : backs[i]])",
        "book.records[backs[i] : backs[i + 1]])",
        (f"{TESTS}test_a_trace_says_which_part_sent_what",),
        "a part's backward is traced as empty",
    ),
    Mutant(
        "harness-04-quickest-on-one-rank",
        HARNESS + "lesson_04.py",
        "bars = [bar for pair in run for bar in pair]",
        "bars = [bar for pair in run[:1] for bar in pair]",
        (f"{TESTS}test_the_quickest_backward_is_that_of_all_ranks_together",),
        "the timeline is of a backward that one rank was late for",
    ),
    Mutant(
        "harness-05-only-the-first-step",
        HARNESS + "lesson_05.py",
        "zip(received, expected, strict=True):",
        "zip(received[:1], expected[:1], strict=True):",
        (f"{TESTS}test_a_block_is_held_to_every_gradient_of_the_dense_one",),
        "parity of one step passes for parity of three",
    ),
    Mutant(
        "harness-05-any-piece-of-gate-up",
        HARNESS + "lesson_05.py",
        "[(a, z), (config.inner + a, config.inner + z)]",
        "[(2 * a, 2 * z)]",
        (f"{TESTS}test_a_piece_is_what_the_rank_of_a_sharded_block_holds",),
        "the straight cut of gate and up is called right",
    ),
]
