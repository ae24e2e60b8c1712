"""Mistakes in course_lib/zero/offload/."""

from tests.support.mutation import Mutant

HERE = "course_lib/zero/offload/"
TESTS = "tests/course_lib/zero/offload/"

SAME = TESTS + "test_same.py::test_offload_changes_no_bit"
MASTERS = TESTS + "test_same.py::test_masters_go_away_too"
MANY = TESTS + "test_same.py::test_one_rank_and_four"
HELD = TESTS + "test_held.py::test_every_byte_is_in_its_tier"
MOVED = TESTS + "test_traffic.py::test_a_step_moves_what_the_formula_says"
KERNEL = TESTS + "test_traffic.py::test_the_kernel_counts_the_same_bytes"
OVERFLOW = TESTS + "test_traffic.py::test_an_overflow_leaves_the_files_as_they_were"
HOOKS = TESTS + "test_traffic.py::test_hooks_of_a_step_run_once"
ACCIDENTS = TESTS + "test_accidents.py::"
SLOW = ACCIDENTS + "test_a_slow_disk_changes_no_bit"
FULL = ACCIDENTS + "test_a_disk_that_fills_up_stops_every_rank"
FROZEN = TESTS + "test_frozen_files.py::"
SMALL = ACCIDENTS + "test_a_disk_too_small_is_met_before_the_first_step"
OWN = TESTS + "test_own_states.py::"
FRESH = OWN + "test_a_fresh_engine_goes_on_where_another_was"
STAY = "tests/course_lib/zero/test_outside.py::test_weights_loaded_at_any_moment_stay"
SHORT = ACCIDENTS + "test_a_file_that_was_cut_short_is_named"
FOLDERS = ACCIDENTS + "test_folders_that_cannot_be_used_are_named"
ENDS = ACCIDENTS + "test_a_program_that_ends_without_closing_leaves_nothing"
PLANS = TESTS + "test_plans.py::"
REFUSED = PLANS + "test_what_does_not_go_together_is_refused"
WORD = PLANS + "test_a_word_is_a_plan[3]"
LENT = PLANS + "test_an_optimizer_that_is_not_torchs_cannot_be_lent_buckets"
STATES = PLANS + "test_the_states_of_torchs_optimizers_are_known"
APART = PLANS + "test_parts_of_a_file_do_not_touch"
ROUND = PLANS + "test_a_file_gives_back_what_it_was_given"
LIMIT = TESTS + "test_larger.py::test_states_are_not_in_memory_by_the_kernels_own_limit"


def mutant(name: str, file: str, old: str, new: str, tests, why: str, trap=None) -> Mutant:
    return Mutant(f"offload-{name}", HERE + file, old, new, tests, why, trap)


