"""Mistakes in what is read of DeepSpeed's checkpoints, and in the weights that go out and in."""

from tests.support.mutation import Mutant

REFUSED = "tests/course_lib/checkpoint/test_deepspeed_refused.py::"
SOURCES = "tests/course_lib/checkpoint/test_weights_sources.py::"
LAYOUTS = "tests/course_lib/checkpoint/test_deepspeed_layouts.py::"
ITSELF = "tests/course_lib/checkpoint/test_deepspeed_itself.py::"
ONLINE = "tests/course_lib/checkpoint/test_weights_online.py::"

MUTANTS = [
    Mutant(
        "deepspeed-files-anything-runs",
        "course_lib/checkpoint/deepspeed_files/archive.py",
        'map_location="meta", weights_only=True',
        'map_location="meta", weights_only=False',
        (REFUSED + "test_a_pickle_that_calls_something_is_refused_and_does_not",),
        "a file is a program that runs when it is read",
    ),
    Mutant(
        "deepspeed-files-no-sums",
        "course_lib/checkpoint/deepspeed_files/archive.py",
        "        if sum_ != record.CRC:\n",
        "        if sum_ == -1:\n",
        (
            REFUSED + "test_a_changed_bit_is_refused_or_changes_nothing",
            SOURCES + "test_out_is_whole_or_not_there",
        ),
        "a bit that changed on the disk becomes a weight",
    ),
    Mutant(
        "deepspeed-files-any-record",
        "course_lib/checkpoint/deepspeed_files/archive.py",
        " or record.file_size != storage.nbytes()",
        "",
        (REFUSED + "test_a_view_that_leaves_its_record",),
        "a tensor's bytes are taken from wherever the file says",
    ),
    Mutant(
        "deepspeed-files-packed",
        "course_lib/checkpoint/deepspeed_files/archive.py",
        " or record.compress_type != zipfile.ZIP_STORED",
        "",
        (REFUSED + "test_a_zip_that_was_packed_again",),
        "packed bytes are read as plain ones",
    ),
    Mutant(
        "deepspeed-files-another-file",
        "course_lib/checkpoint/deepspeed_files/archive.py",
        "if self._as_opened not in (None, same):",
        "if None:",
        (LAYOUTS + "test_of_many_ranks_few_files_are_open",),
        "half of a file is of another save",
    ),
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
