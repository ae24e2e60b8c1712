"""A DeepSpeed hostfile → its hosts and slots, and what is wrong with it.

An error is a line that DeepSpeed refuses; a warning, one that it takes and that does not do what
it says; a hint, what is legal and may surprise. Lesson 13.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course_lib.deepspeed_config.finding import Finding, in_order

SOURCE = "deepspeed/launcher/runner.py, _parse_hostfile"
MISSING = "deepspeed/launcher/runner.py, fetch_hostfile"
LAUNCH = "deepspeed/launcher/launch.py"
ENTRY = re.compile(r"(\S+)\s+slots=(\d+)(.*)")
# Words in the place of slots=N, as MPI's files and people write them.
NUMBER = re.compile(r"^(\S+?)[\s,:]+(?:[A-Za-z_]+\s*[=:]?\s*)?(\d+)\s*$")


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
        said = (
            f"there is no file {path}",
            "DeepSpeed warns in one line of its log, and goes on with the GPUs of this node alone.",
            MISSING,
            "correct --hostfile, or leave it out on one node",
        )
        return Hostfile({}, (Finding("", 1, 1, "warning", *said, "missing"),))


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
        host, count = entry[1], int(entry[2])
        findings += _odd(number, host, entry[2], entry[3])
        if host in slots:
            findings.append(_twice(number, host, lines[host]))
            continue
        slots[host], lines[host] = count, number
    if not slots and not any(item.level == "error" for item in findings):
        findings.append(_empty())
    findings += _together(slots, lines)
    refused = any(item.level == "error" for item in findings)
    return Hostfile({} if refused else slots, tuple(in_order(findings)))


def _bad(line: int, text: str) -> Finding:
    host = text.split()[0].split(",")[0]
    reason = (
        "A line is `host slots=N`: a name, white space, the word slots, an equals sign, digits."
    )
    if len(text.split()) == 1 and "=" not in text and not NUMBER.match(text):
        message, remedy = f"{host} has no slots", f"write `{host} slots=8`, with its number of GPUs"
    elif re.search(r"slots\s*=\s*-", text):
        message, remedy = "the number of slots is negative", f"write `{host} slots=8`"
    elif meant := NUMBER.match(text):
        message = f"`{text}` does not say slots=N"
        remedy = f"write `{meant[1]} slots={meant[2]}`"
    else:
        message, remedy = f"`{text}` is no entry", "write `host slots=N`, or # before a comment"
    return _finding(line, host, "error", "entry", message, reason, remedy)


def _empty() -> Finding:
    reason = "DeepSpeed refuses a hostfile without an entry."
    remedy = "write one line for each host, such as `worker-0 slots=8`"
    return _finding(1, "", "error", "empty", "the file names no host", reason, remedy)


def _twice(line: int, host: str, before: int) -> Finding:
    return _finding(
        line, host, "error", "twice",
        f"{host} stands here and in line {before}",
        "DeepSpeed refuses a host that is named twice; it does not add the slots up.",
        f"write {host} once, with all its slots",
    )  # fmt: skip


def _odd(line: int, host: str, digits: str, rest: str) -> Iterator[Finding]:
    """What DeepSpeed takes from a line that does not mean it."""
    if int(digits) == 0:
        yield _finding(
            line, host, "warning", "zero", f"{host} has no slot",
            "DeepSpeed takes it as a node, starts no rank on it, and reports no error.",
            f"write how many GPUs {host} has, or take the line out", source=LAUNCH,
        )  # fmt: skip
    plain = rest.strip()
    if rest and not rest[0].isspace():
        yield _finding(
            line, host, "warning", "cut", f"`{digits}{rest.split()[0]}` is read as {int(digits)}",
            "DeepSpeed reads the digits after slots= and nothing behind them.",
            f"write `{host} slots={int(digits)}`",
        )  # fmt: skip
    elif plain and not plain.startswith("#"):
        yield _finding(
            line, host, "warning", "rest", f"`{plain}` is not read",
            "DeepSpeed knows slots=N and no other key, and does not say so.",
            "take it out; devices are chosen with --include and --exclude",
        )  # fmt: skip
    if ":" in host or "@" in host or "," in host:
        mark = next(x for x in ":@," if x in host)
        yield _finding(
            line, host, "warning", "name", f"the name {host} has a `{mark}` in it",
            "A port or a user is no part of a name here: it goes to ssh as it stands, and "
            "--include and --exclude read `:`, `@` and `,` as their own signs.",
            "put User and Port for this host into ~/.ssh/config (--ssh_port sets one port for "
            "all), and write the plain name",
        )  # fmt: skip


def _together(slots: dict[str, int], lines: dict[str, int]) -> Iterator[Finding]:
    """What only shows when all hosts are seen."""
    plain: dict[str, str] = {}
    for host in slots:
        other = plain.setdefault(host.lower(), host)
        if other != host:
            yield _finding(
                lines[host], host, "warning", "case", f"{host} and {other} are one machine",
                "Names of hosts know no upper and lower case; DeepSpeed compares letters, and "
                "starts two sets of ranks on the same GPUs.",
                f"write {other} once, with all its slots",
            )  # fmt: skip
    for host in slots:
        if len(slots) > 1 and (host.lower() == "localhost" or re.match(r"127\.|::1$", host)):
            yield _finding(
                lines[host], host, "warning", "loopback", f"{host} stands beside other hosts",
                "On every node this name means that node itself: the others look for the first "
                "rank at home, and wait.",
                "write the name by which the other nodes reach this one",
            )  # fmt: skip
    used = {count for count in slots.values() if count}
    if len(used) > 1:
        first = next(iter(slots))
        yield _finding(
            lines[first], "", "hint", "uneven", f"hosts have {_listed(used)} slots",
            "DeepSpeed starts so many ranks on each, and takes LOCAL_RANK as the rank modulo the "
            "node's own number of slots: on a later node it need not begin at 0. --launcher slurm "
            "refuses unequal hosts.",
            "give all hosts the same number of slots, where nothing speaks against it",
            source=LAUNCH,
        )  # fmt: skip


def _listed(numbers: set[int]) -> str:
    return " and ".join(str(x) for x in sorted(numbers))


def _finding(
    line: int, host: str, level: str, kind: str, *texts: str, source: str = SOURCE
) -> Finding:
    message, reason, suggestion = texts
    return Finding(host, line, 1, level, message, reason, source, suggestion, kind)
