"""The check of a value against the type of its key, as DeepSpeed itself reads it.

A key of a config model is converted if pydantic can ("1" is 1, 5e8 an integer). A key that is read
directly from the dict is not converted, so "false" is true there. Lesson 13.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_INTEGER = re.compile(r"\s*[+-]?\d+(_\d+)*(\.0+)?\s*")
_DECIMAL = re.compile(r"\s*[+-]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_ENDLESS = re.compile(r"\s*[+-]?(inf|infinity|nan)\s*", re.IGNORECASE)
TRUE = ("1", "on", "t", "true", "y", "yes")
FALSE = ("0", "off", "f", "false", "n", "no")
UNITS = {"k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "b": 1}
UNITS |= {"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "t": 10**12, "tb": 10**12}
WORDS = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
WORDS |= {"text": "a text", "path": "a text with a path", "list": "a list", "object": "an object"}
WORDS["instance"] = "an object of the program, which JSON cannot express"


@dataclass(frozen=True)
class Verdict:
    """The judgement of a value. It `fits` as it is, or DeepSpeed converts it to `becomes` (if
    `taken`). `meant` is the value that was probably intended."""

    fits: bool
    taken: bool = True
    becomes: object = None
    meant: object = None


RIGHT, REFUSED = Verdict(True), Verdict(False, False)


def judge(kind: dict, value: object) -> Verdict:
    """Judge a value for a key of this kind (an entry of a schema)."""
    name, checked = kind.get("type", "any"), kind.get("checked", False)
    if value is None:
        left_out = not checked and "default" in kind and kind["default"] is None
        return RIGHT if name == "any" or kind.get("null") or left_out else REFUSED
    if name == "any":
        return RIGHT
    if name in ("text", "path"):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        meant = str(value) if number else None
        return RIGHT if isinstance(value, str) else Verdict(False, False, meant=meant)
    if name == "object":
        return RIGHT if isinstance(value, dict) else REFUSED
    return _OF_KIND.get(name, lambda *_: REFUSED)(kind, value, checked)


def in_words(kind: dict) -> str:
    """Describe a key's allowed values, for example as "a whole number" or "one of …"."""
    name = kind.get("type", "any")
    if name == "choice":
        return "one of " + ", ".join(_quoted(x) for x in kind["choices"])
    if name == "union":
        return " or ".join(in_words(part) for part in kind["of"])
    return WORDS.get(name, "any value") + (" or null" if kind.get("null") else "")


def parsed(text: str) -> float | int | None:
    """Read the number in a text, or return None."""
    plain = text.strip().replace("_", "")
    if not _DECIMAL.fullmatch(text):
        return None
    value = float(plain)
    if math.isinf(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 1 << 53 else value


def _union(kind: dict, value: object, checked: bool) -> Verdict:
    verdicts = [judge({**part, "checked": checked}, value) for part in kind["of"]]
    loose = not kind.get("exact") or isinstance(value, bool)
    best = [x for x in verdicts if x.fits] + [x for x in verdicts if x.taken and loose]
    return best[0] if best else REFUSED


def _list(kind: dict, value: object, checked: bool) -> Verdict:
    items = kind.get("items")
    if not isinstance(value, list):
        return Verdict(False, False, meant=[value] if items else None)
    parts = [judge({**items, "checked": checked}, item) for item in value] if items else []
    return RIGHT if all(x.fits for x in parts) else Verdict(False, all(x.taken for x in parts))


def _choice(kind: dict, value: object, checked: bool) -> Verdict:
    choices = kind["choices"]
    if any(option == value and type(option) is type(value) for option in choices):
        return RIGHT
    if all(isinstance(option, int) for option in choices):
        verdict = judge({"type": "integer", "checked": checked}, value)
        number = value if verdict.fits else verdict.becomes
        if verdict.taken and number in choices:
            return Verdict(isinstance(value, float), True, int(number), int(number))
        return REFUSED
    texts = {str(option).lower(): option for option in choices}
    if isinstance(value, str) and kind.get("fold") and value.lower() in texts:
        return RIGHT
    meant = texts.get(value.strip().lower()) if isinstance(value, str) else None
    return Verdict(False, False, meant=meant)


def _boolean(value: object, checked: bool) -> Verdict:
    if isinstance(value, bool):
        return RIGHT
    if isinstance(value, (int, float)) and value in (0, 1):
        return Verdict(False, True, bool(value), bool(value))
    if isinstance(value, str):
        word = value.lower() if checked else value.strip().lower()
        if word in TRUE or word in FALSE:
            return Verdict(False, checked, word in TRUE, word in TRUE)
    return REFUSED


def _number(kind: dict, value: object, checked: bool) -> Verdict:
    name = kind["type"]
    if isinstance(value, bool):
        return Verdict(False, checked and not kind.get("no_bool"), int(value))
    if isinstance(value, str):
        number = parsed(value)
        if _ENDLESS.fullmatch(value):
            finite = checked and name == "number" and not kind.get("no_bool")
            return Verdict(False, finite, float(value))
        if number is None:
            return Verdict(False, False, meant=_with_unit(value))
        pointed = "." in value and kind.get("no_bool")  # its validator calls int()
        if name == "integer" and (pointed or not (checked and _INTEGER.fullmatch(value))):
            return Verdict(False, False, meant=number if isinstance(number, int) else None)
        return Verdict(False, checked, number, number)
    if not isinstance(value, (int, float)):
        return REFUSED
    endless = isinstance(value, float) and not abs(value) < 1 << 63
    if name == "integer" and (endless or not float(value).is_integer()):
        return REFUSED
    return RIGHT


def _with_unit(text: str) -> int | None:
    """Convert a text such as 500MB or 2e8 B to bytes or a plain count."""
    match = re.fullmatch(r"\s*([\d.eE+]+?)\s*([A-Za-z]+)\s*", text)
    unit = UNITS.get(match[2].lower()) if match else None
    number = parsed(match[1]) if unit else None
    return None if number is None else int(number * unit)


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


_OF_KIND = {
    "union": _union,
    "list": _list,
    "choice": _choice,
    "boolean": lambda _, value, checked: _boolean(value, checked),
    "integer": _number,
    "number": _number,
}
