"""Values of the wrong kind: a text for a number, a number out of range, a choice misspelt.

Lesson 13.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from course_lib.deepspeed_config.config import Config
from course_lib.deepspeed_config.finding import Finding
from course_lib.deepspeed_config.kinds import Verdict, in_words, judge, parsed
from course_lib.deepspeed_config.near import nearest

LIMITS = {
    "minimum": (lambda x, bound: x >= bound, "at least"),
    "above": (lambda x, bound: x > bound, "more than"),
    "maximum": (lambda x, bound: x <= bound, "at most"),
    "below": (lambda x, bound: x < bound, "less than"),
}
ELEMENTS = ("bucket_size", "threshold", "parameters", "distance", "group_size", "buffer_size")
ELEMENTS += ("max_in_cpu", "allgather_size")
ON_GPU = ("gpu", "cuda", "device")  # where a thing stays that is not offloaded


def check(config: Config) -> Iterator[Finding]:
    """A finding for every value that is not what its key takes."""
    for path, key, section, value in config.entries():
        if key is None or value == "auto":
            continue  # unknown.py, autos.py
        source = key.get("source") or section.get("source", "")
        if path == ("zero_optimization",) and isinstance(value, bool):
            yield _old_zero(config, path, value, source)
            continue
        if path == ("datastates_ckpt",) or _tuned(config, path, value):
            continue
        verdict = judge(key, value)
        rates = key.get("type") == "union" and isinstance(value, list)
        if rates and any(part["type"] == "number" for part in key["of"]):
            yield config.finding(
                "type", "warning", path, f'"{path[-1]}" is a list, one for each parameter group',
                "Most programs make one group, and mean one number.", source,
                "write one number for all groups", value=True,
            )  # fmt: skip
        if verdict.fits and value is None:
            yield config.finding(
                "type", "hint", path, f'"{path[-1]}" is null: as if it were left out',
                "Its default counts.", source, "take it out", value=True,
            )  # fmt: skip
        if verdict.fits and isinstance(value, str) and value.strip()[:1] in ("[", "{"):
            yield config.finding(
                "type", "warning", path, f'"{path[-1]}" is a text that looks like a list or object',
                "In quotes it is one name, brackets and all.", source,
                "take the quotes around the brackets away", value=True,
            )  # fmt: skip
        if not verdict.fits:
            yield _wrong(config, path, key, value, verdict, source)
        number = verdict.becomes if verdict.becomes is not None else value
        endless = isinstance(value, float) and not math.isfinite(value)  # source.py
        if isinstance(number, (int, float)) and not isinstance(number, bool) and not endless:
            yield from _range(config, path, key, number, source)


def _tuned(config: Config, path: tuple, value: object) -> bool:
    """Whether the autotuner takes this stage apart: "all", or a list of those to try."""
    if path != ("zero_optimization", "stage") or config.get("autotuning.enabled") is not True:
        return False
    tried = value if isinstance(value, list) else [value]
    return bool(tried) and all(x == "all" or (type(x) is int and 0 <= x <= 3) for x in tried)


def _wrong(
    config: Config, path: tuple, key: dict, value: object, verdict: Verdict, source: str
) -> Finding:
    words = in_words(key)
    shown = _shown(value)
    name = path[-1]
    read_as_false = key.get("type") == "boolean" and not (key.get("checked") or key.get("no_null"))
    if value is None and read_as_false:
        return config.finding(
            "type", "warning" if key.get("default") else "hint", path,
            f'"{name}" is null, which counts as false', "It is asked for as it is.", source,
            "write true or false", value=True, repair=("value", False),
        )  # fmt: skip
    if value is None:
        return config.finding(
            "type", "error", path, f'"{name}" is null, and has to be {words}',
            "null is a value here, and not the same as a key that is left out.", source,
            "leave the key out for its default", value=True, repair=("remove",),
        )  # fmt: skip
    if verdict.taken:
        becomes = _shown(verdict.becomes) if verdict.becomes is not None else "what it expects"
        return config.finding(
            "type", _level(value), path, f'"{name}" is {shown}, where {words} is expected',
            f"DeepSpeed reads it as {becomes}; the Trainer compares it as it is.", source,
            f"write {becomes}", value=True,
            repair=("value", verdict.becomes) if _finite(verdict.becomes) else None,
        )  # fmt: skip
    meant = _meant(key, name, value, verdict)
    checked = key.get("checked")
    reason = "The config model refuses it." if checked else _unchecked(key, value)
    suggestion = f"write {_shown(meant)}" if meant is not None else f"write {words}"
    if isinstance(meant, int) and isinstance(value, str) and name.endswith(ELEMENTS):
        suggestion += "; it counts elements, not bytes: 2 bytes each in 16 bits, 4 in 32"
    if key.get("type") == "object":
        reason = "DeepSpeed reads a section here, and asks it for its keys."
        meant, suggestion = _section_instead(value, (key.get("section") or {}).get("keys", {}))
    elif isinstance(value, str) and value.strip().lower() == "auto":
        meant, suggestion = "auto", 'write "auto", in small letters'
    elif name == "device" and str(value).strip().lower() in ON_GPU:
        meant, suggestion = None, 'write "none", which leaves it on the GPU, or "cpu"'
    elif name == "betas":
        meant, suggestion = _pair(value)
        words = "a list of two numbers"
    sized = isinstance(value, str) and key.get("type") == "integer" and not value.strip().isdigit()
    safe = meant is not None and not sized
    return config.finding(
        "type", "error", path, f'"{name}" is {shown}, and has to be {words}', reason, source,
        suggestion, value=True, repair=("value", meant) if safe else None,
    )  # fmt: skip


def _section_instead(value: object, keys: dict) -> tuple[dict | None, str]:
    """The section that a bare value stands for, if there is one, and what to write."""
    meant = None
    if value is False and "device" in keys:
        return None, 'leave the key out, or write {"device": "none"}'
    if isinstance(value, str) and "device" in keys and value in keys["device"]["choices"]:
        meant = {"device": value}
    elif isinstance(value, bool) and "enabled" in keys:
        meant = {"enabled": value}
    return meant, f"write {_shown(meant)}" if meant else "write an object, or leave the key out"


def _pair(value: object) -> tuple[list | None, str]:
    """Two numbers out of texts, if that is what a value has, and what to write."""
    numbers = [parsed(x) if isinstance(x, str) else x for x in value] if isinstance(
        value, list) else []  # fmt: skip
    if len(numbers) == 2 and None not in numbers:
        return numbers, f"write {_shown(numbers)}"
    return None, "write two numbers, such as [0.9, 0.999]"


def _level(value: object) -> str:
    """A text is read anew by each reader, and true is hardly meant as a number."""
    odd = isinstance(value, (bool, str))
    return "warning" if odd else "hint"


def _meant(key: dict, name: str, value: object, verdict: Verdict) -> object:
    if verdict.meant is not None:
        meant = verdict.meant
        in_bytes = isinstance(value, str) and value.strip()[-1:].isalpha()
        if in_bytes and isinstance(meant, int) and name.endswith(ELEMENTS):
            return meant // 2  # elements of 16 bits
        return meant
    if key.get("type") == "choice" and isinstance(value, str):
        return nearest(value, [x for x in key["choices"] if isinstance(x, str)])
    return None


def _unchecked(key: dict, value: object) -> str:
    kind = key.get("type")
    if kind == "boolean" and isinstance(value, str):
        return "No model converts this key: a text is true in Python, whatever it says."
    if kind == "choice":
        return "DeepSpeed knows no other."
    return "No model converts this key: it stays what it is, and breaks where it is used."


def _range(config: Config, path: tuple, key: dict, value: float, source: str) -> Iterator[Finding]:
    for limit, (holds, words) in LIMITS.items():
        if limit in key and not holds(value, key[limit]):
            refused = key.get("checked") or limit in ("minimum", "above")
            yield config.finding(
                "range", "error" if refused else "warning", path,
                f'"{path[-1]}" is {_shown(value)}, and has to be {words} {_shown(key[limit])}',
                "The config model refuses it." if key.get("checked") else "It has no meaning.",
                source, f"write {words} {_shown(key[limit])}", value=True,
            )  # fmt: skip


def _old_zero(config: Config, path: tuple, value: bool, source: str) -> Finding:
    stage = 1 if value else 0
    return config.finding(
        "deprecated", "warning", path, f'"zero_optimization" is {_shown(value)}: an old form',
        f"DeepSpeed reads it as stage {stage}, and warns.", source,
        f'write {{"stage": {stage}}}', value=True, repair=("value", {"stage": stage}),
    )  # fmt: skip


def _finite(value: object) -> bool:
    return value is not None and not (isinstance(value, float) and not math.isfinite(value))


def _shown(value: object) -> str:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and value < 1e15:
        return str(int(value))
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 50 else text[:47] + "…"
