"""A DeepSpeed hostfile → its hosts and slots, and its mistakes.

An error marks a line that DeepSpeed refuses. A warning marks a line whose effect differs from its
text. A hint marks a legal line that may surprise you. Lesson 13.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from course_lib.peers.deepspeed_config.finding import Finding, in_order

LAUNCH = "deepspeed/launcher/launch.py"
SOURCES = {"missing": "deepspeed/launcher/runner.py, fetch_hostfile"}
SOURCES |= {"zero": LAUNCH, "uneven": LAUNCH}
ENTRY = re.compile(r"(\S+)\s+slots=(\d+)(.*)")
# Words that people and MPI files write instead of slots=N.
NUMBER = re.compile(r"^(\S+?)[\s,:]+(?:[A-Za-z_]+\s*[=:]?\s*)?(\d+)\s*$")
# Kind of mistake → (level, message, reason, suggestion).
SAID = {
    "missing": ("warning", "there is no file {path}", "DeepSpeed logs one warning and continues "
                "with only the GPUs of this node.",
                "correct --hostfile, or omit it on a single node"),
    "empty": ("error", "the file names no host", "DeepSpeed refuses a hostfile without an entry.",
              "write one line for each host, such as `worker-0 slots=8`"),
    "entry": ("error", "{what}", "A line is `host slots=N`: a name, white space, the word slots, "
              "an equals sign, digits.", "write {instead}"),
    "twice": ("error", "{host} is named here and in line {before}", "DeepSpeed refuses a host that "
              "is named twice and does not add the slots.",
              "write {host} once, with all its slots"),
    "zero": ("warning", "{host} has no slot", "DeepSpeed accepts the node, starts no rank on it, "
             "and reports no error.", "write how many GPUs {host} has, or remove the line"),
    "cut": ("warning", "`{text}` is read as {count}", "DeepSpeed reads the digits after slots= and "
            "ignores the rest.", "write `{host} slots={count}`"),
    "rest": ("warning", "`{text}` is not read", "DeepSpeed knows only the key slots=N and "
             "silently ignores the rest.", "remove it; use --include and --exclude for devices"),
    "name": ("warning", "the name {host} has a `{mark}` in it", "A port or user is forbidden in a "
             "name, because ssh gets it unchanged, and --include and --exclude use `:`, `@` "
             "and `,` as separators.", "put User and Port for this host into ~/.ssh/config "
             "(--ssh_port sets one port for all), and write the plain name"),
    "case": ("warning", "{host} and {other} are the same machine", "Host names ignore "
             "case, but DeepSpeed does not, so it starts two sets of ranks on the same "
             "GPUs.", "write {other} once, with all its slots"),
    "loopback": ("warning", "{host} is listed with other hosts", "On every node this name means "
                 "that node itself, so the other nodes look for the first rank there, and wait.",
                 "write the name by which the other nodes reach this one"),
    "uneven": ("hint", "hosts have {numbers} slots", "DeepSpeed starts one rank per slot, and "
               "LOCAL_RANK is the rank modulo the node's own number of slots, so on a later "
               "node it may not begin at 0. --launcher slurm refuses unequal hosts.",
               "give all hosts the same number of slots if possible"),
}  # fmt: skip


@dataclass(frozen=True)
class Hostfile:
    """The slots of each host, in the file's order; empty if DeepSpeed would refuse the file."""

    slots: dict[str, int]
    findings: tuple[Finding, ...]

    @property
    def world(self) -> int:
        """The number of ranks that DeepSpeed starts with all hosts."""
        return sum(self.slots.values())


def load(path: str | Path) -> Hostfile:
    """Read a file. A missing file is a finding, because DeepSpeed then trains on one node."""
    try:
        return parse(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Hostfile({}, (_finding("missing", 1, path=path),))


def parse(text: str) -> Hostfile:
    """Read a hostfile's text as DeepSpeed does, but continue after the first bad line."""
    slots: dict[str, int] = {}
    lines: dict[str, int] = {}
    findings: list[Finding] = []
    for number, raw in enumerate(io.StringIO(text, newline=None), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        entry = ENTRY.match(line)
        if entry is None:
            findings.append(_bad(number, line))
            continue
        host = entry[1]
        findings += _odd(number, *entry.groups())
        if host in slots:
            findings.append(_finding("twice", number, host, before=lines[host]))
        else:
            slots[host], lines[host] = int(entry[2]), number
    if not slots and not any(item.level == "error" for item in findings):
        findings.append(_finding("empty", 1))
    findings += _together(slots, lines)
    refused = any(item.level == "error" for item in findings)
    return Hostfile({} if refused else slots, tuple(in_order(findings)))


def finding(
    said: Mapping, kind: str, line: int, host: str, source: str, **words: object
) -> Finding:
    """Create a finding of a kind from a table of texts."""
    level, *texts = said[kind]
    message, reason, suggestion = (text.format(host=host, **words) for text in texts)
    return Finding(host, line, 1, level, message, reason, source, suggestion, kind)


def _finding(kind: str, line: int, host: str = "", **words: object) -> Finding:
    source = SOURCES.get(kind, "deepspeed/launcher/runner.py, _parse_hostfile")
    return finding(SAID, kind, line, host, source, **words)


def _bad(line: int, text: str) -> Finding:
    host = text.split()[0].split(",")[0]
    meant = NUMBER.match(text)
    if len(text.split()) == 1 and "=" not in text and not meant:
        what, instead = f"{host} has no slots", f"`{host} slots=8`, with its number of GPUs"
    elif re.search(r"slots\s*=\s*-", text):
        what, instead = "the number of slots is negative", f"`{host} slots=8`"
    elif meant:
        what, instead = f"`{text}` does not say slots=N", f"`{meant[1]} slots={meant[2]}`"
    else:
        what, instead = f"`{text}` is not an entry", "`host slots=N`, or # before a comment"
    return _finding("entry", line, host, what=what, instead=instead)


def _odd(line: int, host: str, digits: str, rest: str) -> Iterator[Finding]:
    """Yield warnings about a line's parts that DeepSpeed misreads."""
    count, plain = int(digits), rest.strip()
    if count == 0:
        yield _finding("zero", line, host)
    if rest and not rest[0].isspace():
        yield _finding("cut", line, host, text=f"{digits}{rest.split()[0]}", count=count)
    elif plain and not plain.startswith("#"):
        yield _finding("rest", line, host, text=plain)
    if mark := next((x for x in ":@," if x in host), None):
        yield _finding("name", line, host, mark=mark)


def _together(slots: dict[str, int], lines: dict[str, int]) -> Iterator[Finding]:
    """Yield findings that concern several hosts."""
    plain: dict[str, str] = {}
    for host, line in lines.items():
        other = plain.setdefault(host.lower(), host)
        if other != host:
            yield _finding("case", line, host, other=other)
        if len(slots) > 1 and (host.lower() == "localhost" or re.match(r"127\.|::1$", host)):
            yield _finding("loopback", line, host)
    used = sorted({count for count in slots.values() if count})
    if len(used) > 1:
        yield _finding("uneven", next(iter(lines.values())), numbers=" and ".join(map(str, used)))
