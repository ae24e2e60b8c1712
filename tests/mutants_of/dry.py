"""Mistakes in the dry run, in what it counts, and tensors that are made without their device."""

from tests.mutation import Mutant

HOME = "course_lib/dry/"
META = "tests/dry/test_meta.py::"
SHAPES_COUNT = META + "test_shapes_are_memory_where_a_rank_computes_on_them_and_nowhere_else"
PLACES = META + "test_a_place_is_a_memory_and_where_in_it[meta]"
ATTENTION = "tests/dry/test_attention.py::test_it_is_the_kernel_of_the_cpu"
ALONE = "tests/dry/test_alone.py::"
VERBS = ALONE + "test_every_verb_goes_past_a_ledger_with_its_bytes_and_no_byte_moves"
COMMAND = "tests/dry/test_command.py::"
WRONG = COMMAND + "test_a_wrong_call_is_refused_by_name"
BROKEN = COMMAND + "test_a_config_that_is_no_such_model_is_refused"
DEVICES = "tests/dry/test_devices.py::"
ONE = DEVICES + "test_every_layout_of_a_run_is_on_one_device"
NAMED = DEVICES + "test_what_is_left_on_the_cpu_is_named_with_its_line"
OUTSIDE = DEVICES + "test_so_are_data_parallelism_and_the_engines_from_outside"
STEP = DEVICES + "test_so_is_the_step_of_lesson_08"
LOSS = DEVICES + "test_so_is_the_loss_in_all_its_ways"
UNEVEN = "tests/dry/test_large.py::test_ranks_of_one_run_differ_where_the_cut_is_uneven"


def mutant(file: str, name: str, old: str, new: str, tests: tuple, why: str, trap=None) -> Mutant:
    return Mutant(f"dry-{name}", f"course_lib/{file}.py", old, new, tests, why, trap)


def without_device(file: str, name: str, old: str, new: str, *tests: str) -> Mutant:
    why = "a tensor is made without its device: right on a CPU by accident, and nowhere else"
    return mutant(file, f"device-{name}", old, new, tests, why)


