"""The command line of each launcher, for some ranks of a program on this host.

Requirements are checked before a launcher is started. If the launcher is not installed, the error
names the missing package. Lesson 13.
"""

from __future__ import annotations

import importlib.util
import random
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

LOOPBACK = "127.0.0.1"
# Below the ports that systems assign to connections (32768 on Linux, 49152 on macOS).
PORTS = range(20000, 32000)


class NotInstalled(RuntimeError):
    """The error for a missing launcher; the message names the package to install."""


@dataclass(frozen=True)
class LauncherCall:
    """A request to a launcher; `options` replace the options that set the number of ranks."""

    program: Path
    world: int
    arguments: Sequence[str]
    options: Sequence[str] | None
    port: int | None
    folder: Path

    def line(self, *launcher: str, ranks: Sequence[str] = ()) -> list[str]:
        """Build the command: launcher, number of ranks, program and its arguments."""
        chosen = ranks if self.options is None else self.options
        return [sys.executable, *launcher, *chosen, str(self.program), *self.arguments]

    def free_port(self) -> int:
        """Return the requested port, or one that is free at the moment if none was requested."""
        return free_port() if self.port is None else self.port


class Started(NamedTuple):
    """A command to run: its command line and additional variables."""

    command: list[str]
    variables: Mapping[str, str] = {}


def free_port() -> int:
    """Find a port of this host that is free at the moment."""
    for port in random.sample(PORTS, 100):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"none of 100 ports between {PORTS[0]} and {PORTS[-1]} is free")


def five(rank: int, world: int, port: int) -> dict[str, str]:
    """Return the five variables that torch and DeepSpeed read, for ranks without a launcher."""
    here = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
    return here | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}


def torchrun(call: LauncherCall) -> Started:
    """Build the command of torch's launcher, which finds a free port itself on a single host."""
    meet = ["--standalone"]
    if call.port is not None:
        meet = ["--master-addr", LOOPBACK, "--master-port", str(call.port)]
    ranks = ["--nproc-per-node", str(call.world)]
    return Started(call.line("-m", "torch.distributed.run", *meet, ranks=ranks))


def deepspeed(call: LauncherCall) -> Started:
    """Build DeepSpeed's command with a free port, because its default 29500 may be in use."""
    words = ["-m", "deepspeed.launcher.runner", "--master_port", str(call.free_port())]
    return Started(call.line(*words, ranks=["--num_gpus", str(call.world)]))


def accelerate(call: LauncherCall) -> Started:
    """Build Accelerate's command, and write a config file for it. MULTI_GPU starts ranks by
    torch's launcher, even on a host without GPUs."""
    file = call.folder / "accelerate.yaml"
    file.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: 'no'\n"
        f"num_processes: {call.world}\nmain_process_port: {call.port or 0}\n"
    )
    words = ["-m", "accelerate.commands.accelerate_cli", "launch"]
    return Started(call.line(*words, ranks=["--config_file", str(file)]))


def by_hand(call: LauncherCall) -> Started:
    """Build the command of one process without a launcher, with five variables or `options`."""
    if call.world != 1:
        raise ValueError(f"without a launcher use world=1, not {call.world} (only one process)")
    values = five(0, 1, call.free_port())
    names = values if call.options is None else call.options
    alone = replace(call, options=())
    return Started(alone.line(), {name: values[name] for name in names})


@dataclass(frozen=True)
class Launcher:
    """A launcher's start function, the module that it needs, and the command to install it."""

    start: Callable[[LauncherCall], Started]
    needs: str
    remedy: str


LAUNCHERS = {
    "torchrun": Launcher(torchrun, "torch", "pip install torch"),
    "deepspeed": Launcher(deepspeed, "deepspeed", "pip install 'course_lib[deepspeed]'"),
    "accelerate": Launcher(accelerate, "accelerate", "pip install 'course_lib[huggingface]'"),
    "by hand": Launcher(by_hand, "torch", "pip install torch"),
}


def launcher(name: str) -> Launcher:
    """Return the launcher of that name; raise an error if it is unknown or not installed."""
    if name not in LAUNCHERS:
        raise ValueError(f"no launcher is called {name!r}. Use one of {', '.join(LAUNCHERS)}")
    entry = LAUNCHERS[name]
    if importlib.util.find_spec(entry.needs) is None:
        raise NotInstalled(
            f"the launcher {name} is not installed, because {sys.executable} finds no "
            f"{entry.needs}. Remedy: {entry.remedy}"
        )
    return entry
