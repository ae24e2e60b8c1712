"""The supervisor of a submission: it starts the judge, watches all processes and removes them.

It runs as a separate process so that every process of the submission is its descendant. It forwards
the judge's lines one by one and adds the last line itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

from course_classroom.grading import sealed, walls
from course_classroom.grading.watch import Limits, Tree, reap
from course_classroom.ranks import confine

_LOOK = 0.1  # seconds between two looks at the tree
_LONGEST = 1 << 20  # limit on the total bytes that a judging process may write


class Keeper:
    """A runner for `command` that reads its output and keeps its process tree within the limits."""

    def __init__(self, command: list[str], folder: Path, limits: Limits):
        self.folder, self.limits = folder, limits
        self.tree = Tree()
        self._pipe, write = os.pipe()
        with open(folder / "log", "wb") as log:
            self._judging = subprocess.Popen(
                [*command, str(write)],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[write],
                start_new_session=True,
            )
        os.close(write)
        self.seal = sealed.new()
        with self._judging.stdin as given:
            given.write(self.seal.key)
        self._refused = 0  # lines that the judging process did not write
        self._said = 0
        self._rest = b""
        self._code: int | None = None

    def run(self) -> None:
        """Run the command until it ends or exceeds a limit, then remove its process tree."""
        began, ready = time.monotonic(), None
        why, told = "", ""
        while not why and not self._done():
            now = time.monotonic()
            why, told = self.tree.over(self.limits)
            if forsaken():
                why = "stopped"
            elif ready is None and now > began + self.limits.start:
                why, told = "not started", f"not ready to judge after {self.limits.start:g} s"
            elif ready is not None and now > ready + self.limits.seconds:
                why, told = "out of time", f"not ended after {self.limits.seconds:g} s"
            if self._pass_on() and ready is None:
                ready = time.monotonic()
        left = self.tree.end()
        self._pass_on()
        log = (self.folder / "log").read_bytes()[-2000:].decode(errors="replace")
        last = {"event": "end", "why": why, "told": told, "code": self._code, "left": left}
        more = {"log": log} if why == "not started" or self._code else {}
        say({**last, "refused": self._refused, **more})

    def _done(self) -> bool:
        ended = reap()
        if self._judging.pid in ended:
            self._code = self._judging.returncode = ended[self._judging.pid]
        return self._code is not None

    def _pass_on(self) -> bool:
        """Pass on the complete lines received; return True if the judge reports ready."""
        ready = False
        while select.select([self._pipe], [], [], 0 if self._code is not None else _LOOK)[0]:
            part = os.read(self._pipe, 65536)
            if not part:
                if self._code is None:
                    time.sleep(_LOOK)  # closed by a process that has not ended yet
                break
            self._said += len(part)
            if self._said > _LONGEST:
                continue
            *lines, self._rest = (self._rest + part).split(b"\n")
            for line in lines:
                ready |= self._forward(line)
        return ready

    def _forward(self, line: bytes) -> bool:
        event = self.seal.opened(line)
        if event is None or event.get("event") == "end":
            self._refused += 1
            return False
        say(event)
        return event.get("event") == "ready"


def forsaken() -> bool:
    """Return True if standard input is closed, which means that `course grade` has ended."""
    return bool(select.select([0], [], [], 0)[0]) and not os.read(0, 1)


def say(event: dict) -> None:
    with contextlib.suppress(BrokenPipeError):  # no reader is left, but still clean up
        print(json.dumps(event), flush=True)


def remove(folder: Path) -> None:
    """Remove a submission's folder, regardless of the permissions that its code has set."""
    with contextlib.suppress(OSError):
        os.chmod(folder, 0o700)
    for path, folders, _ in os.walk(folder):
        for inside in (os.path.join(path, name) for name in folders):
            if not os.path.islink(inside):  # a link has the permissions of its target
                with contextlib.suppress(OSError):
                    os.chmod(inside, 0o700)  # before os.walk enters it
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    asked = json.loads(sys.argv[1])
    if asked["network"]:
        walls.loopback()
        confine.without_capabilities()
    confine.unreadable_by_others()
    folder = Path(asked["folder"])
    try:
        Keeper(asked["command"], folder, Limits(**asked["limits"])).run()
    finally:
        remove(folder)
        if forsaken():  # no other process may be left to remove it
            with contextlib.suppress(OSError):
                folder.parent.rmdir()


if __name__ == "__main__":
    main()
