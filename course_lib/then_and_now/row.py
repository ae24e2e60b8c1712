"""A topic of a page: what the page says, the verdict of today, and what shows that it is true.

A topic that is run names a place in this project, one that has changed has a probe, one that is
outside names the page to go on with. Lesson 13.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

RUN, CHANGED, OUTSIDE = "run", "changed", "outside"
VERDICTS = (RUN, CHANGED, OUTSIDE)


@dataclass(frozen=True)
class Row:
    """One row. `where`: a test's id, `module:symbol`, `notebook § heading`, or the page to read.

    `probe()` makes the installed release speak and returns its sentence, which contains `says`;
    `since` is a release before which the course's pins do not say it, such as "transformers 5.23".
    """

    topic: str
    then: str
    verdict: str
    today: str
    where: tuple[str, ...] = ()
    probe: Callable[[], str] | None = field(default=None, repr=False)
    says: str = ""
    since: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"{self.topic}: verdict {self.verdict!r} is none of {VERDICTS}")
        if isinstance(self.where, str):
            raise TypeError(f"{self.topic}: where={self.where!r} has to be a tuple of references")
        if not all((self.topic, self.then, self.today)):
            raise ValueError(f"{self.topic!r}: a row says what was then and what is today")
        if self.verdict == CHANGED and not (self.probe and self.says):
            raise ValueError(f"{self.topic}: what has changed needs a probe and what it says")
        if self.verdict != CHANGED and not self.where:
            raise ValueError(f"{self.topic}: name where it is run, or the page to go on with")
        if (self.probe is None) != (self.says == ""):
            raise ValueError(f"{self.topic}: a probe and what it says come together")
