"""Mistakes in course_lib/collectives/agreement.py: ranks that decide each for itself."""

from __future__ import annotations

from tests.mutation import Mutant

TESTS = "tests/test_agreement.py::test_"
DIFFERS = TESTS + "a_value_that_differs_is_refused_on_all_ranks"
FAILS = TESTS + "a_body_that_fails_on_one_rank_raises_on_all"


def mutant(name: str, old: str, new: str, test: str, why: str, trap: str | None = None) -> Mutant:
    file = "course_lib/collectives/agreement.py"
    return Mutant(f"agreement-{name}", file, old, new, (test,), why, trap)


MUTANTS = [
    mutant(
        "never-refused",
        "    if others:\n",
        "    if False:\n",
        f"{DIFFERS}[2-0-other0-1-0]",
        "ranks with different arguments go on as if they were the same",
        "T20",
    ),
    mutant(
        "one-axis-alone",
        "    for group in groups:\n        every = all_gather(every, group)",
        "    for group in groups[:1]:\n        every = all_gather(every, group)",
        f"{DIFFERS}[4-2-other3-2-0]",
        "a replica that differs is not noticed, or by its own tp ranks alone",
        "T20",
    ),
    mutant(
        "rank-that-differs-raises-alone",
        "    if others:\n",
        "    if dist.get_rank() in others:\n",
        f"{DIFFERS}[2-0-other0-1-0]",
        "the others wait for a rank that has given up",
        "T35",
    ),
    mutant(
        "numbers-of-the-group",
        "own = [dist.get_rank(), *torch",
        "own = [groups[0].rank(), *torch",
        TESTS + "ranks_of_a_part_have_the_numbers_of_the_world",
        "the message names a rank of the group as if it were that of the world",
    ),
    mutant(
        "longer-digest",
        "[: SENT - 8]",
        "[:]",
        f"{DIFFERS}[3-0-other5--0]",
        "more bytes than the formulas count",
    ),
    mutant(
        "own-error-alone",
        "    if reports:\n        rank, text",
        "    if False:\n        rank, text",
        f"{FAILS}[2-0]",
        "ranks on which all went well go on alone",
        "T35",
    ),
    mutant(
        "raised-before-it-is-heard",
        "    except Exception as caught:\n        problem = caught",
        "    except Exception:\n        raise",
        f"{FAILS}[2-0]",
        "the others wait for a rank that has given up",
        "T35",
    ),
    mutant(
        "first-axis-heard",
        "    for group in groups:\n        gathered",
        "    for group in groups[:1]:\n        gathered",
        TESTS + "every_rank_hears_who_says_what[4-2]",
        "what one replica meets the others never hear",
        "T35",
    ),
    mutant(
        "empty-report-lost",
        "    if own is not None:",
        "    if own:",
        TESTS + "every_rank_hears_who_says_what[3-0]",
        "an error without words passes for none",
    ),
]
