"""Mistakes in what course_lib/train makes of stages, offloads and precisions, and says of them."""

from tests.mutation import Mutant

HOME = "course_lib/train/"
LAYOUTS = "tests/train/test_layouts.py::"
SAME = LAYOUTS + "test_all_stages_and_offloads_make_the_same_steps[most]"
MORE = LAYOUTS + "test_so_does_what_else_a_run_can_be"
ON = LAYOUTS + "test_a_run_goes_on_to_the_last_bit"
BEGUN = LAYOUTS + "test_what_was_sharded_is_begun_from_on_another_mesh"
NEW = "tests/train/test_new_model.py::"
NEVER = NEW + "test_a_new_model_is_whole_on_no_rank"
OPTIONS = "tests/train/test_options.py::"
WRONG = OPTIONS + "test_a_wrong_call_is_refused_by_name"
TEXT = "tests/train/test_text.py::"
JOURNAL = "tests/train/test_journal.py::"
SHOWN = "tests/train/test_shown.py::"
FIGURE = "tests/test_figures_run_summary.py::"


def mutant(file: str, name: str, old: str, new: str, tests: tuple, why: str, trap=None) -> Mutant:
    return Mutant(f"layouts-{name}", f"{HOME}{file}.py", old, new, tests, why, trap)


MUTANTS = [
    mutant(
        "program",
        "stage-0-always",
        "stage=options.stage, mesh=mesh, precision",
        "stage=0, mesh=mesh, precision",
        (SAME,),
        "the stage that was typed is not the one that runs",
        "T34",
    ),
    mutant(
        "program",
        "nothing-offloaded",
        "offload=offload, **of_stage_3",
        "offload=None, **of_stage_3",
        (SAME,),
        "what was to be offloaded stays on the device",
        "T34",
    ),
    mutant(
        "program",
        "units-unheard",
        '"units": units, "keep": keep',
        '"units": None, "keep": keep',
        (NEW + "test_units_are_those_that_were_named",),
        "other units are gathered than those that were named",
        "T34",
    ),
    mutant(
        "program",
        "lean-always",
        "FAST if options.fast else LEAN\n        of_stage_3",
        "LEAN\n        of_stage_3",
        (LAYOUTS + "test_fast_gathers_once_and_lean_twice",),
        "--fast changes nothing",
        "T34",
    ),
    mutant(
        "program",
        "tokens-of-this-rank",
        "tokens=batch.count / divisor)",
        "tokens=batch.total / divisor)",
        (LAYOUTS + "test_replicas_change_neither_loss_nor_gradient",),
        "a sum is divided by every token once a rank",
        "T19",
    ),
    mutant(
        "program",
        "sums-too-large-for-fp16",
        "    divisor = 1 << (options.micro_rows * options.length).bit_length()\n",
        "    divisor = 1\n",
        (MORE,),
        "half of a short run is lost to overflows",
    ),
    mutant(
        "checks",
        "offload-of-parameters-forgotten",
        "    if options.stage == 3 and options.offload_parameters:\n",
        "    if options.stage == 4:\n",
        (OPTIONS + "test_what_the_engine_is_told_to_offload",),
        "at stage 3 the parameters stay on the device",
        "T34",
    ),
    mutant(
        "checks",
        "any-unit",
        "        if not hits:\n",
        "        if hits is None:\n",
        (f"{WRONG}[no such unit]",),
        "a unit that there is not is left out without a word",
        "T34",
    ),
    mutant(
        "checks",
        "stage-3-s-options-anywhere",
        "    if options.stage != 3:\n",
        "    if options.stage == 4:\n",
        (f"{WRONG}[units below stage 3]", f"{WRONG}[fast below stage 3]"),
        "an option of stage 3 changes nothing at stage 2",
        "T34",
    ),
    mutant(
        "options",
        "old-names-unknown",
        '        if near:\n            raise Refused(f"there is no option {text};',
        '        if near == text:\n            raise Refused(f"there is no option {text};',
        (f"{WRONG}[the old name of precision]",),
        "--dtype is told the nearest letters, and not what has taken its place",
    ),
    mutant(
        "measured",
        "first-step",
        "        if self.report is not None or not self._updates:\n",
        "        if self.report is not None:\n",
        (SAME,),
        "the step that makes the states is taken for one between states",
    ),
    mutant(
        "measured",
        "overflow-measured",
        "        if engine.skipped > skipped:",
        "        if engine.skipped < skipped:",
        (LAYOUTS + "test_a_step_without_an_update_is_not_what_is_measured",),
        "a step without an update is held against the formulas of one with it",
    ),
    mutant(
        "measured",
        "peak-of-the-step-alone",
        '"peak": held["device"] + above,',
        '"peak": above,',
        (SAME,),
        "the peak leaves out what is held",
    ),
    mutant(
        "model",
        "one-seed-for-all",
        'torch.manual_seed(mix(self.seed, int.from_bytes(digest[:4], "big")))',
        "torch.manual_seed(self.seed)",
        (NEW + "test_a_new_model_does_not_repeat_itself",),
        "weights of one shape begin alike",
    ),
    mutant(
        "model",
        "whole-at-stage-3",
        "    if options.stage < 3:\n",
        "    if options.stage < 4:\n",
        (NEVER,),
        "at stage 3 every rank first holds the whole model",
    ),
    mutant(
        "model",
        "first-part-for-all",
        "            source = dense.narrow(piece.dim, start, stop - start)\n",
        "            source = dense.narrow(piece.dim, at, stop - start)\n",
        (NEW + "test_a_new_model_is_the_same_on_any_mesh",),
        "all tp ranks begin with the same part",
    ),
    mutant(
        "journal",
        "validated-at-any-end",
        "step % options.validate_every == 0:",
        "(result.stop or step % options.validate_every == 0):",
        (ON,),
        "a stop leaves a trace in the curve",
    ),
    mutant(
        "journal",
        "destroyed-weights-saved",
        "            if not math.isfinite(loss):  # the same on all ranks\n",
        "            if loss is None:\n",
        (JOURNAL + "test_destroyed_weights_are_not_saved",),
        "a run ends well with weights that no forward survives",
    ),
    mutant(
        "journal",
        "last-step-unseen",
        "        elif options.validate_every and step == options.steps:",
        "        elif step < 0:",
        (JOURNAL + "test_destroyed_weights_are_not_saved[50]",),
        "what the last step has destroyed is saved",
    ),
    mutant(
        "model",
        "resumed-whole",
        "        return model, Later()\n",
        '        materialize(model, "cpu")\n        return model, Later()\n',
        (NEW + "test_a_model_that_is_found_again_is_whole_on_no_rank_either",),
        "what fits at stage 3 does not fit when it goes on",
    ),
    mutant(
        "text",
        "validated-on-what-is-trained",
        "        training, self.rest = held_back(corpus, options.held_back)\n",
        "        training, self.rest = corpus, held_back(corpus, options.held_back)[1]\n",
        (TEXT + "test_no_training_row_is_held_back",),
        "the validation loss is one of training",
    ),
    mutant(
        "text",
        "validated-with-dropout",
        "        model.eval()\n",
        "",
        (TEXT + "test_a_validation_is_without_dropout_and_leaves_no_trace",),
        "the validation loss is another each time",
    ),
    mutant(
        "text",
        "left-in-evaluation",
        "            model.train(training)\n",
        "            pass\n",
        (TEXT + "test_a_validation_is_without_dropout_and_leaves_no_trace",),
        "dropout ends with the first validation",
    ),
    mutant(
        "text",
        "mean-of-this-replica",
        "return every.loss / every.tokens if every.tokens else None",
        "return total / count if every.tokens else None",
        (TEXT + "test_a_validation_is_the_mean_over_all_replicas",),
        "each replica has a validation loss of its own",
        "T19",
    ),
    mutant(
        "report",
        "time-of-a-validation",
        "            self.since += time.perf_counter() - began\n",
        "            assert began\n",
        (SHOWN + "test_what_is_no_training_takes_no_time",),
        "a save makes the training slow",
    ),
    Mutant(
        "layouts-a-bar-in-a-pipe",
        "course_lib/train/__main__.py",
        "    if stream.isatty():\n",
        "    if stream:\n",
        (SHOWN + "test_lines_where_it_is_piped",),
        "a log is full of bars",
    ),
    Mutant(
        "layouts-cursor-hidden",
        "course_lib/train/__main__.py",
        "console.show_cursor = lambda show=True: False",
        "console.hide_cursor = lambda show=True: False",
        (SHOWN + "test_a_bar_on_a_terminal",),
        "a killed run leaves a terminal without a cursor",
    ),
    Mutant(
        "layouts-figure-without-formula",
        "course_lib/figures/run_summary.py",
        '        _mark(axis, y, formula.get("device", 0) / size, high=2 * narrow)\n',
        "",
        (FIGURE + "test_bars_and_marks_are_where_the_bytes_are",),
        "the picture says nothing of the formula",
    ),
    Mutant(
        "layouts-figure-held-twice",
        "course_lib/figures/run_summary.py",
        '(report["peak"] - device) / size}',
        'report["peak"] / size}',
        (FIGURE + "test_the_device_s_bar_ends_at_its_peak",),
        "what is held is drawn twice, and the bar ends beyond the peak",
    ),
    Mutant(
        "train-optimizer-goes-anyway",
        "course_lib/train/checks.py",
        '{"optimizer": options.offload if options.offload_optimizer else None}',
        '{"optimizer": options.offload}',
        (OPTIONS + "test_what_the_engine_is_told_to_offload",),
        "an option without an effect",
    ),
    Mutant(
        "train-nothing-goes",
        "course_lib/train/checks.py",
        '    if stay and (options.offload == "none" or len(stay) == 2):',
        '    if stay and options.offload == "none":',
        (WRONG + "[neither goes]",),
        "an offload of nothing ends in the engine's words, not the option's",
    ),
]
