"""Mistakes in what is read of DeepSpeed's checkpoints, and in the weights that go out and in."""

from tests.support.mutation import Mutant

MUTANTS = [
    Mutant(
        "deepspeed-files-anything-runs",
        "course_lib/checkpoint/deepspeed_files/archive.py",
        'map_location="meta", weights_only=True',
        'map_location="meta", weights_only=False',
        (
            "tests/course_lib/checkpoint/test_deepspeed_refused.py::test_a_pickle_that_calls_something"
            "_is_refused_and_does_not",
        ),
        "a file is a program that runs when it is read",
    ),
    Mutant(
        "deepspeed-files-no-sums",
        "course_lib/checkpoint/deepspeed_files/archive.py",
        "        if sum_ != record.CRC:\n",
        "        if sum_ == -1:\n",
        (
            "tests/course_lib/checkpoint/test_deepspeed_refused.py::test_a_changed_bit_is_refused_or_c"
            "hanges_nothing",
            "tests/course_lib/checkpoint/test_weights_sources.py::test_out_is_whole_or_not_there",
        ),
        "a bit that changed on the disk becomes a weight",
    ),
    Mutant(
        "deepspeed-files-any-record",
        "course_lib/checkpoint/deepspeed_files/archive.py",
        " or record.file_size != storage.nbytes()",
        "",
        (
            "tests/course_lib/checkpoint/test_deepspeed_refused.py::test_a_view_that_leaves_its_record",
        ),
        "a tensor's bytes are taken from wherever the file says",
    ),
    Mutant(
        "deepspeed-files-packed",
        "course_lib/checkpoint/deepspeed_files/archive.py",
        " or record.compress_type != zipfile.ZIP_STORED",
        "",
        (
            "tests/course_lib/checkpoint/test_deepspeed_refused.py::test_a_zip_that_was_packed_again",
        ),
        "packed bytes are read as plain ones",
    ),
    Mutant(
        "deepspeed-files-other-order",
        "course_lib/checkpoint/deepspeed_files/archive.py",
        "order != sys.byteorder",
        'order == ""',
        ("tests/course_lib/checkpoint/test_deepspeed_refused.py::test_another_byte_order",),
        "bytes of a machine that orders them otherwise",
    ),
    Mutant(
        "deepspeed-files-another-file",
        "course_lib/checkpoint/deepspeed_files/archive.py",
        "if self._as_opened not in (None, same):",
        "if None:",
        (
            "tests/course_lib/checkpoint/test_deepspeed_layouts.py::test_of_many_ranks_few_files_are_open",
        ),
        "half of a file is of another save",
    ),
    Mutant(
        "deepspeed-files-never-closed",
        "course_lib/checkpoint/deepspeed_files/reader.py",
        "            self._open.pop().close()\n",
        "            self._open.pop()\n",
        (
            "tests/course_lib/checkpoint/test_deepspeed_layouts.py::test_nothing_stays_allowed_and_not"
            "hing_stays_open",
        ),
        "files stay open",
    ),
    Mutant(
        "deepspeed-files-all-open",
        "course_lib/checkpoint/deepspeed_files/reader.py",
        "            self._open.pop(0).close()\n",
        "            self._open.pop(0)\n",
        (
            "tests/course_lib/checkpoint/test_deepspeed_layouts.py::test_of_many_ranks_few_files_are_open",
        ),
        "512 ranks' files are more than may be open",
    ),
    Mutant(
        "deepspeed-files-no-dynamic",
        "course_lib/checkpoint/deepspeed_files/stand_ins.py",
        '"deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler": DynamicLossScaler',
        '"deepspeed.runtime.fp16.DynamicLossScaler": DynamicLossScaler',
        (
            "tests/course_lib/checkpoint/test_deepspeed_layouts.py::test_groups_sixteen_bits_and_what_"
            "pads_them[1-1]",
            "tests/course_lib/checkpoint/test_deepspeed_itself.py::test_each_stage_as_deepspeed_has_it",
        ),
        "what fp16 saves is refused",
    ),
    Mutant(
        "deepspeed-files-hole",
        "course_lib/checkpoint/deepspeed_files/folder.py",
        "        if rank not in found:\n",
        "        if rank in ():\n",
        (
            "tests/course_lib/checkpoint/test_deepspeed_refused.py::test_files_that_do_not_belong_together",
        ),
        "a rank's file is missing, and the others move up",
    ),
    Mutant(
        "deepspeed-files-outside",
        "course_lib/checkpoint/deepspeed_files/folder.py",
        " and Path(name).name == name",
        "",
        (
            "tests/course_lib/checkpoint/test_deepspeed_refused.py::test_latest_names_a_folder_beside_it",
        ),
        "`latest` leads to another run's folder",
    ),
    Mutant(
        "deepspeed-files-any-axis",
        "course_lib/checkpoint/deepspeed_files/folder.py",
        "        if int(match[3]) > 0:\n",
        "        if int(match[3]) > 9:\n",
        (
            "tests/course_lib/checkpoint/test_deepspeed_refused.py::test_kinds_of_checkpoint_that_are_not_read",
        ),
        "one tensor-parallel rank's part is taken for the model",
    ),
    Mutant(
        "deepspeed-files-no-padding",
        "course_lib/checkpoint/deepspeed_files/states.py",
        "(master.count, master.count + padding)",
        "(master.count,)",
        (
            "tests/course_lib/checkpoint/test_deepspeed_layouts.py::test_every_stage_at_every_world[1-4]",
        ),
        "moments are longer than masters where a group is filled up",
        "T24",
    ),
    Mutant(
        "deepspeed-files-stage-wanted",
        "course_lib/checkpoint/deepspeed_files/states.py",
        'int(saved.get("zero_stage", 1))',
        'int(saved["zero_stage"])',
        (
            "tests/course_lib/checkpoint/test_deepspeed_itself.py::test_every_setting_that_lays_them_o"
            "ut_otherwise",
        ),
        "bf16 with sums in float32 is no checkpoint of ZeRO",
    ),
    Mutant(
        "deepspeed-files-gaps-forgotten",
        "course_lib/checkpoint/deepspeed_files/reader.py",
        "(gaps[logical.group][place] if gaps else 0)",
        "0",
        (
            "tests/course_lib/checkpoint/test_deepspeed_layouts.py::test_groups_sixteen_bits_and_what_"
            "pads_them[8-2]",
        ),
        "what fills a parameter up is read as the next one",
        "T24",
    ),
    Mutant(
        "deepspeed-files-floor",
        "course_lib/checkpoint/deepspeed_files/reader.py",
        "            each = -(-logical.count // self.world)\n",
        "            each = logical.count // self.world\n",
        (
            "tests/course_lib/checkpoint/test_deepspeed_layouts.py::test_every_stage_at_every_world[3-3]",
        ),
        "stage 3's parts are taken as shorter than they are",
        "T24",
    ),
    Mutant(
        "deepspeed-files-sub-groups",
        "course_lib/checkpoint/deepspeed_files/reader.py",
        "            start -= flat.count\n",
        "",
        (
            "tests/course_lib/checkpoint/test_deepspeed_layouts.py::test_groups_sixteen_bits_and_what_"
            "pads_them[1-3]",
        ),
        "each of stage 3's sub-groups is read from the first one's start",
    ),
    Mutant(
        "deepspeed-files-groups-joined",
        "course_lib/checkpoint/deepspeed_files/reader.py",
        "start = start if self.stage == 3 else 0",
        "start = start if self.stage else 0",
        (
            "tests/course_lib/checkpoint/test_deepspeed_layouts.py::test_groups_sixteen_bits_and_what_"
            "pads_them[1-2]",
        ),
        "the second group's parameters are looked for behind the first one's",
    ),
    Mutant(
        "deepspeed-files-bare-error",
        "course_lib/checkpoint/deepspeed_files/reader.py",
        "except (TypeError, AttributeError, KeyError, IndexError) as error:",
        "except KeyError as error:",
        (
            "tests/course_lib/checkpoint/test_deepspeed_refused.py::test_a_model_file_of_another_build",
        ),
        "what is wrong with a file is a line of ours",
    ),
    Mutant(
        "deepspeed-files-another-world",
        "course_lib/checkpoint/deepspeed_files/reader.py",
        "        if len(self._parts) != self.world:\n",
        "        if not self._parts:\n",
        (
            "tests/course_lib/checkpoint/test_deepspeed_refused.py::test_files_that_do_not_belong_together",
        ),
        "files of three ranks are read as two",
        "T32",
    ),
    Mutant(
        "deepspeed-files-length-unchecked",
        "course_lib/checkpoint/deepspeed_files/reader.py",
        "            if wrong:\n",
        "            if wrong == [-1]:\n",
        (
            "tests/course_lib/checkpoint/test_deepspeed_refused.py::test_files_that_do_not_belong_together",
        ),
        "the model file is of another model, and its names are put on these elements",
    ),
    Mutant(
        "deepspeed-files-rounded",
        "course_lib/checkpoint/sources.py",
        "        entries |= _renamed(ours, step, config, every=False)\n",
        "        pass\n",
        (
            "tests/course_lib/checkpoint/test_weights_sources.py::test_of_our_checkpoints_the_master_c"
            "opies[1-gpt2]",
        ),
        "the weights in 16 bits go out as float32",
        "T25",
    ),
    Mutant(
        "deepspeed-files-not-transposed",
        "course_lib/checkpoint/sources.py",
        "entry.dtype, rows, part.transposed)",
        "entry.dtype, rows, False)",
        (
            "tests/course_lib/checkpoint/test_weights_sources.py::test_our_gpt_under_deepspeed_gets_th"
            "e_names_that_transformers_knows[config0]",
        ),
        "GPT-2's weights lie the other way round",
    ),
    Mutant(
        "deepspeed-files-first-part",
        "course_lib/checkpoint/sources.py",
        "entry.rows(first + start, first + stop)",
        "entry.rows(start, stop)",
        (
            "tests/course_lib/checkpoint/test_weights_sources.py::test_our_gpt_under_deepspeed_gets_th"
            "e_names_that_transformers_knows[config1]",
        ),
        "query, key and value are all the query",
    ),
    Mutant(
        "deepspeed-files-overflow",
        "course_lib/pretrained/reader.py",
        "    if lost:\n",
        "    if None:\n",
        ("tests/course_lib/checkpoint/test_weights_sources.py::test_what_is_refused",),
        "a weight becomes infinite",
        "T27",
    ),
    Mutant(
        "deepspeed-files-at-once",
        "course_lib/checkpoint/sources.py",
        "range(0, len(own), max(1, AT_ONCE // row))",
        "range(0, 1)",
        (
            "tests/course_lib/checkpoint/test_weights_online.py::test_a_conversion_holds_one_tensor_an"
            "d_one_buffer[llama]",
        ),
        "only some rows are filled",
    ),
    Mutant(
        "deepspeed-files-old-dtype",
        "course_lib/checkpoint/weights.py",
        'if key != "torch_dtype"',
        'if key != "dtype"',
        (
            "tests/course_lib/checkpoint/test_weights_sources.py::test_hugging_face_folders_in_other_f"
            "iles_and_dtypes",
        ),
        "config.json says the dtype that the weights had",
    ),
    Mutant(
        "deepspeed-files-twice-tied",
        "course_lib/checkpoint/weights.py",
        '(weights.config or {}).get("tie_word_embeddings") is False',
        "None",
        (
            "tests/course_lib/checkpoint/test_weights_sources.py::test_tied_tensors_are_written_twice_"
            "where_the_config_says_untied",
        ),
        "transformers makes the head anew, at random",
        "T17",
    ),
]
