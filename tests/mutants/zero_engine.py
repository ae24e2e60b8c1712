"""Mistakes in course_lib/zero: engine, precision, extents, elementwise, handover, refusals."""

from tests.support.mutation import Mutant

ZERO = "course_lib/zero/"
ENGINE = f"{ZERO}engine.py"
PRECISION = f"{ZERO}precision.py"
HANDOVER = f"{ZERO}optimizer_parts.py"
MICROS = f"{ZERO}micro_batches.py"
REFUSALS = f"{ZERO}refusals.py"
STAGES = "tests/course_lib/zero/test_stages.py::"
ONE = f"{STAGES}test_a_stage_is_one_process"
HALF = "tests/course_lib/zero/test_precision.py::"
REFUSED = "tests/course_lib/zero/test_refusals.py::"
WRONG = f"{REFUSED}test_wrong_engines_are_refused_before_anything_is_cut"
MISUSED = "tests/course_lib/zero/test_gradients.py::test_what_would_train_something_else_is_refused"

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
        ENGINE,
        "        check_optimizer(self.model, self.optimizer)\n",
        "",
        (WRONG,),
        "an optimizer that knows other parameters trains nothing",
    ),
    # ---- the optimizer
    Mutant(
        "zero-subclass-by-name",
        HANDOVER,
        "    return _is_torchs(optimizer) and type(optimizer).__name__ in ELEMENTWISE",
        "    return type(optimizer).__name__ in ELEMENTWISE",
        (f"{REFUSED}test_another_optimizer_wants_its_users_word",),
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
