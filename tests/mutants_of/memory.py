"""Mistakes in course_lib/memory/."""
# ruff: noqa: E501

from tests.mutation import Mutant

MUTANTS = [
    Mutant(
        "memory-views-count-again",
        "course_lib/memory/held.py",
        "            if storage.nbytes() == 0 or key in seen:",
        "            if storage.nbytes() == 0:",
        (
            "tests/memory/test_held.py::test_a_models_states_to_the_byte",
            "tests/memory/test_held.py::test_views_hold_their_whole_storage_once",
        ),
        "a view is counted as if it had memory of its own",
    ),
    Mutant(
        "memory-graph-unpacked",
        "course_lib/memory/storages.py",
        'if not name.startswith("_raw_saved_"):',
        'if not name.startswith("_saved_"):',
        ("tests/memory/test_held.py::test_reading_the_graph_runs_no_recomputation",),
        "looking at the graph runs its recomputation",
    ),
    Mutant(
        "memory-old-frees-ignored",
        "course_lib/memory/blocks.py",
        '(life.origin == "before" or by_pointer is not None)',
        "False",
        ("tests/memory/test_meter.py::test_what_is_freed_from_before_makes_room",),
        "what is freed from before the region does not make room",
    ),
    Mutant(
        "memory-resize-unseen",
        "course_lib/memory/watch.py",
        "            if not self._open or",
        "            if True or",
        (
            "tests/memory/test_meter.py::test_storages_that_are_emptied_and_filled_again",
            "tests/memory/test_budget.py::test_storages_that_grow_are_refused_before",
        ),
        "storages that are emptied and filled again are missed",
    ),
    Mutant(
        "memory-thread-frees-unseen",
        "course_lib/memory/blocks.py",
        "            if life.died is not None and (reported.stop is None or life.died < reported.stop):",
        "            if False:",
        ("tests/memory/test_meter.py::test_a_free_in_another_thread_is_seen",),
        "a free in another thread is missed",
    ),
    Mutant(
        "memory-budget-off-by-one",
        "course_lib/memory/budget.py",
        "before + life.nbytes > limit:",
        "before + life.nbytes >= limit:",
        (
            "tests/memory/test_budget.py::test_a_step_fits_its_own_peak_exactly_and_not_one_byte_less",
        ),
        "the last byte of a budget cannot be used",
    ),
    Mutant(
        "memory-budget-after-the-fact",
        "course_lib/memory/budget.py",
        "limit is not None and before + life.nbytes > limit",
        "limit is not None and before > limit",
        (
            "tests/memory/test_budget.py::test_a_step_fits_its_own_peak_exactly_and_not_one_byte_less",
        ),
        "a budget fails one allocation too late",
    ),
    Mutant(
        "memory-refused-stays-alive",
        "course_lib/memory/budget.py",
        "        del args, kwargs\n        raise refusal.with_traceback(None)",
        "        raise refusal",
        (
            "tests/memory/test_budget.py::test_the_error_keeps_neither_the_refused_tensor_nor_the_arguments_alive",
        ),
        "the error keeps the refused tensor alive",
    ),
    Mutant(
        "memory-cuda-inner-resets-outer",
        "course_lib/memory/meter.py",
        "            region._note_cuda()",
        "            pass",
        ("tests/memory/test_meter.py::test_on_cuda_nested_regions_share_the_allocators_mark",),
        "a nested region takes the outer one's peak away",
    ),
    Mutant(
        "memory-backend-not-waited-for",
        "course_lib/memory/meter.py",
        "        wait_until_settled()  # a backend's",
        "        time.sleep(0.002)  # a backend's",
        ("tests/memory/test_meter.py::test_what_a_backends_thread_still_holds_is_waited_for",),
        "a copy that gloo's thread is about to let go of counts as held",
    ),
    Mutant(
        "memory-begins-unsettled",
        "course_lib/memory/meter.py",
        "        wait_until_settled()  # what is as good as gone",
        "        time.sleep(0.002)  # what is as good as gone",
        (
            "tests/memory/test_meter.py"
            "::test_what_an_earlier_message_lets_go_late_is_not_freed_by_the_region",
        ),
        "the copy of an earlier message counts as freed by the region",
    ),
]
