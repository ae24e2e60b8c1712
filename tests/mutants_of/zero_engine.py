"""Mistakes in course_lib/zero: engine, precision, extents, elementwise, handover, refusals."""

from tests.mutation import Mutant

ZERO = "course_lib/zero/"
ENGINE = f"{ZERO}engine.py"
PRECISION = f"{ZERO}precision.py"
ELEMENTWISE, HANDOVER = f"{ZERO}elementwise.py", f"{ZERO}handover.py"
TWIN, MICROS = f"{ZERO}twin.py", f"{ZERO}micro_batches.py"
REFUSALS = f"{ZERO}refusals.py"
STAGES = "tests/zero/test_stages.py::"
ONE = f"{STAGES}test_a_stage_is_one_process"
HALF = "tests/zero/test_precision.py::"
REFUSED = "tests/zero/test_refusals.py::"
TRIED = "tests/zero/test_elementwise.py::test_"
ABOVE = f"{TRIED}what_asks_how_large_a_parameter_is_is_refused"
NOT = f"{TRIED}what_looks_at_more_than_one_element_is_refused"
KEPT = f"{TRIED}elementwise_optimizers_pass_and_stay_as_they_were"
LOOKS = f"{REFUSED}test_an_optimizer_that_looks_at_more_than_one_number_is_refused"
WRONG = f"{REFUSED}test_wrong_engines_are_refused_before_anything_is_cut"
MISUSED = "tests/zero/test_gradients.py::test_what_would_train_something_else_is_refused"

