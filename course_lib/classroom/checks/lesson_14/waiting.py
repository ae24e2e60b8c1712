"""Findings of ranks that wait for each other: where the mistake is that some rank does not come.

Lesson 14.
"""

from __future__ import annotations

from course_lib.classroom.checks.finding import Finding

_NAMES = ("not called by all", "deadlock", "no end")
_APART = "the ranks disagree about a collective"  # another rank is at a later one already


def is_a_hang(finding: Finding) -> bool:
    """Whether on a real machine the ranks would wait until a time-out."""
    return finding.name in _NAMES or (finding.name == "raised" and _APART in finding.text)
