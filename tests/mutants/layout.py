"""Mistakes in course_lib/layout/."""

from tests.support.mutation import Mutant

MUTANTS = [
    Mutant(
        "layout-balanced-cut",
        "course_lib/layout/cut.py",
        "    return [max(0, min(piece, total - rank * piece)) for rank in range(n)]",
        "    return [total // n + (rank < total % n) for rank in range(n)]",
        ("tests/course_lib/layout/test_layout.py::test_cut_is_torch_chunk",),
        "sizes as evenly as can be, unlike torch.chunk and DTensor",
        "T29",
    ),
    Mutant(
        "layout-span-past-end",
        "course_lib/layout/cut.py",
        "    return min(total, rank * piece), min(total, (rank + 1) * piece)",
        "    return rank * piece, min(total, (rank + 1) * piece)",
        ("tests/course_lib/layout/test_layout.py::test_cut_and_span_are_dtensors_shard",),
        "an empty last piece starts past the end",
        "T24",
    ),
    Mutant(
        "layout-kv-copies-interleaved",
        "course_lib/layout/cut.py",
        "(rank // copies, rank // copies + 1)",
        "(rank % kv, rank % kv + 1)",
        (
            "tests/course_lib/layout/test_layout.py::test_kv_heads_are_spread_or_copied_to_neighbours",
        ),
        "copies of a kv head go to ranks that do not share its queries",
        "T13",
    ),
    Mutant(
        "layout-axes-inside-out",
        "course_lib/layout/boxes.py",
        "    for axis in dim.axes:\n        if axis not in coords:",
        "    for axis in reversed(dim.axes):\n        if axis not in coords:",
        (
            "tests/course_lib/layout/test_layout.py::test_two_axes_cut_in_the_order_written",
            "tests/course_lib/layout/test_layout.py::test_boxes_of_all_ranks_tile_the_tensor_as_chunk_does",
        ),
        "a dim over two axes is cut in the other order",
    ),
    Mutant(
        "layout-flat-boxes-lose-tail",
        "course_lib/layout/boxes.py",
        "    if stop > last * row:\n",
        "    if stop > last * row + 1:\n",
        (
            "tests/course_lib/layout/test_layout.py::test_flat_boxes_read_in_order_give_the_range_back",
        ),
        "a flat range loses its last element",
        "T24",
    ),
    Mutant(
        "layout-partial-passes-as-whole",
        "course_lib/layout/comparison.py",
        "        elif different:\n",
        "        elif False:\n",
        (
            "tests/course_lib/layout/test_layout.py::test_values_tell_a_partial_sum_from_a_whole_one",
        ),
        "a partial sum passes for a replicated tensor",
    ),
    Mutant(
        "layout-silent-rank",
        "course_lib/layout/check.py",
        "        agree(places, problem)  # a rank",
        "        pass  # a rank",
        (
            "tests/course_lib/layout/test_layout.py::test_values_tell_a_partial_sum_from_a_whole_one",
        ),
        "a rank with a problem leaves the others waiting",
        "T30",
    ),
]
