"""Who am I: one rank among others, the backend it speaks and the device it computes on.

Holds the start and the end of a group of ranks, with timeouts that are always stated, and the
(dp, tp) mesh with the groups along its axes. Lesson 00.
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
    """A backend, the kind of device it moves, and the reason in words."""

    backend: str
    device_type: str
    why: str


class TwiceTheSame(RuntimeError):
    """Two processes came under one rank's number."""


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
    """Pick the backend for `world` ranks, of which `local_world` share this machine."""
    if world < 1:
        raise ValueError(f"a world of {world} ranks cannot be started; ask for 1 or more")
    here = world if local_world is None else local_world
    count = torch.cuda.device_count() if gpus is None else gpus
    if count == 0:
        return Choice("gloo", "cpu", "No GPU is visible, so tensors stay on the CPU.")
    if count >= here and dist.is_nccl_available():
        return Choice("nccl", "cuda", f"{count} GPU(s) for {here} rank(s): one GPU per rank.")
    why = f"{here} ranks share {count} GPU(s) and NCCL wants one each, so gloo carries the tensors."
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
    """Start the default group and say who this rank is.

    With `rendezvous`, the path of a file that does not exist yet, all ranks live on one host: they
    meet through that file, open no port for it, and talk over loopback alone. Without it, the
    variables of torchrun or of SLURM say who is who.
    """
    if timeout <= 0:
        raise ValueError(f"timeout={timeout:g} s: a wait needs a bound above zero")
    if dist.is_initialized():
        raise RuntimeError(
            f"rank {dist.get_rank()} already belongs to a group of {dist.get_world_size()}; "
            "call ranks.stop() before starting another"
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
    # torch then holds a new group back until every rank has connected; left alone, one that drops
    # the group at once breaks the connection that its neighbour is still making.
    os.environ.setdefault("TORCH_DIST_INIT_BARRIER", "1")
    # With NCCL, tensors that live on the CPU (object lists, checkpoints) still travel, by gloo.
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
    """Leave every group. Safe to call twice, and after a failure."""
    if dist.is_initialized():
        dist.destroy_process_group()


def new_group(me: Me, members: list[int], *, timeout: float | None = None) -> dist.ProcessGroup:
    """A group of some ranks. Every rank of the world has to make this call, in the same order."""
    outside = [r for r in members if not 0 <= r < me.world]
    if outside or not members or len(set(members)) != len(members):
        raise ValueError(
            f"a group needs distinct ranks between 0 and {me.world - 1}, and got {members}"
        )
    timeout = me.timeout if timeout is None else timeout
    if timeout <= 0:
        raise ValueError(f"timeout={timeout:g} s: a wait needs a bound above zero")
    return dist.new_group(members, timeout=timedelta(seconds=timeout))


def mesh(me: Me, *, dp: int, tp: int) -> DeviceMesh:
    """The (dp, tp) mesh: neighbours in rank share a tp group, ranks tp apart share a dp group."""
    if dp * tp != me.world or dp < 1 or tp < 1:
        raise ValueError(
            f"dp={dp} times tp={tp} is {dp * tp}, but there are {me.world} ranks; "
            "choose two numbers whose product is the number of ranks"
        )
    grid = torch.arange(me.world).view(dp, tp)  # (dp, tp)
    # init_device_mesh would give its groups torch's own timeout of many minutes.
    groups = []
    for lines in (grid.t().tolist(), grid.tolist()):
        made = [new_group(me, line) for line in lines]
        groups.append(next(g for g, line in zip(made, lines, strict=True) if me.rank in line))
    return DeviceMesh.from_group(groups, me.device.type, mesh=grid, mesh_dim_names=("dp", "tp"))


def axis(mesh: DeviceMesh, name: str) -> dist.ProcessGroup:
    """The group of this rank along one axis of a mesh, "dp" or "tp", or a clear refusal."""
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(
            f"the mesh is a {type(mesh).__name__} and has to be a DeviceMesh with an axis {name!r}"
            ", as ranks.mesh(me, dp=…, tp=…) makes it; around a group that is there: "
            f"DeviceMesh.from_group(group, 'cpu', mesh_dim_names=({name!r},))"
        )
    names = mesh.mesh_dim_names or ()
    if name not in names:
        raise ValueError(
            f"the mesh has the axes {', '.join(names) or '(without names)'} and no axis {name!r}; "
            "make it with ranks.mesh(me, dp=…, tp=…)"
        )
    if mesh.get_coordinate() is None:
        raise ValueError(
            f"rank {dist.get_rank()} is not in this mesh of ranks {mesh.mesh.flatten().tolist()}: "
            "only its members share work over it; make a mesh of all ranks, with dp= for the rest"
        )
    return mesh.get_group(name)


def loopback_interface() -> str:
    """The name of the loopback interface (`lo` on Linux, `lo0` on macOS)."""
    for _, name in socket.if_nameindex():
        if re.fullmatch(r"lo\d*", name):
            return name
    raise RuntimeError(
        "this machine shows no loopback interface (lo); set GLOO_SOCKET_IFNAME to the one to use"
    )


def _bind_to_loopback() -> None:
    # Left alone, gloo listens on whatever address the host's name resolves to.
    name = loopback_interface()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _override(backend: str, choice: Choice, local_world: int) -> Choice:
    if backend == "gloo":
        return Choice("gloo", choice.device_type, "gloo was asked for by name.")
    gpus = torch.cuda.device_count()
    raise ValueError(
        f"backend={backend!r} was asked for, but this machine offers {choice.backend!r}: "
        f"{gpus} GPU(s) for {local_world} rank(s). {choice.why}"
    )


def _claim_device(device_type: str, local_rank: int) -> torch.device:
    if device_type == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _store_of_all(rank: int, world: int, timeout: float) -> dist.Store:
    """The store at MASTER_ADDR, in which every rank has written who it is; a number comes once."""
    wait = timedelta(seconds=timeout)
    store, _, _ = next(dist.rendezvous("env://", rank, world, timeout=wait))
    store.set_timeout(wait)
    mine = f"process {os.getpid()} on {socket.gethostname()}"
    first = store.compare_set(f"course/rank/{rank}", "", mine).decode()
    if first != mine:
        raise TwiceTheSame(
            f"rank {rank} is there twice, {first} and {mine}: every process needs a number of its "
            "own, so give each host its --node-rank, or each process its RANK"
        )
    return store


def _identity_from_environment(env) -> tuple[int, int, int, int]:
    """(rank, world, local rank, local world) from torchrun's variables or from SLURM's."""
    if "RANK" in env and "WORLD_SIZE" in env:
        rank, world = int(env["RANK"]), int(env["WORLD_SIZE"])
        local_world = int(env.get("LOCAL_WORLD_SIZE", world))
        return rank, world, int(env.get("LOCAL_RANK", rank % local_world)), local_world
    if "SLURM_PROCID" in env and "SLURM_NTASKS" in env:
        rank, world = int(env["SLURM_PROCID"]), int(env["SLURM_NTASKS"])
        # Tasks per node reads like "8" or "8(x3),2": the first number is the first node's.
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
        # Every node derives the same port from the job's number: nobody has to announce one.
        env.setdefault("MASTER_PORT", str(20000 + int(env.get("SLURM_JOB_ID", 0)) % 20000))
        return rank, world, int(env.get("SLURM_LOCALID", 0)), tasks[node]
    raise RuntimeError(
        "nothing says which rank this is: RANK and WORLD_SIZE (torchrun) and SLURM_PROCID and "
        "SLURM_NTASKS (srun) are all unset. Start with `torchrun --nproc-per-node 2 …`, with "
        "`srun`, or pass rank=, world= and rendezvous="
    )


def first_host(nodelist: str) -> str:
    """The first name in SLURM's compressed list: `gpu[07-09,12]-a,cpu1` gives `gpu07-a`."""
    found = re.match(r"(?:[^,\[\]]|\[\d[^\]]*\])+", nodelist.strip())
    if not found:
        raise ValueError(f"SLURM_JOB_NODELIST={nodelist!r} names no host")
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", found.group())
