"""`generate_together` of lesson 14: unequal prompts, and a forward pass that needs all ranks.

The text is compared with each rank's own, the number of forward passes with the longest text, and
the traffic with one small message for each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from random import Random

import torch

from course_classroom.judge import bench, words
from course_classroom.judge.judge import on
from course_classroom.judge.layers import agreed
from course_classroom.judge.looking import ITEM, THREE, TWO
from course_classroom.ranks import agreement
from course_lessons.lesson_14.trial import Trial, exercise
from course_lib.collectives import all_gather
from course_lib.collectives.call import Group

SAYS = words.Page(__file__, "generate_together")
STOP, WORDS = 1000, 50  # the stop is not a small int, so equal stops are different objects
ENDLESS = 60  # forwards of one call: far more than any rank needs
SMALL = 64  # bytes that a rank may send in addition to each forward
AT_STOP, AT_LIMIT, NOTHING = range(3)
# The end of a case's longest text, which is on a different rank each time, and of the others.
CASES = ((AT_STOP, AT_STOP), (AT_LIMIT, AT_STOP), (AT_STOP, AT_LIMIT), (AT_LIMIT, NOTHING))
CASES += ((NOTHING, NOTHING),)
# A prompt, the model's new tokens up to its stop, the number of tokens requested.
Asked = tuple[list[int], list[int], int]


def drawn(n: int, case: int, seed: int) -> list[Asked]:
    """Draw each rank's request; prompts may contain stops, including at the end."""
    r, row = Random(seed + case), []
    for rank in range(n):
        longest = rank == (case + seed) % n
        count, more = r.randint(8, 11) if longest else r.randint(2, 5), r.randint(1, 9)
        ends = ((count, count + more), (count + more, count), (count, 0))
        length, most = ends[CASES[case][not longest]]
        ids, text = ([r.randint(1, WORDS) for _ in range(k)] for k in (r.randint(1, 6), length - 1))
        if (case + rank) % 2:
            ids += r.choice(([STOP], [STOP, r.randint(1, WORDS), STOP]))
        row.append((ids, [*text, int(str(STOP))], most))
    return row


# ---- code on the judge's ranks: after an answer has returned, its rank continues to answer the
# others' gathers and reports that it has left, so that a hang becomes a note in milliseconds
class Left(Exception):
    """An exception for a rank's forward pass after a different rank has ended."""


class Forward:
    """A model whose weights need a gather; `forward(ids)` returns the token after `ids`."""

    def __init__(self, way: list[int], group: Group):
        self.way, self.group = way, group  # the prompt, then the model's tokens
        self.calls, self.alone = 0, []  # ranks that had ended at this one's last call

    def __call__(self, ids: list[int]) -> int:
        if not isinstance(ids, list) or {*map(type, ids)} != {int}:
            raise TypeError("forward takes a list of integers with at least one entry")
        self.calls += 1
        if self.calls > ENDLESS:
            raise RuntimeError(f"{ENDLESS} forward passes, but no rank needs so many")
        ended = all_gather(torch.tensor([0]), self.group)  # in the form that `agreed` uses
        self.alone = ended.nonzero().flatten().tolist()
        if self.alone:
            raise Left
        so_far = ids == self.way[: len(ids)] and ids != self.way
        return self.way[len(ids)] if so_far else 1 + sum(ids) % WORDS


def run(function: Callable, group: Group, case: int, seed: int, when: str) -> dict:
    """Run one case; return this rank's looks and the values for their words."""
    n, rank = group.size(), group.rank()
    row = drawn(n, case, seed)
    (ids, text, most), wanted = row[rank], [min(most, len(text)) for _, text, most in row]
    forward, given, facts, out = Forward(ids + text, group), [*ids], {"ops": {}, "bytes": 0}, None
    with suppress(Left):
        out, facts = bench.watched(partial(function, given, forward, most, STOP, group))
    while not agreed(True, group):  # this rank has ended, so answer the others' calls
        pass
    calls, new, due = forward.calls, text[:most], max(wanted)
    right, listed = ids + new, isinstance(out, list) and {*map(type, out)} <= {int}
    seen = list(out) if listed else []
    more = seen != right and seen[: len(right)] == right
    sent = sum(facts["ops"].values()) - min(facts["ops"].get("all_gather", 0), calls)
    spare = facts["bytes"] - ITEM * calls * (n - 1)
    head = f"Rank {rank} returned {len(seen) - len(ids)} new tokens ({when}). "
    if seen == right:
        made = f"{calls} forward pass{'es' * (calls != 1)}"
        head = f"The texts are correct. Rank {rank} runs {made} ({when}), "
    about = {"head": head, "calls": calls, "most": most, "wanted": wanted, "due": due}
    about |= {"kind": "" if forward.alone else bench.kind(out), "others": sent, "spare": spare}
    return about | {
        "gone": forward.alone and agreement.said_of(forward.alone, "has ended"),
        "ends": {"a rank stops early #2": forward.alone},
        "form": {"not a list": not listed, "input changed": given != ids},
        "texts": {
            "a stop in the prompt": STOP in ids and seen == ids and new,
            "tokens after the stop": more and new[-1:] == [STOP],
            "more than was asked for": more,
            "cut short": calls < len(new),
            "the stop left out": STOP in new and seen == right[:-1],
            "prompt left out": seen == new,
            "wrong text": seen != right,
        },
        "forwards": {
            "on to the limit": calls > due,
            "many messages": sent > due + 1,
            "texts sent": spare > (due + 1) * SMALL * (n - 1),
        },
    }


# ---- verdicts
def trials(tried: Callable, seed: int) -> Iterator[Trial]:
    for members, case in (*product([THREE], range(len(CASES))), (TWO, 1), (TWO, 3)):
        yield tried(members, on(members), case, seed, on(members))


LOOKS = {"returned": "ends", "shape": "form", "value": "texts", "traffic": "forwards"}
STOPS = {"a rank stops early #1": lambda finding: finding.hangs}
GENERATE_TOGETHER = exercise(SAYS, run, "its prompt with the new tokens", trials, LOOKS, STOPS)
