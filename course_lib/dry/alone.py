"""One process that acts as rank r of N without other ranks, on torch's fake group.

This is the only file that uses `torch.testing._internal.distributed.fake_pg`, which is private to
torch and may change with any release. Messages of shapes need no answer. For real values, such as
flags and reports, every other rank is assumed to answer as this rank does. Lesson 15.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from course_lib import ranks

REGISTERS = "torch.testing._internal.distributed.fake_pg"  # registers the backend "fake"
# A group for the shapes that a step computes with and for the values that ranks decide by.
CARRIES = "cpu:fake,meta:fake"
TIMEOUT = 60.0  # seconds; never reached


@contextmanager
def alone(world: int, rank: int = 0) -> Iterator[ranks.Me]:
    """Act as rank `rank` of `world` ranks in the body. The process must be in no other group."""
    if world < 1:
        raise ValueError(f"a world of {world} ranks is impossible; take 1 or more")
    if not 0 <= rank < world:
        raise ValueError(
            f"there is no rank {rank} in a world of {world}: ranks are 0 … {world - 1}"
        )
    if dist.is_initialized():
        raise RuntimeError(
            f"this process is rank {dist.get_rank()} of a group of {dist.get_world_size()}; "
            "run the dry run in a separate process, or call ranks.stop() first"
        )
    importlib.import_module(REGISTERS)
    store = _Everybody(world)  # torch keeps no Python reference to it, so this name does
    dist.init_process_group(
        CARRIES, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=TIMEOUT)
    )
    # At its end a group looks for its default backend, to ask for hooks, and warns if there is
    # none.
    dist.group.WORLD._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    # Its works have a separate `wait`, which code that observes all waits would not see.
    work = torch._C._distributed_c10d.FakeWork
    unheard, work.wait = work.wait, lambda work, *args: dist.Work.wait(work, *args)
    why = "There is no other rank: only shapes are computed, without values."
    try:
        yield ranks.Me(rank, world, rank, world, "fake", torch.device("meta"), TIMEOUT, why)
    finally:
        work.wait = unheard
        dist.destroy_process_group()


class _Everybody(dist.Store):
    """A rendezvous store in which all ranks have already arrived with this rank's answers. A key
    that another rank would set returns the value that this rank has set."""

    def __init__(self, world: int):
        super().__init__()
        self._world, self._said = world, {}

    def set(self, key: str, value: bytes) -> None:
        self._said[key] = self._said[key.rpartition("/")[0]] = value

    def get(self, key: str) -> bytes:
        return self._said.get(key, self._said.get(key.rpartition("/")[0], b""))

    def add(self, key: str, amount: int) -> int:
        """Count the ranks that have arrived: all of them."""
        return self._world

    def check(self, keys: Sequence[str]) -> bool:
        return True

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return at once, because no other rank exists."""
