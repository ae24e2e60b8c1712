"""The bytes of a model's states on a rank: parameters, gradients, masters and moments.

The count is exact for every stage, precision, optimizer, offload and world size, and includes
padding and counters. Lesson 09 compares it with 16 bytes per parameter, and lesson 12 by tier.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn

from course_lib.estimate.shape import sketch_of
from course_lib.gpt import Config
from course_lib.memory import TIERS
from course_lib.zero import Partition, Precision, partition
from course_lib.zero.offload.file_layout import FileLayout
from course_lib.zero.offload.files import ALIGN
from course_lib.zero.offload.pipeline import SETS
from course_lib.zero.offload.plan import OffloadPlan
from course_lib.zero.offload.units import AHEAD
from course_lib.zero.partition import BUCKET, Bucket, BucketPiece, end_to_end
from course_lib.zero.refusals import check_numbers
from course_lib.zero.stage3 import choose_units
from course_lib.zero.stage3.options import PERSIST

COUNTER = 4  # bytes of Adam's step count, one for each part of a parameter


class Rule(NamedTuple):
    """Memory of an optimizer: the number of states per element, and the bytes of a step counter."""

    states: int
    counter: int


ADAM = Rule(2, COUNTER)
RULES = {"sgd": Rule(0, 0), "momentum": Rule(1, 0), "adam": ADAM, "adamw": ADAM}


class Zero(NamedTuple):
    """The sharding and update settings of an engine, and the rank that is counted."""

    stage: int
    n: int
    rank: int
    master: bool  # True if a float32 copy is updated
    rule: Rule
    plan: OffloadPlan | None

    @property
    def home(self) -> str | None:
        """Place of the optimizer's states, or None for the device."""
        return None if self.plan is None else self.plan.optimizer

    @property
    def lent(self) -> str | None:
        """Place of stage 3's shards between their uses, or None for the device."""
        return None if self.plan is None else self.plan.parameters


@dataclass(frozen=True)
class States:
    """Bytes by (kind, tier) on one rank: held `between` steps, and `add`ed by gradients.

    `partition` is the counted partition of `outline`'s parameters. `kept` has the buckets that stay
    gathered at stage 3, and `files` maps buckets to the layouts of their files.
    """

    between: Mapping[tuple[str, str], int]
    add: Mapping[tuple[str, str], int]
    zero: Zero = field(repr=False)
    partition: Partition = field(repr=False)
    outline: nn.Module = field(repr=False)
    kept: Set[Bucket] = field(default=frozenset(), repr=False)
    files: Mapping[Bucket, FileLayout] = field(default_factory=dict, repr=False)
    modules: Mapping[Bucket, nn.Module] = field(default_factory=dict, repr=False)  # of the units

    def total(self, *, alive: bool = False) -> int:
        return sum(self._of(alive).values())

    def by_kind(self, *, alive: bool = False) -> dict[str, int]:
        found: Counter = Counter()
        for (kind, _), nbytes in self._of(alive).items():
            found[kind] += nbytes
        return dict(found)

    def by_tier(self, *, alive: bool = False) -> dict[str, int]:
        found = dict.fromkeys(TIERS, 0)
        for (_, tier), nbytes in self._of(alive).items():
            found[tier] += nbytes
        return found

    def _of(self, alive: bool) -> Counter:
        return Counter(self.between) + Counter(self.add) if alive else Counter(self.between)


def states(
    model: nn.Module | Config,
    *,
    stage: int,
    n: int,
    rank: int = 0,
    precision: str | Precision = "as is",
    optimizer: str | Rule = "adamw",
    offload: str | Mapping | OffloadPlan | None = None,
    bucket_bytes: int = BUCKET,
    units: Sequence[nn.Module] | None = None,
    persist: int = PERSIST,
) -> States:
    """Count the bytes that rank `rank` of `n` holds after an engine's first step.

    It reads no parameter values, so a Config or a model on torch's meta device is enough. The count
    is exact if every trained parameter has a gradient. It omits the rounding of a GPU's allocator.
    """
    check_numbers(stage, 1, None)
    plan, precision = OffloadPlan.named(offload, stage), Precision.named(precision)
    if not 0 <= rank < n:
        raise ValueError(f"rank={rank} is none of the {n} ranks 0 to {n - 1}")
    rule = optimizer if isinstance(optimizer, Rule) else RULES.get(optimizer)
    if rule is None:
        raise ValueError(f"optimizer={optimizer!r} is none of {', '.join(RULES)}, nor a Rule")
    outline, units = sketch_of(model, precision.dtype, units)
    if stage == 3:
        modules, kept = units_of(outline, n, units, persist)
        parts = Partition(list(modules), n)
    else:
        modules, kept = {}, set()
        parts = partition(outline.named_parameters(), n if stage else 1, most_bytes=bucket_bytes)
    zero = Zero(stage, n, rank if stage else 0, precision.master, rule, plan)
    count = _Count(zero)
    count.between["buffers", "device"] += sum(x.nbytes for x in set(outline.buffers()))
    for bucket in parts.buckets:
        count.bucket(bucket, whole=bucket in kept)
    # Below stage 3, untrained parameters are in no bucket, but replicated on every rank.
    alone = [p for p in outline.parameters() if p not in parts.where]
    count.between["parameters", "device"] += sum(p.nbytes for p in alone)
    count.staging()
    return States(+count.between, +count.add, zero, parts, outline, kept, count.layouts, modules)


