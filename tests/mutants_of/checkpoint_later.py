"""Mistakes in what is written while the training goes on, in random streams, in DTensors' boxes."""

from tests.mutation import Mutant

HOME = "course_lib/checkpoint/"
LATER = "tests/checkpoint/test_later.py::"
STEP = LATER + "test_it_is_the_step_it_was_asked_at[2x1-1-None-as-is]"
FAILS = LATER + "test_what_fails_on_a_rank_is_raised_on_all_and_the_one_before_stays"
FULL, SILENT = (
    f"{FAILS}[full-No space left on device]",
    f"{FAILS}[silent-rank 1 has not said that its part of]",
)
OFF_GPU = "tests/checkpoint/test_off_gpu.py::test_off_a_gpu_the_same_bytes_are_written"
RUN = LATER + "test_a_run_that_saves_so_leaves_the_same"
STREAMS = "tests/checkpoint/test_streams.py::"
OWN = STREAMS + "test_each_replica_goes_on_with_its_own_at_any_tp"
OTHERS = STREAMS + "test_other_replicas_get_streams_of_their_own"
NONE = STREAMS + "test_streams_that_are_none_are_refused"
DTENSORS = "tests/checkpoint/test_dtensors.py::"
BOX = DTENSORS + "test_the_box_of_a_shard_is_what_it_holds"
FSDP = DTENSORS + "test_fully_shard_takes_its_shards[2]"
LAYOUTS = "tests/checkpoint/test_layouts.py::test_drawn_pairs_go_on_alike[gpt2]"
LOADED = "tests/test_benchmarks_checkpoint.py::test_a_load_is_seen_to_load"


def mutant(file: str, name: str, old: str, new: str, tests: tuple, why: str, trap=None) -> Mutant:
    return Mutant(f"later-{name}", f"{HOME}{file}.py", old, new, tests, why, trap)


MUTANTS = [
    mutant(
        "later",
        "no-copy",
        "        copy = self.beside.copy(x)\n",
        "        copy = x\n",
        (STEP,),
        "the steps that go on are in the checkpoint of the step before",
    ),
    mutant(
        "later",
        "copies-read-too-soon",
        "            beside.wait()\n",
        "",
        (OFF_GPU,),
        "what is written is what the memory held before",
    ),
    mutant(
        "later",
        "updates-do-not-wait",
        "    saving.hold = beside.before(engine.optimizer)\n",
        "",
        (OFF_GPU,),
        "a checkpoint has parts of the step after",
    ),
    mutant(
        "later",
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
        "off_gpu",
        "windows-all-at-the-start",
        "yield at, memoryview(self._buffer",
        "yield 0, memoryview(self._buffer",
        (OFF_GPU,),
        "of a tensor larger than the buffer the last piece is written first",
    ),
    mutant(
        "later",
        "one-rank-is-enough",
        "        if missing and time.monotonic() > stop:\n",
        "        if reports:\n            break\n        if missing and time.monotonic() > stop:\n",
        (STEP,),
        "rank 0 makes a checkpoint before the others have written",
    ),
    mutant(
        "later",
        "silence-is-waited-for",
        "time.monotonic() > stop:\n            raise",
        "time.monotonic() > stop + 600:\n            raise",
        (SILENT,),
        "a rank that has ended holds a checkpoint up for ever",
    ),
    mutant(
        "later",
        "failure-kept-to-itself",
        "                _report(part, rank, {\"error\": text_of(error, not_written)})\n",
        "                pass\n",
        (FULL,),
        "the others wait for a rank whose disk is full, and do not hear why",
    ),
    mutant(
        "later",
        "half-a-save-stays",
        "            if rank == 0:\n                folder.discard(top, step)\n",
        "",
        (FULL, SILENT),
        "what was half written stays beside the checkpoints",
    ),
    mutant(
        "later",
        "claim-kept",
        "            staged.clear()\n            claim.release()\n",
        "            staged.clear()\n",
        (FULL,),
        "no later save gets the folder",
    ),
    Mutant(
        "later-not-waited-for",
        "course_lib/train/journal.py",
        "                self._land()\n",
        "",
        (RUN,),
        "a run's next save meets the one that is still being written",
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
        "new-ones-alike",
        "replica=dp.rank())\n    random.seed",
        "replica=0)\n    random.seed",
        (OTHERS,),
        "all new replicas draw the same masks",
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
        "streams",
        "damage-as-it-comes",
        "    except (KeyError, TypeError, ValueError, RuntimeError) as error:\n        raise Check",
        "    except ZeroDivisionError as error:\n        raise Check",
        (NONE,),
        "a damaged stream is an error of base64's",
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
        "later-others-not-read",
        "course_lib/zero/shards.py",
        "                for start, stop in ((0, first), (last, slot.numel)):\n",
        "                for start, stop in ((0, first),):\n",
        (LAYOUTS,),
        "a model keeps what it was made with, behind this rank's part",
    ),
    mutant(
        "loading",
        "unsummed-weights-computed-with",
        "others = None if gather or masters else reading.read_others",
        "others = None if gather else reading.read_others",
        (
            "tests/checkpoint/test_precision.py::"
            "test_sixteen_bits_that_nobody_vouches_for_are_not_computed_with",
        ),
        "damage in 16-bit weights reaches the ranks that do not own them",
    ),
    Mutant(
        "later-masters-not-brought-back",
        "course_lib/zero/shards.py",
        ".copy_(part, non_blocking=True)\n            for slot in",
        "\n            for slot in",
        ("tests/checkpoint/test_precision.py",),
        "the model computes with other weights than its masters",
        "T25",
    ),
    Mutant(
        "bench-checkpoint-not-synced",
        "benchmarks/_checkpoint_peers.py",
        "        os.fsync(file)\n",
        "        os.fstat(file)\n",
        ("tests/test_benchmarks_checkpoint.py::test_what_a_peer_leaves_is_synced",),
        "a peer's save ends in the page cache, ours on the disk",
    ),
    Mutant(
        "bench-checkpoint-loads-nothing",
        "benchmarks/_checkpoint_peers.py",
        "        self.load(**more)\n        return self.sum()\n",
        "        return self.sum()\n",
        (LOADED,),
        "a load that does nothing is the fastest",
    ),
]  # fmt: skip
