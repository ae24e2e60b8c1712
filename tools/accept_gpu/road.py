"""The order of the stages: sequential or parallel, within a time limit if one is given.

A stage that crashes or hangs has failed, but the others continue. A stage without remaining time is
named, but is not a failure. No lesson derives it.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from tools.accept_gpu.report import Report, say
from tools.accept_gpu.running import LEAST, PATIENCE, Place
from tools.accept_gpu.stages import Stage

RESERVE = PATIENCE + 8  # seconds to end running stages at the limit, and for the last message


def travel(stages: Sequence[Stage], place: Place, report: Report, until: float) -> None:
    """Run the stages; everything must end at `until`, a time of the monotonic clock."""
    numbers = {stage.name: f"{number}/{len(stages)}" for number, stage in enumerate(stages, 1)}
    for _, group in itertools.groupby(stages, key=lambda stage: stage.beside or stage.name):
        neighbours = list(group)
        with ThreadPoolExecutor(len(neighbours)) as threads:
            try:
                turns = [
                    threads.submit(turn, numbers[stage.name], stage, place, report, until - RESERVE)
                    for stage in neighbours
                ]
                for one in turns:
                    one.result()
            except BaseException:
                place.stop.set()  # end running stages with all their processes
                raise


def turn(number: str, stage: Stage, place: Place, report: Report, until: float) -> None:
    left = until - time.monotonic()
    if left < LEAST:
        found = {"ok": True, "found": "not started, no time was left", "left_out": ["all of it"]}
        result = {"name": stage.name, "seconds": 0.0, **found}
    else:
        limit = min(stage.limit, left)
        say(f"{number} {stage.name} (at most {limit / 60:.1f} min) ...")
        kept = functools.partial(report.part, stage.name)
        result = run(replace(stage, limit=limit), replace(place, keep=kept))
        if result.pop("late", False) and limit < stage.limit:  # the total time was up
            result["ok"] = not result.get("failed")
            result["left_out"] = ["parts not done within the total time"]
    report.stage(result)
    words = ("ok" if result["ok"] else "FAILED") + f", {result['found']}"
    if result.get("left_out"):
        words += f"; left out: {'; '.join(result['left_out'])}"
    say(f"{number} {stage.name}: {words}")


def run(stage: Stage, place: Place) -> dict[str, Any]:
    """Run one stage; any error becomes part of its result."""
    began = time.monotonic()
    try:
        found = stage.run(place, stage.limit)
    except Exception as error:
        found = {"ok": False, "found": f"{type(error).__name__}: {error}"}
        found["late"] = isinstance(error, TimeoutError)
    return {"name": stage.name, "seconds": round(time.monotonic() - began, 1), **found}
