"""Mistakes in what several lessons' pictures share: the palettes, the pictures of claims."""

from __future__ import annotations

from tests.mutation import Mutant

RING, RUN = "course_lib/figures/ring_steps.py", "tests/test_figures_ring_steps.py::test_"
STAGES, BARS = "course_lib/figures/stage_bars.py", "tests/test_figures_stage_bars.py::test_"
LINES, RUNS = "course_lib/figures/loss_curve.py", "tests/test_figures_loss_curve.py::test_"
DRAWN, FIGURES = "course_lib/figures/", "tests/test_figures.py::test_"
STACKED, ZERO_3 = "tests/test_figures_bars.py::test_", "tests/test_figures_zero_3.py::test_"
MOVED, MOVES = "course_lib/classroom/sliders.py", "tests/test_sliders.py::test_"
PALETTE = "tests/test_figures_palette.py::test_"

MUTANTS = [
    Mutant(
        "figures-method-in-a-ranks-colour",
        "course_lib/figures/loss_curve.py",
        "color=line_of_method(i)",
        "color=of_rank(i)",
        (f"{PALETTE}the_colours_of_ranks_are_used_for_ranks_alone[loss_curve]",),
        "a curve in the blue of rank 0 reads as rank 0's",
    ),
    Mutant(
        "figures-mark-under-a-mark",
        LINES,
        '"markersize": max(4, 10 - 3 * turn), "markeredgecolor": CARD',
        '"markersize": 6',
        (f"{RUNS}a_mark_on_a_mark_has_a_white_edge_and_is_smaller[3-True]",),
        "of six runs of four steps one is not seen",
    ),
    Mutant(
        "figures-names-at-the-cuts",
        "course_lib/figures/flat_cut.py",
        "[at + 0.003 * padded, at + length - 0.003 * padded]",
        "[at, at]",
        (
            "tests/test_figures_flat_cut.py::"
            "test_a_name_stands_over_a_line_as_long_as_its_parameter",
        ),
        "a parameter's name reads as the name of the rank's border below it",
    ),
    Mutant(
        "figures-accent-like-a-rank",
        "course_lib/figures/colours.py",
        '"#B5174B"',
        '"#CC3B00"',
        (f"{PALETTE}methods_share_no_colour_and_no_hatch_with_ranks",),
        "an accent that is nearly the vermilion of rank 5",
    ),
    Mutant(
        "figures-methods-alike-in-grey",
        "course_lib/figures/colours.py",
        '"#888B8F"',
        '"#60666B"',
        (f"{PALETTE}methods_are_told_apart_without_any_colour",),
        "printed in grey, the accent and the middle grey are one",
    ),
    Mutant(
        "figures-ring-of-one-step-less",
        RING,
        "adds = step < n - 1",
        "adds = step < n - 2",
        (f"{RUN}a_ring_of_n_is_complete_after_2_n_minus_1_steps_and_half_way_each_rank_has_one",),
        "the reduce-scatter stops before each chunk has met every rank",
    ),
    Mutant(
        "figures-ring-sends-one-after-the-other",
        RING,
        "            row[send.chunk] = row[send.chunk] + value if adds else value\n",
        "            row[send.chunk] = row[send.chunk] + value if adds else row[send.chunk]\n",
        (f"{RUN}the_messages_drawn_make_the_sums_drawn[3]",),
        "the all-gather's messages arrive nowhere",
    ),
    Mutant(
        "figures-ring-left-and-right",
        RING,
        "Send(r, (r + 1) % n, (r - step) % n)",
        "Send(r, (r - 1) % n, (r + step) % n)",
        (f"{RUN}in_each_step_every_rank_sends_one_chunk_to_the_next_and_no_two_the_same[3]",),
        "a ring that runs the other way than lesson 01's",
    ),
    Mutant(
        "figures-stages-master-forgotten",
        STAGES,
        "RULES[optimizer].states + widths.master",
        "RULES[optimizer].states",
        (f"{BARS}the_paper_s_figure_1_is_found_again",),
        "12 of the 16 bytes are 8 without the float32 copy",
    ),
    Mutant(
        "figures-stages-gradients-by-the-parameters",
        STAGES,
        "holds(widths.gradient, 0, alive=True)",
        "holds(widths.parameter, 0, alive=True)",
        (f"{BARS}megatron_s_eighteen_bytes_and_float32_s_sixteen",),
        "float32 gradients are counted as wide as the parameters",
    ),
    Mutant(
        "figures-stages-dead-gradients",
        STAGES,
        "holds(widths.gradient, 0, alive=True)",
        "holds(widths.gradient, 0)",
        (f"{BARS}the_paper_s_figure_1_is_found_again",),
        "the shard of the gradients that stages 2 and 3 hold is left out",
    ),
    Mutant(
        "figures-sliders-without-a-still-picture",
        MOVED,
        'data = {WIDGET: view, "image/png": self.still.png, "text/plain": self.still.alt}',
        'data = {WIDGET: view, "text/plain": self.still.alt}',
        (f"{MOVES}in_a_notebook_the_picture_is_there_for_a_page_without_widgets",),
        "a page on the web and a committed notebook show nothing at all",
    ),
    Mutant(
        "figures-sliders-that-need-ipywidgets",
        MOVED,
        "except ImportError:",
        "except AttributeError:",
        (f"{MOVES}without_ipywidgets_it_is_the_picture_and_what_to_install",),
        "a lesson stops where a package is missing that only moves a picture",
    ),
    Mutant(
        "figures-slider-moves-nothing",
        MOVED,
        'handle.observe(again, names="value")',
        'handle.observe(again, names="description")',
        (
            f"{MOVES}the_sliders_of_the_stages_draw_what_was_chosen",
            f"{MOVES}the_slider_of_the_ring_goes_through_its_steps",
        ),
        "sliders that can be moved, above a picture that stays",
    ),
    Mutant(
        "figures-loss-distance-of-what-differs",
        LINES,
        "return bool(most) and len(apart) == len(runs) - 1 and max(most) <= room",
        "return bool(most) and len(apart) == len(runs) - 1",
        (f"{RUNS}only_runs_that_agree_have_a_panel_of_distances",),
        "a bug's curve gets a panel that says it agrees",
    ),
    Mutant(
        "figures-loss-marks-on-each-other",
        LINES,
        "turn, first = divmod((i - 1) * max(1, every // others), points)",
        "turn, first = 0, 0",
        (f"{RUNS}no_two_runs_have_a_mark_of_one_size_at_one_step[2-20]",),
        "three runs in the legend, two in the picture",
    ),
    Mutant(
        "figures-loss-noise-in-words",
        LINES,
        "next((_power(bound) for bound in BOUNDS if most < bound)",
        "next((_power(most) for bound in BOUNDS if most < bound)",
        (f"{RUNS}words_say_a_round_bound_that_noise_does_not_move",),
        "the words of the figure are others at each run",
    ),
    Mutant(
        "figures-timeline-by-the-first-rank",
        f"{DRAWN}timeline.py",
        "return [max(calls) for calls in zip(*starts, strict=True)]",
        "return [min(calls) for calls in zip(*starts, strict=True)]",
        (f"{FIGURES}a_collective_moves_nothing_until_the_last_rank_has_called",),
        "waiting for a late rank is drawn as bytes that move",
    ),
    Mutant(
        "figures-no-timeline-of-nothing",
        f"{DRAWN}timeline.py",
        "return _nothing(title)",
        'raise ValueError("there is nothing to draw")',
        (f"{FIGURES}a_timeline_without_a_completed_call_says_so",),
        "lesson 01 stops at the picture of one rank's ring",
    ),
    Mutant(
        "figures-timeline-one-track",
        f"{DRAWN}timeline.py",
        "if until <= begin), len(free))",
        "if until <= begin), 0)",
        (f"{FIGURES}calls_under_way_at_one_time_do_not_cover_each_other",),
        "calls under way at one time are one bar",
    ),
    Mutant(
        "figures-fit-of-eight-corners",
        f"{DRAWN}bandwidth.py",
        "points: int = 200",
        "points: int = 8",
        (f"{FIGURES}the_fit_is_drawn_as_a_curve_through_200_sizes",),
        "a straight line on these axes, with kinks",
    ),
    Mutant(
        "figures-stacked-each-from-zero",
        f"{DRAWN}bars.py",
        "            left += wide\n",
        "            left = wide\n",
        (f"{STACKED}a_part_begins_where_the_parts_before_it_end",),
        "parts that cover each other instead of adding up",
    ),
    Mutant(
        "figures-turns-by-the-clock",
        f"{DRAWN}ahead.py",
        "return span.waits[0][0] if span.waits else span.end",
        "return span.end",
        (f"{ZERO_3}turns_go_by_the_order_of_asking_and_waiting_and_by_no_clock",),
        "a turn begins when the message happens to end",
    ),
    Mutant(
        "figures-phases-not-noted",
        f"{DRAWN}memory_line.py",
        'phase("backward", "backward"), phase("step", "step")',
        'phase("backward", "forward"), phase("step", "step")',
        (f"{ZERO_3}what_is_noted_is_what_comes_and_goes",),
        "forward and backward are one phase in the picture",
    ),
]
