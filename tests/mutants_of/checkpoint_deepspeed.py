"""Mistakes in what is read of DeepSpeed's checkpoints, and in the weights that go out and in."""

from tests.mutation import Mutant

HOME = "course_lib/checkpoint/"
LAID, REFUSED, SOURCES, ONLINE, COMMAND, ITSELF = (
    f"tests/checkpoint/test_{name}.py::test_"
    for name in (
        "deepspeed_layouts", "deepspeed_refused", "weights_sources", "weights_online",
        "weights_command", "deepspeed_itself",
    )
)  # fmt: skip
WORLDS = LAID + "every_stage_at_every_world"
GROUPS = LAID + "groups_sixteen_bits_and_what_pads_them"
HELD = LAID + "a_read_holds_its_tensor_and_a_buffer"
RANGES = LAID + "each_record_is_checked_once_and_then_read_by_ranges"
CALLS = REFUSED + "a_pickle_that_calls_something_is_refused_and_does_not"
CUT, BIT = REFUSED + "a_file_cut_off_anywhere_is_refused", REFUSED + "a_bit_of_a_weight_is_found"
BIT += "_by_its_sum"
FLIPS = REFUSED + "a_changed_bit_is_refused_or_changes_nothing"
TOGETHER = REFUSED + "files_that_do_not_belong_together"
KINDS = REFUSED + "kinds_of_checkpoint_that_are_not_read"
BUILD = REFUSED + "an_optimizer_file_of_another_build"
BACK = SOURCES + "deepspeed_to_hugging_face_to_ours_and_back"
NAMES = SOURCES + "our_gpt_under_deepspeed_gets_the_names_that_transformers_knows"
MASTERS = SOURCES + "of_our_checkpoints_the_master_copies"
WRONG, WHOLE = SOURCES + "what_is_refused", SOURCES + "out_is_whole_or_not_there"
ONE = ONLINE + "a_conversion_holds_one_tensor_and_one_buffer[llama]"
ANOTHER = ONLINE + "into_another_model_nothing_goes"
ENGINE = ONLINE + "sixteen_bits_of_an_engine[2]"
NEW = "tests/train/test_new_model.py::test_a_save_gathers_each_unit_once_and_has_one_at_a_time"


def wrong(file: str):
    def make(name: str, old: str, new: str, tests, why: str, trap=None) -> Mutant:
        tests = (tests,) if isinstance(tests, str) else tests
        path = f"{HOME}{file}.py"
        return Mutant(f"deepspeed-files-{name}", path, old, new, tests, why, trap)

    return make


archive, folder, states, reader, stand_ins = (
    wrong(f"deepspeed_files/{name}")
    for name in ("archive", "folder", "states", "reader", "stand_ins")
)
sources, weights, units = (wrong(name) for name in ("sources", "weights", "units"))

