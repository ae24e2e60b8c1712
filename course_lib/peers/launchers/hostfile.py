"""A DeepSpeed hostfile → its hosts and slots, and what is wrong with it.

An error is a line that DeepSpeed refuses; a warning, one that it takes and that does not do what
it says; a hint, what is legal and may surprise. Lesson 13.
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
# Words in the place of slots=N, as MPI's files and people write them.
NUMBER = re.compile(r"^(\S+?)[\s,:]+(?:[A-Za-z_]+\s*[=:]?\s*)?(\d+)\s*$")
# What is wrong → (level, message, reason, suggestion).
SAID = {
    "missing": ("warning", "there is no file {path}", "DeepSpeed warns in one line of its log, and "
                "goes on with the GPUs of this node alone.",
                "correct --hostfile, or leave it out on one node"),
    "empty": ("error", "the file names no host", "DeepSpeed refuses a hostfile without an entry.",
              "write one line for each host, such as `worker-0 slots=8`"),
    "entry": ("error", "{what}", "A line is `host slots=N`: a name, white space, the word slots, "
              "an equals sign, digits.", "write {instead}"),
    "twice": ("error", "{host} stands here and in line {before}", "DeepSpeed refuses a host that "
              "is named twice; it does not add the slots up.",
              "write {host} once, with all its slots"),
    "zero": ("warning", "{host} has no slot", "DeepSpeed takes it as a node, starts no rank on it, "
             "and reports no error.", "write how many GPUs {host} has, or take the line out"),
    "cut": ("warning", "`{text}` is read as {count}", "DeepSpeed reads the digits after slots= and "
            "nothing behind them.", "write `{host} slots={count}`"),
    "rest": ("warning", "`{text}` is not read", "DeepSpeed knows slots=N and no other key, and "
             "does not say so.", "take it out; devices are chosen with --include and --exclude"),
    "name": ("warning", "the name {host} has a `{mark}` in it", "A port or a user is no part of a "
             "name here: it goes to ssh as it stands, and --include and --exclude read `:`, `@` "
             "and `,` as their own signs.", "put User and Port for this host into ~/.ssh/config "
             "(--ssh_port sets one port for all), and write the plain name"),
    "case": ("warning", "{host} and {other} are one machine", "Names of hosts know no upper and "
             "lower case; DeepSpeed compares letters, and starts two sets of ranks on the same "
             "GPUs.", "write {other} once, with all its slots"),
    "loopback": ("warning", "{host} stands beside other hosts", "On every node this name means "
                 "that node itself: the others look for the first rank at home, and wait.",
                 "write the name by which the other nodes reach this one"),
    "uneven": ("hint", "hosts have {numbers} slots", "DeepSpeed starts so many ranks on each, and "
               "takes LOCAL_RANK as the rank modulo the node's own number of slots: on a later "
               "node it need not begin at 0. --launcher slurm refuses unequal hosts.",
               "give all hosts the same number of slots, where nothing speaks against it"),
}  # fmt: skip


@dataclass(frozen=True)
class Hostfile:
    """Slots of each host, in the file's order; empty where DeepSpeed would refuse the file."""

    slots: dict[str, int]
    findings: tuple[Finding, ...]

    @property
    def world(self) -> int:
        """How many ranks DeepSpeed starts with all of it."""
        return sum(self.slots.values())


def load(path: str | Path) -> Hostfile:
    """Read a file. One that is not there is a finding: DeepSpeed then trains on one node."""
    try:
        return parse(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Hostfile({}, (_finding("missing", 1, path=path),))


def parse(text: str) -> Hostfile:
    """Read the text of a hostfile as DeepSpeed does, past the first bad line."""
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
    """A finding of a kind out of a table of texts."""
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
        what, instead = f"`{text}` is no entry", "`host slots=N`, or # before a comment"
    return _finding("entry", line, host, what=what, instead=instead)


def _odd(line: int, host: str, digits: str, rest: str) -> Iterator[Finding]:
    """What DeepSpeed takes from a line that does not mean it."""
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
    """What only shows when all hosts are seen."""
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
