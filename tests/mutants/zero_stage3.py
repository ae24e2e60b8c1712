"""Mistakes in course_lib/zero/stage3."""

from tests.support.mutation import Mutant

STAGE3 = "course_lib/zero/stage3/"
UNITS, CUT, HOOKS = f"{STAGE3}units.py", f"{STAGE3}unit_shards.py", f"{STAGE3}hooks.py"
CHOICE, GRADIENTS = f"{STAGE3}unit_choice.py", f"{STAGE3}gradients.py"
PREFETCH, BUILD = f"{STAGE3}prefetch.py", f"{STAGE3}options.py"
TOGETHER = f"{STAGE3}branch_guard.py"
ENGINE = "course_lib/zero/engine.py"
TESTS = "tests/course_lib/zero/test_stage3.py::"
ONE = "tests/course_lib/zero/test_stages.py::test_a_stage_is_one_process"
POISON = "tests/course_lib/zero/test_gradients.py::test_nobody_reads_a_buffer_after_its_use"
UNDER = "tests/course_lib/zero/test_gradients.py::test_buckets_leave_under_the_backward"
SHARDING = "tests/course_lib/zero/test_sharding.py::"
HELD = f"{SHARDING}test_what_is_held_to_the_byte"
FEW = f"{SHARDING}test_few_units_are_whole_at_stage_3"
LEAN = f"{TESTS}test_lean_gathers_twice_and_fast_once_for_each_backward"
OUTSIDE = f"{TESTS}test_a_weight_used_where_its_unit_does_not_run_says_so"
WRITE = f"{TESTS}test_gathered_with_write_reaches_every_rank"
WHOLE = f"{TESTS}test_no_rank_ever_holds_the_model_whole"
META = f"{TESTS}test_a_model_from_the_meta_device_is_the_one_made_whole"
BRANCH = f"{TESTS}test_ranks_that_take_different_branches_hear_which"

USE = f"{STAGE3}hooks.py"
FROZEN = "tests/course_lib/zero/test_frozen.py::test_frozen_weights_come_and_go_like_others"

CONVERTED = """        if self.precision.dtype is not None:
            self.model.to(self.precision.dtype)
"""
OUTLINED = """        device = computes_on(self.group)
        hollow = self.stage == 3 and outlined(self.model, self.optimizer, device)
"""
KEPT = """\
        unit = Unit("persistent parameters", model, Bucket(slots, n), together, home.store())
        unit.persistent = True
        yield unit
"""
OTHERS = """    for name, module, named in chosen:
        for slots in end_to_end(pair for pair in named if _bytes(pair[1]) >= persist):
            yield Unit(name, module, Bucket(slots, n), together, home.store())
"""

UNUSED = "tests/course_lib/zero/test_unused.py::"

