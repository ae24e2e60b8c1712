"""DeepSpeed's log of a run in fp16 → the steps that were skipped, the scale, and a verdict.

ZeRO's stages 1 to 3 log an overflow on rank 0 and say nothing when the scale grows; the lines of
stage 0, which has other words, are not read. They are of level INFO, and DeepSpeed's logger shows
WARNING and above unless its level is set. Lesson 13.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from course_lib.zero.precision import LossScale

_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
_OVERFLOW = re.compile(r"overflow! ", re.IGNORECASE)
_REDUCED = re.compile(rf"Attempted loss scale: {_NUMBER}, reducing to {_NUMBER}")
_KEPT = re.compile(rf"Attempted loss scale: {_NUMBER}, but hysteresis is")
_ENDED = "Current loss scale already at minimum"
_RANK = re.compile(r"\brank ?(\d+)", re.IGNORECASE)
_STEP = re.compile(r"\bstep (\d+)")  # of a training loop that prints each step

NONE, SETTLED, LOOKING = "no overflow", "settled", "still looking"
NOT_FOUND, DIVERGED, UNKNOWN = "no scale was found", "diverged", "the log has no steps to tell by"
SKIPS = ("reduced", "kept", "skipped")


class OverflowEvent(NamedTuple):
    """What a line says. `kind`: a step skipped with the scale "reduced", with it "kept" by the
    hysteresis, or "skipped" without a scale; the run "ended"; a "step"."""

    kind: str
    before: float | None = None
    after: float | None = None
    number: int | None = None  # of a step


@dataclass(frozen=True)
class LogReading:
    """What a log comes to; `first` and `scale` are None where no line has a scale."""

    skipped: int
    first: float | None  # the first scale that overflowed
    scale: float | None  # after the last line that has one
    grown: int  # doublings up to that line, which no line tells
    verdict: str

    def steps_back(self, window: int) -> int:
        """Steps without an overflow until the scale is the first one again."""
        if not self.first or not self.scale:
            raise ValueError("no line of the log has a scale above 0: there is no way back to tell")
        doublings = max(0, math.ceil(math.log2(self.first / self.scale)))
        return doublings * window + 1 if doublings else 0  # the first good step is not counted


def read_overflows(lines: Iterable[str]) -> LogReading:
    """What a log of rank 0, or of all ranks together, comes to. The training loop prints a "step N"
    after each: only so the log tells of steps that were made."""
    found = list(events(lines))
    scales = [event for event in found if event.before and event.after]
    grown = [(a.after, b.before) for a, b in pairwise(scales) if b.before > a.after]
    return LogReading(
        skipped=sum(event.kind in SKIPS for event in found),
        first=scales[0].before if scales else None,
        scale=scales[-1].after if scales else None,
        grown=sum(round(math.log2(high / low)) for low, high in grown),
        verdict=_verdict(found),
    )


def events(lines: Iterable[str]) -> Iterator[OverflowEvent]:
    """The events of a log in their order, each once, however many ranks have printed it."""
    lines = list(lines)
    # Ranks print at their own pace, and the order holds within one: the lowest that is there.
    lowest = {
        kind: min((_rank(x) for x in lines if kind.search(x)), default=0)
        for kind in (_OVERFLOW, _STEP)
    }
    for line in lines:
        if _OVERFLOW.search(line):
            if _rank(line) == lowest[_OVERFLOW]:
                yield _skip(line)
        elif _ENDED in line:
            yield OverflowEvent("ended")
        elif (found := _STEP.search(line)) and _rank(line) == lowest[_STEP]:
            yield OverflowEvent("step", number=int(found[1]))


def lines_of(scale: LossScale, overflow: bool) -> list[str]:
    """What rank 0 of DeepSpeed's stages 1 to 3 logs at a step, before `scale.after(overflow)`."""
    if not overflow:
        text = f"Consecutive hysteresis is enabled. Restoring hysteresis to {scale.patience}"
        return [text] if scale.consecutive else []
    if scale.stops and scale.left == 1 and scale.value == scale.least:
        return []  # it raises
    head = "[deepspeed] OVERFLOW! Rank 0 Skipping step. "
    head += f"Attempted loss scale: {int(scale.value)}, "
    if scale.left > 1:
        left = scale.left
        return [f"{head}but hysteresis is {left}. Reducing hysteresis to {left - 1}"]
    return [f"{head}reducing to {int(max(scale.least, scale.value / 2))}"]


def _rank(line: str) -> int:
    found = _RANK.search(line)
    return int(found[1]) if found else 0


def _skip(line: str) -> OverflowEvent:
    if found := _REDUCED.search(line):
        return OverflowEvent("reduced", float(found[1]), float(found[2]))
    if found := _KEPT.search(line):
        return OverflowEvent("kept", float(found[1]), float(found[1]))
    return OverflowEvent("skipped")  # a static scale, or bf16 with check_grad_overflow


def _verdict(found: Sequence[OverflowEvent]) -> str:
    kinds = {event.kind for event in found}
    if not kinds.intersection({*SKIPS, "ended"}):
        return NONE
    made, skipping = _made(found)
    if "ended" in kinds or (skipping and _at_least(found)):
        return DIVERGED if made else NOT_FOUND
    if "step" not in kinds:
        return UNKNOWN
    return LOOKING if skipping else SETTLED


def _made(found: Sequence[OverflowEvent]) -> tuple[bool, bool]:
    """Whether some step was made, and whether the last one was skipped."""
    made, skipping, pending, last = False, False, False, None
    for event in found:
        if event.kind in SKIPS:
            pending = skipping = True
        elif event.kind == "step" and event.number != last:
            made, skipping = made or not pending, pending
            pending, last = False, event.number
    return made, skipping


def _at_least(found: Sequence[OverflowEvent]) -> bool:
    """Whether the last reduction left the scale where it was, because it is the least one.

    Older releases word a pass by the hysteresis so, too; that comes before a reduction, not after.
    """
    scales = [event for event in found if event.kind in ("reduced", "kept")]
    if not scales or scales[-1].kind == "kept" or scales[-1].before != scales[-1].after:
        return False
    least = scales[-1].after
    return least == 1 or any(event.after == least < event.before for event in scales)
