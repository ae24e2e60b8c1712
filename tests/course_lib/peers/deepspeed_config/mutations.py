"""A valid config → many broken ones: renamed, retyped, moved, duplicated, dropped, in other units.

What a user chose himself, such as the name of a metric, is not renamed.
"""

from __future__ import annotations

import copy
import json
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass

from course_lib.peers.deepspeed_config.rules.sizes import PLAUSIBLE
from tests.course_lib.peers.deepspeed_config.parts import shipped

CHOSEN = ("curriculum_metrics", "arg_mappings")
SECOND = "\x01"  # stands in a key that is written a second time


@dataclass(frozen=True)
class Mutation:
    """`text` is the file; `path` the key that was touched, where it stood."""

    kind: str
    path: tuple[str, ...]
    text: str
    said: str


def paths(config: dict, above: tuple = ()) -> Iterator[tuple[tuple[str, ...], object]]:
    """(path, value) of every key, sections too."""
    for key, value in config.items():
        yield (*above, key), value
        if isinstance(value, dict):
            yield from paths(value, (*above, key))


def mutations(config: dict, seed: int) -> Iterator[Mutation]:
    """Each key in each way once, and renamed twice."""
    draw = random.Random(seed)
    for path, value in list(paths(config)):
        chosen = any(name in CHOSEN for name in path[:-1])
        if not chosen or (len(path) > 1 and path[-2] not in CHOSEN):
            for _ in range(2):
                yield _renamed(config, path, draw)
        whole = (shipped().find(path) or {}).get("type") == "integer"
        for wrong in _wrong_types(value, whole):
            yield _put(config, path, wrong, "retyped")
        if not chosen:
            yield from _moved(config, path, draw)
        yield _doubled(config, path, value)
        if not chosen:
            yield _dropped(config, path)
        yield from _other_units(config, path, value)


def _holder(config: dict, path: tuple) -> dict:
    for name in path[:-1]:
        config = config[name]
    return config


def _text(config: dict) -> str:
    return json.dumps(config, indent=2)


def _renamed(config: dict, path: tuple, draw: random.Random) -> Mutation:
    name, letters = path[-1], string.ascii_lowercase + "_"
    while name == path[-1] or name in _holder(config, path):
        name = path[-1]
        for _ in range(draw.choice((1, 1, 2))):
            at = draw.randrange(len(name))
            kind = draw.choice(("swap", "drop", "put", "replace"))
            if kind == "swap" and at + 1 < len(name):
                name = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
            elif kind == "drop" and len(name) > 2:
                name = name[:at] + name[at + 1 :]
            elif kind == "put":
                name = name[:at] + draw.choice(letters) + name[at:]
            else:
                name = name[:at] + draw.choice(letters) + name[at + 1 :]
    changed = copy.deepcopy(config)
    holder = _holder(changed, path)
    items = [(name if key == path[-1] else key, value) for key, value in holder.items()]
    holder.clear()
    holder.update(items)
    return Mutation("renamed", path, _text(changed), name)


def _wrong_types(value: object, whole: bool) -> list[object]:
    if isinstance(value, bool):
        return ["true" if value else "false", "maybe", 7]
    if isinstance(value, int):
        return [str(value), [value], *([value + 0.5] if whole else [])]
    if isinstance(value, float):
        return [str(value), [value], True]
    if isinstance(value, str):
        return ["atuo", {"a": 1}] if value == "auto" else [5, True, ["a"]]
    if isinstance(value, list):
        return [str(value), 3]
    return [True, "on", [1]]


def _put(config: dict, path: tuple, value: object, kind: str) -> Mutation:
    changed = copy.deepcopy(config)
    _holder(changed, path)[path[-1]] = value
    return Mutation(kind, path, _text(changed), json.dumps(value))


def _moved(config: dict, path: tuple, draw: random.Random) -> Iterator[Mutation]:
    """A level up, and into a section of its own level."""
    targets: list[tuple] = [path[:-2]] if len(path) > 1 else []
    sections = [
        p for p, value in paths(config)
        if isinstance(value, dict) and len(p) == len(path) and p != path and p[:-1] == path[:-1]
        and not any(name in CHOSEN for name in p)
    ]  # fmt: skip
    targets += [draw.choice(sections)] if sections else []
    for target in targets:
        changed = copy.deepcopy(config)
        value = _holder(changed, path).pop(path[-1])
        into = _holder(changed, (*target, ""))
        if path[-1] not in into:
            into[path[-1]] = value
            yield Mutation("moved", path, _text(changed), ".".join(target) or "the top")


def _doubled(config: dict, path: tuple, value: object) -> Mutation:
    changed = copy.deepcopy(config)
    _holder(changed, path)[path[-1] + SECOND] = value
    text = _text(changed).replace(json.dumps(SECOND)[1:-1], "")
    return Mutation("doubled", path, text, "")


def _dropped(config: dict, path: tuple) -> Mutation:
    changed = copy.deepcopy(config)
    del _holder(changed, path)[path[-1]]
    return Mutation("dropped", path, _text(changed), "")


def _other_units(config: dict, path: tuple, value: object) -> Iterator[Mutation]:
    unit = PLAUSIBLE.get(".".join(path), ("",))[0]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if number and value and unit in ("elements", "bytes"):
        yield _put(config, path, int(value) * 10**9, "units")
        yield _put(config, path, f"{int(value) // 10**6 or 1}MB", "units")
        if value >= 10**6:
            yield _put(config, path, int(value) // 10**6, "units")
