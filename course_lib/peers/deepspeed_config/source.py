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

from course_lib.peers.deepspeed_config.finding import Finding
from course_lib.peers.deepspeed_config.json_reader import DEEPEST, KeyPlace, read_json

LARGEST = 1 << 18  # bytes; a config has some kilobytes
JSON, SYSTEM = "RFC 8259, the JSON standard", "the file system"
BOTH = (
    "deepspeed/runtime/config.py reads a file with hjson, "
    "transformers and accelerate read it with json"
)
TWICE = "deepspeed/runtime/config_utils.py, dict_raise_error_on_duplicate_keys"
OTHERS = "DeepSpeed reads it as Hjson, which has this; the Trainer reads JSON and refuses it."

# What is wrong → (message, reason, source, suggestion); {0} is what was found there.
SAID = {
    "unreadable": ("the file cannot be read: {0}", "The system refuses it.", SYSTEM,
                   "look at the path, and at its permissions with ls -l"),
    "folder": ("this is a folder, not a file", "A config is one file of JSON.", SYSTEM, "name {0}"),
    "special": ("this is no regular file", "A device or a pipe may never end.", SYSTEM,
                "write it into a file first"),
    "large": (f"the file has {{0}} bytes; more than {LARGEST:,} are not read",
              "A config of DeepSpeed's has some kilobytes: this is something else.", SYSTEM,
              "name the config's own file"),
    "encoding": ("{0}", "JSON is in UTF-8.", JSON, "save the file again as UTF-8"),
    "mark": ("the file begins with a byte order mark", OTHERS, BOTH,
             "save it as UTF-8 without one"),
    "yaml": ("the file is YAML, and a DeepSpeed config is JSON",
             "Accelerate and axolotl have YAML files of their own.", JSON, "{0}"),
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
    "not an object": ("the file holds {0}, not an object", "A config is one object of keys and "
                      "values.", "deepspeed/runtime/config.py", 'write {{"key": value, …}}'),
}  # fmt: skip
ONCE = ("comment", "trailing comma")  # told of the first alone
REWRITTEN = (*ONCE, "duplicate", "mark")
KINDS = {list: "a list", str: "a text", bool: "true or false", type(None): "null"}
ACCELERATES = re.compile(r"^(deepspeed_config|distributed_type):", re.MULTILINE)
NAMED = re.compile(r"^\s*(deepspeed_config_file|deepspeed):[ \t]+[\"']?([^\s\"'#]+)", re.MULTILINE)
YAML_KEY = re.compile(r"[A-Za-z_][\w.-]*:(\s.*)?")
YAML_LINE = re.compile(YAML_KEY.pattern + r"|- .*|---.*|\.\.\.|[#\s].*")


@dataclass
class Document:
    """What a file holds: `value` is a dict, or None where it cannot be read as a config."""

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
    """The document in the file `path`; whatever is in the way is among its findings."""
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
    """Fill a document with what a file's bytes hold."""
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
    """Tell `key: value` lines without braces from every form of JSON."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    keys = any(YAML_KEY.fullmatch(line) for line in lines)
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
