"""Mistakes in DeepSpeed's schedules, in what is said to equal them, and in their picture."""

from tests.mutation import Mutant

HERE, PEERS = (
    "course_lib/deepspeed_config/schedules.py",
    "course_lib/deepspeed_config/schedule_peers.py",
)
TESTS = "tests/deepspeed_config/test_schedules.py::test_"
RATE, CALL = (
    f"{TESTS}every_update_has_deepspeed_s_rate",
    f"{TESTS}the_equivalent_s_call_makes_the_rates_that_it_says",
)
FIGURE, DRAWN = "course_lib/figures/schedules.py", "tests/test_figures_schedules.py::test_"

MUTANTS = [
    Mutant(
        "schedule-warm-up-in-step", HERE,
        "*(after(last + n) for n in range(1, updates))]",
        "*(after(last + n + 1) for n in range(1, updates))]",
        (f"{RATE}[WarmupLR]", f"{TESTS}deepspeed_s_linear_warm_up_is_transformers_one_update_later",
         f"{TESTS}a_list_has_a_rate_for_each_parameter_group"),
        "the first rate is taken for one update, and DeepSpeed takes it for two",
    ),
    Mutant(
        "schedule-no-decay", HERE,
        "max(0.0, (total - i) / max(1.0, total - steps))",
        "max(0.0, (total - i) / max(1.0, total))",
        (f"{RATE}[WarmupDecayLR]", f"{CALL}[WarmupDecayLR]"),
        "the decay falls from another height",
    ),
    Mutant(
        "schedule-stairs-as-ramps", FIGURE,
        "return sum(changed) > 1 and not any(a and b for a, b in pairwise(changed))",
        "return sum(changed) > 1 and all(a and b for a, b in pairwise(changed))",
        (f"{DRAWN}a_staircase_has_upright_steps",),
        "a rate that jumps is drawn as one that rises",
    ),
    Mutant(
        "schedule-top-past-a-rounding", FIGURE,
        "near = top * (1 - 1e-9)",
        "near = top",
        (f"{DRAWN}a_top_that_is_below_by_a_rounding_is_the_top",),
        "the words say another update than the picture",
    ),
    Mutant(
        "schedule-cosine-late", HERE,
        "done = min(1.0, (i - steps + 1) / length)",
        "done = min(1.0, (i - steps) / length)",
        (f"{RATE}[WarmupCosineLR]", f"{CALL}[WarmupCosineLR]"),
        "the cosine begins an update later than DeepSpeed's",
    ),
    Mutant(
        "schedule-no-stairs", HERE,
        "((i + 1) // size if stairs else (i + 1) / size)",
        "((i + 1) / size if stairs else (i + 1) / size)",
        (f"{RATE}[LRRangeTest]", f"{CALL}[LRRangeTest]"),
        "a staircase is a line",
    ),
    Mutant(
        "schedule-one-way-up", HERE,
        "        position = at / up if rising else (total - at) / down\n",
        "        position = at / up if rising else (total - at) / up\n",
        (f"{RATE}[OneCycle]", f"{CALL}[OneCycle]"),
        "the way down is as long as the way up",
    ),
    Mutant(
        "schedule-momentum-from-the-top", HERE,
        "(low if n == 0 else after(n - 1), BETA_2)",
        "(high if n == 0 else after(n - 1), BETA_2)",
        (f"{RATE}[OneCycle]",),
        "the first update's momentum is where the cycle begins, and DeepSpeed's is not",
    ),
    Mutant(
        "schedule-other-default", HERE,
        '"warmup_type": "log"',
        '"warmup_type": "linear"',
        (f"{TESTS}every_parameter_of_the_installed_class_is_known_with_its_default[WarmupLR]",
         f"{TESTS}the_default_warm_up_is_the_logarithm_s"),
        "the default warm-up is linear",
    ),
    Mutant(
        "schedule-first-group", HERE,
        "{k: v[group] if",
        "{k: v[0] if",
        (f"{TESTS}a_list_has_a_rate_for_each_parameter_group",),
        "every parameter group has the first one's rate",
    ),
    Mutant(
        "schedule-moves-at-a-skip", HERE,
        "        made += not skip\n",
        "        made += 1\n",
        (f"{TESTS}a_skipped_step_leaves_the_rate_where_it_was",
         "tests/deepspeed_config/test_deepspeed_runs.py::"
         "test_the_type_of_the_communication_and_an_overflow",
         "tests/deepspeed_config/test_deepspeed_runs.py::test_an_overflow_at_the_other_stages"),
        "the rate moves at a step that was skipped",
    ),
    Mutant(
        "schedule-any-key", HERE,
        "        if key not in known:\n",
        "        if key not in known and not known:\n",
        (f"{TESTS}a_block_that_makes_no_schedule_is_refused_with_its_remedy",),
        "a key that the schedule does not have is left unsaid",
    ),
    Mutant(
        "schedule-betas-of-any", HERE,
        '    if name != "OneCycle" or not params["cycle_momentum"]:',
        '    if not params.get("cycle_momentum", True):',
        (f"{TESTS}betas_are_one_cycle_s_alone",),
        "a schedule without betas ends in a KeyError",
    ),
    Mutant(
        "schedule-peer-in-step", PEERS,
        "low, steps, late = params[\"warmup_min_lr\"], _steps(params), (Span(1, None, 1),)",
        "low, steps, late = params[\"warmup_min_lr\"], _steps(params), (Span(1, None, 0),)",
        (f"{CALL}[WarmupLR]",),
        "transformers' warm-up is said to be DeepSpeed's, update by update",
    ),
    Mutant(
        "schedule-log-has-a-peer", PEERS,
        '    if params.get("warmup_type", "linear") != "linear":',
        '    if params.get("warmup_type", "linear") == "cubic":',
        (f"{CALL}[WarmupLR]", f"{TESTS}the_default_warm_up_is_the_logarithm_s"),
        "transformers' linear warm-up is said to equal the logarithm's",
    ),
    Mutant(
        "schedule-cosine-rises-again",
        HERE,
        "done = min(1.0, (i - steps + 1) / length)",
        "done = (i - steps + 1) / length",
        (
            f"{RATE}[WarmupCosineLR]",
            f"{TESTS}after_their_end_the_two_cosines_part",
        ),
        "after its last update the cosine goes up again",
    ),
    Mutant(
        "schedule-two-cycles",
        HERE,
        "        return low if still else low / (1 + fall * ((i - total + 1) / size))",
        "        return low if still else low + (high - low) * scale(i + 1)",
        (
            f"{RATE}[OneCycle]",
            f"{TESTS}one_cycle_is_torch_s_cycle_once[0.5]",
        ),
        "one cycle is followed by another",
    ),
    # ---- the picture
    Mutant(
        "schedule-figure-flat", FIGURE,
        "axis.plot(range(len(rates)), rates,",
        "axis.plot(range(len(rates)), [rates[0]] * len(rates),",
        (f"{DRAWN}a_rate_that_rises_is_drawn_rising",),
        "every schedule is drawn as its first rate",
    ),
    Mutant(
        "schedule-figure-words", FIGURE,
        "next(n for n, rate in enumerate(rates) if rate >= near)",
        "len(rates) - 1",
        (f"{DRAWN}the_words_of_the_rates_say_where_each_begins_is_highest_and_ends",),
        "the words have the top in another place",
    ),
    Mutant(
        "schedule-figure-of-nothing", FIGURE,
        "    if not lines or not all(map(len, lines.values())):\n",
        "    if not lines:\n",
        (f"{DRAWN}what_cannot_be_drawn_is_refused",),
        "a schedule of no update is drawn",
    ),
]  # fmt: skip
