"""The seconds of a step: compute, messages, and their part hidden behind the backward pass.

All-reduces over tp block, because the next product needs their sum. Gradients over dp move during
the backward pass, except the last message, after which no work is left to hide it. Lesson 15.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from course_lib.estimate.time.costs import Costs
from course_lib.estimate.time.machine import Constants, Machine
from course_lib.estimate.time.work import Work


@dataclass(frozen=True)
class Seconds:
    """Seconds of one step. `dp` and `tiers` are exposed, `hidden` is overlapped and not part of
    `total`, and `wait` is the time spent on the slowest rank."""

    compute: float
    wait: float
    tp: float
    dp: float
    update: float
    tiers: float
    hidden: float
    oversubscribed: float = 1.0

    @property
    def total(self) -> float:
        return self.compute + self.wait + self.tp + self.dp + self.update + self.tiers

    def as_dict(self) -> dict:
        return {**asdict(self), "total": self.total}


def step_seconds(costs: Costs, machine: Machine, constants: Constants) -> Seconds:
    """Predict the seconds of a step on the machine."""
    return _Step(costs, machine, constants).seconds()


class _Step:
    def __init__(self, costs: Costs, machine: Machine, constants: Constants):
        self.costs, self.machine, self.constants = costs, machine, constants
        self.ranks = costs.place.ranks
        self.rate = machine.rate(self.ranks)
        self.crowd = machine.oversubscribed(self.ranks) / machine.oversubscribed(self.rate.ranks)
        self.hidden = 0.0

    def seconds(self) -> Seconds:
        costs = self.costs
        forward, backward = (self.of(work) for work in costs.passes)
        update = 0.0 if costs.away else self.of(Work(0.0, costs.updated))
        compute = costs.times * (forward + backward)
        tp = costs.times * sum(self.over("tp", verb, *sent) for verb, sent in costs.tp.items())
        dp = self.over_dp(forward, backward)
        tiers = self.over_tiers(forward, backward)
        wait = compute * self.constants.wait(costs.place.world)
        return Seconds(compute, wait, tp, dp, update, tiers, self.hidden, self.crowd)

    def of(self, work: Work) -> float:
        return self.crowd * self.rate.seconds(work, self.costs.hidden)

    def over(self, axis: str, verb: str, sent: float, messages: float) -> float:
        ring = self.costs.place.ring(axis)
        return ring.seconds(self.machine, self.constants, verb, sent, messages, self.crowd)

    def behind(self, took: float, least: float, room: float) -> float:
        """Compute the exposed seconds of messages that take `took` seconds, with `room` seconds of
        work. The last message takes `least` and is always exposed."""
        shown = max(least, took - room) if self.machine.overlaps else took
        self.hidden += took - shown
        return shown

    def over_dp(self, forward: float, backward: float) -> float:
        costs = self.costs
        if not costs.dp:
            return 0.0
        took = {verb: self.over("dp", verb, *sent) for verb, sent in costs.dp.items()}
        reduced = took.get("all_reduce", 0.0) + took.get("reduce_scatter", 0.0)
        gathered, k = took.get("all_gather", 0.0), costs.times
        last = self.over("dp", "reduce_scatter", costs.last, 1)
        if costs.stage < 2:  # once, during the last micro-batch's backward pass
            return self.behind(reduced, last, backward) + gathered
        if costs.stage == 2:  # for each micro-batch
            return k * self.behind(reduced / k, last, backward) + gathered
        half = gathered / k / 2  # units are prefetched in both passes
        each = self.behind(half, 0.0, forward) + self.behind(half + reduced / k, last, backward)
        return k * each

    def over_tiers(self, forward: float, backward: float) -> float:
        """Compute the exposed seconds of traffic to the host. Gradients move during the backward
        pass, and parameters before their use. The host's update and files overlap with nothing."""
        costs, machine = self.costs, self.machine
        if not (costs.away or costs.fetches or costs.down or costs.up):
            return 0.0
        host = _known(
            machine.host, f"{machine.name} needs a figure for the link to the host's memory (host)"
        )
        down, up = costs.down / host, costs.up / host
        passes = costs.times * (forward + backward)
        shown = self.behind(down, 0.0, costs.times * backward) if costs.away else down
        shown += self.behind(up, 0.0, passes) if costs.fetches else up
        if costs.away:
            why = f"{machine.name} needs a figure for its processors' memory (host_moved)"
            shown += costs.updated * self.ranks / _known(machine.host_moved, why)
        if costs.files:
            why = f"{machine.name} needs a figure for the disk that holds states (disk)"
            shown += costs.files * self.ranks / _known(machine.disk, why)
        return shown


def _known(figure: float | None, otherwise: str) -> float:
    if figure is None:
        raise ValueError(otherwise)
    return figure
