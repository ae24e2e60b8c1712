"""A config's file → its value, the place of every key, and what is wrong with the file itself.

It is read and never run. What cannot be read becomes a finding with its place and its remedy.
Lesson 13.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.deepspeed_config.finding import Finding
from course_lib.deepspeed_config.json_reader import DEEPEST, Place, read_json

LARGEST = 1 << 18  # bytes; a config has some kilobytes
JSON = "RFC 8259, the JSON standard"
BOTH = (
    "deepspeed/runtime/config.py reads a file with hjson, "
    "transformers and accelerate read it with json"
)
TWICE = "deepspeed/runtime/config_utils.py, dict_raise_error_on_duplicate_keys"
OTHERS = "DeepSpeed reads it as Hjson, which has this; the Trainer reads JSON and refuses it."

# kind of fault → (message, reason, source, suggestion); {0} is the fault's detail.
SAID = {
    "empty": ("the file is empty", "Hjson reads nothing as {{}}, JSON refuses it.", BOTH,
              'write an object, such as {{"train_batch_size": 8}}'),
    "comment": ("a comment; JSON has none", OTHERS, BOTH, "take the comment out"),
    "trailing comma": ("a comma after the last entry", OTHERS, BOTH, "take the comma out"),
    "no JSON": ("no JSON from here on: {0}", "Keys and texts stand in double quotes, entries are "
                "parted by commas, every bracket is closed; the words are true, false and null.",
                JSON, "look at this place, and at the entry before it"),
    "endless": ("no number that a config can hold: {0}", "JSON has no NaN and no infinity; what "
                "reads them all the same compares and multiplies with them.", JSON,
                "write a finite number, or leave the key out for its default"),
    "duplicate": ("the key stands here a second time (first in line {0})", "DeepSpeed refuses a "
                  "file with a key given twice; JSON lets the last one win, silently, and so does "
                  "the Trainer.", TWICE, "keep one of the two"),
    "too deep": (f"more than {DEEPEST} objects and lists within each other",
                 "No config of DeepSpeed's is nested deeper than ten.", JSON,
                 "look for brackets that are opened again and again"),
}  # fmt: skip
REWRITTEN = ("comment", "trailing comma")
ACCELERATES = re.compile(r"^(deepspeed_config|distributed_type):", re.MULTILINE)
NAMED = re.compile(r"^\s*(deepspeed_config_file|deepspeed):[ \t]+[\"']?([^\s\"'#]+)", re.MULTILINE)
YAML_LINE = re.compile(r"[A-Za-z_][\w.-]*:(\s.*)?|- .*|---.*|\.\.\.|[#\s].*")


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
    if not reading.whole and _is_yaml(text):
        document.add(
            "yaml", 1, 1, "the file is YAML, and a DeepSpeed config is JSON",
            "Accelerate and axolotl have YAML files of their own.", JSON, _json_instead(text),
        )  # fmt: skip
        return document
    seen: dict[str, int] = {}
    for fault in reading.faults:
        seen[fault.kind] = seen.get(fault.kind, 0) + 1
        if seen[fault.kind] == 1 or fault.kind not in REWRITTEN:
            words = (text.format(fault.detail) for text in SAID[fault.kind])
            document.add(fault.kind, fault.line, fault.column, *words, at=fault.path)
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
    except OSError as error:
        words = error.strerror or str(error)
        return refuse(f"the file cannot be read: {words}", "The system refuses it.",
                      "look at the path, and at its permissions with ls -l")  # fmt: skip


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


def _is_yaml(text: str) -> bool:
    """Tell `key: value` lines without braces from every form of JSON."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    keys = any(re.match(r"[A-Za-z_][\w.-]*:(\s|$)", line) for line in lines)
    return keys and all(YAML_LINE.fullmatch(line) for line in lines)


def _json_instead(text: str) -> str:
    """The remedy for a YAML file: the file that a key of it names, if one does."""
    for key, file in NAMED.findall(text):
        if file.lower() not in ("null", "none", "~", "{}"):
            return f'give the file that its key "{key}" names: {file}'
    if ACCELERATES.search(text):
        return (
            "this is Accelerate's own file: write the config as JSON, name it there by "
            '"deepspeed_config_file", and give it here'
        )
    return "give the DeepSpeed config itself, or write it as JSON"
