"""One process as rank r of N, and nobody else there: torch's fake group, where no byte moves.

The only file that touches `torch.testing._internal.distributed.fake_pg`, which is private to torch
and may change with any release. Of shapes no message needs an answer; to what carries numbers, such
as a flag or a report, every other rank says the same as this one. Lesson 15.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from course_lib import ranks

REGISTERS = "torch.testing._internal.distributed.fake_pg"  # the backend "fake" with torch
# A group for the shapes that a step computes with, and for the numbers that ranks decide by.
CARRIES = "cpu:fake,meta:fake"
TIMEOUT = 60.0  # seconds; nobody waits


@contextmanager
def alone(world: int, rank: int = 0) -> Iterator[ranks.Me]:
    """Be rank `rank` of `world` in here. This process must be in no other group."""
    if world < 1:
        raise ValueError(f"a world of {world} ranks is none; take 1 or more")
    if not 0 <= rank < world:
        raise ValueError(
            f"there is no rank {rank} in a world of {world}: ranks are 0 … {world - 1}"
        )
    if dist.is_initialized():
        raise RuntimeError(
            f"this process is rank {dist.get_rank()} of a group of {dist.get_world_size()}; "
            "a dry run needs a process of its own, or ranks.stop() before it"
        )
    importlib.import_module(REGISTERS)
    store = _Everybody(world)  # torch keeps no reference of Python's to it: it lives in here
    dist.init_process_group(
        CARRIES, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=TIMEOUT)
    )
    # Asked at its end whether it has hooks, a group looks for its default backend, and warns where
    # there is none.
    dist.group.WORLD._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
    # Its works have a `wait` of their own, which nobody hears who listens to all waits.
    work = torch._C._distributed_c10d.FakeWork
    unheard, work.wait = work.wait, lambda work, *args: dist.Work.wait(work, *args)
    why = "There is no other rank: shapes are computed, and no number is."
    try:
        yield ranks.Me(rank, world, rank, world, "fake", torch.device("meta"), TIMEOUT, why)
    finally:
        work.wait = unheard
        dist.destroy_process_group()


class _Everybody(dist.Store):
    """The store at which ranks meet, where all have come already, and each has said what this one
    says: a key that another rank would set, by its number at the end, is answered with ours."""

    def __init__(self, world: int):
        super().__init__()
        self._world, self._said = world, {}

    def set(self, key: str, value: bytes) -> None:
        self._said[key] = self._said[key.rpartition("/")[0]] = value

    def get(self, key: str) -> bytes:
        return self._said.get(key, self._said.get(key.rpartition("/")[0], b""))

    def add(self, key: str, amount: int) -> int:
        """What is counted is who has come: all of them."""
        return self._world

    def check(self, keys: Sequence[str]) -> bool:
        return True

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """There is nobody to wait for."""
