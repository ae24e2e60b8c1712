"""The ladder of remedies against OutOfMemory: the memory, savings and costs of each rung.

Smaller micro-batches, recomputation, stages, offload, lean settings, 16 bits and files are added in
turn until a step fits. Lesson 12 climbs it by hand, and lesson 13 writes its settings.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from course_lib.estimate.setting import Needs, Setting, moves, of_each
from course_lib.estimate.shape import Shape, shape_of
from course_lib.estimate.time.costs import ModelCounts
from course_lib.estimate.time.machine import Place
from course_lib.estimate.traffic import FAST, LEAN
from course_lib.gpt import Config
from course_lib.zero.offload.pipeline import SETS

LIVE = 10**9  # parameters that DeepSpeed's defaults keep gathered until the backward pass
RANKS, SMALL = 8, 10**8  # up to these sizes every rank is checked, otherwise only the first
MOST_GPUS, EACH = 1 << 16, 10_000  # most GPUs, fewest parameters for each GPU
SPARE = 0.1  # error limit of a peak estimate: more rows are taken only if they leave this fraction


@dataclass(frozen=True)
class Rung:
    """One remedy on top of the earlier rungs; `saves` is the GPU bytes saved by it."""

    name: str
    setting: Setting
    needs: Needs
    saves: int
    fits: bool

    @property
    def again(self) -> float:
        """Extra compute, as a fraction of a forward and a backward pass."""
        return 1 / 3 if self.setting.recompute else 0.0

    def as_dict(self) -> dict:
        needs, how = self.needs, self.setting
        found = {"rung": self.name, "fits": self.fits, "rows": how.rows}
        found |= {"accumulate": how.accumulate, "recompute": how.recompute, "stage": how.stage}
        found |= {"precision": how.precision, "offload_optimizer": how.optimizer or "none"}
        found |= {"offload_param": how.parameters or "none", "lean": how.lean}
        found |= {"gpu_bytes": needs.gpu, "activation_bytes": needs.activations}
        found |= {"host_bytes": needs.host, "disk_bytes": needs.disk, "saves_bytes": self.saves}
        found |= {"sent_bytes": needs.sent, "down_bytes": needs.down, "up_bytes": needs.up}
        found |= {"read_bytes": needs.read, "written_bytes": needs.written}
        return found | {"recomputed": self.again}


@dataclass(frozen=True)
class Nodes:
    """A cluster of `nodes` nodes with `gpus` GPUs each; `host_bytes` per node may be unknown."""

    gpu_bytes: int
    gpus: int = 1
    nodes: int = 1
    host_bytes: int | None = None

    @property
    def world(self) -> int:
        return self.gpus * self.nodes

    def holds(self, needs: Needs, *, spare: float = 0.0) -> bool:
        """Return True if the needs fit, with `spare` times their GPU bytes left free."""
        host = self.host_bytes is None or needs.host <= self.host_bytes
        return host and needs.gpu * (1 + spare) <= self.gpu_bytes


def settings(rows: int, precision: str) -> Iterator[tuple[str, Setting]]:
    """Yield the rungs in order, each on top of the rungs before it."""
    now = Setting(rows, precision=precision)
    yield f"as asked: {rows} row{'s'[: rows != 1]} on each GPU, nothing sharded", now
    if rows > 1:
        now = replace(now, rows=1, accumulate=rows)
        yield f"1 row, accumulated {rows} times", now
    half = precision == "float32"
    for name, changes in (
        ("gradient checkpointing", {"recompute": True}),
        ("stage 2", {"stage": 2}),
        ("stage 2 + offload_optimizer cpu", {"optimizer": "cpu"}),
        ("stage 3", {"stage": 3, "optimizer": None}),
        ("stage 3 + offload_param cpu", {"parameters": "cpu"}),
        ("stage 3 + offload_param cpu + offload_optimizer cpu", {"optimizer": "cpu"}),
        ("no parameter stays gathered (lower limits)", {"lean": True}),
        *([("half precision (bfloat16)", {"precision": "bfloat16"})] if half else []),
        ("stage 3 + both in files (NVMe)", {"optimizer": "nvme", "parameters": "nvme"}),
    ):
        now = replace(now, **changes)
        yield name, now


class Trained(Protocol):
    """A model and the software that trains it, with the bytes of a step."""

    params: int

    def needs(self, setting: Setting, machine: Nodes, length: int) -> Needs: ...


def ladder(model: Trained, machine: Nodes, rows: int, length: int, **how) -> list[Rung]:
    """Compute all rungs for `rows` sequences of `length` tokens per GPU, from `precision`."""
    found: list[Rung] = []
    for name, setting in settings(rows, how.get("precision", "bfloat16")):
        needs = model.needs(setting, machine, length)
        saves = found[-1].needs.gpu - needs.gpu if found else 0
        found.append(Rung(name, setting, needs, saves, machine.holds(needs)))
    return found


def first_that_fits(rungs: Sequence[Rung]) -> Rung | None:
    return next((rung for rung in rungs if rung.fits), None)


def back_up(model: Trained, machine: Nodes, rung: Rung, length: int) -> Setting:
    """Choose as many rows per micro-batch as fit, because fewer, larger micro-batches are faster.
    If the bytes of a row are unknown, use one row."""
    total = rung.setting.rows * rung.setting.accumulate
    if rung.needs.activations is None:
        return replace(rung.setting, rows=1, accumulate=total)
    for rows in range(total, rung.setting.rows, -1):
        if total % rows == 0:
            more = replace(rung.setting, rows=rows, accumulate=total // rows)
            if machine.holds(model.needs(more, machine, length), spare=SPARE):
                return more
    return rung.setting


def enough(model: Trained, machine: Nodes, setting: Setting, length: int) -> int | None:
    """Return the fewest GPUs with which a setting fits, in full nodes of this kind, or None if it
    does not fit on the largest number considered."""
    most = max(machine.nodes, min(MOST_GPUS, model.params // EACH) // machine.gpus)

    def fits(nodes: int) -> bool:
        larger = replace(machine, nodes=nodes)
        return larger.holds(model.needs(setting, larger, length))

    if not fits(most):
        return None
    nodes = machine.nodes
    while not fits(nodes):
        nodes = min(most, 2 * nodes)
    return machine.gpus * bisect_left(range(nodes), True, lo=nodes // 2 + 1, key=fits)


def longest(model: Trained, machine: Nodes, setting: Setting, length: int) -> int | None:
    """Halve the sequence length until the setting fits, and return it, or None if it never fits."""
    while length > 1:
        length //= 2
        needs = model.needs(setting, machine, length)
        if needs.activations is None:
            return None
        if machine.holds(needs):
            return length
    return None


class OurEngine:
    """A decoder of this library, trained by our engine; closed forms give each rank's peak."""

    def __init__(self, config: Config):
        self.config, self.params = config, shape_of(config).params

    def needs(self, setting: Setting, machine: Nodes, length: int) -> Needs:
        n, params = machine.world, self.params
        ranks = range(n) if n <= RANKS and params <= SMALL else (0,)
        place, keep = Place(1, n, machine.gpus), _keep(params, setting)
        counted = [ModelCounts(self.config, setting, place, rank, keep) for rank in ranks]
        needs = counted[0].needs(setting, place, length)
        peaks = [needs.gpu, *(other.peak(setting, place, length) for other in counted[1:])]
        return replace(needs, gpu=max(peaks), **counted[0].moved(setting.accumulate))


