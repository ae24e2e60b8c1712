"""A search of all ways to run a step on the cluster, each with its seconds or why it fails.

More rows per micro-batch need more memory, so each tp, stage and offload needs only a search for
the limit. The closed forms count a step of our engine. Lesson 15.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from course_lib.estimate import ladder
from course_lib.estimate.fit import WAYS
from course_lib.estimate.setting import Needs, Setting
from course_lib.estimate.time import (
    Costs,
    ModelCounts,
    Place,
    Seconds,
    costs,
    costs_of_model,
    step_seconds,
)
from course_lib.peers.deepspeed_config.walk import DeepSpeedRun
from course_lib.plan.task import Task, divisors


class Counts:
    """Needs and costs of a way from closed forms, each computed once per task."""

    def __init__(self, task: Task):
        self.task = task
        self._counted: dict[tuple, ModelCounts] = {}
        self._needs: dict[tuple, Needs] = {}
        self._runs: dict[tuple[int, bool], DeepSpeedRun] = {}

    def counted(self, setting: Setting, place: Place) -> ModelCounts:
        key = replace(setting, rows=1, accumulate=1), place.tp, place.dp
        if key not in self._counted:
            self._counted[key] = ModelCounts(self.task.model.config, setting, place)
        return self._counted[key]

    def needs(self, setting: Setting, place: Place) -> Needs:
        """Compute the peak bytes of the first rank in a step, and the bytes on a node."""
        key = replace(setting, accumulate=min(2, setting.accumulate)), place
        if key not in self._needs:
            if not self.task.model.ours:
                self._needs[key] = self._of_deepspeed(setting, place)
            else:
                counted = self.counted(setting, place)
                self._needs[key] = counted.needs(setting, place, self.task.length)
        return self._needs[key]

    def costs(self, setting: Setting, place: Place) -> Costs:
        task = self.task
        if not task.model.ours:
            needs = self.needs(setting, place)
            return costs_of_model(task.model, setting, place, task.length, needs)
        counted = self.counted(setting, place)
        return costs(task.model.config, setting, place, task.length, counted=counted)

    def over(self, needs: Needs) -> float:
        """Compute the fraction by which a way exceeds the memory (at most 0 if it fits)."""
        machine, spare = self.task.machine, 1 + self.task.spare
        gpu = needs.gpu * spare / machine.memory - 1
        host = needs.host / machine.host_memory - 1 if machine.host_memory else -1.0
        return max(gpu, host)

    def short(self, needs: Needs) -> tuple[str, str]:
        """Describe the memory that is too small, once briefly and once with figures."""
        machine, spare = self.task.machine, self.task.spare
        with_spare = needs.gpu * (1 + spare)
        if with_spare > machine.memory:
            text = f"{size(needs.gpu)} on each GPU, {size(with_spare)} with {spare:.0%} to spare,"
            return "more than a GPU's memory", f"{text} of {size(machine.memory)}"
        text = f"{size(needs.host)} of a host's {size(machine.host_memory)}"
        return "more than a host's memory", text

    def _of_deepspeed(self, setting: Setting, place: Place) -> Needs:
        if (place.tp, place.sequence) not in self._runs:
            self._runs[place.tp, place.sequence] = DeepSpeedRun(
                self.task.model, place.tp, place.sequence
            )
        nodes = -(-place.world // place.ranks)
        machine = ladder.Nodes(self.task.machine.memory, place.ranks, nodes)
        run = self._runs[place.tp, place.sequence]
        return run.needs(setting, machine, self.task.length)


def size(nbytes: float) -> str:
    """Format bytes in units of 10^9, or of 10^6 for small numbers."""
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:,.2f} MB"


@dataclass(frozen=True)
class Plan:
    """One way to run a step, with its needs on a rank and on a node, and its seconds."""

    setting: Setting
    place: Place
    needs: Needs
    seconds: Seconds

    @property
    def name(self) -> str:
        setting, place = self.setting, self.place
        words = [f"tp {place.tp}" + (" + sequence" if place.sequence else ""), f"dp {place.dp}"]
        words.append(f"stage {setting.stage}")
        where = {"states": setting.optimizer, "parameters": setting.parameters}
        words += [f"{what} on {tier}" for what, tier in where.items() if tier]
        words += ["recomputed"] if setting.recompute else []
        return f"{', '.join(words)}, {setting.rows} x {setting.accumulate} rows"


@dataclass
class Fallen:
    """The ways excluded for one reason: their number, and the way nearest to fitting."""

    count: int = 0
    example: str = ""
    distance: float = float("inf")


@dataclass
class Search:
    """The result of a search: `plans` with the fastest first, `fallen` by reason, and `nearest`,
    the way that exceeds the memory least, with its needs."""

    task: Task
    plans: list[Plan] = field(default_factory=list)
    fallen: dict[str, Fallen] = field(default_factory=dict)
    nearest: tuple[Setting, Place, Needs] | None = None
    counts: Counts | None = field(default=None, repr=False)
    _over: float = float("inf")

    def drop(self, reason: str, count: int, example: str, distance: float = 0.0) -> None:
        fallen = self.fallen.setdefault(reason, Fallen())
        fallen.count += count
        if distance < fallen.distance:
            fallen.example, fallen.distance = example, distance

    def missed(self, setting: Setting, place: Place, needs: Needs, over: float) -> None:
        if over < self._over:
            self.nearest, self._over = (setting, place, needs), over

    @property
    def considered(self) -> int:
        return len(self.plans) + sum(one.count for one in self.fallen.values())


def search(task: Task) -> Search:
    """Rank all ways by predicted seconds, and equal ways by their needs."""
    found = Search(task, counts=Counts(task))
    for place in places(task, found):
        micro = divisors(task.rows // place.dp)
        for setting in settings(task, found, place, len(micro)):
            _rows(found, setting, place, micro)
    found.plans.sort(key=lambda plan: (plan.seconds.total, plan.needs.gpu, plan.setting.stage))
    return found


def places(task: Task, found: Search) -> Iterator[Place]:
    """Yield every division of the world into tp and dp that the model, nodes and rows allow."""
    node = task.per_node
    for tp in divisors(task.gpus) if task.tp is None else [task.tp]:
        dp, why = task.gpus // tp, task.cannot_cut(tp)
        name = f"tp {tp}, dp {dp}"
        if why is not None:
            found.drop("the model cannot be sharded this way", 1, f"{name}: {why}")
        elif node % tp and tp % node:
            why = f"{name}: such groups do not fill a node of {node} GPUs"
            found.drop("tp groups do not fit the nodes", 1, why)
        elif task.rows % dp:
            why = f"{name}: {task.rows} sequences per step do not divide over {dp} replicas"
            found.drop("the rows of a step do not divide over dp", 1, why, task.rows % dp)
        else:
            yield Place(tp, dp, node)
            if tp > 1:
                yield Place(tp, dp, node, sequence=True)


def settings(task: Task, found: Search, place: Place, micro: int) -> Iterator[Setting]:
    """Yield every stage, offload and recomputation. Stage 3 gathers again in the backward pass, as
    our engine does by default."""
    for recompute in (False, True):
        for stage, optimizer, parameters in WAYS:
            if task.stage not in (None, stage):
                continue
            away = {"optimizer": optimizer, "parameters": parameters, "precision": task.precision}
            setting = Setting(1, recompute=recompute, stage=stage, lean=stage == 3, **away)
            if stage and place.dp == 1 and optimizer is None:
                why = f"stage {stage} shards over replicas, but dp 1 has only one replica"
                found.drop("a stage without replicas", micro, why)
            elif "nvme" in (optimizer, parameters) and task.machine.disk is None:
                why = "states on disk, but the machine has no known disk"
                found.drop("no disk", micro, why)
            elif (optimizer or parameters) and task.machine.host is None:
                why = "states on the host, but the link to the host is not known"
                found.drop("no link to the host", micro, why)
            else:
                yield setting


def _rows(found: Search, setting: Setting, place: Place, micro: list[int]) -> None:
    """Add the numbers of rows of one way that fit. A step of one micro-batch keeps no sums of
    earlier micro-batches, so it is checked separately. Other steps fit up to a limit."""
    task, counts, total = found.task, found.counts, micro[-1]
    if not task.model.ours and task.model.activations_unknown:
        micro = micro[:1]  # the bytes of a second row are not known

    def at(rows: int) -> Setting:
        return replace(setting, rows=rows, accumulate=total // rows)

    def over(rows: int) -> float:
        return counts.over(counts.needs(at(rows), place))

    smaller = [rows for rows in micro if rows < total]
    fitting = bisect_right(smaller, 0.0, key=over)
    keep = smaller[:fitting] + ([total] if total in micro and over(total) <= 0 else [])
    for rows in keep:
        costs = counts.costs(at(rows), place)
        seconds = step_seconds(costs, task.machine, task.constants)
        found.plans.append(Plan(at(rows), place, counts.needs(at(rows), place), seconds))
    lost = [rows for rows in micro if rows not in keep]
    if lost:
        needs = counts.needs(at(lost[0]), place)
        short, text = counts.short(needs)
        by = counts.over(needs)
        example = f"{Plan(at(lost[0]), place, needs, None).name}: {text}"
        found.drop(short, len(lost), example, by)
        found.missed(at(lost[0]), place, needs, by)
