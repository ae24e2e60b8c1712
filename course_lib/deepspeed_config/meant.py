"""A config as it was meant: each key that has one right name or place, under it.

All other rules judge that one. What stands in a misspelt section is looked into at once, and no
finding follows from a slip that has a finding of its own. Lesson 13.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace

from course_lib.deepspeed_config.finding import Finding
from course_lib.deepspeed_config.source import Document


@dataclass(frozen=True)
class Meant:
    """`document` with what the findings `sure` rename and move; `names` are (new path, old)."""

    document: Document
    sure: list[Finding]
    names: list[tuple[tuple, tuple]]

    def in_the_file(self, finding: Finding) -> Finding:
        """A finding in `document`, under the names that the file has."""
        for new, old in reversed(self.names):
            if finding.keys[: len(new)] == new:
                keys = _swapped(finding.keys, new, old)
                # It is corrected in a later round, when the key above has its name.
                return replace(finding, path=".".join(map(str, keys)), keys=keys, repair=None)
        return finding


def as_meant(document: Document, misnamed: Iterable[Finding]) -> Meant:
    """Carry out what `misnamed` would rename or move, where nothing stands in the way."""
    value, places = copy.deepcopy(document.value), dict(document.places)
    sure, names = [], []
    for finding in misnamed:
        if not finding.repair or finding.repair[0] not in ("rename", "meant"):
            continue
        old, new = finding.keys, finding.repair[1]
        if not rename(value, old, new):
            continue
        places = {_swapped(path, old, new): place for path, place in places.items()}
        sure.append(finding)
        names.append((new, old))
    return Meant(Document(document.path, value, places), sure, names)


def rename(value: dict, old: tuple, new: tuple) -> bool:
    """Move what stands at one path to another; False where it is not there, or the place is taken.
    A key that stays in its section stays in its place."""
    holder, into = holder_of(value, old), holder_of(value, new, make=True)
    if holder is None or into is None or old[-1] not in holder or new[-1] in into:
        return False
    if into is holder:
        items = [(new[-1] if key == old[-1] else key, item) for key, item in holder.items()]
        holder.clear()
        holder.update(items)
    else:
        into[new[-1]] = holder.pop(old[-1])
    return True


def holder_of(value: dict, path: tuple, *, make: bool = False) -> dict | None:
    """The section that the last key of a path is in; `make`: with those that are missing."""
    here: object = value
    for name in path[:-1]:
        if not isinstance(here, dict):
            return None
        if make:
            here.setdefault(name, {})
        here = here.get(name)
    return here if isinstance(here, dict) else None


def _swapped(path: tuple, old: tuple, new: tuple) -> tuple:
    return (*new, *path[len(old) :]) if path[: len(old)] == old else path
