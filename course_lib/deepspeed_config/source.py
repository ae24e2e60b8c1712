"""A config's file → its value, the place of every key, and what is wrong with the file itself.

It is read and never run. What cannot be read becomes a finding with its place and its remedy.
Lesson 13.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.deepspeed_config import yaml_file
from course_lib.deepspeed_config.finding import Finding
from course_lib.deepspeed_config.json_reader import DEEPEST, Fault, Place, read_json

LARGEST = 1 << 18  # bytes; a config has some kilobytes
JSON = "RFC 8259, the JSON standard"
BOTH = (
    "deepspeed/runtime/config.py reads a file with hjson, "
    "transformers and accelerate read it with json"
)
TWICE = "deepspeed/runtime/config_utils.py, dict_raise_error_on_duplicate_keys"
OTHERS = "DeepSpeed reads it as Hjson, which has this; the Trainer reads JSON and refuses it."
ENDS = {"{": "}", "[": "]"}

# kind of fault → (message, reason, source, suggestion); {0} is the fault's detail.
SAID = {
    "empty": ("the file is empty", "Hjson reads nothing as {{}}, JSON refuses it.", BOTH,
              'write an object, such as {{"train_batch_size": 8}}'),
    "comment": ("a comment; JSON has none", OTHERS, BOTH, "take the comment out"),
    "trailing comma": ("a comma after the last entry", OTHERS, BOTH, "take the comma out"),
    "single quotes": ("text in single quotes: {0}", OTHERS, BOTH, "use double quotes"),
    "key without quotes": ("the key {0} has no quotes", OTHERS, BOTH, 'write "{0}"'),
    "foreign word": ("no JSON value: {0}", "JSON spells true, false and null so, in lower case.",
                     JSON, "write true, false or null"),
    "endless": ("no number that a config can hold: {0}", "JSON has no NaN and no infinity; what "
                "reads them all the same compares and multiplies with them.", JSON,
                "write a finite number, or leave the key out for its default"),
    "no JSON number": ("no number in JSON: {0}", "JSON knows 12, -1.5 and 5e8: no plus sign, no "
                       "underscore, a digit on both sides of the point.", JSON,
                       "write it in one of these forms"),
    "bare word": ("no JSON value: {0}", "A text stands in double quotes.", JSON, 'write "{0}"'),
    "unclosed": ("a text that does not end in its line", "Its closing quote is missing, or a "
                 "line break stands in it.", JSON, "close it with a double quote"),
    "escape": ("an escape that JSON does not know: {0}", "After a backslash stands one of "
               '" \\ / b f n r t u.', JSON, "write a backslash as \\\\"),
    "no key": ("a key is due here, and {0} is found", "An object is written as "
               '{{"key": value, "key": value}}.', JSON, "write a key in double quotes"),
    "no value": ("a value is due here, and {0} is found", "After a colon, or a comma in a list, "
                 "stands a value.", JSON, "write the value, or take the key out"),
    "no colon": ("a colon is missing after the key", "A colon stands between key and value.", JSON,
                 "put a colon before {0}"),
    "no comma": ("a comma is missing before {0}", "Entries are parted by commas.", JSON,
                 "put a comma after the entry before it"),
    "more": ("there is more after the end: {0}", "A file holds one value.", JSON,
             "take the rest out; perhaps a bracket was closed too early"),
    "too deep": (f"more than {DEEPEST} objects and lists within each other",
                 "No config of DeepSpeed's is nested deeper than ten.", JSON,
                 "look for brackets that are opened again and again"),
}  # fmt: skip
REWRITTEN = ("comment", "trailing comma", "single quotes", "key without quotes", "foreign word")
REWRITTEN += ("no JSON number",)


@dataclass
class Document:
    """What a file holds: `value` is a dict, or None where it cannot be read as a config."""

    path: Path
    value: dict | None = None
    places: dict[tuple, Place] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add(self, kind: str, line: int, column: int, *texts: str, at: tuple = ()) -> None:
        message, reason, source, suggestion = texts
        dotted = ".".join(map(str, at))
        repair = ("rewrite",) if kind in (*REWRITTEN, "duplicate", "mark") else None
        self.findings.append(
            Finding(dotted, line, column, "error", message, reason, source, suggestion, kind,
                    repair)
        )  # fmt: skip


def read(path: Path) -> Document:
    """The document in the file `path`; whatever is in the way is among its findings."""
    document = Document(path)
    content = _content(path, document)
    return document if content is None else read_content(content, document)


def read_content(content: bytes, document: Document) -> Document:
    """Fill a document with what a file's bytes hold."""
    text = _text(content, document)
    if text is None:
        return document
    reading = read_json(text)
    if not reading.whole and yaml_file.is_yaml(text):
        document.add(
            "yaml", 1, 1, "the file is YAML, and a DeepSpeed config is JSON",
            "Accelerate and axolotl have YAML files of their own.", JSON, yaml_file.to_give(text),
        )  # fmt: skip
        return document
    seen: dict[str, int] = {}
    for fault in reading.faults:
        seen[fault.kind] = seen.get(fault.kind, 0) + 1
        if seen[fault.kind] == 1 or fault.kind not in REWRITTEN:
            _report(fault, document)
    if not reading.whole:
        return document
    if not isinstance(reading.value, dict):
        kinds = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
        kind = kinds.get(type(reading.value), "a number")
        document.add(
            "not an object", 1, 1, f"the file holds {kind}, not an object",
            "A config is one object of keys and values.", "deepspeed/runtime/config.py",
            'write {"key": value, …}',
        )  # fmt: skip
        return document
    document.value, document.places = reading.value, reading.places
    return document


