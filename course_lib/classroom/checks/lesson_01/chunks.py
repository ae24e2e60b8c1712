"""What chunks of a wrong sum hold in `ring_all_reduce`: another chunk, or one rank's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.looking import near
from course_lib.layout import cut


def refuse_chunks(inputs: Sequence[Tensor], results: Sequence[Tensor], when: str) -> None:
    """A Finding where chunks hold what belongs to another chunk, or to one rank."""
    sizes = [size for size in cut(len(inputs[0]), len(inputs)) if size]
    sums, own = torch.stack(list(inputs)).sum(0).split(sizes), [x.split(sizes) for x in inputs]
    chunks, places = [out.split(sizes) for out in results], range(len(sizes))
    for rank, b, a in itertools.product(range(len(chunks)), places, places):
        size = min(sizes[a], sizes[b])
        first, second = chunks[rank][b][:size], chunks[rank][a][:size]
        if a > b and size > 1 and first.any() and near(first, second):
            raise Finding(
                "one buffer",
                f"{when.capitalize()}, chunks {b} and {a} on rank {rank} hold the same "
                "numbers. Was one buffer used for several arrivals? An arrival that is kept needs "
                "room of its own; otherwise the next one overwrites it.",
            )
    if all(any(near(one, right) for right in sums) for row in chunks for one in row):
        raise Finding(
            "chunks in another order",
            f"{when.capitalize()}, each chunk holds the finished sum of some chunk, but not "
            "each its own. A chunk keeps its number on its way round.",
        )
    if all(any(near(row[k], x[k]) for x in own) for row in chunks for k in places):
        raise Finding(
            "never added",
            f"{when.capitalize()}, each chunk holds the numbers of one rank: they went round "
            "and none were added up. In the first round an arrival is added to what is there.",
        )
