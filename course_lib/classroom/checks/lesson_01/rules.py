"""What both functions of lesson 01 are held to, whatever they compute.

The caller's tensor stays as it was, and collectives are built from sends and receives.
"""

from __future__ import annotations

import re

from course_lib.classroom.checks.finding import Finding

LENGTH = 8  # bytes of a length, an int64
POINT_TO_POINT = {"send", "recv", "barrier"}


def refuse_changed(reports: list[dict], argument: str, when: str) -> None:
    """A Finding where the tensor that came in is no longer what it was."""
    for rank, report in enumerate(reports):
        if report["changed"]:
            raise Finding(
                "input changed",
                f"Your function changed its input {argument} on rank {rank}, {when}. The caller "
                f"still needs {argument}: work on a copy. (A chunk or slice of {argument} is a "
                f"view: it shares the memory of {argument}.)",
            )


def refuse_ready_made(reports: list[dict], right: str) -> None:
    """A Finding where a collective of torch does the work; `right` says what is right so far."""
    for rank, report in enumerate(reports):
        ready_made = sorted(set(report["ops"]) - POINT_TO_POINT)
        if ready_made:
            raise Finding(
                "ready-made collective",
                f"{right}, but rank {rank} called {' and '.join(ready_made)}: build it "
                "from sends and receives, which is what such a call is made of.",
            )


def of_two_dtypes(finding: Finding) -> bool:
    """Whether two ranks disagree about a message, of which one end has another dtype."""
    kinds = set(re.findall(r"\) of (\w+)\[", finding.text))
    return "the ranks disagree" in finding.text and len(kinds) > 1
