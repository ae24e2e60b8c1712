"""What stands in a misspelt section, judged as if the section had its right name.

DeepSpeed reads nothing of such a section, so a second slip inside it would only show once the first
is mended. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from course_lib.deepspeed_config.finding import Finding
from course_lib.deepspeed_config.source import Document


def inside(
    document: Document, findings: list[Finding], check: Callable[[Document], list[Finding]]
) -> Iterator[Finding]:
    """The findings in each section that `findings` would rename, at their places in the file."""
    for finding in findings:
        names, repair = finding.keys, finding.repair
        if not repair or repair[0] != "rename" or repair[1][:-1] != names[:-1]:
            continue
        if not isinstance(_at(document.value, names), dict):
            continue
        right = repair[1]
        value = _renamed(document.value, names, right[-1])
        places = {_swapped(path, names, right): place for path, place in document.places.items()}
        for item in check(Document(document.path, value, places)):
            if item.keys[: len(right)] != right or len(item.keys) == len(right):
                continue
            keys = _swapped(item.keys, right, names)
            # Corrected in a later round, when the section has its name.
            yield replace(item, path=".".join(map(str, keys)), keys=keys, repair=None)


def _at(value: object, names: tuple) -> object:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _renamed(value: Mapping, names: tuple, right: str) -> dict:
    """A config with the last of `names` renamed, and nothing else."""
    first, *rest = names
    if not rest:
        return {right if key == first else key: item for key, item in value.items()}
    inner = _renamed(value[first], tuple(rest), right)
    return {key: inner if key == first else item for key, item in value.items()}


def _swapped(path: tuple, old: tuple, new: tuple) -> tuple:
    return (*new, *path[len(old) :]) if path[: len(old)] == old else path
