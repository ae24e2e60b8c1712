"""What runs on the judge's ranks for `pieces_of`: buckets of many shapes, and readings of the cut.

Beside the right pieces stand those that each known wrong idea would give. Lesson 09.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from course_lib.classroom.checks import bench
from course_lib.layout import flat

Pieces = list[tuple[int, int, int, int]]  # index, start, stop, at


def warm() -> None:
    """Nothing to load."""


def questions(seed: int, size: int, rank: int) -> list[tuple[list[int], int, int]]:
    """What rank `rank` of a group of `size` is asked: (lengths, n, rank), of its own group and of
    one that is larger than any here."""
    n = size + 4
    asked = [(lengths, size, rank) for lengths in buckets(seed, size)]
    return asked + [(lengths, n, rank * 2 + 1) for lengths in buckets(seed, n)]


def buckets(seed: int, n: int) -> list[list[int]]:
    """Lengths of parameters: uneven ones, one over several ranks and one of nothing, few numbers,
    and a clean cut."""
    made = torch.Generator().manual_seed(seed)

    def numbers(count: int, most: int) -> list[int]:
        return torch.randint(2, most, (count,), generator=made).tolist()

    uneven = numbers(7, 30)
    uneven[3] += (1 - sum(uneven)) % n  # one number more than divides: nearly a whole row of zeros
    long = [*numbers(2, 5), 40 + n * 9, 0, *numbers(2, 5)]
    long[0] += (2 - sum(long)) % n if n > 2 else (1 - sum(long)) % n
    return [uneven, long, [1] * (n - 1) if n > 2 else [1], [5 * n, 3, 5 * n - 3]]


def ask(function: Callable, group: dist.ProcessGroup, seed: int) -> dict:
    """What the answer says of each bucket for this rank, and how it was said."""
    told, kept = [], []
    asked = questions(seed, group.size(), group.rank())
    for lengths, n, rank in asked:
        given = list(lengths)
        out, facts = bench.watched(lambda a=given, b=n, c=rank: function(a, b, c))
        kept.append(out)
        told.append(
            {
                "kind": bench.kind(out),
                "pieces": read(out),
                "ops": facts["ops"],
                "changed": given != lengths,
            }
        )
    lengths, n, rank = asked[0]
    again, _ = bench.watched(lambda: function(list(lengths), n, rank))
    return {
        "told": told,
        "again": read(again) == told[0]["pieces"],
        "spoiled": any(read(out) != one["pieces"] for out, one in zip(kept, told, strict=True)),
    }


def read(out: object) -> list | None:
    """The pieces as tuples of four whole numbers; None where they are something else."""
    if not isinstance(out, (list, tuple)):
        return None
    found = []
    for one in out:
        if not isinstance(one, (list, tuple)) or len(one) != 4:
            return None
        if any(isinstance(x, bool) for x in one):
            return None
        try:
            found.append(tuple(map(operator.index, one)))
        except (TypeError, RuntimeError):  # no whole numbers
            return None
    return sorted(found)


def between(lengths: Sequence[int], first: int, last: int) -> Pieces:
    """What lies from `first` to `last` of the bucket."""
    found, begin = [], 0
    for index, length in enumerate(lengths):
        start, stop = max(first, begin), min(last, begin + length)
        if start < stop:
            found.append((index, start - begin, stop - begin, start - first))
        begin += length
    return found


def right(lengths: Sequence[int], n: int, rank: int) -> Pieces:
    """The pieces by the library's rule."""
    return between(lengths, *flat(sum(lengths), n).span(rank))


def readings(lengths: Sequence[int], n: int, rank: int) -> dict[str, Pieces]:
    """What each known wrong idea would answer."""
    total = sum(lengths)
    down, up = total // n, -(-total // n)
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    want = right(lengths, n, rank)
    more = [total // n + (r < total % n) for r in range(n)]
    balanced = sum(more[:rank])
    bounds = min(total, rank * up), min(total, (rank + 1) * up)
    one_by_one, at = [], 0
    for i, length in enumerate(lengths):
        a, b = flat(length, n).span(rank)
        one_by_one += [(i, a, b, at)] if a < b else []
        at += b - a
    empty = [
        (i, *((max(bounds[0], s) - s, min(bounds[1], s + k) - s)), max(bounds[0], s) - bounds[0])
        for i, (s, k) in enumerate(zip(starts, lengths, strict=True))
    ]
    larger = total // n + 1
    near_by = [(i, max(bounds[0], s), min((rank + 1) * up, s + k), s)
               for i, (s, k) in enumerate(zip(starts, lengths, strict=True))]  # fmt: skip
    touched = [(i, a - s, b - s, a - rank * up) for i, a, b, s in near_by if a <= b]
    clamped = [(i, a, max(a, b), c) for i, a, b, c in empty]
    zero_long = [(i, min(a, lengths[i]), max(min(a, lengths[i]), b), c) for i, a, b, c in empty]
    owned = [i for i, s in enumerate(starts) if rank * up <= s < (rank + 1) * up]
    touching = [
        p for p in want
        if rank * up <= starts[p[0]] or starts[p[0]] + lengths[p[0]] <= (rank + 1) * up
    ]  # fmt: skip
    padded = list(want)
    if padded and bounds[1] == total:
        i, a, b, c = padded[-1]
        padded[-1] = (i, a, b + (rank + 1) * up - total, c)
    return {
        "rounded down": between(lengths, rank * down, (rank + 1) * down),
        "the last takes the rest": between(
            lengths, rank * down, total if rank == n - 1 else (rank + 1) * down
        ),
        "balanced": between(lengths, balanced, balanced + more[rank]),
        "balanced, from the end": between(lengths, rank * total // n, (rank + 1) * total // n),
        "one more": between(lengths, rank * larger, (rank + 1) * larger),
        "to the nearest": between(lengths, rank * round(total / n), (rank + 1) * round(total / n)),
        "one by one": one_by_one,
        "one by one, from 0": [(i, a, b, 0) for i, a, b, _ in one_by_one],
        "whole": [(i, 0, lengths[i], starts[i] - rank * up) for i in owned],
        "empty": clamped,
        "empty, other": zero_long,
        "empty, touching": touched,
        "empty, of nothing": [p for p in touched if p[1] < p[2] or not lengths[p[0]]],
        "at in the bucket": [(i, a, b, starts[i] + a) for i, a, b, _ in want],
        "start in the bucket": [(i, starts[i] + a, starts[i] + b, c) for i, a, b, c in want],
        "all in the bucket": [
            (i, starts[i] + a, starts[i] + b, starts[i] + a) for i, a, b, _ in want
        ],
        "at always 0": [(i, a, b, 0) for i, a, b, _ in want],
        "stop is the last": [(i, a, b - 1, c) for i, a, b, c in want],
        "a length for stop": [(i, a, b - a, c) for i, a, b, c in want],
        "ends only": touching,
        "padding": padded,
        "padding by itself": [
            *want,
            *(
                [
                    (
                        len(lengths),
                        max(0, rank * up - total),
                        up * (rank + 1) - total,
                        max(0, total - rank * up),
                    )
                ]
                if (rank + 1) * up > total
                else []
            ),
        ],
    }