MUTANTS = [
    Mutant(
        "zero-mean-over-ranks-alone",
        MICROS,
        "            return 1.0 / (ranks * self.each_step)",
        "            return 1.0 / ranks",
        (f"{ONE}[0-accumulated]", f"{ONE}[2-four]"),
        "the gradients of k micro-batches are k times too large",
        "T22",
    ),
    Mutant(
        "zero-mean-of-means",
        MICROS,
        "            return all_reduce(tokens, group, donated=True).item() or 1.0",
        "            return group.size() * (tokens.item() or 1.0)",
        (f"{ONE}[0-tokens]", f"{ONE}[3-tokens accumulated]"),
        "each rank divides by its own tokens: a token counts more where there are few",
        "T19",
    ),
    Mutant(
        "zero-tokens-of-the-last",
        MICROS,
        "        self.tokens = (self.tokens or 0.0) + float(tokens)",
        "        self.tokens = float(tokens)",
        (f"{ONE}[1-tokens accumulated]",),
        "the tokens of earlier micro-batches are not counted",
        "T19",
    ),
    Mutant(
        "zero-no-clipping",
        ENGINE,
        "                factor *= min(1.0, self.clip / (self.norm + 1e-6))",
        "                pass",
        (f"{ONE}[0-clipped]", f"{ONE}[3-clipped]"),
        "the norm is computed, and nothing is scaled",
        "T18",
    ),
    Mutant(
        "zero-steps-off-the-boundary",
        MICROS,
        "        return self.begun == self.each_step",
        "        return self.begun > 0",
        (f"{ONE}[0-accumulated]", f"{ONE}[2-accumulated]"),
        "every micro-batch updates",
        "T22",
    ),
    Mutant(
        "zero-gradients-stay",
        ENGINE,
        "        self.gradients.forget()\n        for _, part in self.shards.parts():\n"
        "            part.grad = None",
        "        pass",
        (f"{ONE}[0-plain]", f"{ONE}[2-plain]"),
        "the next step adds to this one's gradients",
        "T22",
    ),
    Mutant(
        "zero-backward-twice",
        MICROS,
        "        if self.pending:",
        "        if False:",
        (f"{MISUSED}[0]",),
        "two backwards before a step are two micro-batches, or one too many",
    ),
    Mutant(
        "zero-optimizer-of-another-model",
        REFUSALS,
        "    check_optimizer(model, optimizer)\n",
        "",
        (WRONG,),
        "an optimizer that knows other parameters trains nothing",
    ),
    # ---- the optimizer
    Mutant(
        "zero-tried-at-lr-0",
        TWIN,
        '        options["lr"] = RATE',
        "        pass",
        (f"{KEPT}[lr 0]",),
        "at the start of a warm-up every optimizer does nothing, to the whole and to a shard",
    ),
    Mutant(
        "zero-tried-on-itself",
        TWIN,
        "    twin.state = defaultdict(dict)\n",
        "    twin.state = optimizer.state\n",
        (f"{KEPT}[OwnAdamW]",),
        "the states of the trial stay in the optimizer",
    ),
    Mutant(
        "zero-tried-with-its-attributes",
        TWIN,
        "twin.__dict__[name] = copy.deepcopy(value, memo)",
        "twin.__dict__[name] = value",
        (f"{KEPT}[Table]",),
        "the trial's steps are counted in the user's optimizer",
    ),
    Mutant(
        "zero-twin-of-a-large-tensor",
        TWIN,
        "args[0].numel() > LARGEST",
        "False",
        (f"{TRIED}a_large_tensor_beside_the_states_is_refused",),
        "an average of the weights is copied for each twin, and no engine cuts it",
    ),
    Mutant(
        "zero-cut-through-rows-alone",
        ELEMENTWISE,
        "    return [groups[i] for i in sorted(list(first)[:MOST_GROUPS])]",
        "    return groups[:1]",
        (
            f"{LOOKS}[one group of two]",
            f"{TRIED}groups_that_look_at_each_other_are_refused",
            f"{TRIED}many_groups_are_tried_in_bounded_time_and_leave_nothing",
        ),
        "what another group asks for is never tried",
    ),
    Mutant(
        "zero-a-twin-has-both-shards",
        ELEMENTWISE,
        "numbers, _shards(sizes))",
        "numbers, [sum(_shards(sizes), [])])",
        (f"{NOT}[GlobalNorm]", f"{NOT}[Distance]"),
        "a sum over all parameters is the same, cut or not; a rank has its own shard alone",
    ),
    Mutant(
        "zero-bitsandbytes-by-the-name-of-its-base",
        ELEMENTWISE,
        'r"(?!optimizer8bit$).*(8|4)bit',
        'r".*(8|4)bit',
        (f"{TRIED}bitsandbytes_is_refused_for_its_bits_and_not_for_the_name_of_its_base",),
        "an AdamW whose states are in 32 bits is refused because its base is named for 8",
    ),
    Mutant(
        "zero-bitsandbytes-in-eight-bits",
        ELEMENTWISE,
        '"optim_bits", 32) == 8:',
        '"optim_bits", 32) == 4:',
        (f"{TRIED}bitsandbytes_is_refused_for_its_bits_and_not_for_the_name_of_its_base",),
        "states that are quantized from a million elements on are seen in no trial",
    ),
    Mutant(
        "zero-tried-on-small-shards",
        ELEMENTWISE,
        "        for sizes in (SMALL, LARGE, HALVES):",
        "        for sizes in (SMALL,):",
        (f"{NOT}[NormAbove]", f"{NOT}[FactoredAbove]", f"{ABOVE}[35000-False]"),
        "a matrix is factored from some size on, as Adafactor does",
    ),
    Mutant(
        "zero-tried-without-zeros",
        ELEMENTWISE,
        "    numbers[1 + ZERO_STEP, :, : sizes.cut or 0] = 0\n",
        "",
        (f"{NOT}[SkipsZeros]",),
        "a shard whose gradients are zeros rests, while the whole moves on",
    ),
    Mutant(
        "zero-trial-draws",
        ELEMENTWISE,
        "        with torch.random.fork_rng(devices):\n            yield",
        "        yield",
        (f"{TRIED}a_refused_optimizer_stays_as_it_was_too[Noise]",),
        "a trial moves the generator on, and dropout draws other masks than without it",
    ),
    Mutant(
        "zero-subclass-by-name",
        ELEMENTWISE,
        '    return kind.__module__.startswith("torch.optim") and kind.__name__ in ELEMENTWISE',
        "    return kind.__name__ in ELEMENTWISE",
        (f"{TRIED}a_subclass_of_torchs_own_is_tried",),
        "another's AdamW, which clips by a norm, is taken for torch's",
    ),
    Mutant(
        "zero-states-of-before-lost",
        HANDOVER,
        "                if whole:\n",
        "                if False:\n",
        (f"{REFUSED}test_each_part_gets_its_piece_of_the_states",),
        "an optimizer that makes its states at once finds none for the parts",
    ),
    Mutant(
        "zero-used-optimizer",
        HANDOVER,
        '        if float(state.get("step", 1 if state else 0)) != 0:',
        "        if False:",
        (f"{REFUSED}test_an_optimizer_that_has_made_steps_is_refused",),
        "moments of whole parameters stay behind, and training begins anew without a word",
    ),
    # ---- precision
    Mutant(
        "zero-scale-never-grows",
        PRECISION,
        "            if self.good > 0 and self.good % self.window == 0:",
        "            if False:",
        (f"{HALF}test_the_scale_is_deepspeeds", f"{HALF}test_the_scale_doubles_and_halves"),
        "after an overflow the scale stays low for ever",
        "T26",
    ),
    Mutant(
        "zero-scale-shared",
        PRECISION,
        "            return replace(name, scale=copy.copy(name.scale))",
        "            return name",
        (f"{HALF}test_precisions_by_name",),
        "two engines of one Precision change each other's scale",
    ),
    # ---- refusals
    Mutant(
        "zero-accumulate-true",
        REFUSALS,
        "    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:",
        "    if accumulate < 1:",
        (WRONG,),
        "accumulate=True is one, and 1.5 never comes",
    ),
]
