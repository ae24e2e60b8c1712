"""JSON text → values with the line and column of every key and value, and a list of faults.

Python's own reader judges the text. Things that DeepSpeed's reader accepts but JSON does not
(comments, a trailing comma) are blanked out first and recorded. Lesson 13.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import NamedTuple

DEEPEST = 60  # nested containers
LONG = 400  # digits of a number that fits no float
_TEXT = r'"(?:[^"\\]|\\.)*"'
_COMMENT = re.compile(rf"{_TEXT}|//[^\n]*|#[^\n]*|/\*.*?\*/", re.DOTALL)
_COMMA = re.compile(rf"{_TEXT}|,(?=\s*[}}\]])", re.DOTALL)
_TOKEN = re.compile(rf"{_TEXT}|[{{}}\[\]:,]|[^\s{{}}\[\]:,]+", re.DOTALL)
_WORD = re.compile(r"'[^'\n]*'|[-+.\w]+|\S")

Path = tuple  # of keys, and of positions in a list


class KeyPlace(NamedTuple):
    """The position of a key, or of a value without a key."""

    line: int
    column: int


class Fault(NamedTuple):
    """A `kind` of fault at a position; `path` is the nearest key, `detail` the text found there."""

    kind: str
    path: Path
    line: int
    column: int
    detail: str = ""


@dataclass
class JsonText:
    """The result of reading a text. `value` is None and `whole` False if it is not valid JSON."""

    value: object = None
    places: dict[Path, KeyPlace] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    whole: bool = False


def read_json(text: str) -> JsonText:
    """Read a text to its end, or to the first place that is not JSON."""
    reading = JsonText()

    def fault(kind: str, at: int, detail: str = "", path: Path = ()) -> None:
        reading.faults.append(Fault(kind, path, *_place(text, at), detail))

    def without(kind: str, pattern: re.Pattern, source: str) -> str:
        def blank(match: re.Match) -> str:
            if match[0].startswith('"'):
                return match[0]
            fault(kind, match.start())
            return re.sub(r"\S", " ", match[0])

        return pattern.sub(blank, source)

    plain = without("comment", _COMMENT, text)
    plain = without("trailing comma", _COMMA, plain)
    if not plain.strip():
        fault("empty", 0)
        return reading
    try:
        reading.value = json.loads(plain, parse_int=_integer)
    except json.JSONDecodeError as error:
        word = _WORD.search(plain, error.pos)
        fault("no JSON", error.pos, f"{error.msg}, but {word[0]} was found" if word else error.msg)
        return reading
    except RecursionError:
        fault("too deep", 0)
        return reading
    reading.whole = _walk(plain, reading, fault)
    return reading


def _place(text: str, at: int) -> KeyPlace:
    return KeyPlace(text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))


def _integer(digits: str) -> float:
    """Convert a whole number; return infinity if it is too long."""
    return int(digits) if len(digits) < LONG else math.inf


def _walk(text: str, reading: JsonText, fault) -> bool:
    """Record the position of every key and value of valid JSON, and its possible faults: duplicate
    keys, infinite numbers, excessive nesting. Return False if the nesting is too deep."""
    above: list[Path] = []  # the open containers
    counts: list[int | None] = []  # members of a list so far, None for an object
    path: Path = ()
    key_at: int | None = None
    for match in _TOKEN.finditer(text):
        token, at = match[0], match.start()
        if token in "]}":
            path = above.pop()
            counts.pop()
        elif token in ":,":
            continue
        elif counts and counts[-1] is None and key_at is None:  # a key
            path, key_at = (*above[-1], json.loads(token)), at
            if path in reading.places:
                fault("duplicate", at, str(reading.places[path].line), path)
                for other in [p for p in reading.places if p[: len(path)] == path]:
                    del reading.places[other]  # the last one wins
        else:  # a value
            if counts and counts[-1] is not None:
                path = (*above[-1], counts[-1])
                counts[-1] += 1
            reading.places[path] = _place(text, at if key_at is None else key_at)
            key_at = None
            if token in "[{":
                above.append(path)
                counts.append(0 if token == "[" else None)
                if len(above) > DEEPEST:
                    fault("too deep", at, path=path)
                    return False
            elif token[0] in "-0123456789NI" and not math.isfinite(_number(token)):
                shown = token if len(token) < LONG else f"a number of {len(token)} digits"
                fault("endless", at, shown, path)
    return True


def _number(token: str) -> float:
    return math.inf if len(token) >= LONG else float(token)
