"""Mistakes in what an engine does with weights and gradients that are touched from outside."""

from tests.support.mutation import Mutant

ZERO = "course_lib/zero/"
UNITS, CUT, HOOKS = (f"{ZERO}stage3/{name}.py" for name in ("units", "unit_shards", "hooks"))
CHOICE, ENGINE, SHARDS = f"{ZERO}stage3/unit_choice.py", f"{ZERO}engine.py", f"{ZERO}shards.py"
LOADED, EDITS = f"{ZERO}outside_changes.py", f"{ZERO}gradient_guard.py"
REFUSALS = f"{ZERO}refusals.py"
STATES, BUCKETS, DDP = f"{ZERO}module_interface.py", f"{ZERO}buckets.py", f"{ZERO}ddp.py"
OUTSIDE, MISUSED = (
    "tests/course_lib/zero/test_outside.py::",
    "tests/course_lib/zero/test_misused.py::",
)
TAKEN = f"{OUTSIDE}test_what_is_taken_while_gathered_stays"
STAY = f"{OUTSIDE}test_weights_loaded_at_any_moment_stay"
MOMENT = f"{OUTSIDE}test_an_evaluation_at_any_moment_changes_nothing"
ALIKE = f"{OUTSIDE}test_what_ranks_write_differently_is_refused_on_all"
FIT = f"{OUTSIDE}test_a_state_dict_that_does_not_fit_changes_nothing_on_any_rank"
END = f"{OUTSIDE}test_after_the_end_weights_can_be_taken_out"
SECOND = f"{OUTSIDE}test_a_second_engine_on_a_model_is_refused"
COPIES = f"{OUTSIDE}test_copies_of_a_model_at_stage_3"
EDITED = f"{MISUSED}test_gradients_are_not_edited_in_vain"
NAMES = f"{MISUSED}test_what_no_engine_can_follow_is_refused_by_name"
COMPARED = (
    "tests/course_lib/zero/test_outside_changes.py::"
    "test_only_shards_that_were_written_to_are_compared"
)
SPARSE = f"{MISUSED}test_a_sparse_gradient_that_comes_is_refused"

