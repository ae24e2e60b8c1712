"""A corrected copy of a config: keys renamed and moved, old spellings and types replaced.

Only what has one right answer is corrected. The copy is plain JSON, written whole beside the file,
and never over anything. Lesson 13.
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

ROUNDS = 8  # a renamed key may have a wrong value, and a moved one an old name


@dataclass
class Fixed:
    """`config` is the corrected one, in the file `place`, if there was something to correct; `done`
    and `left` say what was corrected and what was not."""

    config: dict
    done: list[Finding]
    left: list[Finding]
    place: Path | None = None


def fixed(
    value: Mapping, findings_of: Callable[[dict], list[Finding]], first: list[Finding]
) -> Fixed:
    """Correct what can be corrected, and look again, until nothing is left that can be."""
    config = copy.deepcopy(dict(value))
    # What was wrong with the writing is gone once the value is written anew.
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
    """Write the corrected copy of a file that was checked; ValueError where it cannot have one.
    `how` is what `check_document` takes."""
    if report.value is None:
        raise ValueError("the file holds no config")
    for item in report.findings:
        if item.kind == "endless":
            raise ValueError(f"line {item.line}: {item.message}; only you know the number")

    def findings_of(config: dict) -> list[Finding]:
        return check_document(Document(path, config), known, **how).findings

    result = fixed(report.value, findings_of, report.findings)
    if result.done:
        result.place = write_beside(path, result.config)
    return result


def write_beside(path: Path, config: dict) -> Path:
    """The copy's place: NAME.fixed.json, or NAME.fixed-2.json where that is taken."""
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    for number in itertools.count(1):
        mark = "" if number == 1 else f"-{number}"
        place = path.with_name(f"{path.stem}.fixed{mark}{path.suffix or '.json'}")
        with suppress(FileExistsError):
            place.touch(exist_ok=False)  # the name is ours from here on
            break
    try:
        files.write_whole(place, text)
    except BaseException:
        place.unlink()
        raise
    return place


def _apply(config: dict, finding: Finding) -> bool:
    """Carry out a finding's repair; False where that would overwrite something."""
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
