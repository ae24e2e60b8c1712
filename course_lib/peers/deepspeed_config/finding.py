"""One finding about a config: its position, severity, reason, source and remedy.

An error is refused or misread by DeepSpeed or the Trainer. A warning marks a key that does not have
its stated effect. A hint marks a legal setting that may surprise you. Lesson 13.
"""

from __future__ import annotations

from dataclasses import dataclass

LEVELS = ("error", "warning", "hint")
FIELDS = ("path", "line", "column", "level", "message", "reason", "source", "suggestion")


@dataclass(frozen=True)
class Finding:
    """A finding at `path` (dotted keys from the top); "" means the file itself."""

    path: str
    line: int
    column: int
    level: str
    message: str
    reason: str
    source: str
    suggestion: str
    kind: str = ""  # the fault of a file that is not a config
    # ("rename", new path), ("value", new value), ("remove",), …; ("meant", new path) corrects
    # nothing, but the other rules read the key as if it were there.
    repair: tuple | None = None
    keys: tuple = ()  # `path` in its parts, since a key may contain a dot

    def as_dict(self) -> dict:
        """Return the fields that `--json` prints."""
        return {name: getattr(self, name) for name in FIELDS}


def in_order(findings: list[Finding]) -> list[Finding]:
    """Sort by position, with errors first at the same position, and remove duplicates."""
    kept: dict[tuple, Finding] = {}
    for item in sorted(findings, key=lambda x: (x.line, x.column, LEVELS.index(x.level))):
        kept.setdefault((item.path, item.level, item.message), item)
    return list(kept.values())
