"""What runs on the judge's ranks for `read_log`: the answer on every log of a seed.

Noted is what each call came to, as data. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.lesson_13.logs import KEYS, drawn
from course_lib.collectives.call import Group


def run(function: Callable, group: Group, seed: int) -> dict:
    """`function(lines)` on each log."""
    return {"logs": [_tried(function, log.lines) for log in drawn(seed)]}


def _tried(function: Callable, lines: list[str]) -> dict:
    given = list(lines)
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
    return {**report, "changed": given != lines}


def _plain(value: object) -> int | float | str | None:
    """A value as data; of anything that is neither number nor text, its type's name."""
    if value is None or isinstance(value, str):
        return value[:100] if value else value
    plain = bench.number(value)
    if plain is None:
        return f"a {type(value).__name__}"
    return int(plain) if plain.is_integer() else plain
