"""A config's file → its value, the position of every key, and the faults of the file itself.

The file is read but never executed. Anything unreadable becomes a finding with its position and
remedy. Lesson 13.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.peers.deepspeed_config.finding import Finding
from course_lib.peers.deepspeed_config.json_reader import DEEPEST, KeyPlace, read_json

LARGEST = 1 << 18  # bytes; a config has a few kilobytes
JSON, SYSTEM = "RFC 8259, the JSON standard", "the file system"
BOTH = (
    "deepspeed/runtime/config.py reads a file with hjson, "
    "transformers and accelerate read it with json"
)
TWICE = "deepspeed/runtime/config_utils.py, dict_raise_error_on_duplicate_keys"
OTHERS = "DeepSpeed reads Hjson, which allows this, but the Trainer reads JSON and refuses it."

# Fault → (message, reason, source, suggestion); {0} is the text found there.
SAID = {
    "unreadable": ("the file cannot be read: {0}", "The system refuses access.", SYSTEM,
                   "check the path, and its permissions with ls -l"),
    "folder": ("this is a folder, not a file", "A config is one file of JSON.", SYSTEM, "name {0}"),
    "special": ("this is not a regular file", "A device or a pipe may never end.", SYSTEM,
                "write the config into a file first"),
    "large": (f"the file has {{0}} bytes; more than {LARGEST:,} are not read",
              "A DeepSpeed config has a few kilobytes, so this is something else.", SYSTEM,
              "name the config file itself"),
    "encoding": ("{0}", "JSON is in UTF-8.", JSON, "save the file again as UTF-8"),
    "mark": ("the file begins with a byte order mark", OTHERS, BOTH,
             "save it as UTF-8 without one"),
    "yaml": ("the file is YAML, but a DeepSpeed config is JSON",
             "Accelerate and axolotl use separate YAML files.", JSON, "{0}"),
    "empty": ("the file is empty", "Hjson reads an empty file as {{}}, but JSON refuses it.", BOTH,
              'write an object, such as {{"train_batch_size": 8}}'),
    "comment": ("a comment, which JSON forbids", OTHERS, BOTH, "remove the comment"),
    "trailing comma": ("a comma after the last entry", OTHERS, BOTH, "remove the comma"),
    "no JSON": ("invalid JSON from here on: {0}", "Keys and texts need double quotes, entries "
                "are separated by commas, brackets are closed, and words are true, false or null.",
                JSON, "check this place, and the entry before it"),
    "endless": ("a number that no config can hold: {0}", "JSON has no NaN or infinity. Readers "
                "that accept them compare and multiply with them.", JSON,
                "write a finite number, or remove the key to use its default"),
    "duplicate": ("the key appears a second time (first in line {0})", "DeepSpeed refuses a "
                  "file with a duplicate key, but JSON readers and the Trainer silently "
                  "use the last value.", TWICE, "keep one of the two"),
    "too deep": (f"more than {DEEPEST} nested objects and lists",
                 "A DeepSpeed config is nested at most ten deep.", JSON,
                 "look for repeated opening brackets"),
    "not an object": ("the file holds {0}, not an object", "A config is one object of keys and "
                      "values.", "deepspeed/runtime/config.py", 'write {{"key": value, …}}'),
}  # fmt: skip
ONCE = ("comment", "trailing comma")  # only the first occurrence is reported
REWRITTEN = (*ONCE, "duplicate", "mark")
KINDS = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
ACCELERATES = re.compile(r"^(deepspeed_config|distributed_type):", re.MULTILINE)
NAMED = re.compile(r"^\s*(deepspeed_config_file|deepspeed):[ \t]+[\"']?([^\s\"'#]+)", re.MULTILINE)
YAML_KEY = re.compile(r"[A-Za-z_][\w.-]*:(\s.*)?")
YAML_LINE = re.compile(YAML_KEY.pattern + r"|- .*|---.*|\.\.\.|[#\s].*")


@dataclass
class Document:
    """The content of a file: `value` is a dict, or None if it cannot be read as a config."""

    path: Path
    value: dict | None = None
    places: dict[tuple, KeyPlace] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add(
        self, kind: str, detail: str = "", line: int = 1, column: int = 1, at: tuple = ()
    ) -> None:
        texts = (text.format(detail) for text in SAID[kind])  # message, reason, source, suggestion
        repair = ("rewrite",) if kind in REWRITTEN else None
        where = (".".join(map(str, at)), line, column)
        self.findings.append(Finding(*where, "error", *texts, kind, repair))


def read(path: Path) -> Document:
    """Read the document in the file `path`; any obstacle becomes a finding."""
    document = Document(path)
    try:
        state = os.stat(path)
        if stat.S_ISDIR(state.st_mode):
            inside = sorted(item.name for item in path.glob("*.json"))
            document.add("folder", f"a file in it, such as {inside[0]}" if inside else "a file")
        elif not stat.S_ISREG(state.st_mode):
            document.add("special")
        elif state.st_size > LARGEST:
            document.add("large", f"{state.st_size:,}")
        else:
            read_content(path.read_bytes(), document)
    except OSError as error:
        document.add("unreadable", error.strerror or str(error))
    return document


def read_content(content: bytes, document: Document) -> None:
    """Fill a document from a file's bytes."""
    text = _text(content, document)
    if text is None:
        return
    reading = read_json(text)
    if not reading.whole and _is_yaml(text):
        document.add("yaml", _json_instead(text))
        return
    told = set()
    for fault in reading.faults:
        if fault.kind not in ONCE or fault.kind not in told:
            document.add(fault.kind, fault.detail, fault.line, fault.column, fault.path)
        told.add(fault.kind)
    if reading.whole and isinstance(reading.value, dict):
        document.value, document.places = reading.value, reading.places
    elif reading.whole:
        document.add("not an object", KINDS.get(type(reading.value), "a number"))


def _text(content: bytes, document: Document) -> str | None:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        document.add("encoding", "the file is in UTF-16")
        return None
    if content.startswith(b"\xef\xbb\xbf"):
        document.add("mark")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        column = len(before.rpartition(b"\n")[2].decode("utf-8", "replace")) + 1
        wrong = f"byte 0x{error.object[error.start]:02x} is not UTF-8"
        document.add("encoding", wrong, before.count(b"\n") + 1, column)
        return None


def _is_yaml(text: str) -> bool:
    """Return True for a text of `key: value` lines, which is no form of JSON."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    keys = any(YAML_KEY.fullmatch(line) for line in lines)
    return keys and all(YAML_LINE.fullmatch(line) for line in lines)


def _json_instead(text: str) -> str:
    """Return the remedy for a YAML file: the JSON file that one of its keys names, if any."""
    for key, file in NAMED.findall(text):
        if file.lower() not in ("null", "none", "~", "{}"):
            return f'use the file that its key "{key}" names: {file}'
    if ACCELERATES.search(text):
        return (
            "this is Accelerate's own file. Write the config as JSON, name it in this file as "
            '"deepspeed_config_file", and give the JSON file here'
        )
    return "use the DeepSpeed config itself, or write it as JSON"
