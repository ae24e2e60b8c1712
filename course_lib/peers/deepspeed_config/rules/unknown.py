"""Keys that the release does not know: misspelt, at the wrong level, removed, or invented.

A section with a config model refuses them. Elsewhere DeepSpeed never reads them, so it silently
uses the default. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from course_lib.peers.deepspeed_config.auto import at
from course_lib.peers.deepspeed_config.config import PARAMS, DeepSpeedConfig, Row
from course_lib.peers.deepspeed_config.kinds import judge
from course_lib.peers.deepspeed_config.near import alike, edits, nearest

REMARKS = ("comment", "note", "description", "readme", "todo", "doc", "remark")
FEW = 20  # a message lists the keys of a section up to this size


def check(config: DeepSpeedConfig) -> Iterator[Row]:
    """Yield a finding for every key that is unknown in its section."""
    homes, data = _homes(config), config.schema.data
    for path, key, section, _ in config.entries():
        name, dotted = path[-1], ".".join(path)
        if dotted in data["removed"]:
            message, source = f'"{name}" was removed from DeepSpeed', "deepspeed/runtime/config.py"
            reason = f"Release {config.schema.release} refuses a config that still contains it."
            yield ("error", path, message, reason, "remove the key", source)
        elif key is None and dotted in data["dropped"]:
            yield _dropped(config, path, data["dropped"][dotted], section)
        elif path == ("optimizer", "params", "max_grad_norm"):
            continue  # handled by optimizers.py
        elif key is None and not section.get("open"):
            yield _unknown(config, path, section, homes)
        elif section.get("open") and name not in section["keys"] and section["keys"]:
            near = nearest(name, set(section["keys"]) - {"*"}, wide=False)
            if near is not None and near not in _holder(config, path):
                yield _misspelt(config, path, (*path[:-1], near), section)
        elif key is not None and key.get("own"):
            message = f'"{name}" is set by the program, not by a config'
            reason = "DeepSpeed writes this value itself while it runs."
            yield ("warning", path, message, reason, "remove the key", "", ("remove",))


def _homes(config: DeepSpeedConfig) -> dict[str, list[tuple[str, ...]]]:
    """Map the name of a key to the sections that know it."""
    data, homes = config.schema.data, {}
    sections = [(path, section["keys"]) for path, section in config.schema.walk()]
    for path, usual in zip(PARAMS, ("adamw", "WarmupDecayLR"), strict=True):
        inner = config.section_of(path, None) or {}
        sections.append((path, inner.get("keys") or data[f"{path[0]}s"][usual]["keys"]))
    for path, names in sections:
        for name in names:
            homes.setdefault(name, []).append(path)
    return homes


def _unknown(config: DeepSpeedConfig, path: tuple, section: dict, homes: dict) -> Row:
    """Decide if an unknown key is misspelt, misplaced, a remark, or without any meaning."""
    name, near = path[-1], _nearest_here(config, path, section)
    letters = 9 if near is None else edits(name, near, 3)
    if _remark(name, close=letters <= 3) and not _refuses(section):
        message, reason = f'"{name}" looks like a remark', "DeepSpeed never reads it here."
        return ("hint", path, message, reason, "nothing, or remove it")
    home = _home(config, path, homes.get(name, []))
    elsewhere = tuple(config.schema.data["elsewhere"].get(name, "").split("."))
    known = elsewhere[:-1] in PARAMS or config.schema.find(elsewhere) is not None
    if elsewhere[-1] and home is None and known and letters > 1:
        return _misspelt(config, path, elsewhere, section)
    if home is not None and near is not None:  # which of the two is nearer?
        there = isinstance(at(config.value, home), dict)
        home = None if letters <= 1 or (not there and alike(name, near)) else home
    if home is not None:
        return _moved(config, path, home, section, homes[name])
    if near is not None:
        near = section["keys"][near].get("same_as", near)  # as pages and the Trainer spell it
        return _misspelt(config, path, (*path[:-1], near), section)
    level = "error" if section.get("strict") else "warning"
    message = f'"{name}" is not a key of {_where(path[:-1])}'
    return (level, path, message, _reason(section), _instead(config, path, section))


def _instead(config: DeepSpeedConfig, path: tuple, section: dict) -> str:
    """Suggest a replacement for a key that resembles no other, in a section of few keys."""
    left = [key for key in section["keys"] if key not in _holder(config, path) and key != "*"]
    if not left or len(section["keys"]) > FEW:
        return "remove the key, because no known key is similar"
    left.sort(key=lambda key: (edits(path[-1], key, 9), key))
    return f"remove the key, or write one of {', '.join(left[:5])}"


def _nearest_here(config: DeepSpeedConfig, path: tuple, section: dict) -> str | None:
    """Find the nearest key of the same section, by its name and by the values it accepts."""
    name, holder, keys = path[-1], _holder(config, path), section["keys"]
    doubt, inside = _doubt(section, holder, holder[name]), holder[name]
    right = [key for key in keys if key != "*"]
    near = nearest(name, right, doubt=doubt)
    if near is not None and isinstance(inside, dict) and "section" not in keys[near]:
        near = None  # a section is not a misspelt value
    if near is None:  # less similar, but accepts the value, and is not in the file yet
        near = nearest(name, [key for key in right if not doubt(key)], slack=1)
    return near


def _misspelt(config: DeepSpeedConfig, path: tuple, right: tuple, section: dict) -> Row:
    same, name = right[:-1] == path[:-1], path[-1]
    refused = _refuses(section) or (same and _has_the_type(config, path, right, section))
    alone = [key for key in section["keys"] if alike(name, key)] == [right[-1]]
    known = config.schema.data["elsewhere"].get(name) == ".".join(right)
    sure = edits(name, right[-1], 3) <= 3 or alone or known
    sure = sure and right[-1] not in _holder(config, path) and (refused or section.get("open"))
    target = f'"{right[-1]}"' if same else f'"{right[-1]}", in {_where(right[:-1])}'
    level = "error" if refused and not section.get("open") else "warning"
    message = f'"{name}" is not a key of {_where(path[:-1])}; did you mean {target}?'
    suggestion = f"{'rename it to' if same else 'write it as'} {'.'.join(right)}"
    repair = ("rename", right) if same and sure else None
    return (level, path, message, _reason(section), suggestion, "", repair)


def _moved(
    config: DeepSpeedConfig, path: tuple, home: tuple, section: dict, homes: list[tuple]
) -> Row:
    name, there, right = path[-1], at(config.value, home), (*home, path[-1])
    values = [(other, at(config.value, other)) for other in homes]
    lacking = [other for other, value in values if isinstance(value, dict) and name not in value]
    free = not (isinstance(there, dict) and name in there)
    sure = free and (len(homes) == 1 or lacking == [home])
    level, verb, reason = "error", "rename", _reason(section)
    if not _refuses(section):  # the program itself may read it, and a move would break that
        level, verb, sure = "warning", "meant", sure and isinstance(there, dict)
        reason += " Your own program may read it here."
    message = f'"{name}" is in {_where(path[:-1])} but belongs in {_where(home)}'
    repair = (verb, right) if sure else None
    return (level, path, message, reason, f"move it to {'.'.join(right)}", "", repair)


def _dropped(config: DeepSpeedConfig, path: tuple, new: str, section: dict) -> Row:
    strict, known = bool(section.get("strict")), config.schema.find(new) is not None
    level, outcome = ("error", "refuses it") if strict else ("hint", "never reads it")
    message = f'"{path[-1]}" is an older spelling'
    reason = f"Release {config.schema.release} {outcome}."
    suggestion = f"replace it by {new}" if known else "remove the key"
    repair = ("rename", tuple(new.split("."))) if known and not strict else None
    return (level, path, message, reason, suggestion, "", repair)


def _home(config: DeepSpeedConfig, path: tuple, homes: list[tuple]) -> tuple | None:
    """Find the section that a misplaced key was meant for: a near section that is in the file and
    lacks the key."""

    def closeness(home: tuple) -> tuple:
        holder = at(config.value, home)
        there = isinstance(holder, dict)
        shared = sum(a == b for a, b in zip(home, path[:-1], strict=False))
        steps = len(home) + len(path) - 1 - 2 * shared
        return not (there and path[-1] not in holder), not there, steps, home

    around = [home for home in homes if home != path[:-1] and "*" not in home]
    best = min(around, key=closeness, default=None)
    # A name such as "enabled" exists in many sections; a section that the file lacks is a guess.
    return best if len(around) <= 3 or isinstance(at(config.value, best), dict) else None


def _holder(config: DeepSpeedConfig, path: tuple) -> dict:
    value = at(config.value, path[:-1])
    return value if isinstance(value, dict) else {}


def _where(path: tuple) -> str:
    return f'"{".".join(map(str, path))}"' if path else "the top level"


def _reason(section: dict) -> str:
    if section.get("strict"):
        return "The config model of this section refuses unknown keys."
    if "classes" in section:
        return "The parameters are passed to the class, which refuses unknown parameters."
    return "DeepSpeed reads only the keys that it knows, so it silently ignores this key."


def _refuses(section: dict) -> bool:
    """Return True if an unknown key of the section ends the run; elsewhere it is ignored."""
    return bool(section.get("strict")) or "classes" in section


def _has_the_type(config: DeepSpeedConfig, path: tuple, right: tuple, section: dict) -> bool:
    """Return True if the right key accepts the value of a misspelt key."""
    key, value = section["keys"].get(right[-1]), at(config.value, path)
    inner = _inner(key or {})
    if key is None or (isinstance(value, dict) and inner and not any(x in inner for x in value)):
        return key is not None and value == {}
    return value == "auto" or judge(key, value).taken


def _remark(name: str, *, close: bool) -> bool:
    if name.strip("_-#/$ ").lower().rstrip("s0123456789_") in REMARKS:
        return True
    return name[:1] in "_/#$" and not close


def _inner(key: dict) -> dict:
    """Return the keys of the section below a key; empty if there is none."""
    return key.get("section", {}).get("keys", {})


def _doubt(section: dict, holder: dict, value: object) -> Callable[[str], float]:
    """Score how badly a value fits a key: a text instead of a number, unknown keys of a section, a
    key that already exists."""

    def doubt(name: str) -> float:
        key = section["keys"][name]
        taken = 0.8 if name in holder else 0.0
        if isinstance(value, dict) and value and (inner := _inner(key)):
            return taken + 1.5 * sum(entry not in inner for entry in value) / len(value)
        return taken + (0.0 if value == "auto" or judge(key, value).fits else 0.6)

    return doubt
