"""Launchers of the tests' own: a few lines of sh, so that a run takes no launcher's seconds, and a
SLURM script, srun being played."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from course_lib.peers.launchers import commands
from course_lib.peers.launchers.commands import Launcher, LauncherCall, Started
from course_lib.peers.launchers.slurm import script
from tests.course_lib.peers.launchers.srun_here import stand_ins, variables

MEET = Path(__file__).with_name("meet.py")


def shell(monkeypatch, text: str) -> str:
    """Make a launcher of these lines; $PYTHON $RANK_PY is a rank. Its name, for `run`."""

    def start(call):
        variables = {"PYTHON": sys.executable, "RANK_PY": str(call.program)}
        return Started(["sh", "-c", text], variables)

    entry = Launcher(start, "os", "")
    monkeypatch.setattr(commands, "LAUNCHERS", {**commands.LAUNCHERS, "shell": entry})
    return "shell"


def slurm(call: LauncherCall) -> Started:
    """A SLURM script for `world` nodes with one rank each; `options` is its kind."""
    kind = call.options[0] if call.options else "torchrun"
    nodes, gpus = (1, call.world) if kind == "one node" else (call.world, 1)
    file = call.folder / "job.sh"
    file.write_text(script(nodes, gpus, str(call.program), call.arguments, kind=kind))
    path = f"{stand_ins(call.folder / 'bin')}{os.pathsep}{os.environ['PATH']}"
    job = {**variables(nodes, gpus, call.free_port()), "PATH": path}
    return Started(["bash", str(file)], job)


def program(folder, text: str):
    """A program of Python for ranks to run."""
    file = folder / "program.py"
    file.write_text(text)
    return file


def need(*names: str) -> None:
    """Skip where a launcher of these is a package that is not installed."""
    for name in {"deepspeed", "accelerate"}.intersection(names):
        pytest.importorskip(name)
