"""Running pip inside the environment: nothing asked, little printed, everything logged.

pip never sits silent for long here, and a failure of it becomes a Refusal with a remedy.
No lesson derives it.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
from functools import partial
from pathlib import Path

from .pip_words import Progress, complaints, diagnose
from .say import Refusal, Watch, complain, say

SILENCE = 10.0  # seconds after which a line says that pip is alive


def environment(*, alone: bool = False) -> dict[str, str]:
    """The caller's environment, less what would lead pip out of .venv or make it ask.

    `alone`: also without any index or folder of packages that somebody has configured.
    """
    kept = dict(os.environ)
    if alone:
        kept = {name: value for name, value in kept.items() if not name.startswith("PIP_")}
        kept["PIP_CONFIG_FILE"] = os.devnull
    for name in ("PIP_TARGET", "PIP_PREFIX", "PYTHONPATH", "PYTHONHOME", "PIP_REQUIRE_HASHES"):
        kept.pop(name, None)
    kept.update(
        PIP_USER="0",
        PIP_NO_INPUT="1",
        PIP_PROGRESS_BAR="off",
        PIP_DISABLE_PIP_VERSION_CHECK="1",
        PIP_ROOT_USER_ACTION="ignore",
        PYTHONNOUSERSITE="1",
        PYTHONUNBUFFERED="1",
    )
    if kept.get("PIP_RETRIES", "") in ("", "0"):
        kept["PIP_RETRIES"] = "2"  # with none, pip never says that it could not connect
    return kept


class Pip:
    """The pip of one environment, and its log."""

    def __init__(self, python: Path, log: Path, root: Path) -> None:
        self.python = python
        self.log = log
        self.root = root

    def try_install(self, *arguments: str) -> tuple[bool, str]:
        """(did it work, what pip printed); says nothing by itself."""
        code, output = self._stream(["install", *arguments], quiet=True)
        return code == 0, output

    def install(self, *arguments: str, alone: bool = False) -> None:
        """Install, with a readable account; a Refusal if it cannot be done."""
        code, output = self._stream(["install", *arguments], quiet=False, alone=alone)
        if code == 0:
            return
        self.refuse(code, output)

    def refuse(self, code: int, output: str) -> None:
        """Raise the Refusal that pip's failure calls for."""
        complain("pip said:\n" + "\n".join("  " + x for x in complaints(output.splitlines())))
        refusal = diagnose(output) or Refusal(
            f"pip failed (exit {code}).",
            f"read {self.log}; then run the same command again",
        )
        if code in (-9, 137):
            refusal = Refusal(
                "pip was killed; most often the machine ran out of memory.",
                "close other programs or ask for more memory, then run the same command again",
            )
        refusal.halfway = "Installing collected packages" in output
        raise refusal

    def _stream(self, arguments: list[str], *, quiet: bool, alone: bool = False) -> tuple[int, str]:
        command = [str(self.python), "-m", "pip", *arguments]
        progress, watch, lines = Progress(), Watch(), []
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(command)}\n")
            child = subprocess.Popen(
                command, cwd=str(self.root), env=environment(alone=alone), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            )  # fmt: skip
            arrived: queue.Queue[str | None] = queue.Queue()
            reader = threading.Thread(target=_forward, args=(child.stdout, arrived), daemon=True)
            reader.start()
            try:
                for line in _until_end(arrived, progress, watch, quiet):
                    lines.append(line)
                    log.write(line)
                    told = progress.read(line)
                    if told and not quiet:
                        say(told)
                return child.wait(), "".join(lines)
            finally:
                end(child, patience=3.0)


def _forward(stream, arrived: queue.Queue) -> None:
    for line in stream:
        arrived.put(line)
    arrived.put(None)


def _until_end(arrived: queue.Queue, progress: Progress, watch: Watch, quiet: bool):
    """Lines as they come; a word of life whenever none was printed for a while."""
    spoken = 0.0
    while True:
        try:
            line = arrived.get(timeout=1.0)
            if line is None:
                return
            yield line
        except queue.Empty:
            pass
        if not quiet and watch.seconds - spoken >= SILENCE:
            spoken = watch.seconds
            say(progress.alive(str(watch)))


def end(child: subprocess.Popen, patience: float = 0.0) -> None:
    """Leave no child behind: time to end by itself (Ctrl-C reached it too), requests, a kill.

    SIGINT before SIGTERM: pip and pytest clear their folders away on the first alone.
    """
    interrupt = partial(child.send_signal, signal.SIGINT)
    steps = ((None, patience), (interrupt, 5.0), (child.terminate, 5.0), (child.kill, 5.0))
    for act, seconds in steps:
        if act is not None and child.poll() is None:
            act()
        try:
            child.wait(timeout=seconds)
            return
        except subprocess.TimeoutExpired:
            continue
