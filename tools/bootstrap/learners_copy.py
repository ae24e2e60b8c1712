"""A learner's copy of the course: which targets it has not, and what is said instead.

`course handout` leaves a file in it by which it is known. No lesson derives it.
"""

from __future__ import annotations

from pathlib import Path

MARK = "LEARNERS_COPY"  # the name of that file, here and in course_lib/classroom/learners_copy.py
FOR_AUTHORS = ("test", "test-all", "notebooks", "exercises", "accept-gpu")
INSTEAD = (
    "this is a learner's copy of the course, without tests and solutions: `make {target}` needs "
    "the full one. Here: `make lab`; `.venv/bin/course check 01` tries your answers, "
    "`.venv/bin/course doctor` this machine."
)


def refusal(root: Path, target: str) -> str:
    """What to say to that target in a learner's copy; empty where it can be made."""
    here = target in FOR_AUTHORS and (root / MARK).exists()
    return INSTEAD.format(target=target) if here else ""


def targets_of(root: Path, text: str) -> str:
    """The help's text without the targets that are not to be had below `root`."""
    lines = text.splitlines()
    return "\n".join(line for line in lines if not refusal(root, _target(line)))


def _target(line: str) -> str:
    words = line.split()
    return words[1] if words[:1] == ["make"] and len(words) > 1 else ""
