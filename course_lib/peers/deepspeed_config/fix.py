"""A corrected copy of a config: keys renamed and moved, old spellings and types replaced.

Only errors with a single possible correction are corrected. The copy is plain JSON next to the
file. It is written completely or not at all, and never overwrites anything. Lesson 13.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from course_lib import files
from course_lib.peers.deepspeed_config.auto import at
from course_lib.peers.deepspeed_config.check import ConfigReport, check_document, rename
from course_lib.peers.deepspeed_config.finding import Finding
from course_lib.peers.deepspeed_config.schema import Schema
from course_lib.peers.deepspeed_config.source import Document

ROUNDS = 8  # a renamed key may have a wrong value, and a moved key an old name


@dataclass
class Fixed:
    """The corrected `config`, in the file `place` if anything was corrected, with the findings that
    were corrected (`done`) and those that were not (`left`)."""

    config: dict
    done: list[Finding]
    left: list[Finding]
    place: Path | None = None


def fixed(
    value: Mapping, findings_of: Callable[[dict], list[Finding]], first: list[Finding]
) -> Fixed:
    """Correct findings and check again until nothing more can be corrected."""
    config = copy.deepcopy(dict(value))
    # Formatting errors disappear when the value is written again.
    done = [item for item in first if item.repair == ("rewrite",)]
    left = [item for item in first if item.repair != ("rewrite",)]
    for _ in range(ROUNDS):
        applied = [item for item in left if item.repair and _apply(config, item)]
        if not applied:
            break
        done += applied
        left = findings_of(config)
    return Fixed(config, done, left)


def fix_file(path: Path, report: ConfigReport, known: Schema, **how: object) -> Fixed:
    """Write the corrected copy of a checked file; raise ValueError if that is impossible. `how` are
    options of `check_document`."""
    if report.value is None:
        raise ValueError("the file does not hold a config")
    for item in report.findings:
        if item.kind == "endless":
            raise ValueError(f"line {item.line}, {item.message}; only you know the number")

    def findings_of(config: dict) -> list[Finding]:
        return check_document(Document(path, config), known, **how).findings

    result = fixed(report.value, findings_of, report.findings)
    if result.done:
        result.place = write_beside(path, result.config)
    return result


def write_beside(path: Path, config: dict) -> Path:
    """Write the copy to NAME.fixed.json or, if that exists, to NAME.fixed-2.json and so on."""
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    for number in itertools.count(1):
        mark = "" if number == 1 else f"-{number}"
        place = path.with_name(f"{path.stem}.fixed{mark}{path.suffix or '.json'}")
        with suppress(FileExistsError):
            place.touch(exist_ok=False)  # reserves the name
            break
    try:
        files.write_whole(place, text)
    except BaseException:
        place.unlink()
        raise
    return place


def _apply(config: dict, finding: Finding) -> bool:
    """Apply a finding's repair; return False if it would overwrite something."""
    *above, name = finding.keys or ("",)
    holder = at(config, above)
    if not isinstance(holder, dict) or name not in holder:
        return False
    verb, *rest = finding.repair
    if verb == "value":
        holder[name] = rest[0]
    elif verb == "remove":
        del holder[name]
    elif verb in ("rename", "replace") and rename(config, finding.keys, rest[0]):
        if verb == "replace":
            at(config, rest[0][:-1])[rest[0][-1]] = rest[1]
    else:
        return False
    return True