MUTANTS = [
    archive(
        "anything-runs", 'map_location="meta", weights_only=True', 'map_location="meta", '
        "weights_only=False",
        CALLS, "a file is a program that runs when it is read",
    ),
    archive(
        "unnamed", "            if strange:\n", "            if None:\n",
        (CALLS, REFUSED + "another_name_of_deepspeeds_is_refused_by_it"),
        "what the file named is not said, and torch's advice to trust it is",
    ),
    archive(
        "held-in-memory", 'map_location="meta", weights_only', 'map_location="cpu", weights_only',
        (f"{WORLDS}[1-1]", HELD), "every file is held whole",
    ),
    archive(
        "no-sums", "        if sum_ != record.CRC:\n", "        if sum_ == -1:\n",
        (BIT, FLIPS, WHOLE), "a bit that changed on the disk becomes a weight",
    ),
    archive(
        "sums-again", "        self._held.add(begin)\n", "",
        RANGES, "a whole record is read for each tensor in it",
    ),
    archive(
        "sums-wanted", "or not self.has_sums", "",
        REFUSED + "a_file_without_sums_is_taken_as_it_is",
        "a file that was saved without sums cannot be read",
    ),
    archive(
        "any-record", "record is None or record.file_size != storage.nbytes() or not",
        "record is None or not",
        REFUSED + "a_view_that_leaves_its_record",
        "a tensor's bytes are taken from wherever the file says",
    ),
    archive(
        "no-place", "        if first is None:\n", "        if None:\n",
        REFUSED + "a_view_that_leaves_its_record",
        "a release of torch that does not tell places is taken for a damaged file",
    ),
    archive(
        "strided", " or not x.is_contiguous()", "",
        f"{BUILD}[<lambda>-exp_avg of group 0 does not lie in one piece]",
        "elements of a strided view are taken as if they lay side by side",
    ),
    archive(
        "packed", " or record.compress_type != zipfile.ZIP_STORED", "",
        REFUSED + "a_zip_that_was_packed_again", "packed bytes are read as plain ones",
    ),
    archive(
        "other-order", "decode(\"latin1\") != sys.byteorder", 'decode("latin1") == ""',
        REFUSED + "another_byte_order", "bytes of a machine that orders them otherwise",
    ),
    archive(
        "another-file", "if self._as_opened not in (None, same):", "if None:",
        LAID + "of_many_ranks_few_files_are_open", "half of a file is of another save",
    ),
    reader(
        "never-closed", "            self._open.pop().close()\n", "            self._open.pop()\n",
        LAID + "nothing_stays_allowed_and_nothing_stays_open", "files stay open",
    ),
    reader(
        "all-open", "            self._open.pop(0).close()\n", "            self._open.pop(0)\n",
        LAID + "of_many_ranks_few_files_are_open", "512 ranks' files are more than may be open",
    ),
    stand_ins(
        "no-dynamic", '"deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler": DynamicLossScaler',
        '"deepspeed.runtime.fp16.DynamicLossScaler": DynamicLossScaler',
        (f"{GROUPS}[1-1]", ITSELF + "each_stage_as_deepspeed_has_it"),
        "what fp16 saves is refused",
    ),
    folder(
        "hole", "        if rank not in found:\n", "        if rank in ():\n",
        TOGETHER, "a rank's file is missing, and the others move up",
    ),
    folder(
        "outside", "if Path(name).name != name or not", "if not",
        REFUSED + "latest_names_a_folder_beside_it", "`latest` leads to another run's folder",
    ),
    folder(
        "any-axis", "        if int(match[3]) > 0:\n", "        if int(match[3]) > 9:\n",
        KINDS, "one tensor-parallel rank's part is taken for the model",
    ),
    folder(
        "universal", '    if "universal" in kinds:\n', '    if "unknown" in kinds:\n',
        KINDS, "a universal checkpoint is taken for one of stage 0",
    ),
    folder(
        "nvme", '    if (step / "offloaded_tensors").is_dir():\n',
        '    if (step / "offloaded").is_dir():\n',
        KINDS, "what was on NVMe is read from elsewhere",
    ),
    states(
        "no-padding", "(master.count, master.count + padding)", "(master.count,)",
        f"{WORLDS}[1-4]", "moments are longer than masters where a group is filled up", "T24",
    ),
    states(
        "any-length", "if flat.count not in (master.count, master.count + padding):",
        "if flat.count < 0:",
        f"{BUILD}[<lambda>-exp_avg of group 0 has 3 elements and its master copy 106]",
        "moments of another model are taken",
    ),
    states(
        "stage-wanted", 'int(saved.get("zero_stage", 1))', 'int(saved["zero_stage"])',
        ITSELF + "every_setting_that_lays_them_out_otherwise",
        "bf16 with sums in float32 is no checkpoint of ZeRO",
    ),
    reader(
        "gaps-forgotten", "(gaps[logical.group][place] if gaps else 0)", "0",
        f"{GROUPS}[8-2]", "what fills a parameter up is read as the next one", "T24",
    ),
    reader(
        "floor", "            each = -(-logical.count // self.world)\n",
        "            each = logical.count // self.world\n",
        f"{WORLDS}[3-3]", "stage 3's parts are taken as shorter than they are", "T24",
    ),
    reader(
        "sub-groups", "            start -= flat.count\n", "",
        f"{GROUPS}[1-3]", "each of stage 3's sub-groups is read from the first one's start",
    ),
    reader(
        "groups-joined", "            if self.stage < 3:\n                above = [0]\n",
        "            if self.stage < 1:\n                above = [0]\n",
        f"{GROUPS}[1-2]", "the second group's parameters are looked for behind the first one's",
    ),
    reader(
        "frozen-lost", "if buffer or self.stage < 3 or name in frozen:",
        "if buffer or name in frozen:",
        f"{WORLDS}[1-2]", "stage 1's frozen weights are left out",
    ),
    reader(
        "bare-error", "except (TypeError, AttributeError, KeyError, IndexError) as error:",
        "except KeyError as error:",
        REFUSED + "a_model_file_of_another_build", "what is wrong with a file is a line of ours",
    ),
    reader(
        "another-world", "        if len(self._parts) != self.world:\n",
        "        if not self._parts:\n",
        TOGETHER, "files of three ranks are read as two", "T32",
    ),
    reader(
        "mixed", "if not same or part.flats.keys() != first.flats.keys():",
        "if part.flats.keys() != first.flats.keys():",
        TOGETHER, "one rank's file is of another save",
    ),
    reader(
        "length-unchecked", "            if wrong:\n", "            if wrong == [-1]:\n",
        TOGETHER, "the model file is of another model, and its names are put on these elements",
    ),
    sources(
        "rounded", "        entries |= dict(_parts(fine[name], entry))\n", "        pass\n",
        f"{MASTERS}[1-gpt2]", "the weights in 16 bits go out as float32", "T25",
    ),
    sources(
        "not-transposed", "entry.dtype, rows, part.transposed)", "entry.dtype, rows, False)",
        f"{NAMES}[config0]", "GPT-2's weights lie the other way round",
    ),
    sources(
        "first-part", "entry.rows(first + start, first + stop)", "entry.rows(start, stop)",
        f"{NAMES}[config1]", "query, key and value are all the query",
    ),
    sources(
        "overflow", "    if lost.any():\n", "    if None:\n", WRONG, "a weight becomes infinite",
        "T27",
    ),
    sources(
        "old-form", "    if form < FORM and half:\n", "    if form < 0 and half:\n",
        WRONG, "an older checkpoint's master copies are left out without a word", "T25",
    ),
    sources(
        "new-form", "or form > FORM:", "or form < 0:", WRONG, "a newer form is read as this one",
    ),
    sources(
        "at-once", "range(0, len(own), max(1, AT_ONCE // row))", "range(0, 1)",
        ONE, "only some rows are filled",
    ),
    weights(
        "two-at-a-time", "                del raw  # before the next one is made\n", "",
        ONE, "the last tensor is held while the next one is read",
    ),
    weights(
        "in-place", "if _same(weights.path, folder) or _same(source, folder):", "if None:",
        (WRONG, COMMAND + "what_is_wrong_is_one_line"), "what is read is replaced meanwhile",
    ),
    weights(
        "left-behind", "            writer.discard()\n", "            pass\n",
        WHOLE, "half a folder stays",
    ),
    weights(
        "old-dtype", 'if key != "torch_dtype"', 'if key != "dtype"',
        SOURCES + "hugging_face_folders_in_other_files_and_dtypes",
        "config.json says the dtype that the weights had",
    ),
    weights(
        "twice-tied", '(weights.config or {}).get("tie_word_embeddings") is False', "None",
        SOURCES + "tied_tensors_are_written_twice_where_the_config_says_untied",
        "transformers makes the head anew, at random",
        "T17",
    ),
    weights(
        "half-filled", "    if lost or more:\n", "    if more:\n", ANOTHER,
        "a weight that the checkpoint lacks stays as it was",
    ),
    weights(
        "nothing-written", "    if engine.stage == 3 and not gather:\n", "    if None:\n",
        ENGINE, "gather=False is not heard",
    ),
    weights(
        "kept-alive", "            del tensor\n", "", ONLINE
        + "tensors_come_one_by_one_under_all_their_names",
        "the tensor before is held while the next one is read",
    ),
    Mutant(
        "deepspeed-files-floats-alone", "course_lib/pretrained/header.py",
        'PLAIN |= {"U8": torch.uint8, "BOOL": torch.bool}\n', "",
        (SOURCES + "whole_numbers_stay_and_every_dtype_finds_its_place",),
        "a mask beside the weights cannot be written",
    ),
    units(
        "whole-at-once",
        "                stack.close()\n                current[:] = [unit]\n",
        "                current[:] = [unit]\n",
        NEW, "a save has the whole model in memory",
    ),
    units(
        "gathered-for-each-weight", "not unit.persistent and current != [unit]:\n",
        "not unit.persistent:\n",
        NEW, "a unit is gathered for each of its weights",
    ),
]  # fmt: skip
