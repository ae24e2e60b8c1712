"""What a way to run a step needs and costs, counted once for each cut, stage and offload.

Memory is the ladder's: the peak of a step on a rank, states on host and disk. Lesson 15.
"""

from __future__ import annotations

from dataclasses import replace

from course_lib.estimate import ladder
from course_lib.estimate.activations import kept
from course_lib.estimate.backward import Cut
from course_lib.estimate.ladder import Needs
from course_lib.estimate.peak import step_peak
from course_lib.estimate.setting import Setting
from course_lib.estimate.time import Costs, Counted, Place, costs, costs_of_number
from course_lib.estimate.traffic import FAST, LEAN
from course_lib.plan.task import Task


class Counts:
    """Closed forms for one task, each walked once."""

    def __init__(self, task: Task):
        self.task = task
        self._counted: dict[tuple, Counted] = {}
        self._needs: dict[tuple, Needs] = {}

    def counted(self, setting: Setting, place: Place) -> Counted:
        key = replace(setting, rows=1, accumulate=1), place.tp, place.dp
        if key not in self._counted:
            self._counted[key] = Counted(self.task.model.config, setting, place)
        return self._counted[key]

    def needs(self, setting: Setting, place: Place) -> Needs:
        """Bytes at the highest point of a step of the first rank, and on a node."""
        key = replace(setting, accumulate=min(2, setting.accumulate)), place
        if key not in self._needs:
            of = self._of_shape if self.task.model.config is None else self._of_config
            self._needs[key] = of(setting, place)
        return self._needs[key]

    def costs(self, setting: Setting, place: Place) -> Costs:
        task = self.task
        if task.model.config is None:
            needs = self._of_shape(setting, place)
            moved = {name: getattr(needs, name) for name in ("down", "up", "read", "written")}
            tokens = setting.rows * task.length
            sent = needs.sent if place.dp > 1 else 0
            return costs_of_number(task.model.shape, setting, place, tokens, sent, moved)
        counted = self.counted(setting, place)
        return costs(task.model.config, setting, place, task.length, counted=counted)

    def over(self, needs: Needs) -> float:
        """By which part of what there is a way is too large, at most 0 where it fits."""
        machine, spare = self.task.machine, 1 + self.task.spare
        gpu = needs.gpu * spare / machine.memory - 1
        host = needs.host / machine.host_memory - 1 if machine.host_memory else -1.0
        return max(gpu, host)

    def short(self, needs: Needs) -> tuple[str, str]:
        """Of what there is too little, in short and in figures."""
        machine = self.task.machine
        gpu = needs.gpu * (1 + self.task.spare) - machine.memory
        if gpu > 0:
            text = (
                f"{size(needs.gpu)} on each GPU, with {self.task.spare:.0%} to spare "
                f"{size(needs.gpu * (1 + self.task.spare))} of {size(machine.memory)}"
            )
            return "more than a GPU's memory", text
        return (
            "more than a host's memory",
            f"{size(needs.host)} of a host's {size(machine.host_memory)}",
        )

    def _of_config(self, setting: Setting, place: Place) -> Needs:
        counted = self.counted(setting, place)
        cut = Cut(place.tp, 0, place.sequence)
        keep = LEAN if setting.lean else FAST
        top = step_peak(
            counted.outline, setting.rows, self.task.length, stage=setting.stage, n=place.dp,
            precision=setting.precision, offload=setting.offload, keep=keep, cut=cut,
            accumulate=setting.accumulate, held=counted.held,
        )  # fmt: skip
        forward = kept(
            counted.config, setting.rows, self.task.length, width=setting.width, **cut._asdict()
        )
        tiers = counted.held.by_tier(alive=True)
        host, disk = (tiers[name] * place.ranks for name in ("host", "disk"))
        sent = round(sum(counted.dp_bytes(setting.accumulate).values()))
        return Needs(top.total, forward.total, host, disk, sent)

    def _of_shape(self, setting: Setting, place: Place) -> Needs:
        nodes = -(-place.world // place.ranks)
        machine = ladder.Machine(self.task.machine.memory, place.ranks, nodes)
        return ladder.needs_of(self.task.model.shape, setting, machine, self.task.length)


def size(nbytes: float) -> str:
    """In 10^9 bytes, or in 10^6 where that is little."""
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:,.2f} MB"