def _keep(params: int, setting: Setting) -> int:
    """Compute the bytes of parameters that stage 3 may keep until the backward pass."""
    if setting.lean or setting.stage < 3:
        return LEAN
    return FAST if params <= LIVE else LIVE * setting.width


def needs_of_states(shape: Shape, setting: Setting, machine: Nodes, tp: int = 1) -> Needs:
    """Compute the needs of a step without activations, only from numbers of parameters. If `tp`
    ranks share a model, `shape` describes the part of each rank."""
    n, width, k = machine.world // tp, setting.width, setting.accumulate
    each = of_each(setting, n)
    device, host, disk = (-int(-cost * shape.params // 1) for cost in each)
    host += SETS * int(each[2] * shape.largest_layer)  # the buffers for files
    if setting.stage == 3:  # a layer in use, or the parameters that stay gathered
        stays = 0 if setting.lean else min(shape.params, LIVE) * width
        device += max(stays, width * shape.largest_layer)
    if setting.stage >= 2:  # a layer's gradients, and those received for the sum
        device += 2 * width * shape.largest_layer
    phi, own = shape.params * width, shape.params * width // n
    gathers, sums = moves(setting, twice=_keep(shape.params, setting) == LEAN)
    down = up = read = 0
    if setting.offload is not None:
        down = own * (k if setting.optimizer is not None and setting.stage >= 2 else 1)
        up = own * (1 if setting.parameters is None else gathers)
    if setting.optimizer == "nvme":
        read = disk + (up if setting.parameters == "nvme" else 0)
    sent = round((gathers + sums) * phi * (n - 1) / n)
    written = disk if setting.optimizer == "nvme" else 0
    host, disk = host * machine.gpus, disk * machine.gpus
    return Needs(device, None, host, disk, sent, down, up, read, written)
