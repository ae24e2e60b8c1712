"""DeepSpeed's log of an fp16 run → the steps that were skipped, the loss scale, and a verdict.

ZeRO's stages 1 to 3 log an overflow on rank 0, and nothing when the scale grows. The lines of
stage 0 use different words and are not read. The lines have level INFO, but DeepSpeed's logger
shows only WARNING and above unless its level is set. Lesson 13.
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
_STEP = re.compile(r"\bstep (\d+)")  # from a training loop that prints each step

NONE, SETTLED, LOOKING = "no overflow", "settled", "still looking"
NOT_FOUND, DIVERGED, UNKNOWN = "no scale was found", "diverged", "the log has no steps to tell by"
SKIPS = ("reduced", "kept", "skipped")


class OverflowEvent(NamedTuple):
    """The content of a line. For a skipped step, its `kind` is "reduced", "kept" (the scale, by the
    hysteresis) or "skipped" (without a scale). Other kinds are "ended" (the run) and "step"."""

    kind: str
    before: float | None = None
    after: float | None = None
    number: int | None = None  # of the step


@dataclass(frozen=True)
class LogReading:
    """The summary of a log; `first` and `scale` are None if no line has a scale."""

    skipped: int
    first: float | None  # the first scale that overflowed
    scale: float | None  # after the last line with a scale
    grown: int  # doublings up to that line, which are not logged
    verdict: str

    def steps_back(self, window: int) -> int:
        """Count the steps without an overflow until the scale reaches the first one again."""
        if not self.first or not self.scale:
            raise ValueError("no line of the log has a scale above 0, so the way back is unknown")
        doublings = max(0, math.ceil(math.log2(self.first / self.scale)))
        return doublings * window + 1 if doublings else 0  # the first good step is not counted


def read_overflows(lines: Iterable[str]) -> LogReading:
    """Summarise a log of rank 0, or of all ranks together. Successful steps are known only if the
    training loop prints "step N" after each."""
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
    """Yield a log's events in order, each once even if several ranks have printed it."""
    lines = list(lines)
    # Ranks print at different times, so the order is reliable only within one rank: the lowest.
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
    """Format rank 0's log at a step (DeepSpeed's stages 1 to 3), before `scale.after(overflow)`."""
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
    """Return (True if any step was made, True if the last step was skipped)."""
    made, skipping, pending, last = False, False, False, None
    for event in found:
        if event.kind in SKIPS:
            pending = skipping = True
        elif event.kind == "step" and event.number != last:
            made, skipping = made or not pending, pending
            pending, last = False, event.number
    return made, skipping


def _at_least(found: Sequence[OverflowEvent]) -> bool:
    """Return True if the last reduction kept the scale because it is at its minimum.

    Older releases use these words for the hysteresis too, but before a reduction, not after it.
    """
    scales = [event for event in found if event.kind in ("reduced", "kept")]
    if not scales or scales[-1].kind == "kept" or scales[-1].before != scales[-1].after:
        return False
    least = scales[-1].after
    return least == 1 or any(event.after == least < event.before for event in scales)
