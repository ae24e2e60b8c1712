"""Mistakes in what the tests themselves stand on: the pool of ranks, and nbval made strict."""

from tests.mutation import Mutant

CANARY = "tests/test_canaries.py::test_fails_for_its_own_reason"

MUTANTS = [
    Mutant(
        "pool-held-group-keeps-neighbours-waiting",
        "tests/pool_worker.py",
        "            if lost or self.default_group() is not None:\n",
        "            if False:\n",
        ("tests/test_pool.py::test_a_group_that_something_holds_does_not_hide_the_cause",),
        "sockets that a leftover holds open tell no neighbour that its rank has failed",
    ),
    Mutant(
        "pool-rank-without-its-gpu-goes-on",
        "tests/pool_worker.py",
        "Failure.of(self.rank, error), lost_gpu(str(error))",
        'Failure.of(self.rank, error), ""',
        ("tests/test_pool.py::test_a_rank_that_lost_its_gpu_is_replaced",),
        "after a device-side assert every later test of that process fails with its words",
    ),
    Mutant(
        "ground-ranks-outlive-pytest",
        "tests/pool_worker.py",
        "                os._exit(1)",
        "                return",
        ("tests/test_pool_leftovers.py::test_nothing_outlives_a_killed_pytest",),
        "a rank that waits in a collective stays for good when pytest is killed",
        "T35",
    ),
    Mutant(
        "ground-first-in-time-is-first",
        "tests/failures.py",
        "key=lambda f: (f.consequence, f.seconds, f.rank)",
        "key=lambda f: (f.rank, f.seconds)",
        (
            "tests/test_pool.py::test_the_cause_comes_first_and_at_once",
            "tests/test_failures.py::test_causes_come_before_consequences_and_early_before_late",
        ),
        "rank 0's lost connection hides the error on the rank that began it",
        "T35",
    ),
    Mutant(
        "ground-groups-live-on",
        "tests/pool_worker.py",
        "                destroy_groups_of_the_test()",
        "                continue",
        ("tests/test_pool.py::test_what_a_test_changes_is_put_back",),
        "a test's groups stay, with their sockets, for all tests after it",
    ),
    Mutant(
        "ground-failed-rank-keeps-its-group",
        "tests/pool_worker.py",
        "            if not lost:\n                self.leave()",
        "            if False:\n                self.leave()",
        ("tests/test_pool.py::test_a_rank_that_lost_its_gpu_is_replaced",),
        "the neighbours of a failed rank wait, and processes have to be started anew",
    ),
    Mutant(
        "ground-one-seed-for-all-ranks",
        "tests/pool_worker.py",
        "seed_all(seed + 7919 * self.rank)",
        "seed_all(seed)",
        ("tests/test_pool.py::test_seeds_differ_by_rank_and_repeat",),
        "all ranks draw the same numbers, and a collective that does nothing looks right",
        "T29",
    ),
    Mutant(
        "ground-hang-looks-green",
        "tests/strict_notebooks.py",
        'if TIMED_OUT in (getattr(report, "wasxfail", "") or ""):',
        "if False:",
        (f"{CANARY}[hang]", f"{CANARY}[hang_that_looks_green]"),
        "cells after a timeout are expected to fail, and a hang ends green",
        "T36",
    ),
    Mutant(
        "ground-threads-fail-unseen",
        "tests/kernel_watch.py",
        "        threading.excepthook = excepthook",
        "        pass",
        (f"{CANARY}[thread_raises]",),
        "an exception in a thread leaves its cell green",
        "T36",
    ),
    Mutant(
        "ground-magics-unread-in-cells-for-ranks",
        "tests/notebook_lint.py",
        "return faults_of_source(words[2]) if",
        "return [] if",
        ("tests/test_notebook_rules.py::test_what_may_not[%%ranks 0\\n\\n%foo-uses %foo;]",),
        "what stands inside a %%ranks cell is read by nobody",
        "T36",
    ),
]
