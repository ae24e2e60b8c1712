"""A program under a launcher, with real processes on this host, and its result.

Every wait has a limit, and no process remains. The launcher gets SIGTERM and then SIGKILL. Ranks
that it leaves behind are found by the files that they have locked, and killed. Lesson 13.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from course_lib import ranks
from course_lib.peers.launchers.as_rank import FOLDER, PROGRAM, SECONDS, STARTER
from course_lib.peers.launchers.commands import LauncherCall, Started, launcher

BEFORE = "before.json"  # the launcher's environment, which a rank compares with its own
WRAPPER = Path(__file__).with_name("as_rank.py")
LOOK = 0.3  # seconds for a rank to report its position
SETTLE = 2.0  # seconds for ranks to notice that their launcher has ended
GRACE = 4.0  # seconds for a launcher to end its ranks
ATTEMPTS = 3  # each with a new port, in case a different program has taken it
TAKEN = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)
# Variables that an outer launcher set for this process, not for its children.
FOREIGN = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_(RANK|WORLD_SIZE|SIZE)|MASTER_(ADDR|PORT)|GROUP_.*|ROLE_.*|CROSS_.*"
    r"|TORCHELASTIC_.*|ACCELERATE_.*|SLURM_.*|COURSE_(LAUNCH|TRAIN)_.*|OMP_NUM_THREADS"
    r"|TORCH_NCCL_ASYNC_ERROR_HANDLING|PYTORCH_NVML_BASED_CUDA_CHECK|KMP_.*|NCCL_ASYNC_.*)"
)

# Parts that differ in every run: times, processes, lines, folders.
CUTS = (
    (r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\] ", ""),  # DeepSpeed's clock
    (r"^([A-Z])\d{4} \d\d:\d\d:\d\d\.\d+ \d+ ", r"\1 "),  # torch's, with its process
    (r"(?<![\w.])(?:/[\w.@+-]+)+/([\w.@+-]+)", r"\1"),  # a path: keep its last name
    (r"\[[\w.]+\.py:\d+:", "["),
    (r"\b([Pp]id:?|PID|[Pp]rocess|subprocess) ?\d+", r"\1 (a number)"),
)


@dataclass(frozen=True)
class Ran:
    """The result of a launcher: how it ended, its own output, and each rank's output in order."""

    launcher: str
    returncode: int
    timed_out: bool
    said: str
    stdout: tuple[str, ...]
    stderr: tuple[str, ...]
    left: int = 0  # ranks still alive a moment after the launcher ended

    @property
    def heard(self) -> str:
        """All output that a person at the terminal would see, the launcher's lines last."""
        return "\n".join([*self.stderr, self.said])

    def lines(self, *words: str) -> str:
        """Select the lines that contain one of `words`, once each, without run-specific numbers."""
        shown = (line.rstrip() for line in plain(self.heard).splitlines())
        return "\n".join(dict.fromkeys(x for x in shown if any(word in x for word in words)))


def run(
    name: str,
    program: str | Path,
    arguments: Sequence[str] = (),
    *,
    world: int = 2,
    options: Sequence[str] | None = None,
    port: int | None = None,
    variables: Mapping[str, str] | None = None,
    timeout: float = 60.0,
) -> Ran:
    """Start `world` ranks of a Python file under the launcher `name`.

    `options` replace the launcher's own choice of ranks; `variables` are added to this process's
    environment. Without `port`, a free port is chosen, and again if another program takes it.
    """
    entry = launcher(name)
    program = Path(program).absolute()
    if not program.is_file():
        raise FileNotFoundError(f"the program {program} does not exist")
    for _ in range(ATTEMPTS):
        with tempfile.TemporaryDirectory(prefix="course-launch-") as folder:
            started = entry.start(
                LauncherCall(WRAPPER, world, arguments, options, port, Path(folder))
            )
            env = {**environment(), **(variables or {}), **started.variables, PROGRAM: str(program)}
            env |= {FOLDER: folder, SECONDS: str(timeout), STARTER: str(os.getpid())}
            env["TMPDIR"] = folder  # torchrun's log folder is then removed too
            ran = _ended(name, started, env, Path(folder), timeout)
        if port is not None or not TAKEN.search(ran.heard):
            break
    return ran


def environment() -> dict[str, str]:
    """Return this process's variables without those of an outer launcher. On a host without GPUs,
    set DeepSpeed's variable for the CPU. Ranks communicate over loopback."""
    env = {name: value for name, value in os.environ.items() if not FOREIGN.fullmatch(name)}
    root = str(Path(__file__).resolve().parents[3])
    env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    env.setdefault("GLOO_SOCKET_IFNAME", ranks.loopback_interface())
    if ranks.choose(1).device_type == "cpu":
        env.setdefault("DS_ACCELERATOR", "cpu")
        env.pop("CUDA_VISIBLE_DEVICES", None)
    return env


def _ended(name: str, started: Started, env: dict, folder: Path, timeout: float) -> Ran:
    # The launcher's environment; a rank's additional variables come from the launcher.
    own = started.variables if name == "by hand" else {}
    (folder / BEFORE).write_text(json.dumps({k: v for k, v in env.items() if k not in own}))
    with (folder / "said").open("wb") as said:
        how = {"env": env, "stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
        process = subprocess.Popen(started.command, start_new_session=True, **how)
        timed_out = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            _kill_ranks(folder, signal.SIGUSR1)  # they write their positions
            time.sleep(LOOK)
        finally:
            left = _end(process, folder)
    out, err = ([_text(x) for x in sorted(folder.glob(f"rank-*.{end}"))] for end in ("out", "err"))
    return Ran(
        name, process.returncode, timed_out, _text(folder / "said"), tuple(out), tuple(err), left
    )


def _end(process: subprocess.Popen, folder: Path) -> int:
    """End the launcher and its processes, first by SIGTERM; count the ranks that it left."""
    if process.poll() is None:
        _signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    settled = time.monotonic() + SETTLE
    while (left := len(alive(folder))) and time.monotonic() < settled:
        time.sleep(0.05)
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 5.0
    while alive(folder) and time.monotonic() < deadline:
        _kill_ranks(folder, signal.SIGKILL)
        time.sleep(0.02)
    return left


def alive(folder: Path) -> list[int]:
    """List the process ids of the ranks that still hold their lock files."""
    found = []
    for file in folder.glob("rank-*.alive"):
        with file.open("rb") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(int(file.stem.rpartition("-")[2]))
    return found


def _kill_ranks(folder: Path, number: int) -> None:
    for pid in alive(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _text(file: Path) -> str:
    return file.read_text(errors="replace")


def plain(text: str) -> str:
    """Remove the parts of a text that change from run to run."""
    for pattern, instead in CUTS:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return text