def _content(path: Path, document: Document) -> bytes | None:
    def refuse(message: str, reason: str, remedy: str) -> None:
        document.add("file", 1, 1, message, reason, "the file system", remedy)

    try:
        state = os.stat(path)
        if stat.S_ISDIR(state.st_mode):
            inside = sorted(item.name for item in path.glob("*.json"))[:3]
            remedy = f"name a file in it, such as {inside[0]}" if inside else "name a file"
            return refuse("this is a folder, not a file", "A config is one file of JSON.", remedy)
        if not stat.S_ISREG(state.st_mode):
            return refuse(
                "this is no regular file", "A device or a pipe may never end.",
                "write it into a file first",
            )  # fmt: skip
        if state.st_size > LARGEST:
            return refuse(
                f"the file has {state.st_size:,} bytes; more than {LARGEST:,} are not read",
                "A config of DeepSpeed's has some kilobytes: this is something else.",
                "name the config's own file",
            )  # fmt: skip
        with open(path, "rb") as file:
            return file.read(LARGEST + 1)
    except FileNotFoundError:
        return refuse("there is no such file", "Nothing of that name is there.",
                      "look at the path; it counts from the current folder")  # fmt: skip
    except OSError as error:
        words = error.strerror or str(error)
        return refuse(f"the file cannot be read: {words}", "The system refuses it.",
                      "look at its permissions with ls -l")  # fmt: skip
    except ValueError:  # a NUL in a name
        return refuse("this is no name of a file", "A name has no NUL in it.", "name a file")


def _text(content: bytes, document: Document) -> str | None:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        document.add("encoding", 1, 1, "the file is in UTF-16", "JSON is in UTF-8.", JSON,
                     "save it again as UTF-8")  # fmt: skip
        return None
    mark = content.startswith(b"\xef\xbb\xbf")
    if mark:
        document.add("mark", 1, 1, "the file begins with a byte order mark", OTHERS, BOTH,
                     "save it as UTF-8 without one")  # fmt: skip
        content = content[3:]
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        column = len(before.rpartition(b"\n")[2].decode("utf-8", "replace")) + 1
        document.add(
            "encoding", line, column, f"byte 0x{content[error.start]:02x} is not UTF-8",
            "JSON is in UTF-8.", JSON, "save the file again as UTF-8",
        )  # fmt: skip
        return None


def _report(fault: Fault, document: Document) -> None:
    if fault.kind == "duplicate":
        name = fault.path[-1]
        document.add(
            "duplicate", fault.line, fault.column,
            f'the key "{name}" stands here a second time (first in line {fault.detail})',
            "DeepSpeed refuses a file with a key given twice; JSON lets the last one win, "
            "silently, and so does the Trainer.",
            TWICE, f'keep one "{name}"', at=fault.path,
        )  # fmt: skip
        return
    if fault.kind == "end":
        closing = ENDS.get(fault.detail)
        message = f"the file ends before the {closing} of this {fault.detail}" if closing else (
            "the file ends where a value is due"
        )  # fmt: skip
        remedy = f"close it with {closing}" if closing else "write the rest"
        document.add("end", fault.line, fault.column, message, "Something is not closed.", JSON,
                     remedy, at=fault.path)  # fmt: skip
        return
    words = (text.format(fault.detail) for text in SAID[fault.kind])
    document.add(fault.kind, fault.line, fault.column, *words, at=fault.path)