MUTANTS = [
    without_device(
        "gpt/model", "positions",
        "places = torch.arange(first, stop, device=ids.device)",
        "places = torch.arange(first, stop)",
        f"{ONE}[0-alone]", f"{STEP}[gpt2-False]",
    ),
    without_device(
        "tensor_parallel/cross_entropy", "loss",
        "    own = logits.new_zeros((4, logits.shape[0]), dtype=wide(logits))\n",
        "    own = torch.zeros((4, logits.shape[0]), dtype=wide(logits))\n",
        f"{ONE}[0]", LOSS,
    ),
    without_device(
        "zero/partition", "bucket",
        "        buffer = torch.empty(self.padded, dtype=self.dtype, device=self.device)\n",
        "        buffer = torch.empty(self.padded, dtype=self.dtype)\n",
        f"{ONE}[2-sequence-dropout]", OUTSIDE,
    ),
    without_device(
        "zero/offload/host", "fetched",
        "there = torch.empty(shard.numel(), dtype=shard.dtype, device=self.device)",
        "there = torch.empty(shard.numel(), dtype=shard.dtype)",
        f"{ONE}[3-wide-lent]",
    ),
    without_device(
        "zero/loaded", "checksum",
        "odd = torch.arange(1, 2 * size, 2, device=x.device)",
        "odd = torch.arange(1, 2 * size, 2)",
        f"{ONE}[3-llama-shared-heads]",
    ),
    without_device(
        "zero/offload/files", "file-s-memory",
        "dtype=torch.uint8, device=host_of(device), pin_memory=pinned",
        "dtype=torch.uint8, pin_memory=pinned",
        f"{ONE}[3-fp16-nvme]",
    ),
    mutant(
        "dry/devices", "strangers-pass",
        "                if not x.is_meta and x.dim():\n",
        "                if x is None:\n",
        (NAMED,),
        "a copy onto a shape takes a tensor of any device without a word",
    ),
    mutant(
        "dry/devices", "scalars-refused",
        "if not x.is_meta and x.dim():",
        "if not x.is_meta:",
        (NAMED,),
        "what may stand beside any device is refused",
    ),
    mutant(
        "dry/devices", "line-of-torch",
        "        if not any(piece in file for piece in NOT_MAKERS):\n",
        "        if True:\n",
        (NAMED,),
        "the line that is named is the checker's own",
    ),
    mutant(
        "dry/attention", "all-pairs",
        "        if function is F.scaled_dot_product_attention and args[0].is_meta:\n",
        "        if function is None:\n",
        (f"{ATTENTION}[causal]", f"{ATTENTION}[shared heads]"),
        "attention keeps all pairs of tokens, and the peak is one that no run has",
    ),
    mutant(
        "dry/attention", "always-fused",
        "    if chosen != SDPBackend.FLASH_ATTENTION.value:\n",
        "    if chosen is None:\n",
        (f"{ATTENTION}[dropout]",),
        "with dropout a CPU keeps all pairs, and the dry run says that it does not",
    ),
    mutant(
        "dry/attention", "forgotten-in-the-backward",
        "        with self:\n            torch.autograd",
        "        if self:\n            torch.autograd",
        ("tests/dry/test_attention.py::test_so_it_is_where_it_is_recomputed[causal]",),
        "what is recomputed takes another kernel than what was computed",
    ),
    mutant(
        "dry/attention", "mask-of-bools",
        "        attn_mask = torch.where(attn_mask, 0.0, -math.inf).to(q.dtype)\n",
        "        attn_mask = attn_mask[:]\n",
        (f"{ATTENTION}[a mask]",),
        "a mask is kept in a byte a pair, and a CPU keeps four",
    ),
    mutant(
        "dry/alone", "others-silent",
        'return self._said.get(key, self._said.get(key.rpartition("/")[0], b""))',
        'return self._said.get(key, b"")',
        (f"{ONE}[3-wide-lent]",),
        "a rank that asks the others for their next gather hears nothing",
    ),
    mutant(
        "dry/alone", "waits-unheard",
        "    unheard, work.wait = work.wait, _heard\n",
        "    unheard = work.wait\n",
        (ALONE + "test_a_wait_is_heard",),
        "a ledger keeps the last message alive, and the peak has it twice",
    ),
    mutant(
        "dry/underway", "let-go-at-once",
        "                self._tensors[self._newest] = list(plain_tensors((args, kwargs or {})))\n",
        "                self._tensors[self._newest] = []\n",
        (ALONE + "test_what_is_sent_is_in_memory_until_its_handle_goes",),
        "what travels under a product is in no peak",
    ),
    mutant(
        "dry/underway", "kept-for-ever",
        "        self._newest = None\n        result",
        "        result",
        (ALONE + "test_what_is_sent_is_in_memory_until_its_handle_goes",),
        "the last message is in memory until the next one",
    ),
    mutant(
        "dry/alone", "group-left",
        "        work.wait = unheard\n        dist.destroy_process_group()\n",
        "        work.wait = unheard\n",
        (ALONE + "test_a_run_that_breaks_off_leaves_the_group",),
        "the process stays a rank of a group that there is not",
    ),
    mutant(
        "dry/alone", "any-rank",
        "    if not 0 <= rank < world:\n",
        "    if rank < 0:\n",
        (ALONE + "test_a_rank_that_there_is_not_is_refused[4-4]",),
        "a rank is counted that no run has",
    ),
    mutant(
        "collectives/transport", "another-road",
        '.name() in ("gloo", "fake")',
        '.name() in ("gloo", "none")',
        (VERBS,),
        "messages take NCCL's road, and their memory is not that of a run here",
    ),
    mutant(
        "meta", "all-at-address-0",
        "    if x.is_meta:\n        return f",
        "    if x is None:\n        return f",
        (PLACES,),
        "all shapes lie in one place, and no gradient goes into its bucket",
    ),
    mutant(
        "meta", "one-memory",
        '    if storage.device.type == "meta":',
        '    if storage.device.type == "none":',
        (PLACES, SHAPES_COUNT),
        "all shapes are one memory, and the first alone is counted",
    ),
    mutant(
        "memory/watch", "shapes-weigh-nothing",
        'self._meta = self._computes_on == "meta"',
        "self._meta = False",
        (SHAPES_COUNT, f"{ONE}[0]"),
        "a peak of shapes is what is held",
    ),
    mutant(
        "memory/held", "shapes-held-always",
        '    meta = computes_on == "meta"\n',
        "    meta = True\n",
        (SHAPES_COUNT,),
        "an outline of a model is counted as if it were one",
    ),
    mutant(
        "memory/tiers", "unmarked-shapes",
        "        for storage in storages(result, meta=True):\n",
        "        for storage in storages(result):\n",
        (SHAPES_COUNT,),
        "what is offloaded in a dry run is held by the device",
    ),
    mutant(
        "memory/tiers", "counters-on-the-host",
        'not in ("cpu", "meta")',
        'not in ("cpu",)',
        (SHAPES_COUNT, f"{ONE}[0]"),
        "Adam's counters lie on a host that no rank of the run has",
    ),
    mutant(
        "zero/buckets", "flags-without-numbers",
        "            device = readable(every[0].device)\n",
        "            device = every[0].device\n",
        (f"{ONE}[0]",),
        "what ranks decide by is asked of a shape",
    ),
    mutant(
        "zero/offload/nvme", "files-of-nothing",
        '        if device.type != "meta":  # there are numbers to put into files\n',
        "        if True:\n",
        (f"{ONE}[3-fp16-nvme]", COMMAND + "test_nothing_is_written_and_files_are_counted"),
        "a dry run writes files, of bytes that nobody has computed",
    ),
    mutant(
        "train/program", "folder-of-nothing",
        ' and computes_on(dp).type != "meta":',
        " and dp is not None:",
        (COMMAND + "test_nothing_is_written_and_files_are_counted",),
        "a dry run leaves a folder where it was typed",
    ),
    mutant(
        "train/measured", "an-axis-s-ranks",
        "                return axis\n",
        "                return name\n",
        (f"{ONE}[3-llama-shared-heads]",),
        "what ranks of one axis share among them is told as no axis's",
    ),
    mutant(
        "zero/holdings", "masters-twice",
        '        "parameters": [*engine.model.parameters(), *whole],\n',
        '        "parameters": [*engine.model.parameters(), *shards.memory()],\n',
        (f"{ONE}[3-wide-lent]",),
        "the copies in float32 are told as parameters",
    ),
    mutant(
        "dry/shapes", "rows-of-rank-0",
        "evenly(options.micro_rows, dp.size())[dp.rank()]",
        "evenly(options.micro_rows, dp.size())[0]",
        (UNEVEN,),
        "every rank has the rows of the first",
    ),
    mutant(
        "dry/shapes", "config-s-dropout",
        "recompute=self.recompute, dropout=self.dropout, attention_dropout=self.dropout",
        "recompute=self.recompute",
        (COMMAND + "test_a_config_json_is_a_model[gpt2]",),
        "a dropout that nobody typed changes the peak",
    ),
    mutant(
        "dry/shapes", "one-row",
        "rows = max(1, world // options.tp) * max(1, options.accumulate)",
        "rows = max(1, world // options.tp)",
        (COMMAND + "test_a_config_json_is_a_model[llama]",),
        "what was left to the command is refused by it",
    ),
    mutant(
        "dry/shapes", "any-length",
        "    if options.length > longest:\n",
        "    if options.length < 0:\n",
        (f"{BROKEN}[longer than it goes]",),
        "the refusal comes out of the model's forward",
    ),
    mutant(
        "dry/shapes", "sizes-beside-a-config",
        "    if sizes:\n",
        "    if sizes is None:\n",
        (f"{BROKEN}[beside sizes]",),
        "a size that was typed is dropped without a word", "T34",
    ),
    mutant(
        "dry/shapes", "weights-unread",
        "    if strange:\n",
        "    if strange is None:\n",
        (f"{WRONG}[weights]", f"{WRONG}[ranks]"),
        "options that change nothing are taken without a word", "T34",
    ),
    mutant(
        "dry/shapes", "unchecked",
        "    checks.check(options, world, tokenizer=False)\n",
        "    options.config()\n",
        (f"{WRONG}[tp does not divide]", f"{WRONG}[fewer heads than tp]"),
        "what no run can be ends in a traceback",
    ),
    mutant(
        "dry/shapes", "family-taken",
        "    if config is None:\n        raise Refused(_unknown(path, keys))\n",
        "",
        (f"{BROKEN}[a family that nobody knows]",),
        "another family is run as the sizes of the defaults", "T34",
    ),
    mutant(
        "dry/step", "differences-unseen",
        "                if own != wanted]",
        "                if own is None]",
        ("tests/dry/test_large.py::test_a_difference_is_found",),
        "counts that formulas contradict are called the same",
    ),
    mutant(
        "dry/command", "finding-is-good",
        "    return 1 if counted.differences() else 0\n",
        "    return 0\n",
        (COMMAND + "test_formulas_that_differ_are_a_finding",),
        "a script goes on after a finding",
    ),
]  # fmt: skip
