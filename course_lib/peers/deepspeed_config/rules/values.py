"""Values of the wrong kind (a text for a number, a number out of range, a misspelt choice), and old
spellings of a key, which the release still accepts.

A config model declares the replacement of an old key, and refuses both keys together. Lesson 13.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from course_lib.peers.deepspeed_config.config import DeepSpeedConfig, Row
from course_lib.peers.deepspeed_config.kinds import Verdict, in_words, judge, parsed
from course_lib.peers.deepspeed_config.near import nearest

LIMITS = {
    "minimum": (lambda x, bound: x >= bound, "at least"),
    "above": (lambda x, bound: x > bound, "more than"),
    "maximum": (lambda x, bound: x <= bound, "at most"),
    "below": (lambda x, bound: x < bound, "less than"),
}
ELEMENTS = ("bucket_size", "threshold", "parameters", "distance", "group_size", "buffer_size")
ELEMENTS += ("max_in_cpu", "allgather_size")
ON_GPU = ("gpu", "cuda", "device")  # names for the place of data that is not offloaded
PAIR = "two numbers, such as [0.9, 0.999]"


def check(config: DeepSpeedConfig) -> Iterator[Row]:
    """Yield a finding for every value that its key does not accept, and for every old spelling."""
    for path, key, _, value in config.entries():
        if key is None:
            continue  # handled by unknown.py
        if "deprecated" in key:
            yield _old(config, path, key["deprecated"], value)
        elif (same := key.get("same_as")) and _beside(config, path, same):
            message = f'"{path[-1]}" and "{same}" are the same key, given twice'
            reason = "The config model uses one of the two, but does not guarantee which."
            yield ("error", path, message, reason, f'keep "{same}"')
        if path == ("zero_optimization",) and isinstance(value, bool):
            yield _old_zero(config, path, value)
        elif value != "auto" and path != ("datastates_ckpt",) and not _tuned(config, path, value):
            yield from _value(config, path, key, value)


def _value(config: DeepSpeedConfig, path: tuple, key: dict, value: object) -> Iterator[Row]:
    name, verdict = path[-1], judge(key, value)
    rates = key.get("type") == "union" and isinstance(value, list)
    if rates and any(part["type"] == "number" for part in key["of"]):
        message = f'"{name}" is a list, one for each parameter group'
        reason = "Most programs have one group and intend one number."
        yield ("warning", path, message, reason, "write one number for all groups")
    if not verdict.fits:
        yield _wrong(config, path, key, value, verdict)
    elif value is None:
        message = f'"{name}" is null, as if it were missing'
        yield ("hint", path, message, "Its default is used.", "remove it")
    elif isinstance(value, str) and value.strip()[:1] in ("[", "{"):
        message = f'"{name}" is a text that looks like a list or object'
        reason = "In quotes, it is one text that includes the brackets."
        yield ("warning", path, message, reason, "remove the quotes around the brackets")
    number = verdict.becomes if verdict.becomes is not None else value
    if isinstance(number, (int, float)) and not isinstance(number, bool) and _finite(value):
        for limit, (holds, words) in LIMITS.items():
            if limit in key and not holds(number, key[limit]):
                checked, bound = key.get("checked"), f"{words} {_shown(key[limit])}"
                level = "error" if checked or limit in ("minimum", "above") else "warning"
                message = f'"{name}" is {_shown(number)} but must be {bound}'
                reason = "The config model refuses it." if checked else "This value has no meaning."
                yield (level, path, message, reason, f"write {bound}")


def _tuned(config: DeepSpeedConfig, path: tuple, value: object) -> bool:
    """Return True if the autotuner handles this stage: "all", or a list of stages to try."""
    if path != ("zero_optimization", "stage") or config.get("autotuning.enabled") is not True:
        return False
    tried = value if isinstance(value, list) else [value]
    return bool(tried) and all(x == "all" or (type(x) is int and 0 <= x <= 3) for x in tried)


def _wrong(config: DeepSpeedConfig, path: tuple, key: dict, value: object, verdict: Verdict) -> Row:
    name, words, shown = path[-1], in_words(key), _shown(value)
    as_false = key.get("type") == "boolean" and not (key.get("checked") or key.get("no_null"))
    if value is None and as_false:
        level, reason = "warning" if key.get("default") else "hint", "It is read unconverted."
        message, repair = f'"{name}" is null, which counts as false', ("value", False)
        return (level, path, message, reason, "write true or false", "", repair)
    if value is None:
        message = f'"{name}" is null but must be {words}'
        reason = "null is a value here, which differs from a missing key."
        suggestion = "remove the key to use its default"
        return ("error", path, message, reason, suggestion, "", ("remove",))
    if verdict.taken:
        made = verdict.becomes
        becomes = "the expected type" if made is None else _shown(made)
        # A text is read differently by each reader, and true is hardly meant as a number.
        level = "warning" if isinstance(value, (bool, str)) else "hint"
        message = f'"{name}" is {shown}, but {words} is expected'
        reason = f"DeepSpeed reads it as {becomes}, but the Trainer compares it unconverted."
        repair = ("value", made) if made is not None and _finite(made) else None
        return (level, path, message, reason, f"write {becomes}", "", repair)
    meant, suggestion = _meant(key, name, value, verdict, words)
    words = "a list of two numbers" if name == "betas" else words
    sized = isinstance(value, str) and key.get("type") == "integer" and not value.strip().isdigit()
    repair = ("value", meant) if meant is not None and not sized else None
    message = f'"{name}" is {shown} but must be {words}'
    return "error", path, message, _refusal(key, value), suggestion, "", repair


def _meant(key: dict, name: str, value: object, verdict: Verdict, words: str) -> tuple[object, str]:
    """Return the value that was probably meant (or None) and the text to suggest."""
    text = value.strip().lower() if isinstance(value, str) else ""
    if key.get("type") == "object":
        return _section_instead(value, (key.get("section") or {}).get("keys", {}))
    if text == "auto":
        return "auto", 'write "auto" in lower case'
    if name == "device" and text in ON_GPU:
        return None, 'write "none" to keep it on the GPU, or "cpu"'
    if name == "betas":
        numbers = value if isinstance(value, list) else []
        numbers = [parsed(x) if isinstance(x, str) else x for x in numbers]
        whole = len(numbers) == 2 and None not in numbers
        return (numbers, f"write {_shown(numbers)}") if whole else (None, f"write {PAIR}")
    meant, counted = verdict.meant, ""
    if isinstance(meant, int) and text and name.endswith(ELEMENTS):
        meant = meant // 2 if text[-1].isalpha() else meant  # elements of 16 bits
        counted = "; it counts elements, not bytes (2 bytes each in 16 bits, 4 in 32)"
    if meant is None and key.get("type") == "choice" and text:
        meant = nearest(value, [x for x in key["choices"] if isinstance(x, str)])
    return meant, f"write {words if meant is None else _shown(meant)}{counted}"


def _section_instead(value: object, keys: dict) -> tuple[dict | None, str]:
    """Return the section that a bare value abbreviates, if any, and the text to suggest."""
    if value is False and "device" in keys:
        return None, 'remove the key, or write {"device": "none"}'
    meant = None
    if isinstance(value, str) and "device" in keys and value in keys["device"]["choices"]:
        meant = {"device": value}
    elif isinstance(value, bool) and "enabled" in keys:
        meant = {"enabled": value}
    return meant, f"write {_shown(meant)}" if meant else "write an object, or remove the key"


def _refusal(key: dict, value: object) -> str:
    kind = key.get("type")
    if kind == "object":
        return "DeepSpeed expects a section with keys here."
    if key.get("checked"):
        return "The config model refuses it."
    if kind == "boolean" and isinstance(value, str):
        return "No config model converts this key, and in Python any text is true."
    if kind == "choice":
        return "DeepSpeed knows no other value."
    return "No config model converts this key, so it fails where it is used."


# ---- old spellings
def _old(config: DeepSpeedConfig, path: tuple, replacement: dict, value: object) -> Row:
    new, old, release = replacement["new"], path[-1], f"Release {config.schema.release}"
    message, repair = f'"{old}" is deprecated', ("remove",)
    if not replacement["alone"]:
        reason = f"{release} reads it but does not use it."
        return ("warning", path, message, reason, f'write "pin_memory" in {new}', "", repair)
    if _beside(config, path, new):
        message = f'"{old}" is given together with its replacement "{new}"'
        reason = f"{release} refuses both together."
        return ("error", path, message, reason, f'keep "{new}"', "", repair)
    right, suggestion = (*path[:-1], new), f'rename it to "{new}"'
    if not replacement.get("section"):
        repair = ("rename", right)
    elif value is True:
        suggestion = f'write "{new}": {{"device": "cpu"}}'
        repair = ("replace", right, {"device": "cpu"})
    else:
        suggestion, repair = f"write no {new}", repair if value is False else None
    reason = f"{release} still accepts it with a warning, but a later release may not."
    return ("warning", path, message, reason, suggestion, "", repair)


def _beside(config: DeepSpeedConfig, path: tuple, name: str) -> bool:
    """Return True if the file also has a second key in the same section, in any spelling."""
    spelled = config.spelled(".".join((*path[:-1], name)))
    return spelled[-1] != path[-1] and config.has(".".join(spelled))


def _old_zero(config: DeepSpeedConfig, path: tuple, value: bool) -> Row:
    message = f'"zero_optimization" is {_shown(value)}, which is an old form'
    reason = f"DeepSpeed reads it as stage {value:d}, and warns."
    suggestion, repair = f'write {{"stage": {value:d}}}', ("value", {"stage": int(value)})
    return ("warning", path, message, reason, suggestion, "", repair)


def _finite(value: object) -> bool:
    return not (isinstance(value, float) and not math.isfinite(value))


def _shown(value: object) -> str:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer() and value < 1e15:
        return str(int(value))
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 50 else text[:47] + "…"
