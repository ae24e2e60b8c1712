"""Old spellings that the release still takes, and what it does with them.

A model declares which key takes an old one's place; the two together are refused. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.deepspeed_config.config import Config
from course_lib.deepspeed_config.finding import Finding


def check(config: Config) -> Iterator[Finding]:
    """A finding for every old spelling, and for a key that is given in both its spellings."""
    for path, key, section, value in config.entries():
        if key is None:
            continue
        source = section.get("source", "")
        if "deprecated" in key:
            yield _old(config, path, key["deprecated"], value, source)
        elif key.get("same_as") and _beside(config, path, key["same_as"]) is not None:
            both = f'"{path[-1]}" and "{key["same_as"]}"'
            yield config.finding(
                "both", "error", path, f"{both} are one key, given twice",
                "The model takes one of the two; which one is not promised.", source,
                f'keep "{key["same_as"]}"',
            )  # fmt: skip


def _old(config: Config, path: tuple, replacement: dict, value: object, source: str) -> Finding:
    new, name = replacement["new"], path[-1]
    release = config.schema.release
    if not replacement["alone"]:
        return config.finding(
            "deprecated", "warning", path, f'"{name}" is deprecated',
            f"Release {release} reads it and does nothing with it.", source,
            f'write "pin_memory" in {new}', repair=("remove",),
        )  # fmt: skip
    if _beside(config, path, new) is not None:
        return config.finding(
            "both", "error", path, f'"{name}" stands beside "{new}", which has taken its place',
            f"Release {release} refuses both together.", source, f'keep "{new}"',
            repair=("remove",),
        )  # fmt: skip
    if replacement.get("section"):
        instead = f'"{new}": {{"device": "cpu"}}' if value is True else f"no {new}"
        repair = ("replace", (*path[:-1], new), {"device": "cpu"}) if value is True else ("remove",)
        if not isinstance(value, bool):
            repair = None
        suggestion = f"write {instead}"
    else:
        repair, suggestion = ("rename", (*path[:-1], new)), f'rename it to "{new}"'
    return config.finding(
        "deprecated", "warning", path, f'"{name}" is deprecated',
        f"Release {release} still takes it, with a warning; a later one may not.", source,
        suggestion, repair=repair,
    )  # fmt: skip


def _beside(config: Config, path: tuple, name: str) -> object:
    """What the file has for another key of the same section, in whichever spelling."""
    holder: object = config.value
    for part in path[:-1]:
        holder = holder[part] if isinstance(holder, dict) else {}
    twin = config.twins(path[:-1]).get(name)
    spelled = next((x for x in (name, twin) if x in holder and x != path[-1]), None)
    return None if spelled is None else spelled
