"""Every way to run a step on the cluster: which fit, how long each lasts, why the others fell out.

More rows at once need more memory, so of each cut, stage and offload only the border is looked for.
What is counted is the step of our engine, as the closed forms have it. Lesson 15.
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
    """What a way needs and costs, by closed forms, each walked once for a task."""

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
        """Bytes at the highest point of a step of the first rank, and on a node."""
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
        """By which part of what there is a way is too large, at most 0 where it fits."""
        machine, spare = self.task.machine, 1 + self.task.spare
        gpu = needs.gpu * spare / machine.memory - 1
        host = needs.host / machine.host_memory - 1 if machine.host_memory else -1.0
        return max(gpu, host)

    def short(self, needs: Needs) -> tuple[str, str]:
        """Of what there is too little, in short and in figures."""
        machine, spare = self.task.machine, self.task.spare
        with_spare = needs.gpu * (1 + spare)
        if with_spare > machine.memory:
            text = f"{size(needs.gpu)} on each GPU, with {spare:.0%} to spare {size(with_spare)}"
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
    """In 10^9 bytes, or in 10^6 where that is little."""
    return f"{nbytes / 1e9:,.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e6:,.2f} MB"


@dataclass(frozen=True)
class Plan:
    """One way to run a step: what it takes of a rank and a node, and how long it lasts."""

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
    """What one reason excluded: how many ways, and the one that came nearest to staying."""

    count: int = 0
    example: str = ""
    distance: float = float("inf")


@dataclass
class Search:
    """`plans` from the fastest on; `fallen` by reason; `nearest`: of the ways that do not fit, the
    one that lacks least, with what it needs."""

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
    """All ways, ranked by predicted seconds; of equal ones the one that needs less comes first."""
    found = Search(task, counts=Counts(task))
    for place in places(task, found):
        micro = divisors(task.rows // place.dp)
        for setting in settings(task, found, place, len(micro)):
            _rows(found, setting, place, micro)
    found.plans.sort(key=lambda plan: (plan.seconds.total, plan.needs.gpu, plan.setting.stage))
    return found


def places(task: Task, found: Search) -> Iterator[Place]:
    """Every division of the world into tp and dp that the model, the nodes and the rows allow."""
    node = task.per_node
    for tp in divisors(task.gpus) if task.tp is None else [task.tp]:
        dp, why = task.gpus // tp, task.cannot_cut(tp)
        name = f"tp {tp}, dp {dp}"
        if why is not None:
            found.drop("the model cannot be cut so", 1, f"{name}: {why}")
        elif node % tp and tp % node:
            why = f"{name}: a node has {node} GPUs, which such groups do not fill"
            found.drop("groups of tp lie across nodes", 1, why)
        elif task.rows % dp:
            why = f"{name}: {task.rows} sequences a step are not shared out over {dp} replicas"
            found.drop("the rows of a step do not divide over dp", 1, why, task.rows % dp)
        else:
            yield Place(tp, dp, node)
            if tp > 1:
                yield Place(tp, dp, node, sequence=True)


def settings(task: Task, found: Search, place: Place, micro: int) -> Iterator[Setting]:
    """Every stage, offload and recomputation; stage 3 as our engine has it by default, gathering
    anew in the backward."""
    for recompute in (False, True):
        for stage, optimizer, parameters in WAYS:
            if task.stage not in (None, stage):
                continue
            away = {"optimizer": optimizer, "parameters": parameters, "precision": task.precision}
            setting = Setting(1, recompute=recompute, stage=stage, lean=stage == 3, **away)
            if stage and place.dp == 1 and optimizer is None:
                why = f"stage {stage} shards over replicas, and dp 1 is a single one"
                found.drop("a stage without replicas", micro, why)
            elif "nvme" in (optimizer, parameters) and task.machine.disk is None:
                why = "states on disk: of the machine no disk is known"
                found.drop("no disk", micro, why)
            elif (optimizer or parameters) and task.machine.host is None:
                why = "states on the host: of the link to it nothing is known"
                found.drop("no link to the host", micro, why)
            else:
                yield setting


def _rows(found: Search, setting: Setting, place: Place, micro: list[int]) -> None:
    """All micro-batches of one way. A step of one micro-batch keeps no sums from an earlier one,
    and stands for itself; of the others those fit that are small enough."""
    task, counts, total = found.task, found.counts, micro[-1]
    if not task.model.ours and task.model.activations_unknown:
        micro = micro[:1]  # what a second row would take is not known

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
