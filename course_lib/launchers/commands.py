"""The command line of each launcher, for some ranks of a program on this host.

What a launcher needs is looked up before it is started: one that is not installed is an error that
names the package. Lesson 13.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.launchers.slurm import script
from course_lib.launchers.srun_here import stand_ins, variables

LOOPBACK = "127.0.0.1"
# Below the ports that systems hand out for connections (32768 on Linux, 49152 on macOS).
PORTS = range(20000, 32000)


class NotInstalled(RuntimeError):
    """A launcher is not there; the message names what to install."""


@dataclass(frozen=True)
class Call:
    """What a launcher is asked for; `options` stand in the place of its choice of ranks."""

    program: Path
    world: int
    arguments: Sequence[str]
    options: Sequence[str] | None
    port: int | None
    folder: Path


@dataclass(frozen=True)
class Started:
    """What is run: a command line, with variables besides."""

    command: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    chose_port: bool = False  # a port that another program may take before it is used


def free_port() -> int:
    """A port of this host at which nobody listens at the moment."""
    for port in random.sample(PORTS, 100):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"none of 100 ports between {PORTS[0]} and {PORTS[-1]} is free")


def five(rank: int, world: int, port: int) -> dict[str, str]:
    """The variables that torch and DeepSpeed read, for a process without a launcher."""
    return {
        "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port), "RANK": str(rank),
        "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
    }  # fmt: skip


def torchrun(call: Call) -> Started:
    """torch's launcher; alone on a host it looks for a free port itself."""
    command = [sys.executable, "-m", "torch.distributed.run"]
    meet = ["--standalone"]
    if call.port is not None:
        meet = ["--master-addr", LOOPBACK, "--master-port", str(call.port)]
    ranks = ["--nproc-per-node", str(call.world)]
    return Started([*command, *meet, *_own(call, ranks), *_rest(call)])


def deepspeed(call: Call) -> Started:
    """DeepSpeed's launcher: it takes 29500 where no port is given, whoever listens there."""
    port = free_port() if call.port is None else call.port
    command = [sys.executable, "-m", "deepspeed.launcher.runner", "--master_port", str(port)]
    ranks = ["--num_gpus", str(call.world)]
    return Started([*command, *_own(call, ranks), *_rest(call)], chose_port=call.port is None)


def accelerate(call: Call) -> Started:
    """Accelerate's launcher, with a config file written for it: MULTI_GPU starts ranks by torch's
    launcher, on a host without GPUs as well."""
    file = call.folder / "accelerate.yaml"
    file.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: 'no'\n"
        f"num_processes: {call.world}\nmain_process_port: {call.port or 0}\n"
    )
    command = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
    # Between its look for a free port and its use of it, another program may come.
    return Started(
        [*command, *_own(call, ["--config_file", str(file)]), *_rest(call)],
        chose_port=not call.port,
    )


def slurm(call: Call) -> Started:
    """A SLURM script for `world` nodes with one rank each, run by bash, srun being played;
    `options` is its kind where that is not torchrun's."""
    port = free_port() if call.port is None else call.port
    kind = call.options[0] if call.options else "torchrun"
    nodes, gpus = (1, call.world) if kind == "one node" else (call.world, 1)
    file = call.folder / "job.sh"
    file.write_text(script(nodes, gpus, str(call.program), call.arguments, kind=kind))
    path = f"{stand_ins(call.folder / 'bin')}{os.pathsep}{os.environ['PATH']}"
    job = {**variables(nodes, gpus, port), "PATH": path}
    return Started(["bash", str(file)], job, chose_port=call.port is None)


def by_hand(call: Call) -> Started:
    """One process, as in a notebook: no launcher, five variables set, or those in `options`."""
    if call.world != 1:
        raise ValueError(f"without a launcher there is one process, not {call.world}: world=1")
    port = free_port() if call.port is None else call.port
    values = five(0, 1, port)
    chosen = {name: values[name] for name in _own(call, list(values))}
    return Started([sys.executable, *_rest(call)], chosen, chose_port=call.port is None)


@dataclass(frozen=True)
class Launcher:
    """How it is started; the module or program that it is, and what brings that."""

    start: Callable[[Call], Started]
    needs: str
    remedy: str
    module: bool = True


LAUNCHERS = {
    "torchrun": Launcher(torchrun, "torch", "pip install torch"),
    "deepspeed": Launcher(deepspeed, "deepspeed", "pip install 'course_lib[deepspeed]'"),
    "accelerate": Launcher(accelerate, "accelerate", "pip install 'course_lib[huggingface]'"),
    "slurm": Launcher(slurm, "bash", "install bash with your system's packages", module=False),
    "by hand": Launcher(by_hand, "torch", "pip install torch"),
}


def launcher(name: str) -> Launcher:
    """The launcher of that name, if it is installed."""
    if name not in LAUNCHERS:
        raise ValueError(f"no launcher is called {name!r}: it is one of {', '.join(LAUNCHERS)}")
    entry = LAUNCHERS[name]
    there = importlib.util.find_spec if entry.module else shutil.which
    if there(entry.needs) is None:
        raise NotInstalled(
            f"the launcher {name} is not installed: {sys.executable} finds no {entry.needs}. "
            f"Remedy: {entry.remedy}"
        )
    return entry


def _own(call: Call, usual: list[str]) -> list[str]:
    return usual if call.options is None else list(call.options)


def _rest(call: Call) -> list[str]:
    return [str(call.program), *call.arguments]
