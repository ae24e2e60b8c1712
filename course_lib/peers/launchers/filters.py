"""`--include` and `--exclude` of the deepspeed launcher → the devices that are used on each host.

`host:0,1@host2` means two devices of the first host and all devices of the second. Input that
DeepSpeed refuses is an error; input that it reads unexpectedly is a warning. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.peers.deepspeed_config.finding import Finding
from course_lib.peers.deepspeed_config.near import nearest
from course_lib.peers.launchers.hostfile import finding

SOURCE = "deepspeed/launcher/runner.py, parse_resource_filter"
LONGEST = 64  # longest range that is written out
FORM = "`host` for all of a host's devices, `host:0,1` for two of them, `@` between hosts"
# Kind of mistake → (level, message, reason, suggestion).
SAID = {
    "both": ("error", "--include and --exclude are given together", "Only one is allowed.",
             "keep one of the two"),
    "colons": ("error", "`{part}` has more than one colon", "One colon separates a host from its "
               "devices, but an IPv6 address or a port has more.", f"write {FORM}"),
    "number": ("error", "{what} is not a device in `{part}`", "A host's colon is followed by "
               "numbers, separated by commas.{no_range}", "write {instead}"),
    "host": ("error", "{what} is not in the hostfile", "Names are compared letter by letter, "
             "including blanks.", "write {instead}"),
    "device": ("error", "{what} has no device {absent}", "Its slots={count} gives it {have}.",
               "choose one of these, or correct slots= in the hostfile. On a CPU DeepSpeed counts "
               "NUMA nodes, or LOCAL_SIZE devices"),
    "whole": ("warning", "{host} is listed both without devices and with {listed}", "DeepSpeed "
              "joins the lists, and the full host has an empty list, so only {listed} is used.",
              "keep `{host}` for all, or `{host}:{listed}`"),
    "order": ("hint", "the devices of {host} are used as {listed}", "DeepSpeed sorts them, so "
              "the written order does not reach the ranks.",
              "set CUDA_VISIBLE_DEVICES inside the program if the order matters"),
    "nothing": ("error", "`{text}` leaves no device", "DeepSpeed takes the first host of an empty "
                "list and ends with `IndexError: list index out of range`.", "exclude less"),
}  # fmt: skip


@dataclass(frozen=True)
class Chosen:
    """The devices to use on each host, in the hostfile's order; empty if the input is refused."""

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
    listed = wanted[host] or every  # a host without devices means all of its devices
    return listed if include else [x for x in every if x not in listed]


def _node(part: str, every: dict[str, list[int]]) -> tuple[str, list[int], Finding | None]:
    """Parse one host with its devices; return both with an error finding or None."""
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
        no_range = " Ranges are not allowed."
        instead = _comma(range(int(first), int(last) + 1))
    what = f"`{word}`" if word else "nothing"
    return _finding("number", what=what, part=part, no_range=no_range, instead=instead)


def _comma(numbers) -> str:
    return ",".join(map(str, numbers))


def _finding(kind: str, host: str = "", **words: object) -> Finding:
    source = "deepspeed/launcher/runner.py, main" if kind == "nothing" else SOURCE
    return finding(SAID, kind, 1, host, source, **words)
