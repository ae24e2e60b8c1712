"""`--include` and `--exclude` of the deepspeed launcher → which devices of which hosts are used.

`host:0,1@host2` is two hosts, two devices of the first and all of the second. What DeepSpeed
refuses is an error, what it reads in another way than it looks a warning. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.peers.deepspeed_config.finding import Finding
from course_lib.peers.deepspeed_config.near import nearest
from course_lib.peers.launchers.hostfile import finding

SOURCE = "deepspeed/launcher/runner.py, parse_resource_filter"
LONGEST = 64  # of a range that is written out
FORM = "`host` for all of a host's devices, `host:0,1` for two of them, `@` between hosts"
# What is wrong → (level, message, reason, suggestion).
SAID = {
    "both": ("error", "--include and --exclude are given together", "They exclude each other.",
             "keep one of the two"),
    "colons": ("error", "`{part}` has more than one colon", "One colon parts a host from its "
               "devices; an IPv6 address or a port has more.", f"write {FORM}"),
    "number": ("error", "{what} is no device in `{part}`", "Between a host's colon and the next @ "
               "stand numbers with commas.{no_range}", "write {instead}"),
    "host": ("error", "{what} is no host of the hostfile", "Names are compared letter by letter, "
             "blanks included.", "write {instead}"),
    "device": ("error", "{what} has no device {absent}", "Its slots={count} gives it {have}.",
               "choose among these, or correct slots= in the hostfile; on a CPU, where DeepSpeed "
               "counts NUMA nodes, LOCAL_SIZE says how many"),
    "whole": ("warning", "{host} stands there whole and with the devices {listed}", "DeepSpeed "
              "joins the lists, and the whole host has an empty one: only those devices count.",
              "keep `{host}` for all, or `{host}:{listed}`"),
    "order": ("hint", "the devices of {host} are used as {listed}", "DeepSpeed sorts them: the "
              "order in which they are written does not reach the ranks.",
              "set CUDA_VISIBLE_DEVICES inside the program where the order matters"),
    "nothing": ("error", "`{text}` leaves no device", "DeepSpeed takes the first of no hosts, and "
                "ends with `IndexError: list index out of range`.", "exclude less"),
}  # fmt: skip


@dataclass(frozen=True)
class Chosen:
    """Devices of each host that are used, in the hostfile's order; empty where it is refused."""

    devices: dict[str, list[int]]
    findings: tuple[Finding, ...]


def choose(slots: Mapping[str, int], include: str = "", exclude: str = "") -> Chosen:
    """Apply one of the two filters to a hostfile's hosts, as DeepSpeed does."""
    every = {host: list(range(count)) for host, count in slots.items()}
    if include and exclude:
        return Chosen({}, (_finding("both"),))
    if not include and not exclude:
        return Chosen(every, ())
    wanted: dict[str, list[int]] = {}
    findings: list[Finding] = []
    for part in (include or exclude).split("@"):
        host, numbers, problem = _node(part, every)
        if problem is not None:
            findings.append(problem)
            continue
        if host in wanted and bool(numbers) != bool(wanted[host]):
            findings.append(_finding("whole", host, listed=_comma(wanted[host] or numbers)))
        wanted[host] = sorted({*wanted.get(host, []), *numbers})
        if numbers != sorted(numbers):
            findings.append(_finding("order", host, listed=_comma(sorted(set(numbers)))))
    if any(item.level == "error" for item in findings):
        return Chosen({}, tuple(findings))
    left = {host: _left(every[host], host, wanted, bool(include)) for host in every}
    left = {host: devices for host, devices in left.items() if devices}
    if not left:
        findings.append(_finding("nothing", text=include or exclude))
    return Chosen(left, tuple(findings))


def _left(every: list[int], host: str, wanted: dict[str, list[int]], include: bool) -> list[int]:
    if host not in wanted:
        return [] if include else every
    listed = wanted[host] or every  # a host without devices is the whole host
    return listed if include else [x for x in every if x not in listed]


def _node(part: str, every: dict[str, list[int]]) -> tuple[str, list[int], Finding | None]:
    """One host with its devices; what is wrong with it, or None."""
    host, colon, listed = part.partition(":")
    if ":" in listed:
        return host, [], _finding("colons", part=part)
    numbers = []
    for word in listed.split(",") if colon else ():
        try:
            numbers.append(int(word))
        except ValueError:
            return host, [], _no_number(part, word)
    if host not in every:
        near = nearest(host, list(every)) if host else None
        instead = near or f"one of {', '.join(every) or 'no host'}"
        return host, [], _finding("host", what=host or "an empty name", instead=instead)
    count = len(every[host])
    absent = next((x for x in sorted(set(numbers)) if x not in every[host]), None)
    if absent is None:
        return host, numbers, None
    have = f"the devices 0 to {count - 1}" if count else "none"
    return host, [], _finding("device", what=host, absent=absent, count=count, have=have)


def _no_number(part: str, word: str) -> Finding:
    instead, no_range = FORM, ""
    first, dash, last = word.partition("-")
    if dash and first.isdigit() and last.isdigit() and int(first) < int(last) < LONGEST:
        no_range = " A range is not known."
        instead = _comma(range(int(first), int(last) + 1))
    what = f"`{word}`" if word else "nothing"
    return _finding("number", what=what, part=part, no_range=no_range, instead=instead)


def _comma(numbers) -> str:
    return ",".join(map(str, numbers))


def _finding(kind: str, host: str = "", **words: object) -> Finding:
    source = "deepspeed/launcher/runner.py, main" if kind == "nothing" else SOURCE
    return finding(SAID, kind, 1, host, source, **words)
