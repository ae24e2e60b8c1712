"""Mistakes in the dry run, in what it counts, and tensors that are made without their device."""

from tests.support.mutation import Mutant

ALONE = "tests/course_lib/dry/test_alone.py::"
VERBS = ALONE + "test_every_verb_goes_past_a_ledger_with_its_bytes_and_no_byte_moves"
COMMAND = "tests/course_lib/dry/test_command.py::"
BROKEN = COMMAND + "test_a_config_that_is_no_such_model_is_refused"
DEVICES = "tests/course_lib/dry/test_devices.py::"
ONE = DEVICES + "test_every_layout_of_a_run_is_on_one_device"
OUTSIDE = DEVICES + "test_so_are_data_parallelism_and_the_engines_from_outside"


def mutant(file: str, name: str, old: str, new: str, tests: tuple, why: str, trap=None) -> Mutant:
    return Mutant(f"dry-{name}", f"course_lib/{file}.py", old, new, tests, why, trap)


def without_device(file: str, name: str, old: str, new: str, *tests: str) -> Mutant:
    why = "a tensor is made without its device: right on a CPU by accident, and nowhere else"
    return mutant(file, f"device-{name}", old, new, tests, why)


MUTANTS = [
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
        "collectives/agreement", "checksum",
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
        "collectives/transport", "another-road",
        '.name() in ("gloo", "fake")',
        '.name() in ("gloo", "none")',
        (VERBS,),
        "messages take NCCL's road, and their memory is not that of a run here",
    ),
    mutant(
        "zero/offload/nvme", "files-of-nothing",
        '        if device.type == "meta":  # there are no values to put into files\n',
        "        if False:\n",
        (f"{ONE}[3-fp16-nvme]", COMMAND + "test_nothing_is_written_and_files_are_counted"),
        "a dry run writes files, of bytes that nobody has computed",
    ),
    mutant(
        "zero/holdings", "masters-twice",
        '        "parameters": [*engine.model.parameters(), *whole],\n',
        '        "parameters": [*engine.model.parameters(), *shards.memory()],\n',
        (f"{ONE}[3-wide-lent]",),
        "the copies in float32 are told as parameters",
    ),
    mutant(
        "dry/shapes", "sizes-beside-a-config",
        "    if sizes:\n",
        "    if sizes is None:\n",
        (f"{BROKEN}[beside sizes]",),
        "a size that was typed is dropped without a word", "T34",
    ),
]  # fmt: skip
