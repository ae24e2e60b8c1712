"""Every way to run a step on the cluster: which fit, how long each lasts, why the others fell out.

More rows at once need more memory, so of each cut, stage and offload only the border is looked for.
What is counted is the step of our engine, as the closed forms have it. Lesson 15.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from course_lib.estimate.fit import WAYS
from course_lib.estimate.ladder import Needs
from course_lib.estimate.setting import Setting
from course_lib.estimate.time import Place, Seconds, step_seconds
from course_lib.plan.counts import Counts
from course_lib.plan.task import Task, divisors


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

    def add(self, count: int, example: str, distance: float = 0.0) -> None:
        self.count += count
        if distance < self.distance:
            self.example, self.distance = example, distance


@dataclass
class Search:
    """`plans` from the fastest on; `fallen` by reason; `least`, where nothing fits, the way that
    is the nearest to fitting, with what it needs."""

    task: Task
    plans: list[Plan] = field(default_factory=list)
    fallen: dict[str, Fallen] = field(default_factory=dict)
    nearest: tuple[Setting, Place, Needs] | None = None
    counts: Counts | None = field(default=None, repr=False)
    _over: float = float("inf")

    def drop(self, reason: str, count: int, example: str, distance: float = 0.0) -> None:
        self.fallen.setdefault(reason, Fallen()).add(count, example, distance)

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
        rows = task.rows // place.dp
        micro = divisors(rows)
        for setting in settings(task, found, place, len(micro)):
            _rows(found, setting, place, micro)
    found.plans.sort(key=lambda plan: (plan.seconds.total, plan.needs.gpu, plan.setting.stage))
    return found


def places(task: Task, found: Search) -> Iterator[Place]:
    """Every division of the world into tp and dp that the model, the nodes and the rows allow."""
    node = task.per_node
    for tp in divisors(task.gpus) if task.tp is None else [task.tp]:
        dp = task.gpus // tp
        name = f"tp {tp}, dp {dp}"
        why = task.cannot_cut(tp)
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
            setting = Setting(
                1, recompute=recompute, stage=stage, optimizer=optimizer, parameters=parameters,
                lean=stage == 3, precision=task.precision,
            )  # fmt: skip
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

    def at(rows: int) -> Setting:
        return replace(setting, rows=rows, accumulate=total // rows)

    def over(rows: int) -> float:
        return counts.over(counts.needs(at(rows), place))

    smaller = micro[:-1]
    fitting = bisect_right(smaller, 0.0, key=over)
    keep = smaller[:fitting] + ([total] if over(total) <= 0 else [])
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
