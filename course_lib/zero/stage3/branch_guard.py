"""All ranks go the same way through the units, or hear which of them did not.

A gather that another rank does not join waits for ever, mixes two units' numbers, or ends the
process inside gloo: none of it says why. So a rank that leaves the way of its last forward asks the
others first, through the store that they met in, and one that waited in vain asks where they are.
Lesson 11 shows it.
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

SOON = (0.0, 0.0005, 0.001, 0.001, 0.002, 0.002)  # seconds between the first looks
PATIENCE = 2.0  # seconds, for the others to say where they wait, once this rank gave up
REMEDY = (
    "At stage 3 all ranks have to run the same units in the same order, in evaluation too: let "
    "every rank take the branch, on a batch of zeros if need be"
)


class NotAllCame(RuntimeError):
    """This rank waited in a gather, and another never came."""


class Together:
    """The gathers of this rank so far, and what the other ranks of its group say of theirs."""

    def __init__(self, group: Group):
        self.group, self.rank = group, group.rank()
        self.gathers = 0
        self._names: deque[str] = deque(maxlen=64)  # the last ones
        self._sum = 0
        self._asked = 0
        # Engines follow one another on a group, and each has to ask under a name of its own, which
        # a seed would repeat.
        number = torch.tensor([int.from_bytes(os.urandom(7), "big")], device=device_of(group))
        name = f"zero-3/{group.group_name}/{broadcast(number, group).item()}"
        self._store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
        self._members = dist.get_process_group_ranks(group)  # as the whole world counts them
        self._me = f"rank {self._members[self.rank]}"

    def gather(self, name: str) -> None:
        """Take note of a gather that begins."""
        self.gathers += 1
        self._names.append(name)
        self._sum = zlib.crc32(name.encode(), self._sum)

    def mark(self) -> list[int]:
        """Bytes whose maxima over the ranks say whether all ranks made the same gathers."""
        own = [*self._sum.to_bytes(4, "big")]
        return own + [255 - one for one in own]

    def compare(self, most: list[int]) -> None:
        """Given the maxima of all marks: raise, on every rank, where the gathers were not the
        same; two units of one size have then got each other's numbers."""
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
            f"{self._me}: the ranks took different branches, and this step's numbers are worth "
            f"nothing: at gather {at + 1} since the last backward {who}. {REMEDY}"
        )

    def ask(self, name: str) -> None:
        """Before a gather off the known way: see to it that the other ranks mean the same one."""
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
                    f"{self._me} waited to begin {here}, which is not the way of its last forward, "
                    f"and rank {member} never came. {self._others()}. {REMEDY}"
                ) from error
            there = self._store.get(f"{self._asked}/{rank}").decode()
            if there != here:
                raise RuntimeError(
                    f"{self._me} is about to begin {here}, and rank {member} {there}: they took "
                    f"different branches. {REMEDY}"
                )
        self._store.set(f"at/{self.rank}", "")

    def _wait(self, key: str) -> None:
        """A store in a file looks for a key every 10 ms; the others are mostly here sooner."""
        for pause in SOON:
            if self._store.check([key]):
                return
            time.sleep(pause)
        self._store.wait([key], timeout_of(self.group))

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Where a wait in here fails, the error says who waits where."""
        try:
            yield
        except RuntimeError as error:
            try:
                self._store.set(f"at/{self.rank}", f"waits in {what}")
                others = self._others()
            except RuntimeError:  # it is kept by a rank that has ended
                others = "Where the others are is not known"
            raise NotAllCame(
                f"{self._me} waited in {what}, and not all ranks came. {others}. {REMEDY}. "
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
