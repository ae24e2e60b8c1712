"""A machine in the cost model, and the seconds of a collective on its links.

Every figure comes from the machine's data sheet or a measurement. The two fitted constants are
separate, in `Constants`. A ring takes α per step and β per byte, which depend on the placement of
its ranks. The ranks of one model are adjacent, so tp stays inside a node if it fits. The dp groups
with ranks on a node share the node's links to other nodes. Lesson 15.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from functools import lru_cache

from course_lib.estimate.time.work import Work


@dataclass(frozen=True)
class Link:
    """Bytes per second in one direction (1/β), and the minimum seconds of a ring's step (α).
    `bandwidth` is per rank inside a node, and per node across nodes. `wait`, if it was measured
    separately, is the time for which a message waits once until the last rank arrives."""

    bandwidth: float
    latency: float = 0.0
    wait: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0 or not math.isfinite(self.bandwidth):
            raise ValueError(
                f"a link of {self.bandwidth / 1e9:g} GB/s carries nothing. State the bandwidth in "
                "one direction, or leave the link out if the machine has none"
            )
        for name, value in (("latency", self.latency), ("wait", self.wait)):
            if not 0 <= value < 1:
                raise ValueError(f"a {name} of {value:g} s has to be at least 0 and below 1 s")


@dataclass(frozen=True)
class Rate:
    """Speed of each rank while `ranks` ranks work on a node.

    `flops` is the rate of wide products; a model with hidden size `knee` reaches half of it.
    `attention` is the separate rate of fused attention, if any. `moved` is the memory's bytes per
    second, from a data sheet or measured; operations other than products reach `stream` times this.
    """

    ranks: int
    flops: float
    moved: float
    attention: float | None = None
    knee: float = 0.0
    stream: float = 1.0

    def products(self, hidden: float = math.inf) -> float:
        """Compute the flops per second of products in a model of this hidden size."""
        return self.flops / (1 + self.knee / hidden)

    def seconds(self, work: Work, hidden: float = math.inf) -> float:
        apart = work.attention if self.attention else 0.0
        took = (work.flops - apart) / self.products(hidden) + work.moved / self.moved / self.stream
        return took + (apart / self.attention if self.attention else 0.0)


@dataclass(frozen=True)
class Machine:
    """A node with `gpus` ranks, and `memory` bytes for each. `host` is the bytes per second between
    a rank and the host's memory, and `host_moved` the bytes per second that its processors move.
    `cores` is set if ranks are processes on a CPU: ranks beyond the cores share them, and no
    message is hidden, because it takes a core too. `inside` is the link for all-reduces, and
    `halves`, if measured separately, for gathers and scatters. `peak` and `single` are the data
    sheet's flops per second in 16 and 32 bits, and `rates` are for `precision`. For nine in ten of
    `runs` published runs, the error is at most `within`."""

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
            raise ValueError(f"{self.gpus} GPUs per node: a machine has 1 or more")
        if self.memory < 1:
            raise ValueError(f"a GPU with {self.memory} bytes of memory holds nothing")
        if not self.rates:
            raise ValueError(f"{self.name} has no rates, so no step can be timed on it")

    def rate(self, ranks: int) -> Rate:
        """Return the rate measured with `ranks` ranks on a node, or the next smaller number."""
        fewer = [rate for rate in self.rates if rate.ranks <= ranks]
        return max(fewer, key=lambda rate: rate.ranks) if fewer else self.rates[0]

    def oversubscribed(self, ranks: int) -> float:
        """Compute the number of ranks per core, or 1 if each rank has its own core."""
        return max(1.0, ranks / self.cores) if self.cores else 1.0

    def in_precision(self, precision: str) -> Machine:
        """Return the machine in `precision`, with 32-bit rates only if the data sheet has them."""
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
    """The two numbers of the cost model that no data sheet states.

    `reach` is the fraction of a link's bandwidth that a ring reaches, inside and across nodes.
    `spread` is the relative standard deviation of the ranks' speeds; a step lasts as long as its
    slowest rank needs.
    """

    reach: float = 1.0
    spread: float = 0.0

    def wait(self, ranks: int) -> float:
        """Compute the fraction by which the slowest of `ranks` ranks is slower than the average."""
        return self.spread * slowest(ranks)


@lru_cache(maxsize=256)
def slowest(n: int) -> float:
    """Compute the expected maximum of n independent normal numbers, in standard deviations."""
    if n < 2:
        return 0.0
    reach, steps = 10.0, 2000
    width = 2 * reach / steps
    # E[max] is the integral of x dF(x)^n, by parts that of 1 - F^n above 0 less F^n below 0.
    total = 0.0
    for i in range(steps):
        x = -reach + (i + 0.5) * width
        below = (0.5 * math.erfc(-x / math.sqrt(2))) ** n
        total += ((x > 0) - below) * width
    return total


@dataclass(frozen=True)
class Place:
    """A world of `tp` · `dp` ranks on nodes of `gpus` GPUs, with the ranks of a model adjacent."""

    tp: int
    dp: int
    gpus: int
    sequence: bool = False

    @property
    def world(self) -> int:
        return self.tp * self.dp

    @property
    def ranks(self) -> int:
        """The number of ranks on a node."""
        return min(self.gpus, self.world)

    def ring(self, axis: str) -> Ring:
        """Describe how the ring of one group along the axis is placed on the nodes."""
        if axis == "tp":
            size, here = self.tp, min(self.tp, self.ranks)
            sharing = 1 if self.tp > self.ranks else self.ranks // self.tp
        else:
            size, here = self.dp, max(1, self.ranks // self.tp)
            here, sharing = min(here, self.dp), min(self.tp, self.ranks)
        return Ring(size, here, sharing)


@dataclass(frozen=True)
class Ring:
    """A ring of `size` ranks, `here` of them on each node, with `sharing` such rings per node."""

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
        """Compute the seconds of `messages` messages in which a rank sends `sent` bytes in total.

        For each of its rings, a node sends as many bytes as one rank. Sending needs a core, which
        `crowd` ranks share, but a waiting rank leaves the core to others.
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
                    f"a group of {self.size} ranks needs {self.nodes} nodes with {machine.gpus} "
                    f"GPUs each, but the link between nodes of {machine.name} is not known. Set "
                    "--gpus-per-node if there is one node, or describe the link in a file (across)"
                )
            across = self.sharing * sent / machine.across.bandwidth
            crossing = rounds * (self.nodes - 1)
            wait = max(wait, machine.across.wait) + crossing * machine.across.latency
        wait += (steps - crossing) * near.latency
        return crowd * max(inside, across) / constants.reach + messages * wait
