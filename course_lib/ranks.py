"""A rank: its number, its backend, and the device on which it computes.

This file starts and stops the process group, always with explicit timeouts, and creates the (dp,
tp) mesh with the groups along its axes. Lesson 00.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Choice:
    """A backend, the device type of its tensors, and the reason for the choice in words."""

    backend: str
    device_type: str
    why: str


class TwiceTheSame(RuntimeError):
    """An error for two processes that claim the same rank."""


@dataclass(frozen=True)
class Me:
    """This rank: its number, its neighbours, its backend and its device."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    backend: str
    device: torch.device
    timeout: float
    why: str

    def describe(self) -> str:
        where = "on one machine"
        if self.local_world != self.world:
            where = f"{self.local_world} of them on this machine"
        return (
            f"rank {self.rank} of {self.world} ({where}), {self.backend} on {self.device}; "
            f"every wait ends after {self.timeout:g} s. {self.why}"
        )


def choose(world: int, *, local_world: int | None = None, gpus: int | None = None) -> Choice:
    """Choose the backend for `world` ranks, of which `local_world` share this machine."""
    if world < 1:
        raise ValueError(f"a world of {world} ranks cannot be started; ask for 1 or more")
    here = world if local_world is None else local_world
    count = torch.cuda.device_count() if gpus is None else gpus
    if count == 0:
        return Choice("gloo", "cpu", "No GPU is visible, so tensors stay on the CPU.")
    if count >= here and dist.is_nccl_available():
        return Choice("nccl", "cuda", f"{count} GPU(s) for {here} rank(s): one GPU per rank.")
    why = f"{here} ranks share {count} GPU(s) but NCCL needs one each, so gloo carries the tensors."
    if count >= here:
        why = "This build of torch has no NCCL, so gloo carries the tensors."
    return Choice("gloo", "cuda", why)


def start(
    rank: int | None = None,
    world: int | None = None,
    *,
    rendezvous: str | Path | None = None,
    timeout: float = 60.0,
    backend: str | None = None,
) -> Me:
    """Start the default group and describe this rank.

    With `rendezvous`, the path of a file that does not exist yet, all ranks are on one host. They
    meet through this file instead of a port, and communicate only over loopback. Without it, ranks
    are read from the environment variables of torchrun or SLURM.
    """
    if timeout <= 0:
        raise ValueError(f"timeout={timeout:g} s: a wait needs a bound above zero")
    if dist.is_initialized():
        raise RuntimeError(
            f"rank {dist.get_rank()} already belongs to a group of {dist.get_world_size()}; "
            "call ranks.stop() before starting a new one"
        )
    if rendezvous is not None:
        if rank is None or world is None:
            raise ValueError("a file rendezvous needs both rank= and world=")
        local_rank, local_world = rank, world
    else:
        rank, world, local_rank, local_world = _identity_from_environment(os.environ)
    choice = choose(world, local_world=local_world)
    if not 0 <= rank < world:
        raise ValueError(
            f"there is no rank {rank} in a world of {world}: ranks are 0 … {world - 1}"
        )

    if backend is not None and backend != choice.backend:
        choice = _override(backend, choice, local_world)
    device = _claim_device(choice.device_type, local_rank)
    if local_world == world:
        _bind_to_loopback()
    # torch then holds a new group back until every rank has connected. Otherwise a rank that drops
    # the group at once breaks a connection that its neighbour is still making.
    os.environ.setdefault("TORCH_DIST_INIT_BARRIER", "1")
    # With NCCL, tensors on the CPU (object lists, checkpoints) are still sent, by gloo.
    torch_backend = "cpu:gloo,cuda:nccl" if choice.backend == "nccl" else "gloo"
    meeting = (
        {"init_method": f"file://{Path(rendezvous).absolute()}"}
        if rendezvous is not None
        else {"store": _store_of_all(rank, world, timeout)}
    )
    dist.init_process_group(
        torch_backend,
        **meeting,
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=timeout),
        device_id=device if choice.backend == "nccl" else None,
    )
    return Me(
        rank, world, local_rank, local_world, choice.backend, device, float(timeout), choice.why
    )


def stop() -> None:
    """Leave every group. This is safe to call twice, and after a failure."""
    if dist.is_initialized():
        dist.destroy_process_group()


def new_group(me: Me, members: list[int], *, timeout: float | None = None) -> dist.ProcessGroup:
    """Create a group of some ranks. Every rank of the world must call this, in the same order."""
    outside = [r for r in members if not 0 <= r < me.world]
    if outside or not members or len(set(members)) != len(members):
        raise ValueError(
            f"a group needs distinct ranks between 0 and {me.world - 1}, but got {members}"
        )
    timeout = me.timeout if timeout is None else timeout
    if timeout <= 0:
        raise ValueError(f"timeout={timeout:g} s: a wait needs a bound above zero")
    return dist.new_group(members, timeout=timedelta(seconds=timeout))


