"""Mistakes in course_lib/zero/offload/."""

from tests.support.mutation import Mutant

HERE = "course_lib/zero/offload/"
TESTS = "tests/course_lib/zero/offload/"

SAME = TESTS + "test_same.py::test_offload_changes_no_bit"
MASTERS = TESTS + "test_same.py::test_masters_go_away_too"
MANY = TESTS + "test_same.py::test_one_rank_and_four"
HELD = TESTS + "test_held.py::test_every_byte_is_in_its_tier"
MOVED = TESTS + "test_traffic.py::test_a_step_moves_what_the_formula_says"
OVERFLOW = TESTS + "test_traffic.py::test_an_overflow_leaves_the_files_as_they_were"
ACCIDENTS = TESTS + "test_accidents.py::"
SLOW = ACCIDENTS + "test_a_slow_disk_changes_no_bit"
FULL = ACCIDENTS + "test_a_disk_that_fills_up_stops_every_rank"
SMALL = ACCIDENTS + "test_a_disk_too_small_is_met_before_the_first_step"
OWN = TESTS + "test_own_states.py::"
FRESH = OWN + "test_a_fresh_engine_goes_on_where_another_was"
STAY = "tests/course_lib/zero/test_outside.py::test_weights_loaded_at_any_moment_stay"
PLANS = TESTS + "test_plans.py::"
LENT = PLANS + "test_an_optimizer_that_is_not_torchs_cannot_be_lent_buckets"
STATES = PLANS + "test_the_states_of_torchs_optimizers_are_known"
APART = PLANS + "test_parts_of_a_file_do_not_touch"
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
        "halves-not-written",
        "pipeline.py",
        "            part = memory[: kept[i].layout.nbytes]\n",
        "            part = memory[: kept[i].layout.kept_bytes]\n",
        (MASTERS + "[3-nvme-nvme-bfloat16]", MOVED + "[3-nvme-nvme-True]"),
        "the masters move and the parameters that are used do not",
        "T25",
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
        "padding-has-no-file",
        "units.py",
        "        if self.place is None:\n            return there\n",
        "",
        (MANY + "[3-nvme-nvme-4]",),
        "a rank whose shard is padding alone looks for its file",
        "T24",
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
        "own-states-of-before-a-load",
        "course_lib/zero/training_state.py",
        "        self.shards.take_over()\n        for",
        "        for",
        (OWN + "test_weights_that_were_loaded_are_saved",),
        "a checkpoint after a load has the masters that nobody has written to",
        "T25",
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
