"""Mistakes in what is written while the training goes on, in random streams, in DTensors' boxes."""

from tests.support.mutation import Mutant

HOME = "course_lib/checkpoint/"
LATER = "tests/course_lib/checkpoint/test_background_save.py::"
STEP = LATER + "test_it_is_the_step_it_was_asked_at[2x1-1-None-as-is]"
OFF_GPU = "tests/course_lib/checkpoint/test_off_gpu.py::test_off_a_gpu_the_same_bytes_are_written"
STREAMS = "tests/course_lib/checkpoint/test_streams.py::"
OWN = STREAMS + "test_each_replica_goes_on_with_its_own_at_any_tp"
DTENSORS = "tests/course_lib/checkpoint/test_dtensors.py::"
BOX = DTENSORS + "test_the_box_of_a_shard_is_what_it_holds"
FSDP = DTENSORS + "test_fully_shard_takes_its_shards[2]"


def mutant(file: str, name: str, old: str, new: str, tests: tuple, why: str, trap=None) -> Mutant:
    return Mutant(f"later-{name}", f"{HOME}{file}.py", old, new, tests, why, trap)


MUTANTS = [
    mutant(
        "background_save",
        "no-copy",
        "        copy = self.beside.copy(x)\n",
        "        copy = x\n",
        (STEP,),
        "the steps that go on are in the checkpoint of the step before",
    ),
    mutant(
        "background_save",
        "copies-read-too-soon",
        "            beside.wait()\n",
        "",
        (OFF_GPU,),
        "what is written is what the memory held before",
    ),
    mutant(
        "background_save",
        "updates-do-not-wait",
        "    saving.hold = beside.before(engine.optimizer)\n",
        "",
        (OFF_GPU,),
        "a checkpoint has parts of the step after",
    ),
    mutant(
        "background_save",
        "hold-not-removed",
        "            self.hold.remove()\n",
        "            pass\n",
        (OFF_GPU,),
        "each save leaves a hook that all updates run",
    ),
    mutant(
        "off_gpu",
        "buffer-for-each-tensor",
        "        if self._buffer is None:\n",
        "        if True:\n",
        (OFF_GPU,),
        "pinned memory is slow to get, and a save gets it anew for every tensor",
    ),
    mutant(
        "background_save",
        "one-rank-is-enough",
        "    for rank, file in enumerate(files):\n",
        "    for rank, file in enumerate(files[:1]):\n",
        (STEP,),
        "rank 0 makes a checkpoint before the others have written",
    ),
    mutant(
        "streams",
        "rank-0-for-all",
        "        _set(streams[dp.rank()])\n",
        "        _set(streams[0])\n",
        (OWN,),
        "each replica's stream is replaced by the first one's",
        "T32",
    ),
    mutant(
        "streams",
        "python-forgotten",
        "        random.setstate((version, numbers, gauss))\n",
        "",
        (OWN,),
        "Python's own stream begins anew",
    ),
    mutant(
        "dtensors",
        "offset-forgotten",
        "    return Box(tuple(offset), tuple(shape))\n",
        "    return Box((0,) * len(shape), tuple(shape))\n",
        (BOX, FSDP),
        "every rank reads the first rank's shard",
    ),
    Mutant(
        "later-masters-not-brought-back",
        "course_lib/zero/shards.py",
        ".copy_(part, non_blocking=True)\n            for slot in",
        "\n            for slot in",
        ("tests/course_lib/checkpoint/test_precision.py",),
        "the model computes with other weights than its masters",
        "T25",
    ),
]  # fmt: skip