def mesh(me: Me, *, dp: int, tp: int) -> DeviceMesh:
    """Create the (dp, tp) mesh: ranks of tp groups are adjacent, ranks of dp groups tp apart."""
    if dp * tp != me.world or dp < 1 or tp < 1:
        raise ValueError(
            f"dp={dp} times tp={tp} is {dp * tp}, but there are {me.world} ranks; "
            "choose two numbers whose product is the number of ranks"
        )
    grid = torch.arange(me.world).view(dp, tp)  # (dp, tp)
    # init_device_mesh would give its groups torch's default timeout of many minutes.
    groups = []
    for lines in (grid.t().tolist(), grid.tolist()):
        made = [new_group(me, line) for line in lines]
        groups.append(next(g for g, line in zip(made, lines, strict=True) if me.rank in line))
    return DeviceMesh.from_group(groups, me.device.type, mesh=grid, mesh_dim_names=("dp", "tp"))


def axis(mesh: DeviceMesh, name: str) -> dist.ProcessGroup:
    """Return this rank's group along one axis of a mesh, "dp" or "tp", or raise."""
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(
            f"the mesh is a {type(mesh).__name__} but must be a DeviceMesh with an axis {name!r}. "
            "Make it with ranks.mesh(me, dp=…, tp=…), or from an existing group with "
            f"DeviceMesh.from_group(group, 'cpu', mesh_dim_names=({name!r},))"
        )
    names = mesh.mesh_dim_names or ()
    if name not in names:
        raise ValueError(
            f"the mesh has the axes {', '.join(names) or '(without names)'} but no axis {name!r}; "
            "make it with ranks.mesh(me, dp=…, tp=…)"
        )
    if mesh.get_coordinate() is None:
        raise ValueError(
            f"rank {dist.get_rank()} is not in this mesh of ranks {mesh.mesh.flatten().tolist()}: "
            "only its members can use it. Make a mesh of all ranks, with dp= for the rest"
        )
    return mesh.get_group(name)


def loopback_interface() -> str:
    """Return the name of the loopback interface (`lo` on Linux, `lo0` on macOS)."""
    for _, name in socket.if_nameindex():
        if re.fullmatch(r"lo\d*", name):
            return name
    raise RuntimeError(
        "this machine shows no loopback interface (lo); set GLOO_SOCKET_IFNAME to an interface"
    )


def _bind_to_loopback() -> None:
    # By default, gloo listens on the address to which the host's name resolves.
    name = loopback_interface()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _override(backend: str, choice: Choice, local_world: int) -> Choice:
    if backend == "gloo":
        return Choice("gloo", choice.device_type, "gloo was requested by name.")
    gpus = torch.cuda.device_count()
    raise ValueError(
        f"backend={backend!r} was requested, but this machine offers {choice.backend!r}: "
        f"{gpus} GPU(s) for {local_world} rank(s). {choice.why}"
    )


def _claim_device(device_type: str, local_rank: int) -> torch.device:
    if device_type == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _store_of_all(rank: int, world: int, timeout: float) -> dist.Store:
    """Return the store at MASTER_ADDR after each rank has claimed its number there exactly once."""
    wait = timedelta(seconds=timeout)
    store, _, _ = next(dist.rendezvous("env://", rank, world, timeout=wait))
    store.set_timeout(wait)
    mine = f"process {os.getpid()} on {socket.gethostname()}"
    first = store.compare_set(f"course/rank/{rank}", "", mine).decode()
    if first != mine:
        raise TwiceTheSame(
            f"rank {rank} exists twice, {first} and {mine}: every process needs its own number, "
            "so give each host its --node-rank, or each process its RANK"
        )
    return store


def _identity_from_environment(env) -> tuple[int, int, int, int]:
    """Read (rank, world, local rank, local world) from torchrun's or SLURM's variables."""
    if "RANK" in env and "WORLD_SIZE" in env:
        rank, world = int(env["RANK"]), int(env["WORLD_SIZE"])
        local_world = int(env.get("LOCAL_WORLD_SIZE", world))
        return rank, world, int(env.get("LOCAL_RANK", rank % local_world)), local_world
    if "SLURM_PROCID" in env and "SLURM_NTASKS" in env:
        rank, world = int(env["SLURM_PROCID"]), int(env["SLURM_NTASKS"])
        # Tasks per node look like "8" or "8(x3),2", where the first number is for the first node.
        tasks = (
            [
                int(count)
                for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", env["SLURM_TASKS_PER_NODE"])
                for _ in range(int(times or 1))
            ]
            if "SLURM_TASKS_PER_NODE" in env
            else [world]
        )
        node = min(int(env.get("SLURM_NODEID", 0)), len(tasks) - 1)
        env.setdefault("MASTER_ADDR", first_host(env.get("SLURM_JOB_NODELIST", "localhost")))
        # Every node derives the same port from the job's number, so it need not be sent.
        env.setdefault("MASTER_PORT", str(20000 + int(env.get("SLURM_JOB_ID", 0)) % 20000))
        return rank, world, int(env.get("SLURM_LOCALID", 0)), tasks[node]
    raise RuntimeError(
        "the rank of this process is unknown: RANK and WORLD_SIZE (torchrun) and SLURM_PROCID and "
        "SLURM_NTASKS (srun) are all unset. Start with `torchrun --nproc-per-node 2 …`, with "
        "`srun`, or pass rank=, world= and rendezvous="
    )


def first_host(nodelist: str) -> str:
    """Return the first name in SLURM's compressed list: `gpu[07-09,12]-a,cpu1` gives `gpu07-a`."""
    found = re.match(r"(?:[^,\[\]]|\[\d[^\]]*\])+", nodelist.strip())
    if not found:
        raise ValueError(f"SLURM_JOB_NODELIST={nodelist!r} names no host")
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", found.group())
