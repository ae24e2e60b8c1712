"""Failures that readers meet, each provoked on two ranks of this host, with a bound.

`explain` turns what comes of them into a sentence. Launchers differ in what they say of the same
failure, and in what they return. Lesson 13.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from course_lib.launchers.commands import LOOPBACK, five, free_port
from course_lib.launchers.explain import explain
from course_lib.launchers.locks import Lock, locks, remove_stale
from course_lib.launchers.programs import path
from course_lib.launchers.run import Ran, run
from course_lib.launchers.srun_here import FOLDERS


def told(ran: Ran) -> str:
    """One line: who ended with what, and the sentence of it."""
    ended = "had to be ended" if ran.timed_out else f"ended with {ran.returncode}"
    said = explain(ran.launcher, ran.returncode, ran.heard, timed_out=ran.timed_out)
    return f"{ran.launcher} {ended}. {said}"


def killed(launcher: str, *, timeout: float = 60.0) -> Ran:
    """The last of two ranks is ended by SIGKILL, as where the host's memory is used up."""
    return run(launcher, path("killed"), world=_world(launcher), timeout=timeout)


def launcher_killed(launcher: str, *, timeout: float = 60.0) -> Ran:
    """Not a rank but the process that has started it is killed; `left` counts the ranks alive."""
    if launcher == "by hand":
        raise ValueError("a process that is started by hand has no launcher to be killed")
    return run(launcher, path("killed"), ["launcher"], timeout=timeout)


def port_taken(launcher: str, *, timeout: float = 60.0) -> Ran:
    """Another program listens at the port at which the ranks should meet."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as other:
        port = free_port()
        other.bind((LOOPBACK, port))
        other.listen()
        return run(launcher, path("meet"), world=_world(launcher), port=port, timeout=timeout)


def without(*missing: str, timeout: float = 60.0) -> Ran:
    """DeepSpeed in one process that lacks some of the five variables."""
    names = [name for name in five(0, 1, 0) if name not in missing]
    return run("by hand", path("initialize"), world=1, options=names, timeout=timeout)


def _world(launcher: str) -> int:
    return 1 if launcher == "by hand" else 2


@contextmanager
def private_builds() -> Iterator[Path]:
    """A folder of extensions for one run, so that neither yours nor theirs are touched."""
    with tempfile.TemporaryDirectory(prefix="course-extensions-") as folder:
        yield Path(folder)


def no_compiler(launcher: str = "torchrun", *, timeout: float = 60.0) -> Ran:
    """DeepSpeed's compiled Adam, on a PATH with ninja and without a compiler."""
    with private_builds() as folder:
        tools = folder / "bin"
        tools.mkdir()
        beside = Path(sys.executable).parent / "ninja"  # pip's
        ninja = shutil.which("ninja") or (str(beside) if beside.exists() else None)
        if ninja is not None:
            (tools / "ninja").symlink_to(ninja)
        variables = {"TORCH_EXTENSIONS_DIR": str(folder), "PATH": str(tools)}
        variables |= {"CXX": "c++", "CC": "cc"}
        return run(launcher, path("build"), variables=variables, timeout=timeout)


@dataclass(frozen=True)
class Stale:
    """A run that waited for a lock, the locks that were there, those that were removed."""

    ran: Ran
    locks: list[Lock]
    removed: list[str]


def stale_lock(launcher: str = "torchrun", *, seconds: float = 3.0, timeout: float = 60.0) -> Stale:
    """A build was killed and has left its lock: the ranks wait, until they end themselves."""
    with private_builds() as folder:
        (folder / "cpu_adam").mkdir()
        (folder / "cpu_adam" / "lock").touch()
        variables = {"TORCH_EXTENSIONS_DIR": str(folder)}
        ran = run(
            launcher, path("build"), [f"{seconds:g}"], world=_world(launcher), variables=variables,
            timeout=timeout,
        )  # fmt: skip
        found = locks(folder)
        return Stale(ran, found, [str(x.relative_to(folder)) for x in remove_stale(folder)])


@dataclass(frozen=True)
class Nodes:
    """What each of two nodes has on its own disk after saving, and what came of loading it."""

    files: tuple[tuple[str, ...], ...]
    loads: dict[str, tuple[str, ...]]

    def table(self) -> str:
        """A line for each file and each way to load, a column for each node."""
        names = sorted({name for files in self.files for name in files})
        rows = [(name, *("yes" if name in files else "–" for files in self.files))
                for name in names]  # fmt: skip
        rows += [(f"({way})", *words) for way, words in self.loads.items()]
        rows = [("", *(f"node {i}" for i in range(len(self.files)))), *rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join(
            "  ".join(x.ljust(w) for x, w in zip(row, widths, strict=True)).rstrip() for row in rows
        )


WAYS = ("load the latest", "load by tag", "by tag, nodes in the other order")
LOADED = ("loaded", "nothing was loaded")


def no_shared_disk(
    use_node_local_storage: bool, *, other_order: bool = False, timeout: float = 90.0
) -> Nodes:
    """DeepSpeed saves under ZeRO-2 on two nodes, each of which is a folder here, and loads."""
    local = str(use_node_local_storage).lower()
    with tempfile.TemporaryDirectory(prefix="course-nodes-") as top:
        nodes = [Path(top) / f"node-{i}" for i in range(2)]
        for node in nodes:
            node.mkdir()
        ran = _on(nodes, ["save", local], timeout)
        if len(ran.stdout) != 2 or not all("saved\n" in text for text in ran.stdout):
            raise RuntimeError(told(ran))
        files = tuple(
            tuple(str(x.relative_to(node)) for x in sorted(node.rglob("*")) if x.is_file())
            for node in nodes
        )
        loads = {way: _outcomes(ran, place) for place, way in enumerate(WAYS[:2])}
        if other_order:
            loads[WAYS[2]] = _outcomes(_on(nodes[::-1], ["tag", local], timeout), 0)[::-1]
        return Nodes(files, loads)


def _on(nodes: list[Path], arguments: list[str], timeout: float) -> Ran:
    folders = os.pathsep.join(map(str, nodes))
    return run("slurm", path("save"), arguments, variables={FOLDERS: folders}, timeout=timeout)


def _outcomes(ran: Ran, place: int) -> tuple[str, ...]:
    return tuple(_outcome(*rank, place) for rank in zip(ran.stdout, ran.stderr, strict=True))


def _outcome(stdout: str, stderr: str, place: int) -> str:
    """What came of one of a rank's loads, or the error that it met instead."""
    lines = [line for line in stdout.splitlines() if line in LOADED]
    if place < len(lines):
        return lines[place]
    name = r"^(?:\[rank\d+\]: )?(\w+(?:Error|Exception))\b"
    errors = re.findall(name, stderr, re.MULTILINE)
    return errors[-1] if errors else "ended with the other"
