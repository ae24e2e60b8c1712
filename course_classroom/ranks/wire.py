"""A rank as seen by the notebook's process: a kernel process and the channels to the kernel.

Jupyter messages pass through unix sockets in a private folder; nothing listens on a network.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from jupyter_client.connect import ConnectionFileMixin

from course_lib import processes as prepared

# Imports of every rank, including a judge's; those of IPython are the ones of a kernel's start.
KERNEL = (
    *(
        "course_classroom.ranks.rank",
        "course_classroom.ranks.seat",
        "course_classroom.ranks.values",
    ),
    *("course_classroom.judge.bench", "course_lib.collectives", "course_lib.layout"),
    *("IPython.extensions.storemagic", "IPython.core.completerlib", "tornado.platform.asyncio"),
)
# Its own tracebacks take a second to format and are never shown.
_OPTIONS = ["--HistoryManager.enabled=False", "--InteractiveShell.xmode=Minimal"]
MOST_SAID = 2_000  # characters of an error's text
MOST_DRAWN = 4_000_000  # characters of a picture, or of a rank's other display output
MOST_PRINTED = 20_000  # characters of a rank's text in one cell that a notebook keeps


@dataclass
class Outcome:
    """The result of a cell on one rank, and the output that the cell has produced so far."""

    rank: int
    status: str = "running"  # then: ok, error, died, stuck
    outputs: list[dict] = field(default_factory=list)
    ename: str = ""
    evalue: str = ""
    where: str = ""
    source: str = ""
    at: float = 0.0
    trail: list[str] = field(default_factory=list)
    values: dict = field(default_factory=dict)
    idle: bool = False
    printed: int = 0  # characters
    dropped: int = 0

    def ended(self) -> bool:
        return self.status in ("died", "stuck") or (self.status != "running" and self.idle)


class Rank:
    """A rank; `odd` gives it a different hash secret, as a separately started process has."""

    def __init__(self, number: int, folder: Path, env: dict[str, str], *, odd: bool = False):
        self.number = number
        path = self._connection = folder / f"rank-{number}.json"
        self._ends = ConnectionFileMixin(
            transport="ipc", ip=str(folder / f"rank-{number}-ipc"), connection_file=str(path)
        )
        self._ends.context = zmq.Context.instance()
        self._ends.session.key = os.urandom(32).hex().encode()
        self._ends.write_connection_file()
        self.log = folder / f"rank-{number}.log"
        with open(self.log, "wb") as log:
            arguments = ["-f", str(path), *_OPTIONS]
            self.process = prepared.start(
                prepared.Wanted(
                    "course_classroom.ranks.rank:forked", [number, arguments], env, log.fileno()
                ),
                [sys.executable, "-m", "course_classroom.ranks.rank", *arguments],
                modules=KERNEL,
                odd=odd,
            )
        self.session = self._ends.session
        self.shell = self._ends.connect_shell()
        self.iopub = self._ends.connect_iopub()
        self.control = self._ends.connect_control()
        self._waiting: dict[str, Outcome] = {}
        self.subscribed = False

    def greeted(self) -> bool:
        """Return True once the kernel has welcomed this subscriber; output before that is lost."""
        while not self.subscribed and self.iopub.poll(0):
            _, message = self.session.recv(self.iopub, zmq.NOBLOCK)
            self.subscribed = message["msg_type"] == "iopub_welcome"
            if self.subscribed:  # the kernel has its key, and other processes do not need it
                self._connection.unlink(missing_ok=True)
        return self.subscribed

    def execute(
        self, code: str, *, cell: dict | None = None, values: dict | None = None
    ) -> Outcome:
        """Send code; calls of `listen` fill the outcome. `values` maps names to expressions."""
        content = {
            "code": code,
            "silent": False,
            "store_history": False,
            "user_expressions": values or {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        metadata = {} if cell is None else {"course": cell}
        message = self.session.send(self.shell, "execute_request", content, metadata=metadata)
        outcome = Outcome(self.number)
        self._waiting = {message["header"]["msg_id"]: outcome}
        return outcome

    def listen(self) -> None:
        """Receive the pending messages of both channels without waiting for more."""
        for socket in (self.shell, self.iopub):
            while socket.poll(0):
                _, message = self.session.recv(socket, zmq.NOBLOCK)
                self._take(message)

    def ask_stack(self, patience_ms: int = 500) -> dict:
        """Return the rank's current place, or an empty dict if the rank does not answer."""
        try:
            self.session.send(self.control, "stack_request", {})
            while self.control.poll(patience_ms):
                _, message = self.session.recv(self.control, zmq.NOBLOCK)
                if message["msg_type"] == "stack_reply":
                    return message["content"]
        except zmq.ZMQError:
            pass
        return {}

    def died(self) -> str:
        """Describe how the process ended, or return an empty string while it lives."""
        code = self.process.poll()
        if code is None:
            return ""
        if code < 0:
            name = signal.Signals(-code).name
            hint = " (often: out of memory)" if name == "SIGKILL" else ""
            return f"was killed by {name}{hint}"
        return f"ended with exit code {code}"

    def interrupt(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def close(self) -> None:
        for socket in (self.shell, self.iopub, self.control):
            socket.close(linger=0)

    def _take(self, message: dict) -> None:
        outcome = self._waiting.get(message["parent_header"].get("msg_id"))
        if outcome is None:
            return  # late output of a cell that has ended
        kind, content = message["msg_type"], message["content"]
        if kind == "execute_reply":
            outcome.status = "ok" if content["status"] == "ok" else "error"
            outcome.ename = content.get("ename", "")[:MOST_SAID]
            outcome.evalue = shortened(content.get("evalue", ""), MOST_SAID)
            outcome.values = content.get("user_expressions", {})
        elif kind == "status":
            outcome.idle = content["execution_state"] == "idle"
        elif kind == "stream":
            # A printing loop must not fill the notebook, nor this process's memory.
            kept = content["text"][: MOST_PRINTED - outcome.printed]
            outcome.printed += len(kept)
            outcome.dropped += len(content["text"]) - len(kept)
            outcome.outputs.append({"output_type": kind, **content, "text": kept})
        elif kind in ("display_data", "execute_result"):
            data = {mime: _bounded(mime, value) for mime, value in content["data"].items()}
            outcome.outputs.append({"output_type": kind, **content, "data": data})


def shortened(text: str, most: int) -> str:
    left = len(text) - most
    return text if left <= 0 else f"{text[:most]} … and {left:,} more characters"


def _bounded(mime: str, value):
    """Return one MIME form of a display output, shortened or omitted if it is too large."""
    if not isinstance(value, str):
        return value
    if mime == "text/plain":
        return shortened(value, MOST_PRINTED)
    if len(value) <= MOST_DRAWN:
        return value
    return f"{len(value):,} characters of {mime} are not shown"
