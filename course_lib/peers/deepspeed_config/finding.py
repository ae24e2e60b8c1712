"""One finding of a config: where it stands, how bad it is, why, where that is known, what to do.

An error is what DeepSpeed or the Trainer refuses or misreads; a warning, what does not do what it
says; a hint, what is legal and may surprise. Lesson 13.
"""

from __future__ import annotations

from dataclasses import dataclass

LEVELS = ("error", "warning", "hint")
FIELDS = ("path", "line", "column", "level", "message", "reason", "source", "suggestion")


@dataclass(frozen=True)
class Finding:
    """What was found at `path`, dotted keys from the top; "" is the file itself."""

    path: str
    line: int
    column: int
    level: str
    message: str
    reason: str
    source: str
    suggestion: str
    kind: str = ""  # what is wrong with a file that is no config
    # ("rename", new path), ("value", new value), ("remove",), …; ("meant", new path) corrects
    # nothing, and the other rules read the key as if it stood there.
    repair: tuple | None = None
    keys: tuple = ()  # `path` in its parts: a key may have a dot in it

    def as_dict(self) -> dict:
        """As `--json` prints it."""
        return {name: getattr(self, name) for name in FIELDS}


def in_order(findings: list[Finding]) -> list[Finding]:
    """By place in the file, errors first where two stand together, nothing twice."""
    kept: dict[tuple, Finding] = {}
    for item in sorted(findings, key=lambda x: (x.line, x.column, LEVELS.index(x.level))):
        kept.setdefault((item.path, item.level, item.message), item)
    return list(kept.values())
