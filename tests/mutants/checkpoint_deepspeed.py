"""Mistakes in what is read of DeepSpeed's checkpoints, and in the weights that go out and in."""

from tests.support.mutation import Mutant

REFUSED = "tests/course_lib/checkpoint/test_deepspeed_refused.py::"
SOURCES = "tests/course_lib/checkpoint/test_weights_sources.py::"
LAYOUTS = "tests/course_lib/checkpoint/test_deepspeed_layouts.py::"

MUTANTS = [
    Mutant(
        "deepspeed-files-no-padding",
        "course_lib/checkpoint/deepspeed_files/states.py",
        "(master.count, master.count + padding)",
        "(master.count,)",
        (LAYOUTS + "test_every_stage_at_every_world[1-4]",),
        "moments are longer than masters where a group is filled up",
        "T24",
    ),
    Mutant(
        "deepspeed-files-gaps-forgotten",
        "course_lib/checkpoint/deepspeed_files/reader.py",
        "(gaps[logical.group][place] if gaps else 0)",
        "0",
        (LAYOUTS + "test_groups_sixteen_bits_and_what_pads_them[8-2]",),
        "what fills a parameter up is read as the next one",
        "T24",
    ),
    Mutant(
        "deepspeed-files-floor",
        "course_lib/checkpoint/deepspeed_files/reader.py",
        "            each = -(-logical.count // self.world)\n",
        "            each = logical.count // self.world\n",
        (LAYOUTS + "test_every_stage_at_every_world[3-3]",),
        "stage 3's parts are taken as shorter than they are",
        "T24",
    ),
    Mutant(
        "deepspeed-files-another-world",
        "course_lib/checkpoint/deepspeed_files/reader.py",
        "        if len(self._parts) != self.world:\n",
        "        if not self._parts:\n",
        (REFUSED + "test_files_that_do_not_belong_together",),
        "files of three ranks are read as two",
        "T32",
    ),
    Mutant(
        "deepspeed-files-rounded",
        "course_lib/checkpoint/sources.py",
        "        entries |= _renamed(ours, step, config, every=False)\n",
        "        pass\n",
        (SOURCES + "test_of_our_checkpoints_the_master_copies[1-gpt2]",),
        "the weights in 16 bits go out as float32",
        "T25",
    ),
    Mutant(
        "deepspeed-files-overflow",
        "course_lib/pretrained/reader.py",
        "    if lost:\n",
        "    if None:\n",
        (SOURCES + "test_what_is_refused",),
        "a weight becomes infinite",
        "T27",
    ),
    Mutant(
        "deepspeed-files-twice-tied",
        "course_lib/checkpoint/weights.py",
        '(weights.config or {}).get("tie_word_embeddings") is False',
        "None",
        (SOURCES + "test_tied_tensors_are_written_twice_where_the_config_says_untied",),
        "transformers makes the head anew, at random",
        "T17",
    ),
]
