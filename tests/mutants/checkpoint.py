"""Mistakes in course_lib/checkpoint: what is saved, how it is found again, what a fault leaves."""

from tests.support.mutation import Mutant

HOME = "course_lib/checkpoint/"
TESTS = "tests/course_lib/checkpoint/"
CRC = TESTS + "test_crc.py::"
WHOLE = CRC + "test_shares_of_any_parts_make_the_crc_of_the_whole"
ZEROS = CRC + "test_zeros_that_follow_however_many"
RUNS = CRC + "test_the_runs_of_a_box_are_its_elements_in_order"
LOGICAL = TESTS + "test_logical.py::"
ONCE = LOGICAL + "test_every_element_is_answered_for_once"
BYTES = TESTS + "test_bytes.py::"
EACH = BYTES + "test_each_byte_is_written_once_and_read_once_where_it_is_needed"
ANY = TESTS + "test_any_model.py::test_any_model_goes_on_at_any_layout[some]"
PRECISION = TESTS + "test_precision.py::"
ROAD = PRECISION + "test_another_precision_keeps_masters_and_moments_to_the_bit"
SCALE = PRECISION + "test_a_loss_scale_goes_along_where_both_have_one"
SAME = PRECISION + "test_at_the_same_layout_all_goes_on_to_the_last_bit"
DAMAGE = TESTS + "test_damage.py::"
HARMED = DAMAGE + "test_whatever_is_damaged_is_named_on_all_ranks"
APART = DAMAGE + "test_what_is_no_checkpoint_is_told_apart"
ANOTHER = TESTS + "test_another.py::"
MODELS = ANOTHER + "test_the_first_tensor_of_another_model_is_named"
OPTIMIZERS = ANOTHER + "test_another_optimizer_is_refused_before_anything_changes"
GROUPS = ANOTHER + "test_another_optimizer_is_refused_before_anything_changes[3]"
DISK = TESTS + "test_disk.py::"
FULL = DISK + "test_a_full_disk_at_drawn_calls_of_a_save"
KINDS = DISK + "test_each_kind_of_disk_is_told_with_file_cause_and_remedy"
FOLDER = TESTS + "test_folder.py::"
WRITERS = FOLDER + "test_two_runs_do_not_save_into_one_folder_at_a_time"
CLAIM = FOLDER + "test_a_claim_is_one_save_s_alone_and_none_where_there_are_no_locks"
KEPT = FOLDER + "test_the_last_k_stay_and_no_other_number_is_taken"
KILLED = TESTS + "test_killed.py::"
KILLED += "test_ranks_killed_between_the_renames_and_at_drawn_moments_of_a_save"
TRAIN = TESTS + "test_train.py::test_a_run_goes_on_at_another_layout"
RUN = "tests/course_lib/train/test_damage.py::"
SUMS = RUN + "test_the_sums_are_those_of_sha256sum"
PROGRAM = "tests/course_lib/train/test_program.py::"


def mutant(file: str, name: str, old: str, new: str, tests: tuple, why: str, trap=None) -> Mutant:
    return Mutant(f"checkpoint-{name}", f"{HOME}{file}.py", old, new, tests, why, trap)


