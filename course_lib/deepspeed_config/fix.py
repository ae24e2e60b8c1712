"""A corrected copy of a config: keys renamed and moved, old spellings and types replaced.

Only what has one right answer is corrected. The copy is plain JSON, written whole beside the file,
and never over anything. Lesson 13.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from course_lib import files
from course_lib.deepspeed_config.check import Report, check_document
from course_lib.deepspeed_config.finding import Finding
from course_lib.deepspeed_config.schema import Schema
from course_lib.deepspeed_config.source import Document

ROUNDS = 8  # a renamed key may have a wrong value, and a moved one an old name


@dataclass
class Fixed:
    """`config` is the corrected one, in the file `place`, if there was something to correct; `done`
    and `left` say what was corrected and what was not."""

    config: dict
    done: list[Finding]
    left: list[Finding]
    place: Path | None = None


def fixed(value: Mapping, findings_of: Callable[[dict], list[Finding]], first: list[Finding]
          ) -> Fixed:  # fmt: skip
    """Correct what can be corrected, and look again, until nothing is left that can be."""
    config, done = copy.deepcopy(dict(value)), []
    # What was wrong with the writing is gone once the value is written anew.
    done += [item for item in first if item.repair == ("rewrite",)]
    found = [item for item in first if item.repair != ("rewrite",)]
    for _ in range(ROUNDS):
        applied = [item for item in found if item.repair and _apply(config, item)]
        if not applied:
            break
        done += applied
        found = findings_of(config)
    return Fixed(config, done, found)


def fix_file(
    path: Path,
    report: Report,
    known: Schema,
    *,
    world: int | None = None,
    arguments: Mapping | None = None,
    model: Mapping | None = None,
) -> Fixed:
    """Write the corrected copy of a file that was checked; ValueError where it cannot have one."""
    if report.value is None:
        raise ValueError("the file holds no config")
    for item in report.findings:
        if item.kind == "endless":
            raise ValueError(f"line {item.line}: {item.message}; only you know the number")

    def findings_of(config: dict) -> list[Finding]:
        document = Document(path, config)
        again = check_document(document, known, world=world, arguments=arguments, model=model)
        return again.findings

    result = fixed(report.value, findings_of, report.findings)
    if result.done:
        result.place = write_beside(path, result.config)
    return result


def write_beside(path: Path, config: dict) -> Path:
    """The copy's place: NAME.fixed.json, or NAME.fixed-2.json where that is taken."""
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    stem = path.name[: -len(path.suffix)] if path.suffix else path.name
    handle, whole = tempfile.mkstemp(prefix=f".~{stem}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
            files.sync_file(file)
        os.chmod(whole, 0o666 & ~_mask())
        number = 1
        while True:
            mark = "" if number == 1 else f"-{number}"
            place = path.with_name(f"{stem}.fixed{mark}{path.suffix or '.json'}")
            try:
                os.link(whole, place)  # fails where the name is taken; a rename would replace it
            except FileExistsError:
                number += 1
                continue
            files.sync_folder(path.parent)
            return place
    finally:
        with suppress(FileNotFoundError):
            os.unlink(whole)


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _apply(config: dict, finding: Finding) -> bool:
    """Carry out a finding's repair; False where that would overwrite something."""
    holder, name = _holder(config, finding.keys[:-1]), finding.keys[-1] if finding.keys else None
    if holder is None or name not in holder or finding.repair is None:
        return False
    verb, *rest = finding.repair
    if verb == "value":
        holder[name] = rest[0]
    elif verb == "remove":
        del holder[name]
    elif verb in ("rename", "replace"):
        target = rest[0]
        into = _holder(config, target[:-1], make=True)
        if into is None or target[-1] in into:
            return False
        value = rest[1] if verb == "replace" else holder[name]
        if into is holder:
            items = [(target[-1], value) if key == name else (key, old)
                     for key, old in holder.items()]  # fmt: skip
            holder.clear()
            holder.update(items)
        else:
            del holder[name]
            into[target[-1]] = value
    else:
        return False
    return True


def _holder(config: dict, path: tuple, make: bool = False) -> dict | None:
    here: object = config
    for name in path:
        if not isinstance(here, dict):
            return None
        if make and name not in here:
            here[name] = {}
        here = here.get(name)
    return here if isinstance(here, dict) else None
