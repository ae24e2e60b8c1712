"""Keys that the release does not know: misspelt, at the wrong level, removed, or made up.

A section with a model refuses them; everywhere else DeepSpeed never asks for them, so that the
default counts and nothing is said. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from course_lib.deepspeed_config.config import Config
from course_lib.deepspeed_config.finding import Finding
from course_lib.deepspeed_config.kinds import judge
from course_lib.deepspeed_config.near import alike, edits, nearest

REMARKS = ("comment", "note", "description", "readme", "todo", "doc", "remark")
FEW = 20  # keys of a section that can be named


def check(config: Config) -> Iterator[Finding]:
    """A finding for every key that is not known where it stands."""
    homes = _homes(config)
    for path, key, section, _ in config.entries():
        dotted = ".".join(path)
        if dotted in config.schema.data["removed"]:
            yield config.finding(
                "removed", "error", path, f'"{path[-1]}" was removed from DeepSpeed',
                f"Release {config.schema.release} refuses a config that still has it.",
                "deepspeed/runtime/config.py", "take the key out",
            )  # fmt: skip
        elif key is None and dotted in config.schema.data["dropped"]:
            yield _dropped(config, path, config.schema.data["dropped"][dotted], section)
        elif path == ("optimizer", "params", "max_grad_norm"):
            continue  # optimizers.py
        elif key is None and not section.get("open"):
            yield _unknown(config, path, section, homes)
        elif section.get("open") and path[-1] not in section["keys"] and section["keys"]:
            near = nearest(path[-1], set(section["keys"]) - {"*"}, wide=False)
            if near is not None and near not in _holder(config, path):
                yield _misspelt(config, path, (*path[:-1], near), section)
        elif key is not None and key.get("own"):
            yield config.finding(
                "own", "warning", path, f'"{path[-1]}" is set by the program, not by a config',
                "DeepSpeed writes this value itself while it runs.", section.get("source", ""),
                "take the key out", repair=("remove",),
            )  # fmt: skip


def _homes(config: Config) -> dict[str, list[tuple[str, ...]]]:
    """Name of a key → the sections that know it."""
    homes: dict[str, list[tuple[str, ...]]] = {}
    for path, section in config.schema.walk():
        for name in section["keys"]:
            homes.setdefault(name, []).append(path)
    for what in ("optimizer", "scheduler"):
        names = config.schema.data[f"{what}s"]
        kind = config.get(f"{what}.type")
        usual = {"optimizer": "adamw", "scheduler": "WarmupDecayLR"}[what]
        inner = None
        if isinstance(kind, str):
            inner = config.schema.optimizer(kind) if what == "optimizer" else names.get(kind)
        for name in (inner or names.get(usual, {})).get("keys", {}):
            homes.setdefault(name, []).append((what, "params"))
    return homes


def _unknown(config: Config, path: tuple, section: dict, homes: dict) -> Finding:
    """What a key was meant for: one of this section, one of another section, a remark, nothing."""
    name, near = path[-1], _nearest_here(config, path, section)
    close = near is not None and edits(name, near, 3) <= 3
    if _remark(name, close) and not (section.get("strict") or "classes" in section):
        return config.finding(
            "remark", "hint", path, f'"{name}" is a remark, by its name',
            "DeepSpeed never asks for it here.", section.get("source", ""),
            "nothing, or take it out",
        )  # fmt: skip
    a_letter = near is not None and edits(name, near, 1) <= 1
    home = _home(config, path, homes.get(name, []))
    own = tuple(config.schema.data["elsewhere"].get(name, "").split("."))
    if own[-1] and home is None and config.section_has(own) and not a_letter:
        return _misspelt(config, path, own, section)
    if home is not None and near is not None:  # which of the two is nearer?
        there = isinstance(_value(config, home), dict)
        home = None if a_letter or (not there and alike(name, near)) else home
    if home is not None:
        return _moved(config, path, home, section, homes[name])
    if near is not None:
        near = section["keys"][near].get("same_as", near)  # as pages and the Trainer spell it
        return _misspelt(config, path, (*path[:-1], near), section)
    far = nearest(name, sorted(homes), wide=False) if _refuses(section) else None
    home = _home(config, path, homes[far]) if far else None
    if home is not None and (isinstance(_value(config, home), dict) or len(name) >= 8):
        return _misspelt(config, path, (*home, far), section)
    return config.finding(
        "unknown", "error" if section.get("strict") else "warning", path,
        f'"{name}" is no key of {_where(path[:-1])}', _reason(config, section),
        section.get("source", ""), _instead(config, path, section),
    )  # fmt: skip


def _instead(config: Config, path: tuple, section: dict) -> str:
    """What a key that is like none may have been, in a section of a few keys."""
    holder = _holder(config, path)
    left = [key for key in section["keys"] if key not in holder and key != "*"]
    if not left or len(section["keys"]) > FEW:
        return "take the key out; none is like it"
    left.sort(key=lambda key: (edits(path[-1], key, 9), key))
    return f"take the key out, or write one of {', '.join(left[:5])}"


def _nearest_here(config: Config, path: tuple, section: dict) -> str | None:
    holder = _holder(config, path)
    doubt = _doubt(section, holder, holder[path[-1]])
    right = [key for key in section["keys"] if key != "*"]
    near = nearest(path[-1], right, doubt=doubt)
    inside = holder[path[-1]]
    if isinstance(inside, dict) and inside and (near is None or doubt(near)):
        free = [key for key in right if key not in holder]
        suited = [key for key in free if _suits(section["keys"][key], inside)]
        near = suited[0] if len(suited) == 1 else near
    if near is not None and isinstance(inside, dict) and "section" not in section["keys"][near]:
        near = None  # a section is no misspelt value
    if near is None:  # further away, but its value suits, and no other key has its place
        near = nearest(path[-1], [key for key in right if not doubt(key)], slack=1)
    return near


def _misspelt(config: Config, path: tuple, right: tuple, section: dict) -> Finding:
    same = right[:-1] == path[:-1]
    refused = _refuses(section) or (same and _has_the_type(config, path, right, section))
    level = "error" if refused and not section.get("open") else "warning"
    alone = [key for key in section["keys"] if alike(path[-1], key)] == [right[-1]]
    known = config.schema.data["elsewhere"].get(path[-1]) == ".".join(right)
    sure = edits(path[-1], right[-1], 3) <= 3 or alone or known
    sure = sure and right[-1] not in _holder(config, path) and (refused or section.get("open"))
    target = f'"{right[-1]}"' if same else f'"{right[-1]}", in {_where(right[:-1])}'
    return config.finding(
        "unknown", level, path,
        f'"{path[-1]}" is no key of {_where(path[:-1])}; did you mean {target}?',
        _reason(config, section), section.get("source", ""),
        f"rename it to {'.'.join(right)}" if same else f"write it as {'.'.join(right)}",
        repair=("rename", right) if same and sure else None,
    )  # fmt: skip


def _moved(config: Config, path: tuple, home: tuple, section: dict, homes: list[tuple]) -> Finding:
    right = (*home, path[-1])
    lacking = [other for other in homes if isinstance(_value(config, other), dict)
               and path[-1] not in _value(config, other)]  # fmt: skip
    there = _value(config, home)
    free = not (isinstance(there, dict) and path[-1] in there)
    sure = free and (len(homes) == 1 or lacking == [home])
    level, verb, reason = "error", "rename", _reason(config, section)
    if not _refuses(section):  # then it may be the program's own, which a move would take away
        level, verb, sure = "warning", "meant", sure and isinstance(there, dict)
        reason += " Your program may read it here by itself."
    return config.finding(
        "moved", level, path,
        f'"{path[-1]}" stands in {_where(path[:-1])}, and belongs in {_where(home)}',
        reason, section.get("source", ""),
        f"move it: {'.'.join(right)}", repair=(verb, right) if sure else None,
    )  # fmt: skip


def _dropped(config: Config, path: tuple, new: str, section: dict) -> Finding:
    strict = bool(section.get("strict"))
    known = config.schema.find(tuple(new.split("."))) is not None
    return config.finding(
        "dropped", "error" if strict else "hint", path,
        f'"{path[-1]}" is a spelling of earlier releases',
        f"Release {config.schema.release} " + ("refuses it." if strict else "never asks for it."),
        section.get("source", ""),
        f"its place is taken by {new}" if known else "take the key out",
        repair=None if strict or not known else ("rename", tuple(new.split("."))),
    )  # fmt: skip


def _home(config: Config, path: tuple, homes: list[tuple]) -> tuple | None:
    """The section that a misplaced key was meant for: one that is near, that the file has, and
    that lacks it."""

    def closeness(home: tuple) -> tuple:
        holder = _value(config, home)
        there = isinstance(holder, dict)
        lacks = there and path[-1] not in holder
        shared = sum(a == b for a, b in zip(home, path[:-1], strict=False))
        steps = len(home) + len(path) - 1 - 2 * shared
        return not lacks, not there, steps, home

    around = [home for home in homes if home != path[:-1] and "*" not in home]
    if not around:
        return None
    best = min(around, key=closeness)
    # A name such as "enabled" is at home in many places; one that the file lacks is a guess.
    if len(around) > 3 and not isinstance(_value(config, best), dict):
        return None
    return best


def _value(config: Config, path: tuple) -> object:
    value: object = config.value
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _holder(config: Config, path: tuple) -> dict:
    value = _value(config, path[:-1])
    return value if isinstance(value, dict) else {}


def _where(path: tuple) -> str:
    return f'"{".".join(map(str, path))}"' if path else "the top level"


def _reason(config: Config, section: dict) -> str:
    if section.get("strict"):
        return "The model of this section refuses a key that it does not have."
    if "classes" in section:
        return "The parameters go to the class as they are; it refuses one that it does not take."
    return "DeepSpeed asks for the keys it knows and for no other: this one is silently ignored."


def _refuses(section: dict) -> bool:
    """Whether a key that the section does not have ends the run; elsewhere it is ignored."""
    return bool(section.get("strict")) or "classes" in section


def _has_the_type(config: Config, path: tuple, right: tuple, section: dict) -> bool:
    """Whether the value of a misspelt key is one that the right key takes."""
    key, value = section["keys"].get(right[-1]), _value(config, path)
    inner = (key or {}).get("section", {}).get("keys", {})
    if key is None or (isinstance(value, dict) and inner and not any(x in inner for x in value)):
        return key is not None and value == {}
    return value == "auto" or judge(key, value).taken


def _remark(name: str, close: bool) -> bool:
    if name.strip("_-#/$ ").lower().rstrip("s0123456789_") in REMARKS:
        return True
    return name[:1] in "_/#$" and not close


def _suits(key: dict, inside: dict) -> bool:
    """Whether a key opens a section that knows all these entries."""
    inner = key.get("section", {}).get("keys", {})
    return bool(inner) and all(entry in inner for entry in inside)


def _doubt(section: dict, holder: dict, value: object) -> Callable[[str], float]:
    """How little a value suits a key: a text where a number is due, a section's strange keys, a
    key that stands there already."""

    def doubt(name: str) -> float:
        key = section["keys"][name]
        inner = key.get("section", {}).get("keys", {})
        taken = 0.8 if name in holder else 0.0
        if isinstance(value, dict) and inner and value:
            return taken + 1.5 * sum(entry not in inner for entry in value) / len(value)
        return taken + (0.0 if value == "auto" or judge(key, value).fits else 0.6)

    return doubt
