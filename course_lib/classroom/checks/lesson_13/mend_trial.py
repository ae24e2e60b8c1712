"""What runs on the judge's ranks for `mend_config`: the answer on every case of a draw.

What came back travels as JSON, which is what a config is. Lesson 13.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping

from course_lib.classroom.checks import bench
from course_lib.collectives.call import Group

_MOST = 20_000  # characters; the longest config here has a few hundred


def run(function: Callable, group: Group, cases: list[tuple[str, dict, dict]]) -> dict:
    """Of each case what `function(name, config, facts)` returned, and if it changed its inputs."""
    return {"mended": [_tried(function, *case) for case in cases]}


def _tried(function: Callable, name: str, config: dict, facts: dict) -> dict:
    given, known = copy.deepcopy(config), copy.deepcopy(facts)
    out, _ = bench.watched(lambda: function(name, given, known))
    report = {"kind": type(out).__name__, "changed": (given, known) != (config, facts), "text": ""}
    if isinstance(out, Mapping):
        report["text"] = _as_json(out)
    return report


def _as_json(out: Mapping) -> str:
    """The config as text; nothing where JSON has no way to write it."""
    try:
        text = json.dumps(dict(out), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return ""
    return text if len(text) <= _MOST else ""