MUTANTS = [
    mutant(
        "crc",
        "distance-in-bits",
        "    result, square = ONE, 1 << 23  # x**8",
        "    result, square = ONE, 1 << 30  # x**8",
        (WHOLE, ZEROS),
        "a byte that follows is taken for a bit",
    ),
    mutant(
        "crc",
        "another-polynomial",
        "POLYNOMIAL = 0xEDB88320",
        "POLYNOMIAL = 0x82F63B78",
        (WHOLE, ZEROS),
        "the sums are those of another CRC than zlib's",
    ),
    mutant(
        "crc",
        "gap-not-counted",
        "share = times(share, self._power(stop - end)) ^ crc32(content)",
        "share = times(share, self._power(len(content))) ^ crc32(content)",
        (WHOLE,),
        "the bytes of other ranks between two runs do not count",
    ),
    mutant(
        "files",
        "a-run-for-each-row",
        "    while d and box.size[d - 1] == shape[d - 1]:",
        "    while d > 1 and box.size[d - 1] == shape[d - 1] and len(shape) < 2:",
        (RUNS,),
        "whole rows are as many writes as there are rows",
    ),
    Mutant(
        "checkpoint-never-several",
        "course_lib/pretrained/writer.py",
        "        files = shards(tensors, most) if tensors else []\n",
        '        files = shards(tensors, float("inf")) if tensors else []\n',
        (f"{EACH}[3]",),
        "a file is larger than was asked for",
    ),
    mutant(
        "logical",
        "each-replica-writes",
        "        alike = dp if engine.stage == 0 or name not in shapes else None\n",
        "        alike = None\n",
        (f"{ONCE}[4]", f"{EACH}[2]"),
        "replicas write the same bytes",
        "T32",
    ),
    mutant(
        "logical",
        "one-copy-writes-all",
        "for k in (0, which, which + 1, count)]",
        "for k in (0, which * count, count * (which < 1) or count, count)]",
        (f"{ONCE}[2]",),
        "one of the replicas has all the writing to do",
    ),
    mutant(
        "logical",
        "kv-heads-shared-unseen",
        "        copies = extent.holders or (None if extent.cut_over else tp)\n",
        "        copies = None if extent.cut_over else tp\n",
        (f"{EACH}[2]",),
        "kv heads that ranks share are written by each",
        "T32",
    ),
    mutant(
        "box_writer",
        "a-byte-left-out",
        "        done += os.pwrite(file, content[done:], at + done)\n",
        "        done += os.pwrite(file, content[done:], at + done) + 1\n",
        (TESTS + "test_saving.py::test_what_the_system_takes_in_parts_is_written_whole",),
        "of what the system did not take at once a byte is lost",
    ),
    mutant(
        "box_writer",
        "error-without-a-name",
        "        with about(self.folder / path):\n            file = self._file(path)\n",
        "        if path:\n            file = self._file(path)\n",
        (KINDS, FULL),
        "a full disk is told without the file's name",
    ),
    mutant(
        "box_writer",
        "not-on-the-disk",
        "            with about(self.folder / name):\n                os.fsync(file)\n",
        "            del file\n",
        (KINDS,),
        "a checkpoint is named before its bytes are on the disk",
    ),
    mutant(
        "contents",
        "step-of-a-number",
        '        elif key == "step" and tuple(shape) == ():\n            continue',
        '        elif key == "steps" and tuple(shape) == ():\n            continue',
        (ANY,),
        "the count of a parameter that is a single number is taken for a state of it",
    ),
    mutant(
        "contents",
        "no-masters",
        "                if flat.dtype == dtype:\n",
        "                if flat.dtype != torch.float16:\n",
        (f"{ROAD}[bfloat16]", f"{ROAD}[from 16 bits]"),
        "the bits that 16 do not hold are lost with every save",
        "T32",
    ),
    mutant(
        "contents",
        "buffers-forgotten",
        "        model |= {name: (x.dtype, tuple(x.shape)) for name, x in self.buffers.items()}\n",
        "        self.buffers = {}\n",
        (ANY,),
        "running statistics begin anew",
    ),
    mutant(
        "files",
        "not-each-once",
        "        if written != count:\n",
        "        if written < 0:\n",
        (TESTS + "test_saving.py::test_what_no_rank_has_written_is_no_checkpoint",),
        "a tensor with a hole in it is a checkpoint",
    ),
    mutant(
        "open_checkpoint",
        "tensors-not-compared",
        '                if report["elements"].get(name, 0) == math.prod(slot.shape):\n',
        "                if not slot:\n",
        (HARMED, RUN + "test_a_damaged_state_ends_a_run_before_it_begins"),
        "a bit that has turned over in a weight is trained on",
    ),
    mutant(
        "open_checkpoint",
        "header-not-compared",
        '        if f"{crc32(header):08x}" != about["header"]:\n',
        '        if not about["header"]:\n',
        (HARMED,),
        "a header that says something else is believed",
    ),
    mutant(
        "open_checkpoint",
        "tensors-of-any-form",
        '        if self.about.get("form") != folder.FORM:\n',
        '        if not self.about.get("form"):\n',
        (HARMED,),
        "a newer form is read as this one",
    ),
    mutant(
        "open_checkpoint",
        "read-twice",
        "        self.file.fill(name, places, view)\n        self.bytes",
        "        self.file.fill(name, places, view)\n        self.file.fill(name, places, view)\n"
        "        self.bytes",
        (f"{EACH}[1]",),
        "every byte is read twice",
    ),
    mutant(
        "open_checkpoint",
        "check-of-the-first-piece",
        "                for start in range(0, total, AT_ONCE):\n",
        "                for start in range(0, total // 2, AT_ONCE):\n",
        (TESTS + "test_saving.py::test_a_check_reads_every_piece_of_a_tensor",),
        "half of each tensor is not looked at",
    ),
    mutant(
        "shared_errors",
        "no-agreement-after-the-writing",
        "    _raise_first(sorted(errors), problem, groups)\n",
        "    if problem is not None:\n        raise problem\n",
        (KINDS,),
        "one rank's full disk leaves the others waiting",
        "T30",
    ),
    mutant(
        "saving",
        "leftovers-stay",
        "            folder.discard(top, step)\n",
        "            folder.restore(top)\n",
        (FULL, KINDS),
        "what was half written stays",
    ),
    mutant(
        "saving",
        "any-number-kept",
        "    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:\n",
        "    if keep is None:\n",
        (KEPT,),
        "to keep none keeps all",
    ),
    mutant(
        "saving",
        "groups-of-rank-0",
        "for written in several for name, number in written.groups.items()}",
        "for written in several[:1] for name, number in written.groups.items()}",
        (GROUPS,),
        "of the groups rank 0's part alone is written down",
    ),
    mutant(
        "engine_record",
        "any-optimizer",
        "    if kind != saved:\n",
        "    if not saved:\n",
        (f"{OPTIMIZERS}[0]",),
        "the moments of one optimizer are taken for another's",
    ),
    mutant(
        "engine_record",
        "frozen-in-a-group",
        "for name, part in parts if part in group_of}",
        "for name, part in parts}",
        (ANY,),
        "a frozen parameter's part at stage 3 is looked for in the optimizer",
    ),
    mutant(
        "engine_record",
        "any-form",
        '    if record.get("form") != folder.FORM:\n',
        '    if not record.get("form"):\n',
        (HARMED,),
        "a record of a newer form is read as this one",
    ),
    mutant(
        "engine_record",
        "hub-name-taken",
        "    elif not path.is_dir():\n",
        "    elif path.suffix:\n",
        (APART,),
        "a hub's name is said to be an empty folder",
    ),
    mutant(
        "engine_record",
        "scale-forgotten",
        '    if (scale is None) != (counters["scale"] is None):\n',
        "    if True:\n",
        (SCALE, f"{SAME}[float16-3]"),
        "the loss scale begins anew",
        "T32",
    ),
    mutant(
        "loading",
        "rounded-once-more",
        "        if key == VALUE and self._from_master(tensor.name, flat.dtype):\n",
        "        if key == MASTER:\n",
        (f"{ROAD}[bfloat16]", f"{SAME}[bfloat16-1]"),
        "masters are filled from the 16-bit weights",
        "T32",
    ),
    mutant(
        "loading",
        "counters-forgotten",
        '        goes_on(engine, record["engine"])\n',
        "        pass\n",
        (ANY, f"{SAME}[float16-3]"),
        "rates and loss scale begin anew",
        "T32",
    ),
    mutant(
        "loading",
        "any-model",
        "            if here != there:\n",
        "            if here is None:\n",
        (MODELS,),
        "another model's tensors are read as far as they go",
    ),
    mutant(
        "loading",
        "frozen-forgotten",
        "                parameter.copy_(flat.view(parameter.shape))\n",
        "                del flat\n",
        (ANY,),
        "what is frozen stays what it was before the load",
    ),
    mutant(
        "shared_errors",
        "each-for-itself",
        "    if reports:\n        rank, text = reports[0]\n",
        "    if problem is not None:\n        raise problem\n"
        "    if reports:\n        rank, text = reports[0]\n",
        (KINDS, HARMED),
        "the ranks do not say the same",
        "T30",
    ),
    mutant(
        "shared_errors",
        "one-remedy",
        "remedy = other if error.errno in numbers else remedy",
        'remedy = "make room"',
        (KINDS,),
        "who may not write is told to make room",
    ),
    mutant(
        "folder",
        "sweeps-what-is-another-s",
        "    for pattern in LEFT:  # no",
        '    for pattern in (".*",):  # no',
        (WRITERS,),
        "a folder that was not ours, such as .git, is removed",
    ),
    mutant(
        "folder",
        "latest-first",
        "    with about(part):\n        sync_folder(part)\n",
        '    write_whole(top / LATEST, f"{final.name}\\n")\n',
        (KILLED, FULL),
        "`latest` names what is not there yet",
        "T32",
    ),
    mutant(
        "folder",
        "latest-not-put-back",
        "        elif latest.read_bytes() != before:\n            write_whole(latest, before)\n",
        "",
        (FULL,),
        "`latest` names a checkpoint that was taken back",
    ),
    mutant(
        "folder",
        "not-restored",
        "        if not final.exists():\n            old.rename(final)\n",
        "        if not final.exists():\n            continue\n",
        (KILLED,),
        "a rank killed between two renames costs both checkpoints",
    ),
    mutant(
        "folder",
        "claimed-by-all",
        "fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        (CLAIM, WRITERS),
        "two runs hold one folder",
    ),
    mutant(
        "folder",
        "latest-in-utf-8",
        '.decode(errors="replace").strip()',
        ".decode().strip()",
        (RUN + "test_a_latest_that_names_none",),
        "bytes that are no text are a traceback",
    ),
    mutant(
        "checksums",
        "not-compared",
        "        if actual != sums[name]:\n",
        "        if not actual:\n",
        (HARMED,),
        "a small file that is damaged is used",
    ),
    mutant(
        "checksums",
        "of-nothing",
        "hashlib.sha256(content)",
        'hashlib.sha256(b"")',
        (SUMS,),
        "a sum that is none of the file's bytes",
    ),
    mutant(
        "folder",
        "latest-at-the-beginning",
        "        part.mkdir()\n",
        '        part.mkdir()\n    write_whole(top / LATEST, f"{named(step)}\\n")\n',
        (PROGRAM + "test_a_rank_killed_in_a_save_leaves_the_checkpoint_before[1]",),
        "`latest` names what is only being written",
    ),
    mutant(
        "folder",
        "in-place",
        '    return top / f".{named(step)}.part"\n',
        "    return top / named(step)\n",
        (PROGRAM + "test_a_disk_that_takes_no_more_leaves_the_checkpoint_before",),
        "a checkpoint grows in its own place",
    ),
    Mutant(
        "checkpoint-nothing-loaded",
        "course_lib/train/journal.py",
        "                checkpoint.load(path, engine, self.mesh, streams=False)\n",
        "",
        (TRAIN, PROGRAM + "test_a_rank_killed_in_a_step_costs_the_steps_since_the_last_checkpoint"),
        "weights and moments begin anew",
        "T32",
    ),
    Mutant(
        "checkpoint-frozen-put-back",
        "course_lib/zero/training_state.py",
        "states, group_of.get(part, {}))",
        "states, group_of[part])",
        (ANY,),
        "a frozen part at stage 3 cannot be put back",
    ),
    Mutant(
        "checkpoint-fingerprint-at-once",
        "course_lib/collectives/agreement.py",
        "    return min(most, 1024 + numel // 64)",
        "    return numel",
        (BYTES + "test_comparing_copies_takes_pieces_of_them",),
        "comparing copies takes eight times a tensor's bytes",
    ),
]
