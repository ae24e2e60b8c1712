"""A guard that all ranks take the same branches through the units, and an error if they do not.

A gather that a rank does not join waits forever, mixes values of two units, or ends the process
inside gloo, all without a reason. Therefore a rank that leaves the order of its last forward pass
first asks the others, through the store in which they met. A rank whose wait has failed asks for
the positions of the others. Lesson 11 shows it.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest

import torch
import torch.distributed as dist

from course_lib.collectives import broadcast
from course_lib.collectives.call import Group, device_of, timeout_of

SOON = (0.0, 0.0005, 0.001, 0.001, 0.002, 0.002)  # seconds between the first checks
PATIENCE = 2.0  # seconds for the others' reports, after this rank has given up
REMEDY = (
    "At stage 3 all ranks must run the same units in the same order, in evaluation too. Let "
    "every rank take the branch, on a batch of zeros if needed"
)


class NotAllCame(RuntimeError):
    """A gather of this rank that a different rank never joined."""


class Together:
    """The gathers of this rank so far, and the reports of the other ranks of its group."""

    def __init__(self, group: Group):
        self.group, self.rank = group, group.rank()
        self.gathers = 0
        self._names: deque[str] = deque(maxlen=64)  # the most recent names
        self._sum = 0
        self._asked = 0
        # Engines can follow each other on a group, so each needs a unique name, which a seed would
        # repeat.
        number = torch.tensor([int.from_bytes(os.urandom(7), "big")], device=device_of(group))
        name = f"zero-3/{group.group_name}/{broadcast(number, group).item()}"
        self._store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
        self._members = dist.get_process_group_ranks(group)  # as numbered in the world
        self._me = f"rank {self._members[self.rank]}"

    def gather(self, name: str) -> None:
        """Record a gather that begins."""
        self.gathers += 1
        self._names.append(name)
        self._sum = zlib.crc32(name.encode(), self._sum)

    def mark(self) -> list[int]:
        """Return bytes whose maxima over the ranks show if all ranks made the same gathers."""
        own = [*self._sum.to_bytes(4, "big")]
        return own + [255 - one for one in own]

    def compare(self, most: list[int]) -> None:
        """Raise on every rank if the maxima of all marks show different gathers, in which two units
        of the same size may have received each other's values."""
        if all(a + b == 255 for a, b in zip(most[:4], most[4:], strict=True)):
            self._names.clear()
            return
        every: list = [None] * self.group.size()
        dist.all_gather_object(every, list(self._names), group=self.group)
        at = next(i for i, row in enumerate(zip_longest(*every)) if len(set(row)) > 1)
        who = ", ".join(
            f"rank {member} {f'gathered {names[at]!r}' if at < len(names) else 'gathered no more'}"
            for member, names in zip(self._members, every, strict=True)
        )
        self._sum = 0
        self._names.clear()
        raise RuntimeError(
            f"{self._me}: the ranks took different branches, so this step's values are invalid. "
            f"At gather {at + 1} since the last backward pass, {who}. {REMEDY}"
        )

    def ask(self, name: str) -> None:
        """Confirm with the other ranks that a gather outside the known order is the same on all."""
        if self.group.size() == 1:
            return
        self._asked += 1
        here = f"gather {self.gathers + 1}, of {name!r}"
        self._store.set(f"at/{self.rank}", f"is about to begin {here}")
        self._store.set(f"{self._asked}/{self.rank}", here)
        for rank, member in enumerate(self._members):
            try:
                self._wait(f"{self._asked}/{rank}")
            except RuntimeError as error:
                raise RuntimeError(
                    f"{self._me} waited to begin {here}, which is not in its last forward's order, "
                    f"but rank {member} never came. {self._others()}. {REMEDY}"
                ) from error
            there = self._store.get(f"{self._asked}/{rank}").decode()
            if there != here:
                raise RuntimeError(
                    f"{self._me} is about to begin {here}, but rank {member} {there}: they took "
                    f"different branches. {REMEDY}"
                )
        self._store.set(f"at/{self.rank}", "")

    def _wait(self, key: str) -> None:
        """Wait for a key; a file store checks every 10 ms, but other ranks usually come sooner."""
        for pause in SOON:
            if self._store.check([key]):
                return
            time.sleep(pause)
        self._store.wait([key], timeout_of(self.group))

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Report the position of every rank if a wait in the block fails."""
        try:
            yield
        except RuntimeError as error:
            try:
                self._store.set(f"at/{self.rank}", f"waits in {what}")
                others = self._others()
            except RuntimeError:  # the rank that keeps the store has ended
                others = "The positions of the other ranks are unknown"
            raise NotAllCame(
                f"{self._me} waited in {what}, but not all ranks came. {others}. {REMEDY}. "
                f"({error})"
            ) from error

    def _others(self) -> str:
        reports, until = [], time.monotonic() + PATIENCE
        for rank, member in enumerate(self._members):
            if rank == self.rank:
                continue
            where = ""
            while not where and time.monotonic() < until:
                if self._store.check([f"at/{rank}"]):
                    where = self._store.get(f"at/{rank}").decode()
                if not where:
                    time.sleep(0.05)
            reports.append(f"rank {member} {where or 'never came, and waits in no gather'}")
        return "; ".join(reports)
