"""One line of the doctor's report: what was looked at, how it stands, what to do about it.

Three levels: `ok`, `note` (the course runs; something is slower or missing), `bad` (a part of the
course will fail here). What is bad always carries its remedy. No lesson derives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

LEVELS = ("ok", "note", "bad")


@dataclass(frozen=True)
class Finding:
    name: str
    level: str
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"{self.name}: the levels are {', '.join(LEVELS)}, not {self.level!r}")
        if self.level == "bad" and not self.remedy:
            raise ValueError(f"{self.name} is bad and has no remedy: {self.found}")

    def as_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Check:
    """Something to look at: its name, how, and the seconds after which it counts as hung."""

    name: str
    look: Callable[[], list[Finding]]
    limit: float = 30.0


def size(count: float) -> str:
    """Bytes in words, in units of 1000: 64 MB, 1.5 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return (
                f"{count / scale:.3g} {unit}"
                if count < 100 * scale
                else f"{count / scale:.0f} {unit}"
            )
    return f"{count:.0f} bytes"
