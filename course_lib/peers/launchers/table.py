"""Who sets which variable: what ranks have reported under each launcher, as a table of text.

Nothing in it is typed in. A value that differs from run to run stands as what it is: a port, a
path, an id. Lesson 13.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from course_lib.peers.launchers.run import Ran

# What torch, DeepSpeed and programs ask for: the first rows.
WHO = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
WHO += ("GROUP_RANK", "CROSS_RANK")
NOBODY = "·"
ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
WIDEST = 18


class Reported(NamedTuple):
    """What one rank reports: the arguments and the variables that its launcher gave it."""

    arguments: tuple[str, ...]
    variables: dict[str, str]


def heard(ran: Ran) -> list[Reported]:
    """What the ranks have reported, however the launcher ended afterwards."""
    return [read(text) for text in ran.stdout]


def read(text: str) -> Reported:
    """The line of `programs/variables.py` among what a rank has printed."""
    line = json.loads(text.splitlines()[0])
    return Reported(tuple(line["arguments"]), line["variables"])


def together(names: Sequence[str], start: Callable[[str], Ran]) -> dict[str, Ran]:
    """start(name) for each launcher; as many at a time as this host has processors, two at most."""
    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        return dict(zip(names, pool.map(start, names), strict=True))


def table(measured: Mapping[str, Sequence[Reported]], rows: Sequence[str] | None = None) -> str:
    """Variables downwards, launchers across."""
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
    """One variable over all ranks: once where they agree, else one after the other."""
    texts = [_shown(name, rank.variables[name]) for rank in ranks if name in rank.variables]
    return " ".join(texts if len(set(texts)) > 1 else texts[:1]) or NOBODY


def _shown(name: str, text: str) -> str:
    """A value without what is another one each time."""
    if name.endswith("_PORT"):
        return "a port"
    if ID.fullmatch(text):
        return "an id"
    if text.startswith("/"):
        return "a path"
    text = " ".join(text.split())
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"
