"""Mistakes in text from streamed weights: prompts, ranks in step, what is held, what it costs."""

from tests.mutation import Mutant

GENERATE, MODEL = "course_lib/generate.py", "course_lib/gpt/model.py"
PADDING, ZERO = "course_lib/gpt/padding.py", "course_lib/zero/inference.py"
HOME = "course_lib/inference/"
DRAWN = "course_lib/figures/throughput.py"

UNEQUAL = "tests/inference/test_unequal.py::test_"
ALONE = UNEQUAL + "each_row_has_the_words_of_its_prompt_alone"
UNSEEN = UNEQUAL + "no_token_looks_at_padding_and_positions_count_from_the_first_token"
CUT = UNEQUAL + "a_cut_model_takes_the_words_of_the_whole_one"
THEIRS = UNEQUAL + "unequal_prompts_go_on_as_transformers_goes_on_with_them"
NO_PROMPT = UNEQUAL + "what_is_no_prompt_is_refused"
STREAMED = "tests/inference/test_streamed.py::test_"
WORDS = STREAMED + "every_rank_has_the_dense_words_from_its_part_of_the_weights"
APART = STREAMED + "ranks_that_are_done_take_part_until_all_are[2-gpt2]"
SENT = STREAMED + "a_forward_sends_its_formula_whatever_the_batch"
AHEAD = STREAMED + "from_the_second_forward_on_units_are_asked_for_ahead"
PEAK = STREAMED + "one_unit_is_whole_at_a_time[2-gpt2-0]"
BETWEEN = STREAMED + "a_training_engine_writes_between_two_steps[2-False]"
META = STREAMED + "a_model_that_no_rank_ever_holds_whole"
BACK = STREAMED + "a_model_is_given_back_as_it_was"
ROWS = STREAMED + "rows_are_shared_out_in_order_and_come_together_again"
REFUSED = "tests/inference/test_refused.py::test_"
WAITS = REFUSED + "without_synced_a_rank_waits_for_one_that_is_done_and_says_so"
BEGINS = REFUSED + "what_one_rank_cannot_write_no_rank_begins"
BREAKS = REFUSED + "a_rank_that_breaks_off_ends_all_of_them"
WRONG = REFUSED + "what_is_no_inference_is_refused_with_the_remedy[2]"
COST = "tests/inference/test_cost.py::test_"
FORMULA = COST + "the_formula_is_that_of_the_weights_and_of_each_use"
SIDES = COST + "the_break_even_is_where_the_ledgers_change_sides[2-gpt2-3-5]"
LARGE = COST + "the_break_even_of_a_large_model_is_about_three_hidden_sizes"
FITTED = COST + "two_constants_are_found_again"
MEET = COST + "two_ways_meet_where_their_tokens_per_second_are_equal"
SLOWEST = COST + "seconds_are_those_of_the_slowest_rank_and_a_first_run_is_not_counted"
BESIDE = "tests/inference/test_with_deepspeed.py::test_"
PICTURE = "tests/test_figures_throughput.py::test_"


def mutant(
    name: str, path: str, old: str, new: str, tests: str | tuple, why: str, trap: str | None = None
) -> Mutant:
    tests = (tests,) if isinstance(tests, str) else tests
    return Mutant(f"inference-{name}", path, old, new, tests, why, trap)


