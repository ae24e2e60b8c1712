"""Mistakes in the harnesses of lessons 06 to 08: an assert that could no longer fail."""

from tests.mutation import Mutant

HARNESS = "course_lib/classroom/harness/"
TESTS = "tests/classroom/test_harness_06_to_08.py::"

MUTANTS = [
    Mutant(
        "harness-06-weights-not-compared",
        HARNESS + "lesson_06.py",
        "        _same(p, after[name].flatten()[where[name]], name)\n",
        "        pass\n",
        (
            f"{TESTS}test_a_block_with_sharded_tokens_is_held_to_every_gradient_and_to_its_last_"
            "weights",
        ),
        "a weight that went another way passes",
    ),
    Mutant(
        "harness-06-gradients-not-compared",
        HARNESS + "lesson_06.py",
        """f"{name}'s gradient")\n            compared += 1""",
        """f"{name}'s gradient") if compared > 99 else None\n            compared += 1""",
        (
            f"{TESTS}test_a_block_with_sharded_tokens_is_held_to_every_gradient_and_to_its_last_"
            "weights",
        ),
        "a norm without its sum is called by another name",
        "T16",
    ),
    Mutant(
        "harness-06-sums-are-moves",
        HARNESS + "lesson_06.py",
        "    return Counted(book.bytes() - sums, sums, memory.held_after)",
        "    return Counted(book.bytes(), sums, memory.held_after)",
        (f"{TESTS}test_moves_of_tokens_are_counted_apart_from_the_sums_of_parameters",),
        "the prediction about tokens is held against a number with the norms' sums in it",
    ),
    Mutant(
        "harness-06-losses-of-shares",
        HARNESS + "lesson_06.py",
        "losses.append(group.size() * loss.item())",
        "losses.append(loss.item())",
        (f"{TESTS}test_the_losses_of_all_ranks_average_to_one_that_falls",),
        "a rank's share is printed as a loss",
        "T19",
    ),
    Mutant(
        "harness-07-no-token-ignored",
        HARNESS + "lesson_07.py",
        "    ids[2:, 6:], targets[2:, 6:] = 0, -100\n",
        "",
        (f"{TESTS}test_a_batch_has_ignored_tokens_and_something_to_learn",),
        "the lesson's bug has no token to go wrong with",
        "T8",
    ),
    Mutant(
        "harness-07-nothing-to-learn",
        HARNESS + "lesson_07.py",
        "generator=torch.Generator().manual_seed(11))\n",
        "generator=torch.Generator().manual_seed(step))\n",
        (f"{TESTS}test_a_batch_has_ignored_tokens_and_something_to_learn",),
        "every batch has another rule, and no loss falls",
    ),
    Mutant(
        "harness-08-no-row-biases",
        HARNESS + "lesson_08.py",
        "    row_biases = 2 * layers * h if c.bias else 0",
        "    row_biases = 0",
        (f"{TESTS}test_the_formula_of_what_a_rank_holds_is_that_of_the_model[2-gpt2]",),
        "the formula of a rank's memory forgets the biases that are replicated",
    ),
    Mutant(
        "harness-08-query-heads-for-all",
        HARNESS + "lesson_08.py",
        "    block = h * (q + 2 * kv) + q * h",
        "    block = h * 3 * q + q * h",
        (f"{TESTS}test_the_formula_of_what_a_rank_holds_is_that_of_the_model[2-llama]",),
        "the formula gives a Llama as many key/value heads as query heads",
        "T13",
    ),
    Mutant(
        "harness-08-counters-held",
        HARNESS + "lesson_08.py",
        "values()) - counters",
        "values())",
        (f"{TESTS}test_a_mesh_takes_the_steps_of_one_process_and_reports_what_it_sent_and_holds",),
        "AdamW's counters of steps are taken for states",
    ),
]
