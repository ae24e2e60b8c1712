"""Mistakes in what is said of scaling: a picture, a measurement, or a check that is not one."""

from tests.mutation import Mutant

DRAWN = "course_lib/figures/scaling.py"
PICTURE = "tests/test_figures_scaling.py::test_"
BENCH = "benchmarks/scale.py"
BENCHED = "tests/test_benchmarks_scale.py::test_"
LOG = "course_lib/train/log.py"
LOGGED = "tests/train/test_log.py::test_"
ACCEPT = "tools/accept_gpu/"
ACCEPTED = "tests/house/test_accept_gpu.py::test_"


def mutant(name: str, path: str, old: str, new: str, tests: str | tuple, why: str) -> Mutant:
    return Mutant(
        f"scale-{name}", path, old, new, (tests,) if isinstance(tests, str) else tests, why
    )


MUTANTS = [
    # ---- the picture
    mutant(
        "own-scale",
        DRAWN,
        "squeeze=False, sharey=True,",
        "squeeze=False,",
        PICTURE + "a_bar_is_as_high_as_its_percent_on_one_scale_for_all_panels",
        "each panel has a scale of its own, and 40 % here looks like 80 % there",
    ),
    mutant(
        "scale-from-fifty",
        DRAWN,
        "axes[0].set_ylim(0, 1.12 * top)",
        "axes[0].set_ylim(10, 1.12 * top)",
        PICTURE + "a_bar_is_as_high_as_its_percent_on_one_scale_for_all_panels",
        "a scale that does not begin at 0 makes a small loss look large",
    ),
    mutant(
        "bars-on-each-other",
        DRAWN,
        "(kinds.index(kind) - (len(kinds) - 1) / 2) * WIDE / share",
        "(kinds.index(kind) - (len(kinds) - 1) / 2) * 0.1 * WIDE / share",
        PICTURE + "the_kinds_stand_beside_each_other",
        "what is predicted covers what was measured",
    ),
    mutant(
        "a-ranks-grey",
        DRAWN,
        '"measured": method(0)',
        '"measured": "#5c5c5c"',
        PICTURE + "no_fill_is_a_ranks_colour",
        "the eighth rank has that grey",
    ),
    mutant(
        "panel-untold",
        DRAWN,
        "f\"{name + ': ' if name else ''}{'; '.join(groups)}.\"",
        "f\"{'; '.join(groups)}.\"",
        PICTURE + "every_bar_is_told_in_words",
        "the words do not say which numbers were published",
    ),
    mutant(
        "no-legend-room",
        DRAWN,
        "max(wide, NARROWEST, 0.085 * len(title) + 0.3)",
        "wide",
        PICTURE
        + "the_picture_is_a_card_that_cuts_nothing_off"
        + "[Weak scaling here, and as it was published for 512 GPUs]",
        "a title is cut off",
    ),
    mutant(
        "empty-bar-drawn",
        DRAWN,
        "        if not bar.values:\n            raise",
        "        if bar.label is None:\n            raise",
        PICTURE + "what_cannot_be_drawn_is_refused",
        "a configuration without a number is a gap that nobody explains",
    ),
    mutant(
        "nan-drawn",
        DRAWN,
        "if not (math.isfinite(value) and value >= 0)",
        "if value < 0",
        PICTURE + "what_cannot_be_drawn_is_refused",
        "a bar that is no number is drawn as none",
    ),
    # ---- the benchmark
    mutant(
        "weak-is-strong",
        BENCH,
        '"weak", dp, tp, rows, layers * tp)',
        '"weak", dp, tp, rows, layers)',
        BENCHED + "a_world_has_weak_and_strong_over_each_axis_and_over_both",
        "a model that does not grow is shared out, and called weak scaling",
    ),
    mutant(
        "no-mesh-of-both",
        BENCH,
        "for dp in range(2, world) if",
        "for dp in range(3, world) if",
        BENCHED + "a_world_has_weak_and_strong_over_each_axis_and_over_both",
        "the (2, 2) mesh is left out",
    ),
    mutant(
        "any-bytes",
        BENCH,
        "if abs(counted - form) > 1e-9 * max(counted, form):",
        "if abs(counted - form) > 1e-9 + form:",
        BENCHED + "bytes_that_are_not_the_forms_end_the_run",
        "the bytes are printed and held against nothing",
    ),
    mutant(
        "efficiency-of-all",
        BENCH,
        '"efficiency": round(work / flops_one / n / ratio, 4)',
        '"efficiency": round(work / flops_one / ratio, 4)',
        BENCHED + "every_configuration_sends_its_forms_and_has_a_prediction[2]",
        "a speed-up is called an efficiency",
    ),
    mutant(
        "every-replicas-rows-alike",
        BENCH,
        'mesh.get_local_rank("dp") * way.rows',
        "0 * way.rows",
        BENCHED + "every_configuration_sends_its_forms_and_has_a_prediction[2]",
        "the replicas compute the same rows, and not the work of one rank",
    ),
    mutant(
        "crowd-unsaid",
        "benchmarks/_scale_text.py",
        'if one["oversubscribed"] > 1',
        'if one["oversubscribed"] > 3',
        BENCHED + "more_ranks_than_cores_is_said",
        "four ranks on two cores look like ranks that wait for messages",
    ),
    mutant(
        "half-the-articles-bars",
        "benchmarks/_scale_text.py",
        '("TP × DP 64", bars.REPLICATED)',
        '("TP × DP 64", bars.ALONE)',
        BENCHED + "the_picture_has_the_articles_eight_bars_beside_those_of_here",
        "four of the eight bars are drawn twice",
    ),
    mutant(
        "refused-after-the-run",
        BENCH,
        "        ways(workload, world)  # refuses",
        "        ways(workload, 2)  # refuses",
        BENCHED + "rows_that_cannot_be_shared_out_are_refused_before_anything_runs",
        "what cannot be is found out at the third world",
    ),
    mutant(
        "plot-unread",
        "course_lib/cli/author.py",
        'if plot is not None and "picture" not in benchmark:',
        'if plot is not None and "measure" not in benchmark:',
        BENCHED + "a_plot_is_refused_where_it_cannot_be",
        "a benchmark without a picture is measured for an hour, and then fails",
    ),
    # ---- MFU from a log
    mutant(
        "mean-of-speeds",
        LOG,
        "seconds = sum(one.steps / one.tokens_per_second for one in counted)",
        "seconds = steps * len(counted) / sum(one.tokens_per_second for one in counted)",
        LOGGED + "a_runs_mfu_is_all_its_flops_over_all_its_seconds",
        "speeds are averaged as if each stretch had lasted as long",
    ),
    mutant(
        "resumed-from-zero",
        LOG,
        "            done = int(resumed[1])",
        "            done = done",
        LOGGED + "a_resumed_run_counts_from_where_it_went_on",
        "steps of an earlier run count as those of this one",
    ),
    mutant(
        "flops-of-a-sequence",
        LOG,
        "step_flops(config, 1, length) / length * tokens",
        "step_flops(config, 1, length) * tokens",
        (
            LOGGED + "mfu_of_a_speed_is_flops_over_the_peak",
            LOGGED + "it_is_what_the_run_itself_has_said",
        ),
        "a token's flops are those of a whole sequence",
    ),
    mutant(
        "warm-up-counts",
        LOG,
        "for one in found[skip:]",
        "for one in found[0:]",
        LOGGED + "a_runs_mfu_is_all_its_flops_over_all_its_seconds",
        "the first step, which loads libraries, is counted",
    ),
    # ---- acceptance
    mutant(
        "accepted-bytes",
        ACCEPT + "scaling.py",
        'if sent["counted"] != sent["form"] or',
        "if",
        ACCEPTED + "scaling_tells_efficiencies_and_judges_the_bytes",
        "a node is accepted whatever its ranks send",
    ),
    mutant(
        "accepted-on-gloo",
        ACCEPT + "verdict.py",
        '"resuming", "scaling")',
        '"resuming")',
        ACCEPTED
        + "one_thing_amiss_is_not_accepted[scaling at world 2-change7-"
        + "scaling at world 2: the ranks spoke gloo]",
        "scaling over gloo is accepted as NCCL's",
    ),
    mutant(
        "accepted-part",
        ACCEPT + "scaling.py",
        "if (scaling_of, axis) not in seen:",
        "if not seen:",
        ACCEPTED + "scaling_tells_efficiencies_and_judges_the_bytes",
        "an axis that was not measured is not missed",
    ),
]