MUTANTS = [
    # ---- prompts of unequal lengths
    mutant(
        "padding-forgotten",
        GENERATE,
        "past = [Cache(padding) for _ in model.blocks]",
        "past = [Cache() for _ in model.blocks]",
        (ALONE, THEIRS),
        "tokens look at the padding before them",
    ),
    mutant(
        "padding-seen",
        MODEL,
        "        if padding is not None:  # no token looks",
        "        if False:  # no token looks",
        (ALONE, UNSEEN),
        "positions know of the padding, and the attention does not",
    ),
    mutant(
        "places-for-positions",
        MODEL,
        "(places - padding[:, None]).clamp(min=0)",
        "(places - 0 * padding[:, None]).clamp(min=0)",
        (f"{ALONE}[gpt2]", THEIRS),
        "a short prompt's first token stands where the padding ends",
    ),
    mutant(
        "rotary-places",
        MODEL,
        "self.length - self.padding[:, None, None]",
        "self.length - 0 * self.padding[:, None, None]",
        (f"{UNSEEN}[llama]",),
        "rotary angles are those of the places, and rounded otherwise",
    ),
    mutant(
        "padding-on-the-right",
        PADDING,
        "        place[longest - len(row) :] = row\n",
        "        place[: len(row)] = row\n",
        (ALONE, THEIRS),
        "the last place, which predicts, holds no token",
    ),
    mutant(
        "given-back-padded",
        GENERATE,
        "without_padding(made, padding)",
        "without_padding(made, None)",
        (ALONE, THEIRS),
        "texts come with padding for tokens",
    ),
    mutant(
        "an-empty-prompt",
        PADDING,
        "row.dim() != 1 or not row.numel() or not whole",
        "row.dim() != 1 or not whole",
        NO_PROMPT,
        "a row of padding alone is written on",
    ),
    mutant(
        "cut-heads-see-it",
        "course_lib/tensor_parallel/attention.py",
        "            return self.inner(q, k, v, padding)\n        with",
        "            return self.inner(q, k, v)\n        with",
        f"{CUT}[2-llama-False]",
        "over tp the padding is looked at",
    ),
    mutant(
        "split-rows-for-positions",
        "course_lib/tensor_parallel/sequence_plan.py",
        "        dim = places.dim() - 1\n",
        "        dim = 0\n",
        f"{CUT}[3-gpt2-True]",
        "rows are cut where tokens were meant",
    ),
    mutant(
        "their-mask",
        HOME + "with_deepspeed.py",
        "attention_mask=mask, synced_gpus",
        "attention_mask=torch.ones_like(ids), synced_gpus",
        THEIRS,
        "transformers is not told of the padding",
    ),
    # ---- ranks in step
    mutant(
        "done-and-gone",
        GENERATE,
        "any_goes_on(left > 0, synced, ",
        "any_goes_on(left > 0, None, ",
        APART,
        "a rank that is done leaves, and the others wait for its shards",
        "T30",
    ),
    mutant(
        "no-row-without-synced",
        GENERATE,
        "none=synced is not None)",
        "none=True)",
        NO_PROMPT,
        "a rank without rows makes no forward, and the others wait",
        "T30",
    ),
    mutant(
        "no-row-with-synced",
        GENERATE,
        "none=synced is not None)",
        "none=False)",
        f"{WORDS}[3-gpt2-None]",
        "more ranks than rows cannot write",
    ),
    mutant(
        "alone-with-nan",
        GENERATE,
        "                left, problem = 0, error\n",
        "                raise\n",
        BREAKS,
        "a rank that cannot choose a word leaves the others waiting",
        "T30",
    ),
    mutant(
        "other-counts",
        HOME + "text.py",
        "        count,\n        [engine.group],\n",
        "        0,\n        [engine.group],\n",
        BEGINS,
        "without synced a rank may write fewer words, and the others wait",
        "T30",
    ),
    mutant(
        "each-for-itself",
        HOME + "text.py",
        "    with all_or_none([engine.group], WHAT, error=ValueError):\n",
        "    if True:\n",
        BEGINS,
        "one rank refuses its prompt, and the others wait for it",
        "T30",
    ),
    mutant(
        "no-remedy",
        HOME + "text.py",
        "    except NotAllCame as error:\n",
        "    except ZeroDivisionError as error:\n",
        WAITS,
        "who waits hears nothing of synced",
    ),
    mutant(
        "any-stage",
        HOME + "text.py",
        "    if engine.stage != 3:\n",
        "    if False:\n",
        WRONG,
        "ranks that have the whole model are kept in step for nothing",
    ),
    mutant(
        "by-another-door",
        GENERATE,
        "    return model(ids, past, head=lambda x: model.head(x[:, -1:]))[:, 0]\n",
        "    return model.head(model.states(ids, past)[:, -1:])[:, 0]\n",
        AHEAD,
        "no forward begins for stage 3's hooks: the order is never known, nothing prefetched",
    ),
    # ---- a frozen model
    mutant(
        "small-ones-stay",
        ZERO,
        "prefetch=prefetch, persist=0, fill=fill",
        "prefetch=prefetch, fill=fill",
        (f"{WORDS}[3-gpt2-None]", PEAK),
        "every parameter below 64 KB is whole on every rank",
        "T23",
    ),
    mutant(
        "views-stay",
        ZERO,
        "leaves_views = False",
        "leaves_views = True",
        PEAK,
        "what was put aside keeps a unit alive, and the peak grows",
    ),
    mutant(
        "moved-at-once",
        "course_lib/zero/stage3/units.py",
        "        else:  # of a new one it would move the memory\n",
        "        if True:\n",
        PEAK,
        "a unit's buffer is made twice",
    ),
    mutant(
        "keeps-nothing",
        ZERO,
        "            self._keep(keep)\n",
        "            self._keep(0)\n",
        (f"{SENT}[3-gpt2-7000-2-False]", f"{SENT}[2-llama-1099511627776-1-False]"),
        "keep= changes nothing",
    ),
    mutant(
        "keeps-the-first",
        ZERO,
        "sorted(self.shards.units, key=lambda unit: unit.nbytes)",
        "list(self.shards.units)",
        f"{SENT}[3-gpt2-7000-2-False]",
        "large units are kept before small ones: fewer messages are saved",
    ),
    mutant(
        "not-frozen",
        ZERO,
        "model.eval().requires_grad_(False)",
        "model.eval()",
        BACK,
        "a backward goes through weights whose gradients nobody sums",
    ),
    mutant(
        "still-training",
        ZERO,
        "model.eval().requires_grad_(False)",
        "model.requires_grad_(False)",
        BACK,
        "dropout is on",
    ),
    mutant(
        "modes-lost",
        ZERO,
        "            module.training = mode\n",
        "            module.training = True\n",
        BACK,
        "what was in evaluation comes back in training",
    ),
    mutant(
        "frozen-for-good",
        ZERO,
        "            p.requires_grad_(True)\n",
        "            p.requires_grad_(False)\n",
        (BACK, WRONG),
        "a model that was given back, or refused, can no longer be trained",
    ),
    mutant(
        "shards-lost",
        ZERO,
        "                self.shards.end()\n",
        "                self.shards.group\n",
        BACK,
        "after close the weights are gone with their files",
    ),
    mutant(
        "files-left",
        ZERO,
        "            finally:\n                self.home.close()\n",
        "            finally:\n                self.home.memory()\n",
        (BACK, f"{WORDS}[2-gpt2-nvme]"),
        "a closed model leaves its files",
    ),
    mutant(
        "closed-and-called",
        ZERO,
        "        if self._closed:\n            raise",
        "        if False:\n            raise",
        BACK,
        "a closed model answers as if nothing had been",
    ),
    mutant(
        "on-the-device-all-the-same",
        ZERO,
        'return HostHome(device, master=False, parameters="cpu")',
        "return OnDevice()",
        f"{WORDS}[2-llama-cpu]",
        "offload= moves nothing",
    ),
    mutant(
        "twice-on-the-host",
        ZERO,
        'HostHome(device, master=False, parameters="cpu")',
        'HostHome(device, master=True, parameters="cpu")',
        f"{WORDS}[2-llama-cpu]",
        "the host holds a copy for an optimizer that there is not",
        "T23",
    ),
    mutant(
        "any-states",
        ZERO,
        '    if offload.get("optimizer") is not None:\n',
        "    if False:\n",
        WRONG,
        "states of no optimizer are put away, without a word",
    ),
    mutant(
        "made-in-inference-mode",
        ZERO,
        "    if made or torch.is_inference_mode_enabled():\n",
        "    if False:\n",
        WRONG,
        "tensors whose memory cannot be exchanged are sharded",
    ),
    mutant(
        "whole-before-it-is-cut",
        ZERO,
        "        if not outlined(model, None, computes_on(self.group)):\n",
        "        outlined(model, None, computes_on(self.group))\n"
        "        if model.to_empty(device='cpu'):\n",
        META,
        "a model from the meta device is whole on every rank for a moment",
    ),
    mutant(
        "not-one-model",
        "course_lib/zero/holdings.py",
        "kept = [engine.model, engine.shards.memory(), home.memory()]",
        "kept = [engine.model, home.memory()]",
        (f"{WORDS}[2-llama-cpu]", f"{WORDS}[3-gpt2-None]"),
        "the shards are not among what a rank holds",
    ),
    # ---- rows
    mutant(
        "the-last-have-more",
        HOME + "rows.py",
        "(r < len(rows) % n)",
        "(r >= n - len(rows) % n)",
        ROWS,
        "the first rank has fewer rows than the last",
    ),
    # ---- what a word costs
    mutant(
        "tied-once",
        HOME + "cost.py",
        "for unit, *_ in uses_of(outline, streamed)",
        "for unit in streamed",
        (FORMULA, f"{SENT}[2-gpt2-0-1-False]"),
        "a tied head is taken to be there still",
    ),
    mutant(
        "kept-counted-once",
        HOME + "cost.py",
        "    held += sum(unit.padded * unit.dtype.itemsize for unit in whole)\n",
        "",
        STREAMED + "one_unit_is_whole_at_a_time[3-llama-9000]",
        "what stays whole is not among what is held",
    ),
    mutant(
        "no-last-flag",
        HOME + "cost.py",
        "(forwards + 1) * forms",
        "forwards * forms",
        (FORMULA, f"{SENT}[2-gpt2-0-1-False]"),
        "that nobody writes on is asked, too",
    ),
    mutant(
        "kept-and-sent",
        HOME + "cost.py",
        "    away = whole | kept(buckets, keep)",
        "    away = whole",
        (FORMULA, f"{SENT}[3-gpt2-7000-2-False]"),
        "units that stay are counted",
    ),
    mutant(
        "kept-of-the-largest",
        HOME + "cost.py",
        "key=lambda unit: unit.padded * unit.dtype.itemsize)",
        "key=lambda unit: -unit.padded * unit.dtype.itemsize)",
        (FORMULA, f"{SENT}[3-gpt2-7000-2-False]"),
        "the formula keeps other units than the model",
    ),
    mutant(
        "even-and-not-fewer",
        HOME + "cost.py",
        "// (one - none) + 1)",
        "// (one - none))",
        SIDES,
        "a batch at which tensor parallelism still sends no more is called the break-even",
    ),
    mutant(
        "part-of-the-call-forgotten",
        HOME + "cost.py",
        "(streamed - none) // (one - none)",
        "streamed // one",
        LARGE,
        "what a call sends whatever its rows is counted for each",
    ),
    mutant(
        "large-times-count-more",
        HOME + "seconds.py",
        "parts = torch.stack((1 / seconds, rows / seconds), 1)",
        "parts = torch.stack((1 / seconds, rows / seconds), 1) * seconds[:, None]",
        FITTED,
        "errors are no longer relative",
    ),
    mutant(
        "below-zero",
        HOME + "seconds.py",
        "    if fixed < 0 or row < 0:",
        "    if False:",
        FITTED,
        "a forward of no row takes less than no time",
    ),
    mutant(
        "hidden-is-the-sum",
        HOME + "seconds.py",
        "return max(parts) if hidden else sum(parts)",
        "return sum(parts)",
        FITTED,
        "prefetching hides nothing",
    ),
    mutant(
        "one-ranks-rows",
        HOME + "seconds.py",
        "together.row - streamed.row / n",
        "together.row - streamed.row",
        MEET,
        "each rank is taken to compute all rows",
    ),
    mutant(
        "meets-behind-zero",
        HOME + "seconds.py",
        "if slower * later > 0 else None",
        "if later else None",
        MEET,
        "two ways meet at fewer than no rows",
    ),
    mutant(
        "one-ranks-tokens",
        HOME + "seconds.py",
        "return {ranks * rows: ranks * rows / seconds for",
        "return {ranks * rows: rows / seconds for",
        COST + "throughput_counts_the_rows_of_all_ranks",
        "the other ranks' tokens are not counted",
    ),
    mutant(
        "own-seconds",
        HOME + "seconds.py",
        'group, "max")',
        'group, "min")',
        SLOWEST,
        "the fastest rank's time is taken for all",
    ),
    mutant(
        "first-run-counts",
        HOME + "seconds.py",
        "        for _ in range(repeat + 1):\n",
        "        for _ in range(repeat):\n",
        SLOWEST,
        "one run fewer than asked for is counted",
    ),
    # ---- beside it
    mutant(
        "stop-in-the-prompt",
        HOME + "with_deepspeed.py",
        "    return row[: row.index(stop, first) + 1]\n",
        "    return row[: row.index(stop) + 1]\n",
        BESIDE + "a_text_ends_with_its_first_stop_after_the_prompt",
        "a prompt that holds the word is cut",
    ),
    mutant(
        "any-folder",
        HOME + "with_deepspeed.py",
        "    if folder is None or not Path(folder).is_dir():\n",
        "    if False:\n",
        BESIDE + "what_deepspeed_would_make_something_else_of_is_refused",
        "DeepSpeed makes a folder where a name was misspelt",
    ),
    mutant(
        "weights-persist",
        HOME + "with_deepspeed.py",
        '        "stage3_param_persistence_threshold": 0,\n',
        "",
        BESIDE + "the_config_streams_unit_by_unit",
        "DeepSpeed keeps every small parameter whole",
    ),
    mutant(
        "linear-stays-theirs",
        HOME + "with_deepspeed.py",
        "            nn.functional.linear = linear\n",
        "            linear\n",
        BESIDE + "every_rank_has_the_dense_words[2-cases0]",
        "DeepSpeed's product is every model's from here on",
    ),
    # ---- the picture
    mutant(
        "marks-nothing",
        DRAWN,
        "        axis.axvline(rows, color=INK",
        "        axis.axvline(rows, ymax=0.0, color=INK",
        PICTURE + "a_mark_is_an_upright_line_at_its_batch",
        "the break-even is in the legend alone",
    ),
    mutant(
        "points-for-a-model",
        DRAWN,
        "[models[way](b) for b in between]",
        "[measured[rows[0]] + 0 * b for b in between]",
        PICTURE + "points_rise_and_a_line_is_the_models",
        "the line is not the model's",
    ),
    mutant(
        "words-without-marks",
        DRAWN,
        'if marks else ""',
        'if not marks else ""',
        PICTURE + "the_words_say_every_point_and_the_marks",
        "who cannot see the picture does not hear of the break-even",
    ),
    mutant(
        "any-rows",
        DRAWN,
        "        if min(measured) <= 0 or min(measured.values()) <= 0:\n",
        "        if False:\n",
        PICTURE + "what_cannot_be_drawn_is_refused",
        "a batch of no rows is drawn",
    ),
]
