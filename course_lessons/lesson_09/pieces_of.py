"""`pieces_of` of lesson 09: the elements of parameters in a rank's shard of a bucket.

Answers run on many kinds of buckets on three and on two ranks. If one wrong idea explains all
results, the Finding names it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import torch

from course_classroom.judge import bench
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, refuse_none, refuse_world_numbers
from course_classroom.judge.words import Page
from course_lessons.lesson_09.each import judged
from course_lib.collectives.call import Group
from course_lib.layout import flat

Question = tuple[list[int], int, int]  # lengths, n, rank
Pieces = list[tuple[int, int, int, int]]  # index, start, stop, at
SAYS = Page(__file__, "pieces_of")
# A piece as described for a parameter that begins at s of the bucket.
MISTOLD = {
    "counted from the bucket": [
        lambda i, a, b, at, s: (i, a, b, s + a),
        lambda i, a, b, at, s: (i, s + a, s + b, at),
        lambda i, a, b, at, s: (i, s + a, s + b, s + a),
    ],
    "always 0": [lambda i, a, b, at, s: (i, a, b, 0)],
    "inclusive stop": [lambda i, a, b, at, s: (i, a, b - 1, at)],
    "length instead of stop": [lambda i, a, b, at, s: (i, a, b - a, at)],
}


def questions(seed: int, size: int, rank: int) -> list[Question]:
    """Return the questions for rank `rank` of `size`, on its own group and a larger group."""
    n = size + 4
    asked = [(lengths, size, rank) for lengths in buckets(seed, size)]
    return asked + [(lengths, n, rank * 2 + 1) for lengths in buckets(seed, n)]


def buckets(seed: int, n: int) -> list[list[int]]:
    """Return lists of parameter lengths: uneven, the same reversed, one parameter over several
    ranks and an empty one, few elements, and an even split."""
    made = torch.Generator().manual_seed(seed)

    def numbers(count: int, most: int) -> list[int]:
        return torch.randint(2, most, (count,), generator=made).tolist()

    uneven = numbers(7, 30)
    uneven[3] += (1 - sum(uneven)) % n  # one more than divisible: nearly a full row of zeros
    long = [*numbers(2, 5), 40 + n * 9, 0, *numbers(2, 5)]
    long[0] += (2 - sum(long)) % n if n > 2 else (1 - sum(long)) % n
    few = [1] * (n - 1) if n > 2 else [1]
    return [uneven, uneven[::-1], long, few, [5 * n, 3, 5 * n - 3]]


def ask(function: Callable, group: Group, seed: int) -> dict:
    """Return the answer for each bucket on this rank, and report if a repetition agrees."""
    told, kept = [], []
    asked = questions(seed, group.size(), group.rank())
    for lengths, n, rank in asked:
        given = list(lengths)
        out, facts = bench.watched(lambda a=given, b=n, c=rank: function(a, b, c))
        kept.append(out)
        one = {"kind": bench.kind(out), "pieces": read(out), "ops": facts["ops"]}
        told.append({**one, "changed": given != lengths})
    lengths, n, rank = asked[0]
    again, _ = bench.watched(lambda: function(list(lengths), n, rank))
    return {
        "told": told,
        "again": read(again) == told[0]["pieces"],
        "spoiled": [read(out) for out in kept] != [one["pieces"] for one in told],
    }


def read(out: object) -> Pieces | None:
    """Return the pieces as tuples of four integers, or None for any other result."""
    if not isinstance(out, (list, tuple)):
        return None
    found = []
    for one in out:
        if not isinstance(one, (list, tuple)) or [type(x) is bool for x in one] != [False] * 4:
            return None
        try:
            found.append(tuple(map(operator.index, one)))
        except (TypeError, RuntimeError):  # not integers
            return None
    return sorted(found)


def look(answer: Answer, reports: list[dict], when: str, seed: int) -> None:
    for told in zip(*(report["told"] for report in reports), strict=True):
        refuse_none(list(told), when, "a list of pieces")
        looks = {
            "a message": lambda r: r["ops"],
            "input changed": lambda r: r["changed"],
            "not pieces": lambda r: r["pieces"] is None,
        }
        SAYS.refuse_each(told, looks, when=when)
    again = {
        "one list reused": lambda r: r["spoiled"],
        "kept between calls": lambda r: not r["again"],
    }
    SAYS.refuse_each(reports, again, when=when)
    n = len(reports)
    asked = [each for rank in range(n) for each in questions(seed, n, rank)]
    got = [one["pieces"] for report in reports for one in report["told"]]
    wrong = [(*each, p) for each, p in zip(asked, got, strict=True) if p != right(*each)]
    if not wrong:
        return
    if all(of != n for _, of, _, _ in wrong):
        refuse_world_numbers(answer, when)
    for ideas in zip(*map(readings, asked), strict=True):
        if got == [sorted(pieces) for _, pieces in ideas]:
            name, text = SAYS.of(ideas[0][0])
            raise Finding(name, f"The rank holds different pieces, {when}. {text}")
    lengths, of, rank, pieces = wrong[0]
    raise SAYS("wrong pieces", lengths=lengths, n=of, rank=rank, pieces=pieces, when=when)


def right(lengths: Sequence[int], n: int, rank: int) -> Pieces:
    """Return a rank's pieces by the library's rule."""
    return between(lengths, *flat(sum(lengths), n).span(rank))


def between(lengths: Sequence[int], first: int, last: int) -> Pieces:
    """Return the pieces between the positions `first` and `last` of the bucket."""
    found, begin = [], 0
    for index, length in enumerate(lengths):
        start, stop = max(first, begin), min(last, begin + length)
        if start < stop:
            found.append((index, start - begin, stop - begin, start - first))
        begin += length
    return found


def readings(question: Question) -> list[tuple[str, Pieces]]:
    """Return the answer of each known wrong idea."""
    lengths, n, rank = question
    total, want, begins = sum(lengths), right(*question), [0, *accumulate(lengths)]
    down, up, near = total // n, -(-total // n), round(total / n)
    first, last = rank * up, (rank + 1) * up
    more = [down + (r < total % n) for r in range(n)]
    spans = {
        "rounded down": [
            (rank * down, rank * down + down),
            (rank * down, rank * down + down if rank < n - 1 else total),
        ],
        "shards of unequal length": [
            (sum(more[:rank]), sum(more[: rank + 1])),
            (rank * total // n, (rank + 1) * total // n),
        ],
        "one element too long": [(rank * (down + 1), (rank + 1) * (down + 1))],
        "rounded to the nearest": [(rank * near, rank * near + near)],
    }
    alone, at = [], 0
    for i, length in enumerate(lengths):
        a, b = flat(length, n).span(rank)
        alone += [(i, a, b, at)] if a < b else []
        at += b - a
    every = list(zip(range(len(lengths)), begins, lengths, strict=False))
    inside = [(i, 0, k, s - first) for i, s, k in every if first <= s and s + k <= last]
    low, high = min(total, first), min(total, last)
    clipped = [(i, max(low, s) - s, min(high, s + k) - s, max(low, s) - low) for i, s, k in every]
    shared = [(i, max(first, s), min(last, s + k), s) for i, s, k in every]
    touched = [(i, a - s, b - s, a - first) for i, a, b, s in shared if a <= b]
    longer = (
        [(i, a, b + last - total, at) for i, a, b, at in want[-1:]] if last >= total else want[-1:]
    )
    padding = (len(lengths), max(0, first - total), last - total, max(0, total - first))
    found = {entry: [between(lengths, *span) for span in ways] for entry, ways in spans.items()}
    found |= {
        "parameters sharded one by one": [alone, [(i, a, b, 0) for i, a, b, _ in alone]],
        "parameters not split": [
            [(i, 0, k, s - first) for i, s, k in every if first <= s < last],
            inside,
            [p for p in inside if p[2]],
        ],
        "empty pieces": [
            [(i, a, max(a, b), at) for i, a, b, at in clipped],
            [(i, min(a, lengths[i]), max(min(a, lengths[i]), b), at) for i, a, b, at in clipped],
            touched,
            [p for p in touched if p[1] < p[2] or not lengths[p[0]]],
        ],
        "a rank in the middle": [
            [p for p in want if first <= begins[p[0]] or begins[p[0] + 1] <= last]
        ],
        "padding as part of a parameter": [want[:-1] + longer],
        "padding as a piece": [[*want, padding] if last > total else want],
    }
    for entry, ways in MISTOLD.items():
        found[entry] = [[tell(*p, begins[p[0]]) for p in want] for tell in ways]
    return [(entry, pieces) for entry, ways in found.items() for pieces in ways]


def judge_pieces(answer: Answer, judge: Judge) -> None:
    judged(ask, partial(look, answer))(answer, judge)


PIECES = Exercise(judge=judge_pieces, **SAYS.about)
