"""A check that crashes or hangs becomes a line of the report, and the others go on.

Each runs in a thread that nobody waits for beyond its limit; a driver that never answers must not
keep the rest of the report back. No lesson derives it.
"""

from __future__ import annotations

import threading

from course_lib.classroom.doctor.finding import Check, Finding

INSTALL = "make setup, or python -m pip install -c constraints.txt -e '.[classroom]'"
ASK = "please report it with this text to the keepers of the course; the other checks went on"


def guarded(check: Check) -> list[Finding]:
    """What the check finds, or one bad line that says how it failed."""
    answers: list[list[Finding]] = []

    def look() -> None:
        try:
            answers.append(check.look())
        except ModuleNotFoundError as error:
            told = f"cannot be looked at: the package {error.name} is not installed"
            answers.append([Finding(check.name, "bad", told, INSTALL)])
        except BaseException as error:  # SystemExit too: a library's exit is not the doctor's
            told = f"this check itself failed: {type(error).__name__}: {error}"
            answers.append([Finding(check.name, "bad", told, ASK)])

    thread = threading.Thread(target=look, name=f"doctor: {check.name}", daemon=True)
    thread.start()
    thread.join(check.limit)
    if answers:
        return answers[0]
    told = f"no answer within {check.limit:g} s"
    return [Finding(check.name, "bad", told, f"try again when the machine is less busy, or {ASK}")]
