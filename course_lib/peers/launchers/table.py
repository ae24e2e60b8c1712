"""The variables that each launcher sets, as reported by the ranks, in a text table.

No entry is typed in by hand. A value that changes from run to run is shown as its kind, which is a
port, a path or an id. Lesson 13.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from course_lib.peers.launchers.run import Ran

# Read by torch, DeepSpeed and programs, so they are the first rows.
WHO = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
WHO += ("GROUP_RANK", "CROSS_RANK")
NOBODY = "·"
ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
WIDEST = 18


class Reported(NamedTuple):
    """The report of one rank: the arguments and variables from its launcher."""

    arguments: tuple[str, ...]
    variables: dict[str, str]


def heard(ran: Ran) -> list[Reported]:
    """Read the ranks' reports, whatever the launcher's exit code was."""
    return [read(text) for text in ran.stdout]


def read(text: str) -> Reported:
    """Parse the line of `programs/variables.py` in a rank's output."""
    line = json.loads(text.splitlines()[0])
    return Reported(tuple(line["arguments"]), line["variables"])


def together(names: Sequence[str], start: Callable[[str], Ran]) -> dict[str, Ran]:
    """Call start(name) for each launcher, at most two at a time (fewer on one processor)."""
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        return dict(zip(names, pool.map(start, names), strict=True))


def table(measured: Mapping[str, Sequence[Reported]], rows: Sequence[str] | None = None) -> str:
    """Format a table with variables as rows and launchers as columns."""
    names = {x for ranks in measured.values() for rank in ranks for x in rank.variables} - {"PATH"}
    chosen = [*(x for x in WHO if x in names), *sorted(names - {*WHO})] if rows is None else rows
    lines = [["", *measured]]
    lines += [[name, *(_value(name, ranks) for ranks in measured.values())] for name in chosen]
    of_all = [[a for rank in ranks for a in rank.arguments] for ranks in measured.values()]
    passed = [" ".join(dict.fromkeys(arguments)) for arguments in of_all]
    if any(passed):
        lines.append(["(an argument)", *(x or NOBODY for x in passed)])
    lines.append(["(processes)", *(str(len(ranks)) for ranks in measured.values())])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _value(name: str, ranks: Sequence[Reported]) -> str:
    """Format one variable over all ranks: once if they agree, otherwise all values."""
    texts = [_shown(name, rank.variables[name]) for rank in ranks if name in rank.variables]
    return " ".join(texts if len(set(texts)) > 1 else texts[:1]) or NOBODY


def _shown(name: str, text: str) -> str:
    """Format a value without the parts that change from run to run."""
    if name.endswith("_PORT"):
        return "a port"
    if ID.fullmatch(text):
        return "an id"
    if text.startswith("/"):
        return "a path"
    text = " ".join(text.split())
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"
