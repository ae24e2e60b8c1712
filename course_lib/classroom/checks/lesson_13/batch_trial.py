"""What runs on the judge's ranks for `fill_batch`: the answer on every drawn config.

Noted is what each call came to: three sizes, a refusal, or something else. Lesson 13.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_13.triple import TRIPLE
from course_lib.collectives.call import Group

REFUSED = "ValueError"


def run(function: Callable, group: Group, cases: list[tuple[dict, int]]) -> dict:
    """`function(config, world)` on each case."""
    kept: list[object] = []  # what came back, all of it alive at once
    return {"cases": [_tried(function, kept, *case) for case in cases]}


def _tried(function: Callable, kept: list[object], config: dict, world: int) -> dict:
    given = copy.deepcopy(config)
    report: dict = {"kind": "", "sizes": None, "lost": [], "more": [], "new": True, "text": ""}
    try:
        out, _ = bench.watched(lambda: function(given, world))
    except ValueError:
        report["kind"] = REFUSED
    except Exception as error:  # whatever it is, the finding says it
        report["kind"], report["text"] = type(error).__name__, str(error)[:200]
    else:
        report["kind"] = "dict" if isinstance(out, Mapping) else f"a {type(out).__name__}"
        if isinstance(out, Mapping):
            report["sizes"] = [_plain(out.get(name)) for name in TRIPLE]
            beside = {name: value for name, value in config.items() if name not in TRIPLE}
            report["lost"] = [name for name in beside if not _as(beside[name], out.get(name))]
            report["more"] = sorted(str(name) for name in out if name not in {*beside, *TRIPLE})
            report["new"] = not any(out is each for each in (given, *kept))
            kept.append(out)
    return {**report, "changed": given != config}


def _as(value: object, seen: object) -> bool:
    return type(seen) is type(value) and seen == value


def _plain(size: object) -> int | float | str | None:
    """A size as data, a whole number of any type as int; of anything else its type's name."""
    if size is None or (isinstance(size, (int, float)) and not isinstance(size, bool)):
        return size
    try:
        return type(size).__name__ if isinstance(size, bool) else operator.index(size)
    except (TypeError, RuntimeError):
        return type(size).__name__
