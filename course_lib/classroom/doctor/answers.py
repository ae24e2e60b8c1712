"""What `course grade` could keep a stranger's answer from on this machine. No lesson derives it."""

from __future__ import annotations

from course_lib.classroom.doctor.finding import Finding
from course_lib.classroom.grading.walls import Walls, built

REMEDY = (
    "learners need none of it; to grade, take a Linux of 5.13 or later with Landlock, or a sandbox "
    "(docs/instructors.md)"
)


def answers(standing: Walls | None = None) -> list[Finding]:
    """The walls that stand round answers while they are graded."""
    standing = built() if standing is None else standing
    whole = standing.confined and standing.numbers and standing.network
    return [Finding("grading", "ok" if whole else "note", str(standing).rstrip("."),
                    "" if whole else REMEDY)]  # fmt: skip
