"""`--include` and `--exclude` of the deepspeed launcher → which devices of which hosts are used.

`host:0,1@host2` is two hosts, two devices of the first and all of the second. What DeepSpeed
refuses is an error, what it reads in another way than it looks a warning. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.deepspeed_config.finding import Finding
from course_lib.deepspeed_config.near import nearest

SOURCE = "deepspeed/launcher/runner.py, parse_resource_filter"
LONGEST = 64  # of a range that is written out
FORM = "`host` for all of a host's devices, `host:0,1` for two of them, `@` between hosts"


@dataclass(frozen=True)
class Chosen:
    """Devices of each host that are used, in the hostfile's order; empty where it is refused."""

    devices: dict[str, list[int]]
    findings: tuple[Finding, ...]


def choose(slots: Mapping[str, int], include: str = "", exclude: str = "") -> Chosen:
    """Apply one of the two filters to a hostfile's hosts, as DeepSpeed does."""
    every = {host: list(range(count)) for host, count in slots.items()}
    if include and exclude:
        return _refused("both", "--include and --exclude are given together",
                        "They exclude each other.", "keep one of the two")  # fmt: skip
    if not include and not exclude:
        return Chosen(every, ())
    text = include or exclude
    wanted: dict[str, list[int]] = {}
    findings: list[Finding] = []
    for part in text.split("@"):
        host, numbers, problem = _node(part, every)
        if problem is not None:
            findings.append(problem)
            continue
        if host in wanted and bool(numbers) != bool(wanted[host]):
            findings.append(_whole_and_some(host, wanted[host] or numbers))
        wanted[host] = sorted({*wanted.get(host, []), *numbers})
        if numbers != sorted(numbers):
            findings.append(_order(host, numbers))
    if any(item.level == "error" for item in findings):
        return Chosen({}, tuple(findings))
    left = {host: _left(every[host], host, wanted, bool(include)) for host in every}
    left = {host: devices for host, devices in left.items() if devices}
    if not left:
        findings.append(_nothing(text))
    return Chosen(left, tuple(findings))


def _left(every: list[int], host: str, wanted: dict[str, list[int]], include: bool) -> list[int]:
    if host not in wanted:
        return [] if include else every
    listed = wanted[host] or every  # a host without devices is the whole host
    return listed if include else [x for x in every if x not in listed]


def _node(part: str, every: dict[str, list[int]]) -> tuple[str, list[int], Finding | None]:
    """One host with its devices; what is wrong with it, or None."""
    host, colon, listed = part.partition(":")
    problem = _colons(part) if ":" in listed else None
    numbers: list[int] = []
    for word in listed.split(",") if colon and problem is None else []:
        try:
            numbers.append(int(word))
        except ValueError:
            return host, [], _no_number(part, word)
    if problem is None and host not in every:
        problem = _no_host(host, list(every))
    if problem is None:
        absent = next((x for x in sorted(set(numbers)) if x not in every[host]), None)
        problem = None if absent is None else _no_device(host, absent, len(every[host]))
    return host, numbers, problem


def _colons(part: str) -> Finding:
    reason = "One colon parts a host from its devices; an IPv6 address or a port has more."
    return _problem("colons", f"`{part}` has more than one colon", reason, f"write {FORM}")


def _no_number(part: str, word: str) -> Finding:
    reason, remedy = "Between a host's colon and the next @ stand numbers with commas.", FORM
    first, dash, last = word.partition("-")
    if dash and first.isdigit() and last.isdigit() and int(first) < int(last) < LONGEST:
        reason += " A range is not known."
        remedy = ",".join(map(str, range(int(first), int(last) + 1)))
    message = f"{f'`{word}`' if word else 'nothing'} is no device in `{part}`"
    return _problem("number", message, reason, f"write {remedy}")


def _no_host(host: str, hosts: list[str]) -> Finding:
    near = nearest(host, hosts) if host else None
    remedy = f"write {near}" if near else f"write one of {', '.join(hosts) or 'no host'}"
    reason = "Names are compared letter by letter, blanks included."
    return _problem("host", f"{host or 'an empty name'} is no host of the hostfile", reason, remedy)


def _no_device(host: str, absent: int, count: int) -> Finding:
    have = f"the devices 0 to {count - 1}" if count else "none"
    remedy = "choose among these, or correct slots= in the hostfile; on a CPU, where DeepSpeed "
    remedy += "counts NUMA nodes, LOCAL_SIZE says how many"
    reason = f"Its slots={count} gives it {have}."
    return _problem("device", f"{host} has no device {absent}", reason, remedy)


def _whole_and_some(host: str, numbers: list[int]) -> Finding:
    return Finding(
        host, 1, 1, "warning",
        f"{host} stands there whole and with the devices {_comma(numbers)}",
        "DeepSpeed joins the lists, and the whole host has an empty one: only those devices count.",
        SOURCE, f"keep `{host}` for all, or `{host}:{_comma(numbers)}`", "whole",
    )  # fmt: skip


def _order(host: str, numbers: list[int]) -> Finding:
    return Finding(
        host, 1, 1, "hint",
        f"the devices of {host} are used as {_comma(sorted(set(numbers)))}",
        "DeepSpeed sorts them: the order in which they are written does not reach the ranks.",
        SOURCE, "set CUDA_VISIBLE_DEVICES inside the program where the order matters", "order",
    )  # fmt: skip


def _nothing(text: str) -> Finding:
    return Finding(
        "", 1, 1, "error", f"`{text}` leaves no device",
        "DeepSpeed takes the first of no hosts, and ends with `IndexError: list index out of "
        "range`.",
        "deepspeed/launcher/runner.py, main", "exclude less", "nothing",
    )  # fmt: skip


def _comma(numbers: list[int]) -> str:
    return ",".join(map(str, numbers))


def _problem(kind: str, message: str, reason: str, remedy: str) -> Finding:
    return Finding("", 1, 1, "error", message, reason, SOURCE, remedy, kind)


def _refused(kind: str, *texts: str) -> Chosen:
    return Chosen({}, (_problem(kind, *texts),))
