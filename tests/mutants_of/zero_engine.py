"""Mistakes in course_lib/zero: engine, precision, extents, elementwise, handover, refusals."""

from tests.mutation import Mutant

ZERO = "course_lib/zero/"
ENGINE, PRECISION, EXTENTS = (
    f"{ZERO}engine.py",
    f"{ZERO}precision.py",
    "course_lib/tensor_parallel/extents.py",
)
ELEMENTWISE, HANDOVER = f"{ZERO}elementwise.py", f"{ZERO}handover.py"
REFUSALS = f"{ZERO}refusals.py"
STAGES = "tests/zero/test_stages.py::"
ONE = f"{STAGES}test_a_stage_is_one_process"
MESH = "tests/zero/test_mesh.py::test_a_model_trains_on_the_mesh_as_the_dense_one"
HALF = "tests/zero/test_precision.py::"
SCALED = f"{HALF}test_the_scale_changes_neither_norm_nor_step"
SKIP = f"{HALF}test_an_overflow_on_one_rank_makes_all_skip"
SHARD = f"{HALF}test_an_overflow_in_one_shard_makes_all_skip"
NAN = f"{HALF}test_a_nan_stops_all_ranks_and_is_named"
REFUSED = "tests/zero/test_refusals.py::"
LOOKS = f"{REFUSED}test_an_optimizer_that_looks_at_more_than_one_number_is_refused"
WRONG = f"{REFUSED}test_wrong_engines_are_refused_before_anything_is_cut"
MISUSED = "tests/zero/test_gradients.py::test_what_would_train_something_else_is_refused"
BROKEN = "tests/zero/test_gradients.py::test_after_a_broken_step_the_next_is_right"

