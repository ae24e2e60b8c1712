"""The command line of each launcher, for some ranks of a program on this host.

What a launcher needs is looked up before it is started: one that is not installed is an error that
names the package. Lesson 13.
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
# Below the ports that systems hand out for connections (32768 on Linux, 49152 on macOS).
PORTS = range(20000, 32000)


class NotInstalled(RuntimeError):
    """A launcher is not there; the message names what to install."""


@dataclass(frozen=True)
class LauncherCall:
    """What a launcher is asked for; `options` stand in the place of its choice of ranks."""

    program: Path
    world: int
    arguments: Sequence[str]
    options: Sequence[str] | None
    port: int | None
    folder: Path

    def line(self, *launcher: str, ranks: Sequence[str] = ()) -> list[str]:
        """A launcher's words and its choice of ranks, then the program with its arguments."""
        chosen = ranks if self.options is None else self.options
        return [sys.executable, *launcher, *chosen, str(self.program), *self.arguments]

    def free_port(self) -> int:
        """The port that was asked for, else one at which nobody listens at the moment."""
        return free_port() if self.port is None else self.port


class Started(NamedTuple):
    """What is run: a command line, with variables besides."""

    command: list[str]
    variables: Mapping[str, str] = {}


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
    here = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)}
    return here | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}


def torchrun(call: LauncherCall) -> Started:
    """torch's launcher; alone on a host it looks for a free port itself."""
    meet = ["--standalone"]
    if call.port is not None:
        meet = ["--master-addr", LOOPBACK, "--master-port", str(call.port)]
    ranks = ["--nproc-per-node", str(call.world)]
    return Started(call.line("-m", "torch.distributed.run", *meet, ranks=ranks))


def deepspeed(call: LauncherCall) -> Started:
    """DeepSpeed's launcher: it takes 29500 where no port is given, whoever listens there."""
    words = ["-m", "deepspeed.launcher.runner", "--master_port", str(call.free_port())]
    return Started(call.line(*words, ranks=["--num_gpus", str(call.world)]))


def accelerate(call: LauncherCall) -> Started:
    """Accelerate's launcher, with a config file written for it: MULTI_GPU starts ranks by torch's
    launcher, on a host without GPUs as well."""
    file = call.folder / "accelerate.yaml"
    file.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: 'no'\n"
        f"num_processes: {call.world}\nmain_process_port: {call.port or 0}\n"
    )
    words = ["-m", "accelerate.commands.accelerate_cli", "launch"]
    return Started(call.line(*words, ranks=["--config_file", str(file)]))


def by_hand(call: LauncherCall) -> Started:
    """One process, as in a notebook: no launcher, five variables set, or those in `options`."""
    if call.world != 1:
        raise ValueError(f"without a launcher there is one process, not {call.world}: world=1")
    values = five(0, 1, call.free_port())
    names = values if call.options is None else call.options
    alone = replace(call, options=())
    return Started(alone.line(), {name: values[name] for name in names})


@dataclass(frozen=True)
class Launcher:
    """How it is started; the module that it is, and what brings that."""

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
    """The launcher of that name, if it is installed."""
    if name not in LAUNCHERS:
        raise ValueError(f"no launcher is called {name!r}: it is one of {', '.join(LAUNCHERS)}")
    entry = LAUNCHERS[name]
    if importlib.util.find_spec(entry.needs) is None:
        raise NotInstalled(
            f"the launcher {name} is not installed: {sys.executable} finds no {entry.needs}. "
            f"Remedy: {entry.remedy}"
        )
    return entry
