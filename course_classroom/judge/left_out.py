"""Omitted calls: the wait for an asynchronous call, or a collective on a rank without data.

Either omission may go unnoticed or cause an unrelated error, so both are detected by name. From
lesson 01 on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from course_classroom.judge.answer import Answer
from course_classroom.judge.general import SAYS
from course_classroom.ranks import agreement
from course_classroom.ranks.hangs import Fact

_STARTS = re.compile(r"\basync_op\s*=\s*True\b|\bisend\b|\birecv\b")
_OTHER_WAITS = re.compile(r"get_future|is_completed|async_op\s*=\s*True\s*\)\s*\.wait")
_BENCH = "__import__('course_classroom.judge.bench').judge.bench"
_CALLERS = re.compile(r"ranks? ([\d, ]+) calls? ")


def refuse_unawaited(answer: Answer, pull: Callable[[str], list[list[str]]], when: str) -> None:
    """Raise a Finding if a call of the trial was never waited for, even with right results."""
    text = "\n".join(answer.cells)
    if not _STARTS.search(text) or _OTHER_WAITS.search(text):
        return
    for rank, calls in enumerate(pull(f"{_BENCH}.unawaited()")):
        if calls:
            raise SAYS("not waited for", rank=rank, call=calls[0], when=when)


def refuse_by_empty(facts: Sequence[Fact], empty: Sequence[int], when: str) -> None:
    """Raise a Finding if exactly the ranks with empty shards omitted a collective."""
    if not empty:
        return
    waiting = [fact for fact in facts if fact.kind in ("waited", "transport", "unanswered")]
    left = {fact.rank for fact in facts if fact.kind == "ok"}
    told = next((fact.text for fact in facts if "disagree about a collective" in fact.text), "")
    callers = [{int(r) for r in group.split(",")} for group in _CALLERS.findall(told)]
    if (waiting and left and left <= set(empty)) or set(empty) in callers[1:]:
        members = sorted(left or empty)
        who = agreement.said_of(members, "holds")
        told = "\n".join(f"rank {f.rank} {f.text}" for f in facts)
        raise SAYS("left out by an empty rank", who=who, when=when, told=told)
