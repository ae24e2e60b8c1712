"""Grading of a folder's submissions into rows, a few at a time, each in its own process group.

No submission can prevent the grading of the others, and the rows are sorted by name.
"""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from course_classroom.grading.discover import Submission
from course_classroom.grading.handouts import Handout
from course_classroom.grading.rows import Refused, Row, rows_from
from course_classroom.grading.supervisor import remove
from course_classroom.grading.walls import Walls
from course_classroom.grading.watch import END, MARK, Limits, sweep
from course_classroom.grading.worker import OWN, TASK

# All that an answer sees of the instructor's environment. None of these is a token.
_LET_THROUGH = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "GLOO_SOCKET_IFNAME")
PREFIX = "grade-"  # of the temporary folder; short, because the ranks' sockets need short paths
SUPERVISOR = "course_classroom.grading.supervisor"
LONGEST_PLACE = 50  # characters
WORKER = "course_classroom.grading.worker"


@dataclass
class Grading:
    """One grading run over a folder: its settings and its state."""

    handouts: Sequence[Handout]
    limits: Limits
    lesson: str = ""
    jobs: int = 1
    told: Callable[[str], None] = print
    command: Sequence[str] = (sys.executable, "-m", WORKER)
    walls: Walls = field(default_factory=Walls)  # isolate submissions from each other and from us
    _running: dict[int, subprocess.Popen] = field(default_factory=dict)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def grade(self, submissions: Sequence[Submission]) -> list[Row]:
        """Return the rows of all submissions in order. An interrupt ends all graders."""
        home = Path(tempfile.mkdtemp(prefix=PREFIX))
        done = 0

        def one(numbered: tuple[int, Submission]) -> list[Row]:
            nonlocal done
            rows = self._one(home / f"{numbered[0]}", numbered[1])
            done += 1
            for row in rows:
                points = f"{row.points:g} of {row.max:g}"
                self.told(f"[{done}/{len(submissions)}] {row.file}: {row.outcome}, {points}")
            return rows

        pool = ThreadPoolExecutor(self.jobs)
        try:
            found = [pool.submit(one, numbered) for numbered in enumerate(submissions)]
            return [row for rows in found for row in rows.result()]
        finally:
            self._stopped.set()
            for process in list(self._running.values()):
                process.stdin.close()  # the supervisor then ends its tree and removes its folder
            pool.shutdown(cancel_futures=True)
            remove(home)

    @staticmethod
    def check_place() -> None:
        """Raise Refused if the temporary folder's path is too long for a rank's socket."""
        place = Path(tempfile.gettempdir())
        if len(str(place)) > LONGEST_PLACE:
            raise Refused(
                f"the path {place} is too long for temporary files ({len(str(place))} characters, "
                f"at most {LONGEST_PLACE}); set TMPDIR to a shorter one, such as /tmp"
            )

    def _one(self, folder: Path, submission: Submission) -> list[Row]:
        if submission.trouble or self._stopped.is_set():
            return rows_from(submission, [], self.handouts, confined=self.walls.confined)
        mark = f"{os.getpid()}-{folder.parent.name}-{folder.name}"
        try:
            self._prepare(folder, submission)
            events = self._run(folder, mark)
        except OSError as error:
            events = [{"event": "end", "why": "not started", "told": str(error)}]
        finally:
            sweep(mark)
            remove(folder)
        return rows_from(submission, events, self.handouts, confined=self.walls.confined)

    def _prepare(self, folder: Path, submission: Submission) -> None:
        """Create a private folder with a copy of the notebook and a task file."""
        for name in OWN:
            (folder / name).mkdir(parents=True, mode=0o700)
        shutil.copyfile(submission.path, folder / "notebook")
        task = {
            "notebook": str(folder / "notebook"),
            "name": submission.path.stem,  # in the submission
            "lesson": self.lesson,  # the only lesson to grade; empty for any
            "handouts": [one.as_json() for one in self.handouts],
            "memory": self.limits.memory,
            "confined": self.walls.confined,
        }
        (folder / TASK).write_text(json.dumps(task))

    def _run(self, folder: Path, mark: str) -> list[dict]:
        asked = {"command": list(self.command), "folder": str(folder)}
        asked |= {"limits": asdict(self.limits), "network": self.walls.network}
        supervisor = subprocess.Popen(
            [*self.walls.command, sys.executable, "-m", SUPERVISOR, json.dumps(asked)],
            cwd=folder.parent,
            env=environment(folder, mark),
            stdin=subprocess.PIPE,  # closed when this process ends, for whatever reason
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._running[supervisor.pid] = supervisor
        longest = self.limits.start + self.limits.seconds + 3 * END
        backstop = threading.Timer(longest, supervisor.kill)
        backstop.start()
        try:
            return [json.loads(line) for line in supervisor.stdout if line.endswith(b"}\n")]
        finally:
            backstop.cancel()
            supervisor.stdin.close()
            supervisor.stdout.close()
            supervisor.wait()
            del self._running[supervisor.pid]


def environment(folder: Path, mark: str) -> dict[str, str]:
    """Return a submission's environment variables: its own folders, and a few of our variables."""
    kept = {name: os.environ[name] for name in _LET_THROUGH if name in os.environ}
    if site.ENABLE_USER_SITE:  # HOME changes, and packages may be below the old one
        kept["PYTHONUSERBASE"] = site.getuserbase()
    house = str(Path(__file__).resolve().parents[2])
    more = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return kept | {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "COURSE_RUNTIME_DIR": str(folder / "r"),
        "IPYTHONDIR": str(folder / "home" / "ipython"),
        "PYTHONPATH": os.pathsep.join([house, *map(os.path.abspath, more)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        MARK: mark,
    }


def default_jobs(limits: Limits) -> int:
    """Return the number of jobs: half the cores, at least two, but fewer if memory requires it."""
    from course_classroom.leases.machine import available_bytes

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    by_memory = available_bytes() // min(limits.memory, 2_000_000_000)
    return max(1, min(max(2, (cores or 1) // 2), by_memory))
