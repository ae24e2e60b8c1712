"""Mutants of what several hosts need: who they are, what differs, two of them on one machine."""

from __future__ import annotations

from tests.mutation import Mutant

TESTS = "tests/nodes/test_two_hosts.py::"
SAME = (
    f"{TESTS}test_over_two_hosts_it_is_the_run_of_one_bit_for_bit_and_a_clock_that_is_off_is_told"
)
CUT = f"{TESTS}test_a_link_that_is_cut_ends_every_rank_and_the_run_goes_on"
OTHER = f"{TESTS}test_other_releases_and_other_options_are_told_before_the_first_step"
SHARED = f"{TESTS}test_a_folder_that_is_not_shared_is_told"
NOBODY = f"{TESTS}test_a_host_that_does_not_answer_and_one_that_nobody_comes_to"
TWICE = f"{TESTS}test_two_ranks_with_one_number_are_told"
ALIKE, ENTRY = "course_lib/train/alike.py", "course_lib/train/entry.py"
HOSTS = "course_lib/nodes/two_hosts.py"

MUTANTS = [
    Mutant(
        "nodes-twice-the-same",
        "course_lib/ranks.py",
        "    if first != mine:\n",
        "    if not first:\n",
        (TWICE,),
        "two processes with one number wait for the one that is missing",
    ),
    Mutant(
        "nodes-first-rank-alone-speaks",
        ENTRY,
        "        if STARTER not in os.environ and first_of_host():\n",
        "        if STARTER not in os.environ and rank == 0:\n",
        (CUT,),
        "on the second host nobody says why it ended",
    ),
    Mutant(
        "nodes-silence-is-a-loss",
        ENTRY,
        "options is not None and SILENT.search(str(error))",
        "options is None",
        (CUT,),
        "where a link is gone, a message is promised that no rank gives",
    ),
    Mutant(
        "nodes-nobody-answers-in-torchs-words",
        ENTRY,
        "        raise Unmet(_unmet(str(error), at, world, timeout)) from error\n",
        "        raise\n",
        (NOBODY,),
        "a host that does not answer is a traceback of torch's store",
    ),
    Mutant(
        "nodes-who-came-is-not-said",
        ENTRY,
        "    if came:\n",
        "    if not came:\n",
        (NOBODY,),
        "the host that waits is told that nobody answers at its own address",
    ),
    Mutant(
        "nodes-releases-not-compared",
        ALIKE,
        "            if other.releases.get(name) != version:\n",
        "            if name not in other.releases:\n",
        (OTHER,),
        "two releases train together, and their numbers part some time",
    ),
    Mutant(
        "nodes-options-not-compared",
        ALIKE,
        "            if other.options.get(name) != value:\n",
        "            if name not in other.options:\n",
        (OTHER,),
        "two hosts train with two learning rates",
    ),
    Mutant(
        "nodes-clock-not-told",
        ALIKE,
        "    if late and me.rank == 0:\n",
        "    if late and me.rank == me.world:\n",
        (SAME,),
        "times in the logs of two hosts are hours apart, and nobody says so",
    ),
    Mutant(
        "nodes-unshared-folder",
        "course_lib/train/lock.py",
        "        if me.local_world != me.world:\n",
        "        if me.local_world == me.world:\n",
        (SHARED,),
        "half of a checkpoint is on each host",
    ),
    Mutant(
        "nodes-token-stays",
        ALIKE,
        "            path.unlink(missing_ok=True)\n",
        "            path.exists()\n",
        (SAME,),
        "the file by which hosts see that a folder is one stays in it",
    ),
    Mutant(
        "nodes-link-without-a-speed",
        HOSTS,
        "            if self.rate is not None:\n",
        '            if self.rate == "":\n',
        (f"{TESTS}test_the_link_is_as_slow_as_was_asked",),
        "a slow link is as fast as memory",
    ),
    Mutant(
        "nodes-hosts-outlive-their-process",
        HOSTS,
        '"exec cat"]',
        '"exec cat /dev/ptmx"]',
        (f"{TESTS}test_nothing_is_left_where_their_process_is_killed",),
        "what ran on the hosts of a killed program runs on",
    ),
]
