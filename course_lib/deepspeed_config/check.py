"""A file → everything that is wrong with it: the file itself, then one family of rules after
another.

No rule imports torch or DeepSpeed, and nothing of the file is run. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.deepspeed_config import auto, schema, source
from course_lib.deepspeed_config.config import Config
from course_lib.deepspeed_config.finding import Finding, in_order
from course_lib.deepspeed_config.meant import as_meant
from course_lib.deepspeed_config.rules import (
    autos,
    batch,
    conflicts,
    deprecated,
    effects,
    needs,
    optimizers,
    sizes,
    trainers,
    unknown,
    values,
)

FAMILIES = (values, deprecated, sizes, needs, effects, conflicts, batch, optimizers, autos)


@dataclass
class Report:
    """`findings` in the order of the file; `resolved`: dotted path → {"value", "origin"}; `value`
    is the file's and `config` the same resolved, None where the file holds no config; `notes` say
    what it was checked against."""

    findings: list[Finding]
    resolved: dict[str, dict] = field(default_factory=dict)
    value: dict | None = None
    config: dict | None = None
    notes: list[str] = field(default_factory=list)

    def count(self, level: str) -> int:
        return sum(item.level == level for item in self.findings)


def check_file(
    path: Path,
    *,
    world: int | None = None,
    arguments: Mapping | None = None,
    model: Mapping | None = None,
    known: schema.Schema | None = None,
) -> Report:
    """The report on a file. `arguments` are the Trainer's, `model` a config.json's content."""
    known = schema.load() if known is None else known
    notes = [known.note] if known.note else []
    document = source.read(path)
    report = check_document(document, known, world=world, arguments=arguments, model=model)
    report.notes = notes
    return report


def check_document(
    document: source.Document,
    known: schema.Schema,
    *,
    world: int | None = None,
    arguments: Mapping | None = None,
    model: Mapping | None = None,
) -> Report:
    """The report on a document that has been read."""
    value = document.value
    if value is None:
        return Report(in_order(document.findings))
    resolved = auto.resolve(value, arguments, model, world or _ranks(value, arguments))
    config = Config(
        value, document.places, known, resolved=resolved.config,
        reasons=dict(resolved.unresolved), world=world, arguments=arguments,
    )  # fmt: skip
    findings, misnamed = list(document.findings), list(unknown.check(config))
    meant = as_meant(document, misnamed)
    if meant.sure:
        how = {"world": world, "arguments": arguments, "model": model}
        rest = check_document(meant.document, known, **how).findings
        findings += [*meant.sure, *map(meant.in_the_file, rest)]
    else:
        findings += misnamed
        for family in FAMILIES:
            findings += family.check(config)
        findings += trainers.check(config, resolved)
    told = {
        path: {"value": origin.value, "origin": origin.origin}
        for path, origin in resolved.origins.items()
    }
    if world is None and value.get(batch.BATCH) == auto.AUTO and arguments is not None:
        told[batch.BATCH]["origin"] += "; --world names the ranks"
    return Report(in_order(findings), told, value, resolved.config)


def _ranks(value: Mapping, arguments: Mapping | None) -> int:
    """The ranks that the file's batch sizes are for, where --world does not say; 1 if none fit."""
    given = arguments or {}
    counts = [value.get(batch.BATCH)]
    for key, name in ((batch.MICRO, "per_device_train_batch_size"), (batch.STEPS, batch.STEPS)):
        stated = value.get(key, auto.AUTO)
        counts.append(given.get(name, 1) if stated == auto.AUTO else stated)
    if not all(isinstance(x, int) and not isinstance(x, bool) and x > 0 for x in counts):
        return 1
    total, micro, steps = counts
    return total // (micro * steps) if total % (micro * steps) == 0 else 1
