"""Mistakes in the pictures that are drawn from the notation alone, and in schematics."""

from tests.mutation import Mutant

NEEDED = "course_lib/figures/needed.py"
ROWS = "course_lib/figures/statement_rows.py"
SHEETS = "course_lib/figures/sheets.py"
MAP = "course_lib/figures/course_map.py"
PAIR = "course_lib/figures/f_and_g.py"
LIFE = "course_lib/figures/parameter_life.py"
SCHEDULE = "course_lib/figures/schedule.py"
BLOCKS = "course_lib/figures/blocks.py"
STATED = "tests/test_figures_statement.py::test_"
MAPPED = "tests/test_figures_course_map.py::test_"
LIVED = "tests/test_figures_parameter_life.py::test_"
REFUSED = f"{STATED}what_cannot_be_says_what_is_missing"

MUTANTS = [
    Mutant(
        "fig-statement-all-reduce-for-a-shard",
        NEEDED,
        '"all-reduce" if new == REPLICATED else "reduce-scatter"',
        '"all-reduce"',
        (
            f"{STATED}each_change_of_layout_has_its_collective",
            f"{STATED}a_row_ends_with_the_collective_that_it_needs",
        ),
        "a partial sum that becomes a shard is drawn with an all-reduce",
    ),
    Mutant(
        "fig-statement-gather-for-all-to-all",
        NEEDED,
        '"all-gather" if new == REPLICATED else "all-to-all"',
        '"all-gather"',
        (f"{STATED}each_change_of_layout_has_its_collective",),
        "an axis that moves to another dim is drawn with an all-gather",
    ),
    Mutant(
        "fig-statement-slice-sends",
        NEEDED,
        "return self.op != SLICE",
        "return True",
        (f"{STATED}each_change_of_layout_has_its_collective",),
        "a slice is drawn as a message",
    ),
    Mutant(
        "fig-statement-outer-axis-first",
        NEEDED,
        "(*reversed(before.axes), *after.axes)",
        "(*before.axes, *after.axes)",
        (f"{STATED}two_axes_move_one_after_the_other_and_the_inner_one_first",),
        "a dim over two axes is gathered over the outer one first",
    ),
    Mutant(
        "fig-statement-partial-sum-not-missed",
        NEEDED,
        "        if axis not in result.owed:",
        "        if axis not in result.owed and axis not in summed:",
        (f"{REFUSED}[contracted]",),
        "a product over a sharded dim passes for a replicated result",
    ),
    Mutant(
        "fig-statement-factors-not-compared",
        NEEDED,
        "if sharded.setdefault(dim.name, dim.axes) != dim.axes:",
        "if sharded.setdefault(dim.name, dim.axes) is None:",
        (f"{REFUSED}[one factor]", f"{REFUSED}[two axes]"),
        "factors that are sharded differently are drawn as one product",
    ),
    Mutant(
        "fig-statement-diagonal-blocks",
        NEEDED,
        "        if len(dims) > 1:",
        "        if len(dims) > 2:",
        (f"{REFUSED}[diagonal]",),
        "a product of which a rank has one diagonal block is drawn",
    ),
    Mutant(
        "fig-statement-one-dim-of-two-names",
        NEEDED,
        "            and inner in names\n",
        "            and inner not in names\n",
        (f"{STATED}only_a_result_that_the_factors_leave_is_drawn",),
        "O[b, h@tp] W[h@tp, h] is read as a product of one h",
    ),
    Mutant(
        "fig-statement-sum-not-completed",
        ROWS,
        "        if layout.owed and (made_in is not None or len(last) == 1):",
        "        if not layout.owed and (made_in is not None or len(last) == 1):",
        (f"{STATED}a_row_ends_with_the_collective_that_it_needs",),
        "a partial sum is drawn without the all-reduce that it needs",
    ),
    Mutant(
        "fig-statement-change-between-rows-lost",
        ROWS,
        "            if moves and made_in is not None:",
        "            if moves and made_in is None:",
        (f"{STATED}a_tensor_that_changes_between_rows_is_moved_where_it_was_computed",),
        "a layout that changes from row to row is moved in the wrong row",
    ),
    Mutant(
        "fig-statement-tp-outermost",
        ROWS,
        "    return dict(sorted(kept.items(),",
        "    return dict(list(kept.items())) or dict(sorted(kept.items(),",
        (f"{STATED}axes_have_sizes_and_dp_is_outermost",),
        "ranks are numbered in the order of the arguments and not in the mesh's",
    ),
    Mutant(
        "fig-statement-first-axis-fastest",
        SHEETS,
        "    for axis, size in reversed(list(axes.items())):",
        "    for axis, size in list(axes.items()):",
        (f"{STATED}blocks_are_on_the_ranks_that_the_layout_says",),
        "blocks are drawn on the ranks of a transposed mesh",
    ),
    Mutant(
        "fig-statement-axes-of-a-dim-inside-out",
        SHEETS,
        "    for axis in reversed(dim.axes):",
        "    for axis in dim.axes:",
        (f"{STATED}blocks_are_on_the_ranks_that_the_layout_says[one dim]",),
        "a dim over two axes is drawn in the other order",
    ),
    Mutant(
        "fig-statement-one-sequence",
        SHEETS,
        "        counts[0] = max(counts[0], SEQUENCES)",
        "        counts[0] = max(counts[0], 1)",
        (f"{STATED}a_partial_sum_is_a_sheet_for_each_summand_and_folded_dims_are_rows",),
        "a sharded sequence looks like sharded rows of the batch",
    ),
    Mutant(
        "fig-map-everything-before-is-here",
        MAP,
        "_box(axis, name, box, name == here)",
        "_box(axis, name, box, name <= here)",
        (f"{MAPPED}each_map_is_small_and_marks_one_box[08]",),
        "several boxes are marked as where the reader is",
    ),
    Mutant(
        "fig-map-in-full-colour",
        MAP,
        "return smaller(picture, 16)",
        "return picture",
        (f"{MAPPED}each_map_is_small_and_marks_one_box[08]",),
        "a map in each notebook takes a hundred kilobytes",
    ),
    Mutant(
        "fig-map-label-on-the-next-box",
        MAP,
        'if here == "00":',
        'if here == "0":',
        (f"{MAPPED}you_are_here_lies_on_no_box_and_on_no_heading[00]",),
        "the words lie on the box below",
    ),
    Mutant(
        "fig-map-lesson-missing",
        MAP,
        '"12": "offload", ',
        "",
        (f"{MAPPED}it_holds_every_notebook_and_no_other",),
        "a lesson is not on the map",
    ),
    Mutant(
        "fig-f-and-g-exchanged",
        PAIR,
        'DOES = {"f": (IDENTITY, ALL_REDUCE), "g": (ALL_REDUCE, IDENTITY)}',
        'DOES = {"g": (IDENTITY, ALL_REDUCE), "f": (ALL_REDUCE, IDENTITY)}',
        ("tests/test_figures_f_and_g.py::test_the_chips_say_what_the_ledger_books",),
        "f is drawn with the forward of g",
    ),
    Mutant(
        "fig-life-freed-after-the-message",
        LIFE,
        'PARTIAL, "free"),\n    State("backward", SHARDED, PARTIAL, "reduce-scatter"),',
        'PARTIAL, "reduce-scatter"),\n    State("backward", FULL, SHARDED, "free"),',
        (f"{LIVED}a_unit_of_the_engine_lives_so",),
        "the picture frees the parameter later than the engine does",
    ),
    Mutant(
        "fig-life-shard-gone-while-gathered",
        LIFE,
        "return Fraction(1, n), Fraction(self.parameter == FULL)",
        "return Fraction(self.parameter == SHARDED, n), Fraction(self.parameter == FULL)",
        (f"{LIVED}memory_is_the_shard_and_what_is_gathered_and_the_gradient",),
        "the shard that stays is left out of the memory",
    ),
    Mutant(
        "fig-schedule-first-parts-replicated",
        SCHEDULE,
        "    sharded, found = moves[0] == GATHER, set()",
        "    sharded, found = False, set()",
        (
            "tests/test_figures_schedule.py::"
            "test_tokens_are_sharded_between_a_reduce_scatter_and_the_next_gather",
        ),
        "a block that is entered with a shard of the tokens is drawn as if it had all",
    ),
    Mutant(
        "fig-blocks-factor-completed",
        BLOCKS,
        "    return i >= first and bool(statement.layouts[i].owed)",
        "    return bool(statement.layouts[i].owed)",
        (
            "tests/test_figures_blocks.py::"
            "test_a_partial_sum_is_followed_by_its_all_reduce_where_it_is_a_result",
        ),
        "a partial sum that goes into a product is drawn with an all-reduce that nothing makes",
    ),
    Mutant(
        "fig-blocks-replicated-hatched",
        BLOCKS,
        'REPLICATED, "", EDGE)',
        'REPLICATED, "////", "#ffffff")',
        ("tests/test_figures_blocks.py::test_what_is_replicated_is_plain_grey",),
        "what is replicated looks like rank 1's",
    ),
    Mutant(
        "fig-statement-dim-from-nowhere",
        NEEDED,
        "    if len(factors) > 1 and unknown:",
        "    if len(factors) > 9 and unknown:",
        (f"{REFUSED}[new dim]",),
        "a result with a dim that no factor has passes, or is refused for another reason",
    ),
    Mutant(
        "fig-smaller-rare-colours-kept",
        "course_lib/figures/smaller.py",
        "np.argsort(-counts, kind",
        "np.argsort(counts, kind",
        (f"{STATED}a_smaller_file_keeps_the_colours_that_fill_it",),
        "a picture's palette has the colours of edges and not those of ranks",
    ),
]
