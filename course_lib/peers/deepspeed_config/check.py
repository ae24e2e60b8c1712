"""A check of a config file that reports every fault: first the file itself, then one family of
rules after another.

Keys that have a single correct name or place are moved there first. Then a misspelt section is
checked at once, and a misspelling causes only its own finding.
No rule imports torch or DeepSpeed, and nothing from the file is executed. Lesson 13.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from course_lib.peers.deepspeed_config import auto, schema, source
from course_lib.peers.deepspeed_config.config import DeepSpeedConfig
from course_lib.peers.deepspeed_config.finding import Finding, in_order
from course_lib.peers.deepspeed_config.rules import (
    autos,
    batch,
    conflicts,
    effects,
    optimizers,
    sizes,
    unknown,
    values,
)
from course_lib.peers.deepspeed_config.source import Document

FAMILIES = (values, sizes, effects, conflicts, batch, optimizers, autos)


@dataclass
class ConfigReport:
    """The result of a check, with `findings` in the order of the file. `resolved` maps dotted paths
    to {"value", "origin"}. `value` and its resolved `config` are None if the file holds no config.
    `notes` describe the basis of the check."""

    findings: list[Finding]
    resolved: dict[str, dict] = field(default_factory=dict)
    value: dict | None = None
    config: dict | None = None
    notes: list[str] = field(default_factory=list)

    def count(self, level: str) -> int:
        return sum(item.level == level for item in self.findings)


def check_file(path: Path, *, known: schema.Schema | None = None, **how: object) -> ConfigReport:
    """Check a file; `how` are options of `check_document`."""
    known = schema.load() if known is None else known
    report = check_document(source.read(path), known, **how)
    report.notes += [known.note] if known.note else []
    return report


def check_document(
    document: Document,
    known: schema.Schema,
    *,
    world: int | None = None,
    arguments: Mapping | None = None,
    model: Mapping | None = None,
) -> ConfigReport:
    """Check a parsed document. `arguments` are the Trainer's arguments, and `model` is the content
    of a config.json."""
    value = document.value
    if value is None:
        return ConfigReport(in_order(document.findings))
    resolved = auto.resolve(value, arguments, model, world or _ranks(value, arguments))
    config = DeepSpeedConfig(value, document.places, known, resolved, world, arguments)
    misnamed = [config.finding(*row) for row in unknown.check(config)]
    meant, renamed = as_meant(document, misnamed)
    if renamed:
        rest = check_document(meant, known, world=world, arguments=arguments, model=model)
        found = [*renamed, *(_under_old_names(item, renamed) for item in rest.findings)]
    else:
        rows = (row for family in FAMILIES for row in family.check(config))
        found = [*misnamed, *(config.finding(*row) for row in rows)]
    origins = {path: origin._asdict() for path, origin in resolved.origins.items()}
    if world is None and value.get(batch.BATCH) == auto.AUTO and arguments is not None:
        origins[batch.BATCH]["origin"] += "; set the ranks with --world"
    return ConfigReport(in_order(document.findings + found), origins, value, resolved.config)


def _ranks(value: Mapping, arguments: Mapping | None) -> int:
    """Derive the number of ranks from the file's batch sizes; return 1 if they do not fit."""
    counts = [value.get(batch.BATCH)]
    for key, name in ((batch.MICRO, "per_device_train_batch_size"), (batch.STEPS, batch.STEPS)):
        stated = value.get(key, auto.AUTO)
        counts.append((arguments or {}).get(name, 1) if stated == auto.AUTO else stated)
    if not all(isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in counts):
        return 1
    total, micro, steps = counts
    return total // (micro * steps) if total % (micro * steps) == 0 else 1


# ---- keys under their intended name or place
def as_meant(document: Document, misnamed: list[Finding]) -> tuple[Document, list[Finding]]:
    """Apply the renames and moves of `misnamed` to a copy of the document. Return it with the
    findings that could be applied."""
    value, places, renamed = copy.deepcopy(document.value), dict(document.places), []
    for finding in misnamed:
        if finding.repair and finding.repair[0] in ("rename", "meant"):
            old, new = finding.keys, finding.repair[1]
            if rename(value, old, new):
                places = {_swapped(path, old, new): place for path, place in places.items()}
                renamed.append(finding)
    return Document(document.path, value, places), renamed


def _under_old_names(finding: Finding, renamed: list[Finding]) -> Finding:
    """Translate a finding about the renamed document back to the file's names. It is corrected in a
    later round, after the key above has its correct name."""
    keys = finding.keys
    for old, new in ((item.keys, item.repair[1]) for item in reversed(renamed)):
        keys = _swapped(keys, new, old)
    if keys == finding.keys:
        return finding
    return replace(finding, path=".".join(map(str, keys)), keys=keys, repair=None)


def rename(value: dict, old: tuple, new: tuple) -> bool:
    """Move a value to a different path. Return False if the value is missing or the target
    exists. A key that stays in its section keeps its position."""
    holder, into = auto.at(value, old[:-1]), value
    for name in new[:-1]:
        into = into.setdefault(name, {}) if isinstance(into, dict) else None
    if not isinstance(holder, dict) or not isinstance(into, dict):
        return False
    if old[-1] not in holder or new[-1] in into:
        return False
    if into is holder:
        items = [(new[-1] if key == old[-1] else key, item) for key, item in holder.items()]
        holder.clear()
        holder.update(items)
    else:
        into[new[-1]] = holder.pop(old[-1])
    return True


def _swapped(path: tuple, old: tuple, new: tuple) -> tuple:
    return (*new, *path[len(old) :]) if path[: len(old)] == old else path