MUTANTS = [
    Mutant(
        "zero-mean-over-ranks-alone",
        ENGINE,
        "            factor = 1.0 / (self.group.size() * self.accumulate)",
        "            factor = 1.0 / self.group.size()",
        (f"{ONE}[0-accumulated]", f"{ONE}[2-four]"),
        "the gradients of k micro-batches are k times too large",
        "T22",
    ),
    Mutant(
        "zero-mean-of-means",
        ENGINE,
        "        return factor / (all_reduce(own, self.group, donated=True).item() or 1.0)",
        "        return factor / self.group.size() / (own.item() or 1.0)",
        (f"{ONE}[0-tokens]", f"{ONE}[3-tokens accumulated]"),
        "each rank divides by its own tokens: a token counts more where there are few",
        "T19",
    ),
    Mutant(
        "zero-tokens-of-the-last",
        ENGINE,
        "            factor, self._tokens = 1.0, (self._tokens or 0.0) + float(tokens)",
        "            factor, self._tokens = 1.0, float(tokens)",
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
        "zero-norm-of-the-shard",
        ENGINE,
        "        over_dp = (self.group,) if self.stage else ()",
        "        over_dp = ()",
        (f"{ONE}[1-clipped]", f"{ONE}[3-clipped]", f"{MESH}[1-2x2]"),
        "the first rank's shard is taken for the whole",
        "T18",
    ),
    Mutant(
        "zero-norm-counts-copies",
        ENGINE,
        "        over_dp = (self.group,) if self.stage else ()",
        "        over_dp = (self.group,)",
        (f"{ONE}[0-clipped]",),
        "at stage 0 every rank's copy of the gradients is counted",
        "T18",
    ),
    Mutant(
        "zero-norm-of-shared-heads-twice",
        EXTENTS,
        "                    Extent(start * row, stop * row, over, holders),",
        "                    Extent(start * row, stop * row, over),",
        (f"{MESH}[1-2x2-shared]", f"{MESH}[3-2x2-shared]"),
        "key/value heads that two ranks hold are counted on both",
        "T18",
    ),
    Mutant(
        "zero-norm-of-copies-over-tp",
        EXTENTS,
        "            over = () if p in whole or tp is None else (tp,)",
        "            over = () if tp is None else (tp,)",
        (f"{MESH}[0-2x2]", f"{MESH}[2-2x2]"),
        "what is the same on all tp ranks is counted on each",
        "T18",
    ),
    Mutant(
        "zero-clip-before-unscaling",
        ENGINE,
        "            self.norm = own.item() * factor",
        "            self.norm = own.item()",
        (f"{ONE}[1-tokens accumulated]", f"{SCALED}[None]", f"{SCALED}[0.3]"),
        "the norm is that of the scaled gradients",
        "T26",
    ),
    Mutant(
        "zero-steps-off-the-boundary",
        ENGINE,
        "        return self._begun == self.accumulate",
        "        return self._begun > 0",
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
        "zero-overflow-here-alone",
        ENGINE,
        "            good = math.isfinite(self.norm)",
        "            good = not self._not_finite()",
        (f"{SHARD}[1]", f"{SHARD}[2]"),
        "the rank that saw the overflow skips, and the others step",
        "T26",
    ),
    Mutant(
        "zero-steps-on-overflow",
        ENGINE,
        "        if good:\n            if self.clip is not None:",
        "        if True:\n            if self.clip is not None:",
        (f"{SKIP}[0-first]", f"{SKIP}[3-last]"),
        "the states of all moments become NaN",
        "T26",
    ),
    Mutant(
        "zero-nan-goes-through",
        ENGINE,
        "        elif not good:\n            found",
        "        elif False:\n            found",
        (f"{NAN}[0]", f"{NAN}[2]"),
        "a NaN is a skipped step without a word, for ever",
    ),
    Mutant(
        "zero-nan-keeps-the-step",
        ENGINE,
        "            self._forget()\n            raise FloatingPointError(",
        "            raise FloatingPointError(",
        (f"{NAN}[1]",),
        "after a NaN the engine is in the middle of a step that cannot end",
    ),
    Mutant(
        "zero-broken-backward-keeps-its-place",
        ENGINE,
        "            self.gradients.abandon()\n            self._forget()\n            raise",
        "            self.gradients.abandon()\n            raise",
        (f"{BROKEN}[0-backward]", f"{BROKEN}[3-backward]"),
        "a backward that broke off counts as one",
    ),
    Mutant(
        "zero-backward-twice",
        ENGINE,
        "        if self._pending:",
        "        if False:",
        (f"{MISUSED}[0]",),
        "two backwards before a step are two micro-batches, or one too many",
    ),
    Mutant(
        "zero-past-the-engine",
        ENGINE,
        "            if not self._begun and self.gradients.finished != self._finished:",
        "            if False:",
        (f"{MISUSED}[1]",),
        "loss.backward() and engine.step(): nothing is ever trained",
    ),
    Mutant(
        "zero-new-parameter",
        ENGINE,
        "        check_parameters(self.model, self._trained)",
        "        pass",
        (f"{MISUSED}[0]", f"{MISUSED}[3]"),
        "a parameter that came later is trained by each rank for itself, or by none",
    ),
    Mutant(
        "zero-optimizer-of-another-model",
        ENGINE,
        "        check_optimizer(model, optimizer)\n",
        "",
        (WRONG,),
        "an optimizer that knows other parameters trains nothing",
    ),
    # ---- the optimizer
    Mutant(
        "zero-any-optimizer",
        ENGINE,
        "            check_elementwise(optimizer)",
        "            pass",
        (WRONG,),
        "Adafactor factors each rank's shard as if it were a matrix",
    ),
    Mutant(
        "zero-tried-at-lr-0",
        ELEMENTWISE,
        '        options["lr"] = 0.1',
        "        pass",
        (f"{LOOKS}[rows at lr 0]",),
        "at the start of a warm-up every optimizer does nothing, to the whole and to a shard",
    ),
    Mutant(
        "zero-tried-on-itself",
        ELEMENTWISE,
        "], defaultdict(dict)\n",
        "], optimizer.state\n",
        (f"{REFUSED}test_elementwise_optimizers_are_taken[adam]",),
        "the states of the trial stay in the optimizer",
    ),
    Mutant(
        "zero-cut-through-rows-alone",
        ELEMENTWISE,
        "    for group in optimizer.param_groups:\n        try:",
        "    for group in optimizer.param_groups[:1]:\n        try:",
        (f"{LOOKS}[one group of two]",),
        "what another group asks for is never tried",
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
    Mutant(
        "zero-groups-run-together",
        HANDOVER,
        '        group["params"] = own',
        '        group["params"] = [p for _, p in shards.parts()] if group is '
        "optimizer.param_groups[0] else []",
        (f"{ONE}[1-decay]", f"{ONE}[0-decay]"),
        "all parameters follow the first group's decay",
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
        "zero-scale-without-patience",
        PRECISION,
        "        if self.left <= 0:",
        "        if True:",
        (f"{HALF}test_the_scale_is_deepspeeds", f"{HALF}test_the_scale_doubles_and_halves"),
        "the first overflow halves the scale",
    ),
    Mutant(
        "zero-scale-below-its-least",
        PRECISION,
        "max(self.least, self.value / 2), 1",
        "self.value / 2, 1",
        (f"{HALF}test_the_scale_doubles_and_halves",),
        "a scale below 1 loses what it should have saved",
    ),
    Mutant(
        "zero-scale-shared",
        PRECISION,
        "            return replace(name, scale=copy.copy(name.scale))",
        "            return name",
        (f"{HALF}test_precisions_by_name",),
        "two engines of one Precision change each other's scale",
    ),
    Mutant(
        "zero-scale-not-undone",
        ENGINE,
        "        factor = 1.0 if self.precision.scale is None else 1.0 / self.precision.scale.value"
        "\n",
        "        factor = 1.0\n",
        (f"{SCALED}[None]",),
        "the gradients are the scale's times too large, and clipped the worse",
        "T26",
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
    Mutant(
        "zero-stage-true",
        REFUSALS,
        "    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):",
        "    if stage not in (0, 1, 2, 3):",
        (WRONG,),
        "stage=True is stage 1",
    ),
    Mutant(
        "zero-clip-to-nothing",
        REFUSALS,
        "    if clip is not None and not clip > 0:",
        "    if False:",
        (WRONG,),
        "clip=0 multiplies every gradient with 0",
    ),
]
