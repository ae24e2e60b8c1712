"""Seconds of a collective on its ring: α for every step, β for the bytes, by where the ranks are.

Ranks of one model lie side by side, so tp stays inside a node as long as it can; the groups of dp
that a node has part in share its links to the other nodes. Lesson 15.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.estimate.time.machine import Constants, Machine


@dataclass(frozen=True)
class Place:
    """A world of `tp` · `dp` ranks on nodes of `gpus`, those of one model side by side."""

    tp: int
    dp: int
    gpus: int
    sequence: bool = False

    @property
    def world(self) -> int:
        return self.tp * self.dp

    @property
    def ranks(self) -> int:
        """Of a node."""
        return min(self.gpus, self.world)

    def ring(self, axis: str) -> Ring:
        """How the ring of one group of the axis lies over the nodes."""
        if axis == "tp":
            size, here = self.tp, min(self.tp, self.ranks)
            sharing = 1 if self.tp > self.ranks else self.ranks // self.tp
        else:
            size, here = self.dp, max(1, self.ranks // self.tp)
            here, sharing = min(here, self.dp), min(self.tp, self.ranks)
        return Ring(size, here, sharing)


@dataclass(frozen=True)
class Ring:
    """`size` ranks, `here` of them on each node, and `sharing` such rings on a node."""

    size: int
    here: int
    sharing: int

    @property
    def nodes(self) -> int:
        return -(-self.size // self.here)

    def seconds(
        self,
        machine: Machine,
        constants: Constants,
        verb: str,
        sent: float,
        messages: float,
        crowd: float = 1.0,
    ) -> float:
        """Of `messages` in which a rank sends `sent` bytes in all.

        A node sends out what one of its ranks sends, once for each ring on it. Bytes are work of a
        core, of which a rank has one part in `crowd`; a rank that waits leaves it to the others.
        """
        if self.size < 2 or not (sent or messages):
            return 0.0
        rounds = 2 if verb == "all_reduce" else 1
        near = machine.inside if rounds == 2 or machine.halves is None else machine.halves
        inside = sent / near.bandwidth if self.here > 1 else 0.0
        steps, crossing = rounds * (self.size - 1), 0
        across, wait = 0.0, near.wait
        if self.nodes > 1:
            if machine.across is None:
                raise ValueError(
                    f"{self.size} ranks of one group lie on {self.nodes} nodes, and the link from "
                    f"{machine.name} to another is not known: say what it has (--across, in GB/s)"
                )
            across = self.sharing * sent / machine.across.bandwidth
            crossing = rounds * (self.nodes - 1)
            wait = max(wait, machine.across.wait) + crossing * machine.across.latency
        wait += (steps - crossing) * near.latency
        return crowd * max(inside, across) / constants.reach + messages * wait