MUTANTS = [
    Mutant(
        "outside-views-dangle",
        UNITS,
        "        if self.shown:  # the user's views",
        "        if False:  # the user's views",
        (f"{TAKEN}[3]", f"{TAKEN}[3 half]"),
        "a state_dict taken inside gathered() looks at memory that was given back",
        "T31",
    ),
    Mutant(
        "outside-kept-views-change",
        UNITS,
        "        if not self.buffer.numel() or self.shown:",
        "        if not self.buffer.numel():",
        (f"{TAKEN}[3 kept]",),
        "a state_dict is half of this step and half of the next",
        "T31",
    ),
    Mutant(
        "outside-evaluated-views-dangle",
        HOOKS,
        "                    unit.shown = unit.shown or evaluated\n",
        "",
        (f"{OUTSIDE}test_what_a_hook_puts_aside_in_an_evaluation_stays",),
        "a weight that a hook has logged looks at memory that was given back",
        "T31",
    ),
    Mutant(
        "outside-a-shape-is-spread",
        LOADED,
        "    if parameter.shape != place.shape:",
        "    if False:",
        (f"{OUTSIDE}test_data_of_another_shape_is_refused[1]",),
        "p.data of one element is spread over the whole parameter",
    ),
    Mutant(
        "outside-load-undone-at-stage-0",
        SHARDS,
        "            take_over((part, piece.slot.parameter) for piece, part in self.parts())",
        "            pass",
        (f"{STAY}[0 half-model]",),
        "weights loaded after the engine was made are back at the next step",
        "T25",
    ),
    Mutant(
        "outside-load-undone-by-the-copy",
        LOADED,
        "        if not unchanged:\n",
        "        if False:\n",
        (f"{STAY}[1 half-copy_]", f"{STAY}[3 kept half-model]", f"{STAY}[2 cpu-model]"),
        "weights loaded after the engine was made are back at the next step",
        "T25",
    ),
    Mutant(
        "outside-data-is-elsewhere-at-3",
        UNITS,
        "            bring_back(slot.name, slot.parameter, self.bucket.view(self.buffer, slot))",
        "            pass",
        (f"{STAY}[3-data]", f"{STAY}[3 kept-data]"),
        "what was put in a parameter's place inside gathered() is lost",
    ),
    Mutant(
        "outside-load-undone-at-3",
        CUT,
        "        self._write_back_changed([u for u in self.units if u.persistent or u.pinned])",
        "        pass",
        (f"{STAY}[3 kept-model]", f"{STAY}[3 kept half-copy_]"),
        "what is loaded into parameters that are kept is undone by the next gather",
    ),
    Mutant(
        "outside-ranks-write-differently",
        CUT,
        "        return [unit for unit, alike in zip(units, same, strict=True) if not alike]",
        "        return []",
        (ALIKE,),
        "each rank keeps its own rank's part of what another has not written",
        "T15",
    ),
    Mutant(
        "outside-load-between-uses",
        CUT,
        '    if away:\n        raise RuntimeError(\n            f"load_state_dict',
        '    if False:\n        raise RuntimeError(\n            f"load_state_dict',
        (ALIKE,),
        "a load breaks off half-way with torch's message about a shape of 0",
    ),
    Mutant(
        "outside-ranks-load-differently",
        STATES,
        "    if differ:",
        "    if False:",
        (f"{FIT}[1]",),
        "each rank trains on from weights of its own",
        "T15",
    ),
    Mutant(
        "outside-files-take-the-weights-along",
        CUT,
        "            unit.end_offload()",
        "            pass",
        (f"{END}[3 nvme]",),
        "with zero.engine(…) ends without weights",
    ),
    Mutant(
        "outside-whole-is-still-hooked",
        CUT,
        "        self.hooks.remove()\n        for hook in self._loads:",
        "        for hook in self._loads:",
        (f"{END}[3]", f"{END}[3 half]"),
        "a model that was given back whole is freed by its next forward",
    ),
    Mutant(
        "outside-two-engines",
        REFUSALS,
        "    if taken:\n        raise ValueError(",
        "    if False:\n        raise ValueError(",
        (f"{SECOND}[0]", f"{SECOND}[1]"),
        "each gradient is taken by both engines, and summed by the first that comes",
    ),
    Mutant(
        "outside-step-by-hand",
        REFUSALS,
        "        if reference() is not None and not reference().updating:",
        "        if False:",
        (f"{EDITED}[1-options0]",),
        "one rank's part is updated, and no other rank hears of it",
    ),
    Mutant(
        "outside-clipped-in-vain",
        EDITS,
        "                    slot.parameter.grad = elsewhere(slot.name, slot.parameter)",
        "                    slot.parameter.grad = None",
        (f"{EDITED}[1-options0]", f"{EDITED}[3-options2]"),
        "clip_grad_norm_ finds no gradient, returns 0 and changes nothing",
        "T18",
    ),
    Mutant(
        "outside-edited-in-vain",
        EDITS,
        "        if edited and not may_edit:",
        "        if False:",
        (f"{EDITED}[2-options1]", f"{MISUSED}test_at_stage_0_gradients_are_the_users_own"),
        "each rank clips by the norm of its own shard",
        "T18",
    ),
    Mutant(
        "outside-dropped-in-silence",
        EDITS,
        "        if dropped and not may_edit:",
        "        if False:",
        (f"{EDITED}[2-options1]",),
        "zero_grad between micro-batches drops what they have added up",
        "T22",
    ),
    Mutant(
        "outside-past-for-ever",
        ENGINE,
        "        self._finished = self.gradients.finished\n        self._forget()",
        "        self._forget()",
        (f"{MISUSED}test_a_bare_backward_is_dropped_by_zero_grad[2]",),
        "after one bare loss.backward() the engine refuses for ever",
    ),
    Mutant(
        "outside-another-dtype",
        REFUSALS,
        "                if p.dtype != bucket.dtype or p.device != bucket.device:",
        "                if p.device != bucket.device:",
        (
            f"{MISUSED}test_a_model_that_has_another_dtype_since_is_refused[1]",
            f"{MISUSED}test_a_model_that_has_another_dtype_since_is_refused[3]",
        ),
        "model.to(float64) is undone by the next step, or trains what no optimizer knows",
    ),
    Mutant(
        "outside-options-unread",
        REFUSALS,
        "        if name not in every:",
        "        if False:",
        (NAMES,),
        "a misspelt option is one that changes nothing",
        "T34",
    ),
    Mutant(
        "outside-inference-weights",
        REFUSALS,
        "    if made or torch.is_inference_mode_enabled():",
        "    if torch.is_inference_mode_enabled():",
        (NAMES,),
        "weights that can never be trained are cut, and fail in the first step",
    ),
    Mutant(
        "outside-sparse-gradients",
        BUCKETS,
        "    if slot.parameter.grad.layout != torch.strided:",
        "    if False:",
        (f"{SPARSE}[0]", f"{SPARSE}[3]"),
        "a sparse gradient fails somewhere in a copy, in words about layouts",
    ),
    Mutant(
        "outside-members-not-called",
        CHOICE,
        "CALLED_AS_ONE = (nn.MultiheadAttention,)",
        "CALLED_AS_ONE = ()",
        (f"{MISUSED}test_attention_whose_members_are_not_called[3]",),
        "torch's attention uses out_proj's weight without calling it",
    ),
    Mutant(
        "outside-buffers-apart",
        ENGINE,
        "            same_buffers(self.model, self.group)",
        "            pass",
        (f"{MISUSED}test_buffers_are_kept_equal_as_ddp_does[2]",),
        "each rank evaluates with what its own BatchNorm has seen",
        "T15",
    ),
    Mutant(
        "outside-ddp-buffers-apart",
        DDP,
        "            same_buffers(self.module, self.group)",
        "            pass",
        (f"{MISUSED}test_buffers_are_kept_equal_as_ddp_does[None]",),
        "buffers are each rank's own, where torch's DDP has the first rank's",
        "T15",
    ),
    Mutant(
        "outside-copies-are-hooked",
        HOOKS,
        "            if module is not own:  # a deep copy shares the hooks",
        "            if False:  # a deep copy shares the hooks",
        (COPIES,),
        "an average of the model gathers units of the engine with each forward",
    ),
    Mutant(
        "outside-placeholders-copied",
        UNITS,
        "    def __deepcopy__(self, memo: dict):",
        "    def not_a_deepcopy(self, memo: dict):",
        (COPIES,),
        "a deep copy of a model at stage 3 is one of placeholders",
        "T31",
    ),
    Mutant(
        "outside-shards-compared-unread",
        LOADED,
        "        return [sums != before for",
        "        return [sums is before for",
        (COMPARED,),
        "weights written between two offloaded steps on a GPU are back at the next step",
        "T25",
    ),
    Mutant(
        "outside-every-shard-comes-down",
        f"{ZERO}offload/host.py",
        "            changed = self._untouched.changed(shards)",
        "            changed = [True] * len(shards)",
        (COMPARED,),
        "each step brings all shards back from the GPU to compare them",
    ),
]
