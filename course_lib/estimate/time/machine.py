"""A machine as the cost model sees it, and the seconds of a collective on its links.

Every figure is a datum of the machine or was measured on it; the two constants that are fitted
stand apart from it, in `Constants`. A ring takes α for every step and β for the bytes, by where its
ranks are: those of one model lie side by side, so tp stays inside a node as long as it can, and the
groups of dp that a node has part in share its links to the other nodes. Lesson 15.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

from course_lib.estimate.time.work import Work


@dataclass(frozen=True)
class Link:
    """Bytes per second in one direction, and the seconds that each step of a ring takes at least:
    1/β and α. Inside a node `bandwidth` is each rank's own, across nodes a node's. `wait`, where it
    was measured apart: seconds in which a message waits once, for the last rank to come to it."""

    bandwidth: float
    latency: float = 0.0
    wait: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0 or not math.isfinite(self.bandwidth):
            raise ValueError(
                f"a link of {self.bandwidth / 1e9:g} GB/s carries nothing: say what it has in one "
                "direction, in GB/s; a machine without such a link leaves it out"
            )
        for name, value in (("latency", self.latency), ("wait", self.wait)):
            if not 0 <= value < 1:
                raise ValueError(f"a {name} of {value:g} s has to lie from 0 to below 1 s")


@dataclass(frozen=True)
class Rate:
    """With `ranks` at work on a node: what each of them does in a second.

    `flops` are those of wide products; with a model as narrow as `knee` they reach half as many.
    `attention`: those of a fused attention, where it has a rate apart. `moved`: bytes of the data
    sheet, or measured, of which operations that are no products reach the part `stream`."""

    ranks: int
    flops: float
    moved: float
    attention: float | None = None
    knee: float = 0.0
    stream: float = 1.0

    def products(self, hidden: float = math.inf) -> float:
        """Flops per second in the products of a model of this hidden size."""
        return self.flops / (1 + self.knee / hidden)

    def seconds(self, work: Work, hidden: float = math.inf) -> float:
        apart = work.attention if self.attention else 0.0
        took = (work.flops - apart) / self.products(hidden) + work.moved / self.moved / self.stream
        return took + (apart / self.attention if self.attention else 0.0)


@dataclass(frozen=True)
class Machine:
    """`gpus` ranks on a node with `memory` bytes each. `host`: bytes per second between a rank and
    the host's memory; `host_moved`: what a node's processors move. `cores`, of a machine whose
    ranks are processes on a CPU: with more ranks than cores each gets its part of one, and no
    message is hidden, since it takes a core too. `halves`, where it was measured apart: what a
    gather or a scatter gets of the link inside; `inside` is then what a sum gets. `peak` and
    `single`: flops per second of the data sheet in 16 and in 32 bits. `rates` are those of
    `precision`. `runs`: how many published runs were held beside the model, nine of ten of which it
    predicts to within the part `within`."""

    name: str
    gpus: int
    memory: int
    rates: tuple[Rate, ...]
    inside: Link
    across: Link | None = None
    host: float | None = None
    host_memory: int | None = None
    host_moved: float | None = None
    disk: float | None = None
    cores: int | None = None
    overlaps: bool = True
    peak: float | None = None
    single: float | None = None
    precision: str = "bfloat16"
    source: str = ""
    halves: Link | None = None
    runs: int = 0
    within: float = 0.0

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ValueError(f"{self.gpus} GPUs a node: a machine has 1 or more")
        if self.memory < 1:
            raise ValueError(f"a GPU with {self.memory} bytes of memory holds nothing")
        if not self.rates:
            raise ValueError(f"{self.name} says no rate: nothing can be timed on it")

    def rate(self, ranks: int) -> Rate:
        """With so many ranks on a node: as it was measured for as many, or for the next fewer."""
        fewer = [rate for rate in self.rates if rate.ranks <= ranks]
        return max(fewer, key=lambda rate: rate.ranks) if fewer else self.rates[0]

    def oversubscribed(self, ranks: int) -> float:
        """How many ranks share a core, 1 where each has its own."""
        return max(1.0, ranks / self.cores) if self.cores else 1.0

    def in_precision(self, precision: str) -> Machine:
        """With the rates of products in 32 bits, where the data sheet has them apart."""
        if precision != "float32" or self.precision == "float32" or not self.single:
            return self
        slower = self.single / self.peak
        rates = tuple(
            replace(
                rate,
                flops=rate.flops * slower,
                attention=rate.attention and rate.attention * slower,
            )
            for rate in self.rates
        )
        return self.changed(rates=rates, precision="float32")

    def as_dict(self) -> dict:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict) -> Machine:
        rates = tuple(Rate(**rate) for rate in values["rates"])
        links = {name: values.get(name) for name in ("inside", "across", "halves")}
        made = {name: link and Link(**link) for name, link in links.items()}
        return cls(**{**values, "rates": rates, **made})

    def changed(self, **values: object) -> Machine:
        return replace(self, **values)


@dataclass(frozen=True)
class Constants:
    """The two numbers of the cost model that no data sheet has.

    `reach`: the part of a link's bandwidth that a ring of a collective gets, inside as across.
    `spread`: the standard deviation of the ranks' speeds, relative; a step lasts as long as the
    slowest of its ranks needs.
    """

    reach: float = 1.0
    spread: float = 0.0

    def wait(self, ranks: int) -> float:
        """How much longer than the average rank the slowest of `ranks` takes, relative."""
        return self.spread * slowest(ranks)


@lru_cache(maxsize=256)
def slowest(n: int) -> float:
    """The expected largest of n independent normal numbers, in standard deviations."""
    if n < 2:
        return 0.0
    reach, steps = 10.0, 2000
    width = 2 * reach / steps
    # E[max] is the integral of x dF(x)^n: by parts, of 1 - F^n above 0 less F^n below it.
    total = 0.0
    for i in range(steps):
        x = -reach + (i + 0.5) * width
        below = (0.5 * math.erfc(-x / math.sqrt(2))) ** n
        total += ((x > 0) - below) * width
    return total


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
                    f"a group of {self.size} ranks has {self.nodes} nodes with {machine.gpus} GPUs "
                    f"each, and the link from {machine.name} to another is not known: say "
                    "--gpus-per-node if they are in one, or describe the link in a file (across)"
                )
            across = self.sharing * sent / machine.across.bandwidth
            crossing = rounds * (self.nodes - 1)
            wait = max(wait, machine.across.wait) + crossing * machine.across.latency
        wait += (steps - crossing) * near.latency
        return crowd * max(inside, across) / constants.reach + messages * wait
