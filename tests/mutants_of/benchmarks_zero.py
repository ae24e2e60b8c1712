"""Mistakes in `course bench zero`, and in the direct verbs that make its stages fast."""

from tests.mutation import Mutant

DIRECT = "course_lib/collectives/direct.py"
SAME = "tests/test_collectives_direct.py::test_direct_forms_are_the_verbs"
COPY = "tests/test_collectives_direct.py::test_they_copy_nothing"
TESTS = "tests/test_benchmarks_zero.py::"
OURS = f"{TESTS}test_ours_and_torchs_train_the_same_model_where_deepspeed_is_missing"
THEIRS = f"{TESTS}test_deepspeed_trains_the_same_model"
SETTINGS = f"{TESTS}test_settings_are_looked_at_before_ranks_are_started"
TRIED = f"{TESTS}test_every_peer_has_three_settings_to_be_tried"

MUTANTS = [
    Mutant(
        "direct-from-the-same-side",
        DIRECT,
        "to, source = (rank + j) % n, (rank - j) % n",
        "to, source = (rank + 1) % n, (rank - 1) % n",
        (f"{SAME}[3-sync]", f"{SAME}[4-async]"),
        "every round goes to the next neighbour; with two ranks nobody sees it",
        "T29",
    ),
    Mutant(
        "direct-own-left-out",
        DIRECT,
        "return arrived[0].add_(pieces[rank])",
        "return arrived[0]",
        (f"{SAME}[2-sync]",),
        "a rank's own part is not in the sum",
        "T2",
    ),
    Mutant(
        "direct-sum-in-the-buffer",
        DIRECT,
        "return arrived[0].add_(pieces[rank])",
        "return pieces[rank].add_(arrived[0])",
        (f"{SAME}[2-async]",),
        "the caller's buffer holds the sum, and is kept alive by it",
        "T1",
    ),
    Mutant(
        "direct-not-awaited",
        DIRECT,
        "        for work in self._works:\n            work.wait()",
        "        for work in self._works[:1]:\n            work.wait()",
        (f"{SAME}[4-async]",),
        "the first neighbour's numbers are there, and the others' perhaps",
        "T33",
    ),
    Mutant(
        "direct-books-the-whole",
        DIRECT,
        'with verb("all_gather", own, group, sizes=[own.nbytes] * n):',
        'with verb("all_gather", buffer, group, sizes=[own.nbytes] * n):',
        (f"{SAME}[2-sync]", f"{SAME}[3-async]"),
        "the ledger books n times what is sent",
    ),
    Mutant(
        "direct-copies",
        DIRECT,
        "work = in_rounds(lambda to: own, lambda source: pieces[source], group)",
        "work = in_rounds(lambda to: own.clone(), lambda source: pieces[source], group)",
        (f"{COPY}[2]",),
        "each message is copied before it is sent",
    ),
    Mutant(
        "direct-rounds-in-16-bits",
        DIRECT,
        "wide = torch.promote_types(buffer.dtype, torch.float32)",
        "wide = buffer.dtype",
        ("tests/test_collectives_direct.py::test_sixteen_bits_are_rounded_once",),
        "small numbers are lost beside a large one, one by one",
        "T27",
    ),
    Mutant(
        "direct-any-shape",
        DIRECT,
        "if buffer.dim() != 1 or buffer.numel() % n or not buffer.is_contiguous():",
        "if buffer.numel() % n:",
        ("tests/test_collectives_direct.py::test_what_is_no_flat_buffer_is_refused",),
        "a matrix is taken for a flat buffer, or dies in a view",
    ),
    Mutant(
        "bench-zero-held-of-all",
        "benchmarks/zero.py",
        "held = _zero_task.bytes_alive() - before",
        "held = _zero_task.bytes_alive()",
        (OURS,),
        "a method is said to hold what the methods before it hold",
    ),
    Mutant(
        "bench-zero-buckets-forgotten",
        "benchmarks/_zero_torch.py",
        "buckets[:] = [p.grad for p in parameters]",
        "buckets[:] = []",
        (OURS,),
        "DDP is said to hold no gradients, which lie in its buckets",
    ),
    Mutant(
        "bench-zero-peak-without-held",
        "benchmarks/zero.py",
        'row["peak_mb"] = round(row["peak_mb"] + row["held_mb"], 6)',
        'row["peak_mb"] = round(row["peak_mb"], 6)',
        (OURS,),
        "a method that holds everything all the time has the smallest peak",
    ),
    Mutant(
        "bench-zero-fast-is-lean",
        "benchmarks/_zero_ours.py",
        "KEEP = 1 << 60",
        "KEEP = 0",
        (OURS,),
        "the fast setting is named and the lean one measured",
    ),
    Mutant(
        "bench-zero-always-kept",
        "benchmarks/_zero_torch.py",
        'reshard=name.endswith("reshard")',
        "reshard=False",
        (OURS,),
        "FSDP2 is said to reshard, and keeps what it has gathered",
    ),
    Mutant(
        "bench-zero-same-data-twice",
        "benchmarks/_zero_task.py",
        "batch = self.words[made % len(self.words)]",
        "batch = self.words[0]",
        (OURS,),
        "every step sees the same words; losses agree more easily",
    ),
    Mutant(
        "bench-zero-left-out-silently",
        "benchmarks/zero.py",
        "    task.notes += _zero_deepspeed.note(chosen(workload))\n",
        "",
        (OURS,),
        "nobody is told that a peer is missing",
    ),
    Mutant(
        "bench-zero-wrong-rival",
        "benchmarks/zero.py",
        '    "deepspeed-2": "course_lib-2",',
        '    "deepspeed-2": "ddp",',
        (THEIRS,),
        "DeepSpeed's stage 2 is held against something else",
    ),
    Mutant(
        "bench-zero-unknown-name",
        "benchmarks/zero.py",
        "    if strange:\n",
        "    if False:\n",
        (SETTINGS,),
        "a misspelt method is left out without a word",
    ),
    Mutant(
        "bench-zero-tuned-for-ours-alone",
        "benchmarks/zero.py",
        "for other in others if tune else ():",
        "for other in ():",
        (TRIED,),
        "the settings that were tried cannot be tried again",
    ),
]
