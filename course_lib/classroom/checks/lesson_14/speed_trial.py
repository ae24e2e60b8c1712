"""What runs on the judge's ranks for `streamed_speed`: the answer on every drawn case.

Noted is what each call came to, as data. Lesson 14.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from numbers import Real

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_14.speed_cases import KEYS, drawn
from course_lib.collectives.call import Group


def run(function: Callable, group: Group, seed: int) -> dict:
    """`function(case)` on each case."""
    return {"cases": [_tried(function, dict(case)) for case in drawn(seed)]}


def _tried(function: Callable, case: dict) -> dict:
    given = dict(case)
    report: dict = {"kind": "", "values": {}, "lost": [], "error": ""}
    try:
        out, _ = bench.watched(lambda: function(given))
    except Exception as error:  # whatever it is, the finding says it
        report["error"] = f"{type(error).__name__}: {str(error)[:200]}"
    else:
        report["kind"] = type(out).__name__
        if isinstance(out, Mapping):
            report["kind"] = "dict"
            report["lost"] = [key for key in KEYS if key not in out]
            report["values"] = {key: _plain(out[key]) for key in KEYS if key in out}
    return {**report, "changed": given != case}


def _plain(value: object) -> float | str:
    """A number; of anything else, and of what is no finite number, its name."""
    if isinstance(value, Real) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) else str(float(value))
    return f"a {type(value).__name__}"