MUTANTS = [
    Mutant(
        "zero-3-second-error-is-told",
        GRADIENTS,
        "            unit.give_up()",
        "            pass",
        (f"{TESTS}test_what_went_wrong_first_is_what_is_said",),
        "a message that will never come hides what broke the backward",
    ),
    Mutant(
        "zero-3-unused-is-not-read",
        GRADIENTS,
        "                unit.uses += 1",
        "                pass",
        (f"{UNUSED}test_it_is_one_process_whatever_has_no_gradient[quiet_in_one-3-2]",),
        "a weight that is read and takes no gradient is gone before its backward",
    ),
    Mutant(
        "zero-3-graph-by-its-first-branch",
        "course_lib/zero/buckets.py",
        "            todo += [before for before, _ in node.next_functions]",
        "            todo += [before for before, _ in node.next_functions[:1]]",
        (
            f"{UNUSED}test_it_is_one_process_whatever_has_no_gradient[never_aside-3-2]",
            f"{UNUSED}test_it_is_one_process_whatever_has_no_gradient[never_aside-2-2]",
        ),
        "gradients that come are not waited for, and their bucket has left",
    ),
    Mutant(
        "zero-3-frozen-whole-to-the-end",
        USE,
        "                unit.free_if_done()",
        "                pass",
        (f"{FROZEN}[adapters-plain-2]", f"{FROZEN}[some blocks-plain-2]"),
        "the whole model is whole in the backward where weights are frozen: runs, does not shard",
    ),
    Mutant(
        "zero-3-frozen-next-comes-first",
        USE,
        '                if hasattr(x, "readers"):',
        "                if False:",
        (f"{FROZEN}[adapters-plain-2]",),
        "the next unit is gathered before a frozen one goes: two are whole",
    ),
    Mutant(
        "zero-3-parameter-lists-are-units",
        CHOICE,
        "        if inner not in units and not is_called(inner):",
        "        if False:",
        ("tests/course_lib/zero/test_stages.py::test_ragged_and_empty_shards[3-3]",),
        "a unit of what is never called is never gathered",
    ),
    Mutant(
        "zero-3-mute-units",
        CHOICE,
        "        if mute:",
        "        if False:",
        (f"{TESTS}test_settings_that_cannot_be_are_refused",),
        "a unit without a forward is taken, and the first step meets placeholders",
    ),
    Mutant(
        "zero-3-nothing-is-freed",
        UNITS,
        "        if self.persistent or self.pinned:\n            return",
        "        return",
        (f"{HELD}[3-2-between steps]", f"{FEW}[0]"),
        "every number is right, and after one forward each rank holds the whole model",
        "T23",
    ),
    Mutant(
        "zero-3-does-not-wait",
        UNITS,
        "            arriving.wait()\n        self.whole = True",
        "            pass\n        self.whole = True",
        (f"{POISON}[3-0]", f"{POISON}[3-1]"),
        "a unit is used while its shards are still on their way",
        "T33",
    ),
    Mutant(
        "zero-3-silent-placeholder",
        UNITS,
        "        slot.parameter.__class__ = Promise",
        "        pass",
        (f"{OUTSIDE}[sum]", f"{TESTS}test_a_placeholder_is_not_saved_by_mistake"),
        "a sum over a placeholder is 0, and nobody says so; a checkpoint holds nothing",
        "T31",
    ),
    Mutant(
        "zero-3-transposed-placeholder",
        UNITS,
        'NUMBERS = {"T", "mT", "H", "mH", "real", "imag"}',
        'NUMBERS = {"real", "imag"}',
        (f"{OUTSIDE}[transpose]",),
        "the transpose of nothing is multiplied with, and the error speaks of shapes",
        "T31",
    ),
    Mutant(
        "zero-3-stale-while-gathered",
        CUT,
        "            if unit.persistent or unit.pinned:\n                unit.gather()",
        "            if unit.persistent:\n                unit.gather()",
        (f"{TESTS}test_a_weight_used_while_gathered_is_there",),
        "after a step inside `gathered` the block shows the weights of before",
    ),
    Mutant(
        "zero-3-write-stays-on-one-rank",
        CUT,
        "                unit.buffer.copy_(broadcast(unit.buffer, self.group))\n",
        "                pass\n",
        (f"{WRITE}[as is]",),
        "each rank keeps its own rank's part of what was written",
        "T31",
    ),
    Mutant(
        "zero-3-write-past-the-master",
        CUT,
        "        self.home.rewritten(i, self.own[i], shard)",
        "        pass",
        (f"{WRITE}[bfloat16]",),
        "the next step brings back the master that nobody has written to",
        "T25",
    ),
    Mutant(
        "zero-3-unit-stays-after-its-gradient",
        GRADIENTS,
        "        unit.free_if_done()\n",
        "",
        (f"{FEW}[0]",),
        "at the end of a backward the whole model lies on every rank",
        "T23",
    ),
    Mutant(
        "zero-3-kept-ones-come-last",
        CUT,
        f"    for slots in end_to_end(small):\n{KEPT}{OTHERS}",
        f"{OTHERS}    for slots in end_to_end(small):\n{KEPT}",
        (f"{SHARDING}test_what_is_kept_does_not_hold_up_the_units", f"{UNDER}[3-60]"),
        "small parameters of all layers are in the first bucket, so nothing leaves before the end",
    ),
    Mutant(
        "zero-3-keeps-without-bound",
        HOOKS,
        "        return others + unit.nbytes <= self.keep",
        "        return True",
        (f"{LEAN}[1]", f"{FEW}[1]", f"{SHARDING}test_what_is_kept_has_a_bound"),
        "whatever was asked for, every unit stays",
    ),
    Mutant(
        "zero-3-tied-module-forgotten",
        HOOKS,
        "                by_module.setdefault(module, []).append(unit)\n    return by_module",
        "                pass\n    return by_module",
        (f"{ONE}[3-tied]",),
        "the module that shares a weight finds a placeholder",
        "T17",
    ),
    Mutant(
        "zero-3-never-ahead",
        PREFETCH,
        "            for one in self._before[place:last]:\n                one.start()",
        "            pass",
        (f"{TESTS}test_as_many_units_are_under_way_as_asked_for[2]",),
        "each unit is asked for when it is needed, and the wait is not hidden",
    ),
    Mutant(
        "zero-3-nobody-asks",
        PREFETCH,
        "            self.together.ask(unit.name)",
        "            pass",
        (f"{BRANCH}[0-0]",),
        "two ranks gather units of two sizes, and gloo ends the process",
        "T30",
    ),
    Mutant(
        "zero-3-nobody-compares",
        TOGETHER,
        "        if all(a + b == 255 for a, b in zip(most[:4], most[4:], strict=True)):",
        "        if True:",
        (f"{TESTS}test_units_gathered_in_another_order_are_found_before_the_step",),
        "two units of one size get each other's numbers, and training goes on",
        "T30",
    ),
    Mutant(
        "zero-3-says-not-who-waits",
        TOGETHER,
        "waits in no gather",
        "is somewhere",
        (f"{TESTS}test_a_rank_that_evaluates_alone_hears_who_never_came",),
        "the error says that something was not received",
        "T30",
    ),
    Mutant(
        "zero-3-made-whole-first",
        CUT,
        "                unit.keep_own(slot, value(name, p, fill))\n"
        "                unit.promise(slot)\n"
        "                if not unit.missing:",
        "                self.__dict__.setdefault('kept', []).append(value(name, p, fill))\n"
        "                unit.keep_own(slot, self.kept[-1])\n"
        "                unit.promise(slot)\n"
        "                if not unit.missing:",
        (f"{WHOLE}[as is-4-4]",),
        "the model is whole on every rank before it is cut",
        "T31",
    ),
    Mutant(
        "zero-3-outline-made-real",
        ENGINE,
        f"{CONVERTED}{OUTLINED}",
        f"{OUTLINED}{CONVERTED}",
        (f"{META}[config2-bfloat16]", f"{WHOLE}[bfloat16-6-2]"),
        "a shape without memory becomes a tensor without numbers, and those are what is trained",
        "T31",
    ),
    Mutant(
        "zero-3-untied-on-meta",
        BUILD,
        "                if old not in outlines:\n",
        "                if True:\n",
        (f"{META}[config0-as is]",),
        "a tied weight becomes two",
        "T17",
    ),
]