MUTANTS = [
    mutant(
        "gradients-not-added",
        "host.py",
        "part.grad = new if part.grad is None else part.grad.add_(new)",
        "part.grad = new",
        (SAME + "[2-cpu]", SAME + "[3-cpu-cpu]"),
        "of several micro-batches the last one counts",
        "T22",
    ),
    Mutant(
        "offload-shards-left-old",
        "course_lib/zero/engine.py",
        "            self.shards.gather()\n",
        "",
        (SAME + "[1-cpu]", MANY + "[1-cpu-4]"),
        "the update stays on the host and the model never moves",
    ),
    mutant(
        "host-is-the-device",
        "host.py",
        '    with tier("host"):\n        pinned =',
        '    with tier("device"):\n        pinned =',
        (HELD + "[1-cpu-False]",),
        "what was offloaded lies where it was before",
    ),
    mutant(
        "states-kept-in-memory",
        "file_bucket.py",
        "                    new[name] = IN_FILE\n",
        "                    new[name] = x.clone()\n",
        (HELD + "[3-nvme-False]", LIMIT),
        "the states go to files and stay in memory as well",
        "T23",
    ),
    mutant(
        "update-races-the-read",
        "pipeline.py",
        "            reading.wait()\n",
        "",
        (SLOW,),
        "a bucket steps on numbers that have not come yet",
        "T33",
    ),
    mutant(
        "memory-used-while-written",
        "pipeline.py",
        "            memory, pending = leaving.popleft()\n            pending.wait()\n",
        "            memory, pending = leaving.popleft()\n",
        (SLOW,),
        "the next bucket is read into memory that is still being written",
        "T33",
    ),
    mutant(
        "sets-without-bound",
        "nvme.py",
        "            count = min(SETS, len(self.kept))\n",
        "            count = len(self.kept)\n",
        (HELD + "[3-nvme-True]",),
        "every bucket has memory of its own: nothing was offloaded",
    ),
    mutant(
        "halves-not-written",
        "pipeline.py",
        "            part = memory[: kept[i].layout.nbytes]\n",
        "            part = memory[: kept[i].layout.kept_bytes]\n",
        (MASTERS + "[3-nvme-nvme-bfloat16]", MOVED + "[3-nvme-nvme-True]"),
        "the masters move and the parameters that are used do not",
        "T25",
    ),
    Mutant(
        "offload-holdings-without-shards",
        "course_lib/zero/stage3/unit_shards.py",
        "for x in (unit.shard, unit.buffer))]",
        "for x in (unit.buffer,))]",
        (HELD + "[3-cpu-False]",),
        "the shards on the device are not among what a rank holds",
    ),
    Mutant(
        "offload-holdings-without-sets",
        "course_lib/zero/offload/nvme.py",
        "return [*self._sets, *self.reads.memory(), ",
        "return [*self.reads.memory(), ",
        (HELD + "[3-nvme-False]",),
        "the memory that files go through is not among what a rank holds",
    ),
    mutant(
        "halves-in-full",
        "nvme.py",
        "        half = shard.dtype if self.master and in_files else None\n",
        "        half = torch.float32 if self.master and in_files else None\n",
        (FROZEN + "test_files_are_as_large_as_the_estimate_says[3]",),
        "16-bit parameters take 32 bits of the disk",
    ),
    mutant(
        "writing-forgotten",
        "nvme.py",
        "        self._write(kept, values)\n",
        "",
        (STAY + "[3 nvme-engine]", STAY + "[3 half nvme-model]"),
        "weights that were loaded through `gathered` are lost with the next step",
        "T25",
    ),
    mutant(
        "reads-without-bound",
        "units.py",
        "AHEAD = 2 ",
        "AHEAD = 9 ",
        (HELD + "[3-nvme-nvme-True]",),
        "memory for nine shards where two are read ahead",
    ),
    mutant(
        "padding-has-no-file",
        "units.py",
        "        if self.place is None:\n            return there\n",
        "",
        (MANY + "[3-nvme-nvme-4]",),
        "a rank whose shard is padding alone looks for its file",
        "T24",
    ),
    mutant(
        "shard-read-from-the-start",
        "units.py",
        "self.reads.io.read(self.place.file, self.place.offset, part)",
        "self.reads.io.read(self.place.file, 0, part)",
        (MASTERS + "[3-nvme-nvme-bfloat16]",),
        "the masters' bytes are taken for the parameters in 16 bits",
    ),
    mutant(
        "page-cache",
        "files.py",
        'flags | getattr(os, "O_DIRECT", 0)',
        "flags",
        (KERNEL,),
        "reads are served from memory and look like a disk's",
    ),
    mutant(
        "cut-short-unseen",
        "files.py",
        "            if count == 0 or (count % ALIGN and done + count < len(memory)):\n",
        "            if count == 0:\n                break\n            if count < 0:\n",
        (SHORT,),
        "what a file no longer has stays what was in memory before",
    ),
    mutant(
        "blocks-on-one-another",
        "files.py",
        "self._pool.submit(call, file, offset + first, data",
        "self._pool.submit(call, file, offset, data",
        (ROUND, SLOW),
        "every block is written over the first",
    ),
    mutant(
        "error-of-one-rank",
        "shared_errors.py",
        '        flag = all_reduce(flag, group, "max", donated=True)\n',
        "        flag = flag.clone()\n",
        (FULL + "[3-nvme]", SMALL + "[3-nvme-nvme]"),
        "one rank raises and the others wait for it",
        "T30",
    ),
    mutant(
        "foreign-files-ignored",
        "folder.py",
        "    if foreign:\n",
        "    if False:\n",
        (FOLDERS,),
        "somebody's folder is filled with states",
    ),
    mutant(
        "never-removed",
        "folder.py",
        "            path.unlink()\n        with",
        "            path.touch()\n        with",
        (ENDS, FOLDERS),
        "every run leaves a disk full of states",
    ),
    mutant(
        "hooks-for-every-bucket",
        "file_bucket.py",
        "        if not first:\n",
        "        if False:\n",
        (HOOKS,),
        "a hook on the optimizer's step runs once for each bucket",
    ),
    mutant(
        "room-for-frozen-states",
        "nvme.py",
        "        if group is None or not piece.slot.parameter.requires_grad:",
        "        if group is None:",
        (FROZEN + "test_files_are_as_large_as_the_estimate_says[2]",),
        "a frozen parameter has no moments, and a file had room for them",
    ),
    mutant(
        "states-one-over-another",
        "file_layout.py",
        "        before = sum(b - a for a, b in self._spans(name) if b <= start)",
        "        before = 0",
        (SAME + "[3-nvme]", FROZEN + "test_states_of_what_is_trained_lie_end_to_end"),
        "the moments of a unit's parameters lie in one place",
    ),
    mutant(
        "lent-unseen",
        "file_bucket.py",
        "    if not is_known(optimizer):\n",
        "    if False:\n",
        (LENT,),
        "an optimizer that counts its calls is called once for each bucket",
    ),
    Mutant(
        "offload-counters-to-files",
        "course_lib/zero/optimizer_parts.py",
        "    return isinstance(x, Tensor) and x.shape == part.shape\n",
        "    return isinstance(x, Tensor)\n",
        (STATES,),
        "a step counter is taken for a state of every number",
    ),
    mutant(
        "states-on-the-values",
        "file_layout.py",
        "        first = self.values_bytes\n",
        "        first = 0\n",
        (APART, SAME + "[3-nvme]"),
        "the first state lies where the values are",
    ),
    # ---- files at stages 1 and 2
    mutant(
        "files-load-undone",
        "file_bucket.py",
        "                take_over([(values, self.shown)])\n",
        "                pass\n",
        (STAY + "[1 half nvme-model]", STAY + "[1 half nvme-data]"),
        "weights loaded after the engine was made are back at the next step",
        "T25",
    ),
    Mutant(
        "offload-files-not-asked-for",
        "course_lib/zero/shards.py",
        "        home.ready()\n",
        "",
        (SMALL + "[2-nvme]",),
        "one rank finds no room for its files and trains on without them",
        "T30",
    ),
    mutant(
        "parameters-below-stage-3",
        "plan.py",
        "        if self.parameters is not None and stage != 3:\n",
        "        if False:\n",
        (REFUSED + "[offload9-1-is of stage 3, and this is]",),
        "a model that stays whole is said to lie in files",
    ),
    # ---- what a checkpoint takes, and puts back
    Mutant(
        "own-states-not-shown",
        "course_lib/zero/training_state.py",
        "            self.shards.gather()\n        self.home.updated()\n",
        "            pass\n        self.home.updated()\n",
        (FRESH + "[bfloat16]", FRESH + "[as is]"),
        "the masters are put back, and the model computes with its own numbers",
        "T25",
    ),
    Mutant(
        "own-states-not-written",
        "course_lib/zero/offload/nvme.py",
        "            self.io.write(kept.file, 0, memory[: kept.layout.nbytes]).wait()\n",
        "",
        (FRESH + "[as is]",),
        "what is put back into a file stays in memory until the next bucket comes",
    ),
    Mutant(
        "own-states-of-before-a-load",
        "course_lib/zero/training_state.py",
        "        self.shards.take_over()\n        for",
        "        for",
        (OWN + "test_weights_that_were_loaded_are_saved",),
        "a checkpoint after a load has the masters that nobody has written to",
        "T25",
    ),
    Mutant(
        "own-states-values-alone",
        "course_lib/zero/training_state.py",
        "    if state:\n        states[part] = state\n",
        "",
        (FRESH + "[as is]",),
        "the moments begin at zero again",
    ),
    Mutant(
        "own-states-other-optimizer",
        "course_lib/zero/training_state.py",
        "        if by_label[label] and is_known(optimizer):",
        "        if False:",
        (OWN + "test_what_does_not_fit_is_refused_on_all_ranks",),
        "states of another optimizer are put into this one, whose next step fails",
    ),
    Mutant(
        "own-states-part-of-a-step",
        "course_lib/zero/training_state.py",
        "        if self._micros.begun:\n",
        "        if False:\n",
        (OWN + "test_what_does_not_fit_is_refused_on_all_ranks",),
        "the gradients of a step that has begun are lost without a word",
    ),
    Mutant(
        "own-states-numbers-lost",
        "course_lib/zero/training_state.py",
        "        elif type(x) in NUMBERS:\n",
        "        elif type(x) in NUMBERS and False:\n",
        (OWN + "test_states_that_are_numbers_are_tensors_too",),
        "an optimizer's own counters begin again",
    ),
    Mutant(
        "own-states-scale-anew",
        "course_lib/zero/training_state.py",
        "            setattr(scale, name, value)\n",
        "            pass\n",
        (FRESH + "[float16]",),
        "the loss scale begins where it once began",
        "T26",
    ),
    mutant(
        "no-words",
        "plan.py",
        '            offload = {"optimizer": offload}\n',
        '            offload = {"parameters": offload}\n',
        (WORD,),
        "offload='cpu' moves something else",
    ),
    Mutant(
        "offload-overflow-steps",
        "course_lib/zero/engine.py",
        "            self._update()\n        else:\n",
        "            self._update()\n        else:\n            self._update()\n",
        (OVERFLOW + "[3-nvme]",),
        "an overflow's step goes to the files",
        "T26",
    ),
]
