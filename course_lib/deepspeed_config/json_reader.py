"""JSON text → values with the line and column of every key and value, and what is wrong with it.

Written without recursion, so that no nesting exhausts the stack; what DeepSpeed's own reader takes
and JSON does not (comments, a trailing comma, single quotes) is read on and noted. Lesson 13.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from dataclasses import dataclass, field

DEEPEST = 60  # containers within each other
MOST_FAULTS = 200  # after so many the rest is not read
_SPACE = re.compile(r"[ \t\r\n]+")
_COMMENT = re.compile(r"//[^\n]*|#[^\n]*|/\*.*?\*/", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_TEXT = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SINGLE = re.compile(r"'(?:[^'\\\n]|\\.)*'")
_WORD = re.compile(r"[-+.\w]+")
_WORDS = {"true": True, "false": False, "null": None}
_FOREIGN = {"True": True, "False": False, "None": None, "TRUE": True, "FALSE": False}
_FOREIGN |= {"NULL": None, "yes": True, "no": False, "undefined": None}
_ENDLESS = {"NaN": math.nan, "nan": math.nan, "Infinity": math.inf, "inf": math.inf}
_ENDLESS |= {"-Infinity": -math.inf, "-inf": -math.inf, "-NaN": math.nan}

Path = tuple  # of keys, and of positions in a list


@dataclass(frozen=True)
class Place:
    """Where a key stands (the value, for what has none) and where its value does."""

    line: int
    column: int
    value_line: int
    value_column: int


@dataclass(frozen=True)
class Fault:
    """`kind` at a place; `path` is the nearest key, `detail` what was read there."""

    kind: str
    path: Path
    line: int
    column: int
    detail: str = ""


@dataclass
class Reading:
    """`value` is None, and `whole` False, where the text breaks off being JSON."""

    value: object = None
    places: dict[Path, Place] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    whole: bool = False


class _Broken(Exception):
    """No way to go on reading; the fault is noted."""


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.reading = Reading()
        self.starts = [0] + [match.end() for match in re.finditer("\n", text)]

    def place(self, at: int) -> tuple[int, int]:
        line = bisect_right(self.starts, at)
        return line, at - self.starts[line - 1] + 1

    def fault(self, kind: str, path: Path, at: int | None = None, detail: str = "") -> None:
        line, column = self.place(self.at if at is None else at)
        self.reading.faults.append(Fault(kind, path, line, column, detail))
        if len(self.reading.faults) > MOST_FAULTS:
            raise _Broken()

    def broken(self, kind: str, path: Path, at: int | None = None, detail: str = "") -> _Broken:
        self.fault(kind, path, at, detail)
        return _Broken()

    def skip(self, path: Path) -> None:
        """Past blanks and comments."""
        while True:
            blank = _SPACE.match(self.text, self.at)
            self.at = blank.end() if blank else self.at
            if self.text.startswith(("//", "#", "/*"), self.at):
                comment = _COMMENT.match(self.text, self.at)
                self.fault("comment", path)
                self.at = comment.end() if comment else len(self.text)
            elif not blank:
                return

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def string(self, path: Path) -> str:
        start, quote = self.at, self.peek()
        match = (_TEXT if quote == '"' else _SINGLE).match(self.text, self.at)
        if match is None:
            raise self.broken("unclosed", path, start)
        self.at = match.end()
        raw = match.group()
        if quote == "'":
            self.fault("single quotes", path, start, raw)
            inside = raw[1:-1].replace("\\'", "'").replace('"', '\\"')
            raw = f'"{inside}"'
        try:
            return json.loads(raw)
        except ValueError:
            raise self.broken("escape", path, start, raw[:40]) from None

    def scalar(self, path: Path) -> object:
        start = self.at
        if self.peek() in ('"', "'"):
            return self.string(path)
        number = _NUMBER.match(self.text, self.at)
        word = _WORD.match(self.text, self.at)
        if number and (word is None or word.end() <= number.end()):
            self.at = number.end()
            return self.number(number, path)
        if word is None:
            raise self.broken("no value" if self.peek() else "end", path, start, self.peek())
        self.at = word.end()
        text = word.group()
        if text in _WORDS:
            return _WORDS[text]
        if text in _ENDLESS:
            self.fault("endless", path, start, text)
            return _ENDLESS[text]
        if text in _FOREIGN:
            self.fault("foreign word", path, start, text)
            return _FOREIGN[text]
        try:
            value = float(text.replace("_", ""))
        except ValueError:
            raise self.broken("bare word", path, start, text) from None
        self.fault("no JSON number", path, start, text)
        return int(value) if value.is_integer() and abs(value) < 1e18 else value

    def number(self, match: re.Match, path: Path) -> object:
        text = match.group()
        if not (match.group(1) or match.group(2)):
            if len(text) > 400:
                self.fault("endless", path, match.start(), f"a number of {len(text)} digits")
                return math.inf
            return int(text)
        if math.isinf(float(text)):
            self.fault("endless", path, match.start(), text)
        return float(text)

    def read(self) -> None:
        """The whole text: a stack of open containers takes the place of recursion."""
        stack: list[tuple[object, Path, int]] = []
        path: Path = ()
        self.skip(path)
        key_at = self.at
        while True:
            # A value is due at self.at, for `path`.
            start = self.at
            opening = self.peek()
            if opening and opening in "{[":
                if len(stack) >= DEEPEST:
                    raise self.broken("too deep", path, start)
                value: object = {} if opening == "{" else []
                self.at += 1
            else:
                value = self.scalar(path)
            self.reading.places[path] = Place(*self.place(key_at), *self.place(start))
            if not stack:
                self.reading.value = value
            elif isinstance(stack[-1][0], dict):
                stack[-1][0][path[-1]] = value
            else:
                stack[-1][0].append(value)
            if isinstance(value, (dict, list)):
                stack.append((value, path, start))
                path, key_at, more = self.first(stack[-1])
            else:
                more = False
            while not more:
                if not stack:
                    return
                path, key_at, more = self.after(stack)

    def first(self, top: tuple) -> tuple[Path, int, bool]:
        """What comes after an opening bracket: the place of a value, or its end."""
        holder, path, start = top
        self.skip(path)
        if self.peek() == ("}" if isinstance(holder, dict) else "]"):
            return path, self.at, False
        return self.member(holder, path, start)

    def member(self, holder: object, path: Path, start: int) -> tuple[Path, int, bool]:
        """Before a value: its key, in an object."""
        if isinstance(holder, list):
            return (*path, len(holder)), self.at, True
        at = self.at
        if self.peek() in ('"', "'"):
            key = self.string(path)
        elif not self.peek():
            raise self.broken("end", path, start, "{")
        else:
            word = _WORD.match(self.text, self.at)
            if word is None:
                raise self.broken("no key", path, at, self.peek())
            key, self.at = word.group(), word.end()
            self.fault("key without quotes", (*path, key), at, key)
        if key in holder:
            first = self.reading.places[(*path, key)]
            self.fault("duplicate", (*path, key), at, str(first.line))
            self.forget((*path, key))
        self.skip((*path, key))
        if self.peek() != ":":
            raise self.broken("no colon", (*path, key), self.at, self.peek())
        self.at += 1
        self.skip((*path, key))
        return (*path, key), at, True

    def forget(self, path: Path) -> None:
        """The places of what a later key of the same name takes the place of."""
        for other in [p for p in self.reading.places if p[: len(path)] == path]:
            del self.reading.places[other]

    def after(self, stack: list) -> tuple[Path, int, bool]:
        """After a value: the next one of its container, or, a level up, what follows that."""
        holder, path, start = stack[-1]
        closing = "}" if isinstance(holder, dict) else "]"
        self.skip(path)
        if self.peek() == ",":
            comma = self.at
            self.at += 1
            self.skip(path)
            if self.peek() != closing:
                return self.member(holder, path, start)
            self.fault("trailing comma", path, comma)
        if self.peek() == closing:
            self.at += 1
            stack.pop()
            return path, self.at, False
        if not self.peek():
            raise self.broken("end", path, start, "{" if closing == "}" else "[")
        raise self.broken("no comma", path, self.at, self.peek())


def read_json(text: str) -> Reading:
    """Read a text to its end, or to the first place that is beyond reading."""
    reader = _Reader(text)
    try:
        reader.skip(())
        if not reader.peek():
            raise reader.broken("empty", (), 0)
        reader.read()
        reader.skip(())
        if reader.peek():
            raise reader.broken("more", (), reader.at, reader.text[reader.at : reader.at + 20])
        reader.reading.whole = True
    except _Broken:
        reader.reading.value = None
    return reader.reading
