"""What a right sum of `ring_all_reduce` may cost: so many messages, and none longer than a chunk.

Each message is held against the budget, not the sum of their bytes: one that is too long costs time
that shorter ones elsewhere do not give back. Lesson 01.
"""

from __future__ import annotations

import torch

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.lesson_01.rules import refuse_ready_made
from course_lib.layout import cut


def look_at_traffic(
    reports: list[dict], length: int, when: str, dtype: torch.dtype = torch.float64
) -> None:
    """Hold the number of messages and each message's length against the ring's budget."""
    refuse_ready_made(reports, "The sum is right")
    item = dtype.itemsize
    n = len(reports)
    messages = [report["messages"] for report in reports]  # of each rank, the bytes of each
    may_send, chunk = 2 * (n - 1), max(cut(length, n))
    longest = [max(sizes, default=0) for sizes in messages]
    if all(len(sizes) <= may_send for sizes in messages) and max(longest) <= chunk * item:
        return
    head = f"The sum is right, but not within the budget {when}: "
    fair = f"allowed are {may_send} messages a rank, none longer than {chunk} elements"
    _refuse_one_rank(messages, may_send * chunk * item, head, fair)
    if chunk < length and all(sizes and min(sizes) >= length * item for sizes in messages):
        raise Finding(
            "whole tensors",
            f"{head}each rank sends a whole tensor of {length} elements {len(messages[0])} times "
            f"({fair}). A rank needs the sum, not all tensors.",
        )
    counts = {len(sizes) for sizes in messages}
    if counts in ({2 * n - 1}, {2 * n}) and max(longest) <= chunk * item:
        where = "in each round" if counts == {2 * n} else "in one of the rounds"
        raise Finding(
            "one step too many",
            f"{head}each rank sends {counts.pop()} messages instead of {may_send}, which is one "
            f"step too many {where}.",
        )
    for rank, sizes in enumerate(messages):
        if longest[rank] > chunk * item:
            rest = length // n + length % n
            asked = (
                " Is all that does not divide in one chunk?" if longest[rank] == rest * item else ""
            )
            raise Finding(
                "message too long",
                f"{head}rank {rank} sends a message of {longest[rank] / item:g} elements; {fair}, "
                f"which is ⌈{length}/{n}⌉.{asked}",
            )
        if len(sizes) > may_send:
            raise Finding("over budget", f"{head}rank {rank} sends {len(sizes)} messages; {fair}.")


def _refuse_one_rank(messages: list[list[int]], limit: int, head: str, fair: str) -> None:
    sent = [sum(sizes) for sizes in messages]
    if sum(bytes_ > limit for bytes_ in sent) == 1:
        rank = sent.index(max(sent))
        raise Finding(
            "all through one rank",
            f"{head}rank {rank} sends {sent[rank]} bytes and one of the others only {min(sent)} "
            f"({fair}). All roads lead through rank {rank}: the more ranks, the longer all "
            "wait for it.",
        )