class _Count:
    """Counter of one rank's bytes, bucket by bucket."""

    def __init__(self, zero: Zero):
        self.zero = zero
        self.between: Counter = Counter()  # (kind, tier) to bytes
        self.add: Counter = Counter()
        self.layouts: dict[Bucket, FileLayout] = {}
        self.reads: list[int] = []  # bytes of the shards that are read from files
        self.updates = False  # True if a file of this rank has trained parameters

    def bucket(self, bucket: Bucket, *, whole: bool) -> None:
        zero, home, lent = self.zero, self.zero.home, self.zero.lent
        width, pieces = bucket.dtype.itemsize, bucket.pieces(zero.rank)
        trained = [p for p in pieces if p.slot.parameter.requires_grad]
        own, updated = (sum(p.numel for p in some) for some in (pieces, trained))
        wide = 4 if zero.master else width  # bytes of an element that the optimizer updates
        if zero.stage < 3 or whole:  # or too small for a message in every forward pass
            self.between["parameters", "device"] += bucket.padded * width
        if zero.stage == 3 and lent != "nvme":
            tier = "host" if lent else "device"
            self.between["parameters", tier] += bucket.cut.shard * width
        tier = "host" if home else "device"
        if home == "nvme":
            self._in_a_file(bucket, own, trained)
        else:
            if zero.master or (home is None) == (lent is not None):
                self.between["masters", tier] += own * wide
            self.between["optimizer states", tier] += updated * wide * zero.rule.states
        self.between["optimizer states", tier] += len(trained) * zero.rule.counter
        if zero.stage < 2:  # the buffer for gradients stays
            self.between["gradients", "device"] += bucket.padded * width
        if trained and zero.master:
            self.add["gradients", tier] += 4 * updated
        elif trained and tier == "host":
            self.add["gradients", tier] += own * width
        elif trained and zero.stage >= 2:  # the sum for the full shard with padding
            self.add["gradients", tier] += bucket.cut.shard * width

    def _in_a_file(self, bucket: Bucket, own: int, trained: list[BucketPiece]) -> None:
        if not own:
            return
        zero, lent = self.zero, self.zero.lent
        dtype = torch.float32 if zero.master else bucket.dtype
        names = [f"state {i}" for i in range(zero.rule.states)] if trained else []
        half = bucket.dtype if zero.master and lent == "nvme" else None
        spans = [(piece.at, piece.at + piece.numel) for piece in trained]
        layout = FileLayout(
            own, dtype, dict.fromkeys(names, dtype), half, dict.fromkeys(names, spans)
        )
        self.layouts[bucket] = layout
        self.updates = self.updates or bool(trained)
        self.between["files", "disk"] += layout.nbytes
        if lent == "nvme":
            self.reads.append(layout.half_bytes if half else layout.values_bytes)

    def staging(self) -> None:
        """Count the host buffers for reading and writing files, and the outlines of their parts."""
        if not self.layouts:
            return
        layouts = self.layouts.values()
        largest = max(layout.nbytes for layout in layouts)
        sets = min(SETS, len(layouts)) * (largest + ALIGN) if self.updates else 0
        reads = AHEAD * (max(self.reads) + ALIGN) if self.reads else 0
        outlines = sum({layout.dtype: layout.dtype.itemsize for layout in layouts}.values())
        self.between["staging", "host"] += sets + reads + outlines


def units_of(
    model: nn.Module, n: int, chosen: Sequence[nn.Module] | None, persist: int
) -> tuple[dict[Bucket, nn.Module], set[Bucket]]:
    """Return stage 3's units as buckets with their modules, and the buckets that stay gathered."""
    found = choose_units(model, chosen)
    small = [one for *_, named in found for one in named if one[1].nbytes < persist]
    kept = {Bucket(slots, n) for slots in end_to_end(small)}
    large = {
        Bucket(slots, n): module
        for _, module, named in found
        for slots in end_to_end(one for one in named if one[1].nbytes >= persist)
    }
    return {**dict.fromkeys(kept, model), **large}, kept


# ---- only from the number of parameters
def per_parameter(
    stage: int,
    n: int,
    *,
    width: int = 4,
    master: bool = False,
    states: int = 2,
    alive: bool = False,
) -> float:
    """Compute the bytes that one parameter costs each rank, before padding and counters.

    Adam in float32 on one rank takes 16 bytes: 4 for the parameter, 4 for its gradient, 8 for two
    moments. For Ψ parameters, padding and uneven shards are added to Ψ times this number.
    """
    wide = 4 if master else width
    parts = n if stage else 1
    parameters = width / (n if stage == 3 else 1)
    gradients = width / (1 if stage < 2 else n) if stage < 2 or alive else 0.0
    if master:
        gradients = (width if stage < 2 else 0.0) + (4 / parts if alive else 0.0)
    return parameters + gradients + (states + master) * wide / parts


def of_number(params: int, stage: int, n: int, **options) -> int:
    """Multiply `per_parameter` by a number of parameters, and round up to whole bytes."""
    return math.ceil(params * per_parameter(stage, n, **options))
