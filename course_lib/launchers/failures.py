"""A failure that readers meet, provoked on two ranks of this host: a rank that is killed.

Launchers differ in what they say of the same failure, and in what they return. Lesson 13.
"""

from __future__ import annotations

from course_lib.launchers.explain import explain
from course_lib.launchers.programs import path
from course_lib.launchers.run import Ran, run


def told(ran: Ran) -> str:
    """One line: who ended with what, and the sentence of it."""
    ended = "had to be ended" if ran.timed_out else f"ended with {ran.returncode}"
    said = explain(ran.launcher, ran.returncode, ran.heard, timed_out=ran.timed_out)
    return f"{ran.launcher} {ended}. {said}"


def killed(launcher: str, *, timeout: float = 60.0) -> Ran:
    """The last of two ranks is ended by SIGKILL, as where the host's memory is used up."""
    world = 1 if launcher == "by hand" else 2
    return run(launcher, path("killed"), world=world, timeout=timeout)
