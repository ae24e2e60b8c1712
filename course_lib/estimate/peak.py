"""The most that a rank's device holds in a step: states, activations, and what is under way.

A walk backwards through the decoder: activations go, gradients come, buckets leave, units are
gathered. Not a bound but an estimate, held to 10 % of the meter. Lesson 12.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from torch import nn

from course_lib.estimate.activations import kept
from course_lib.estimate.memory import RULES, Rule, states
from course_lib.gpt import GPT, Config
from course_lib.zero.offload import Plan
from course_lib.zero.partition import BUCKET, IN_FLIGHT, Bucket
from course_lib.zero.stage3.options import PERSIST

TEMPORARIES = 2  # as large as a part, while Adam divides by the root of its second moment


@dataclass(frozen=True)
class Peak:
    """`held` between steps, and at the highest point of one: `activations`, and `working`, which is
    gradients, buckets, gathered units, an operation's own. `where` names that point."""

    held: int
    activations: int
    working: int
    where: str

    @property
    def total(self) -> int:
        return self.held + self.activations + self.working


@dataclass(frozen=True)
class Event:
    """A stretch of the backward: what lies in memory during it, which gradients it gives."""

    name: str
    activations: int
    own: int  # beside the activations: gradients of what flows through
    gradients: tuple[nn.Parameter, ...]
    uses: tuple[nn.Parameter, ...] = ()


def step_peak(
    config: Config,
    rows: int,
    length: int,
    *,
    stage: int,
    n: int,
    rank: int = 0,
    optimizer: str | Rule = "adamw",
    offload: str | Mapping | Plan | None = None,
    bucket_bytes: int = BUCKET,
    persist: int = PERSIST,
    keep: int = 0,
    prefetch: int = 1,
) -> Peak:
    """The device's peak in a float32 step of `config` on `rows` sequences of `length` tokens.

    For a cross-entropy of torch's over whole logits that nobody else keeps, and an optimizer that
    goes from part to part (foreach=False).
    """
    held = states(
        config, stage=stage, n=n, rank=rank, optimizer=optimizer, offload=offload,
        bucket_bytes=bucket_bytes, persist=persist,
    )  # fmt: skip
    device = held.by_tier()["device"]
    away = Plan.named(offload, stage) is not None
    leave = held.partition.buckets[:: -1 if stage == 3 else 1]  # as their gradients do
    way = _Way(leave, held.kept, stage, n, rank, away, keep, prefetch)
    walk = way.walk(events(held.outline, rows, length))
    points = [(one.activations, working, one.name) for one, working in walk]
    points.append((0, way.update(RULES.get(optimizer, optimizer)), "update"))
    activations, working, where = max(points, key=lambda one: one[0] + one[1])
    return Peak(device, activations, working, where)


def events(model: GPT, rows: int, length: int, width: int = 4) -> Iterator[Event]:
    """The backward of a decoder in stretches, from the loss to the table of words."""
    config = model.config
    one = kept(config, rows, length, width=width)
    tokens, h = rows * length, config.hidden
    stream = tokens * h * width  # the gradient that flows from block to block
    tied = model.head.weight is model.tokens.weight
    head, layers = model.head.weight, config.layers
    everything = one.layers * one.between + one.ends
    yield Event("loss", everything + one.logits, 2 * one.logits, (), (head,))
    extra = one.logits + stream + (head.nbytes if tied else 0)
    yield Event("head", everything, extra, () if tied else (head,), (head,))
    later = head.nbytes if tied else 0  # what the head gave waits for what the table will
    norm = tuple(model.norm.parameters())
    yield Event("norm", everything, later + 2 * stream, norm, norm)
    swiglu = config.activation == "swiglu"
    inner = config.inner * tokens * width
    narrow = tokens * (config.heads + 2 * config.kv_heads) * config.head_size * width
    for i in reversed(range(layers)):
        block, below = model.blocks[i], i * one.between
        every = tuple(block.parameters())
        down = tuple(block.mlp.down.parameters())
        first = block.mlp.gate_up if swiglu else block.mlp.up
        up = (*first.parameters(), *block.norm_2.parameters())
        rest = tuple(p for p in every if p not in {*down, *up})
        name, there = f"block {i}", below + one.block
        yield Event(f"{name}, down", there, later + stream + inner, down, every)
        gone, made = (4, 2) if swiglu else (2, 1)  # of what the MLP has kept; its input's gradient
        own = later + 2 * stream + made * inner
        yield Event(f"{name}, up", there - gone * inner, own, up, every)
        there = below + one.attention
        yield Event(f"{name}, attention", there, later + 2 * stream + 2 * narrow, rest, every)
    if model.positions is not None:
        yield Event("positions", 0, later + stream, (model.positions.weight,))
    yield Event("tokens", 0, later + stream, (model.tokens.weight,))


class _Way:
    """Buckets, shards of gradients and units along a backward."""

    def __init__(
        self,
        buckets: Sequence[Bucket],
        kept_whole: Set[Bucket],
        stage: int,
        n: int,
        rank: int,
        away: bool,
        keep: int,
        prefetch: int,
    ):
        self.buckets, self.kept = buckets, kept_whole
        self.stage, self.n, self.rank, self.away = stage, n, rank, away
        self.keep, self.prefetch = keep, prefetch
        self.order = [unit for unit in buckets[::-1] if unit not in kept_whole]
        self.of = {slot.parameter: b for b in buckets for slot in b.slots}
        self.missing = {b: {s.parameter for s in b.slots} for b in buckets}
        self.open: set[Bucket] = set()  # that hold some gradients
        self.flying: deque[Bucket] = deque()
        self.summed = 0  # bytes of this rank's shards of gradients
        self.whole: set[Bucket] = set()
        self.sent = 0

    def walk(self, backward: Iterator[Event]) -> Iterator[tuple[Event, int]]:
        """Each stretch, and the bytes at its highest point beside activations."""
        if self.keep and self.stage == 3:
            for unit in self.order:
                if sum(map(size, self.whole)) + size(unit) <= self.keep:
                    self.whole.add(unit)
        for event in backward:
            self._bring(event.uses)
            most = self._now() + max((p.nbytes for p in event.gradients), default=0)
            for p in event.gradients:
                if p in self.of:
                    most = max(most, self._take(p) + p.nbytes)
            yield event, event.own + most

    def _bring(self, uses: tuple[nn.Parameter, ...]) -> None:
        if self.stage < 3:
            return
        for unit in dict.fromkeys(self.of[p] for p in uses if p in self.of):
            if unit in self.kept:
                continue
            place = self.order.index(unit)
            self.whole |= {unit, *self.order[max(0, place - self.prefetch) : place]}

    def _take(self, p: nn.Parameter) -> int:
        bucket = self.of[p]
        self.open.add(bucket)
        self.missing[bucket].discard(p)
        most = self._now()
        while self.sent < len(self.buckets) and not self.missing[self.buckets[self.sent]]:
            most = max(most, self._send(self.buckets[self.sent]))
            self.sent += 1
        return most

    def _send(self, bucket: Bucket) -> int:
        if self.stage == 0:
            return self._now()
        if len(self.flying) >= IN_FLIGHT:
            self._land()
        self.open.discard(bucket)
        self.whole.discard(bucket)
        self.flying.append(bucket)
        return self._now()

    def _land(self) -> None:
        bucket = self.flying.popleft()
        if self.stage >= 2 and not self.away and bucket.pieces(self.rank):
            self.summed += size(bucket) // self.n

    def _now(self) -> int:
        arriving = sum(map(size, self.flying))
        if self.stage < 2:  # the buckets' memory is held between steps too
            return arriving
        filled = sum(map(size, self.open)) + arriving
        return filled + arriving + self.summed + sum(map(size, self.whole))

    def update(self, rule: Rule) -> int:
        """While the optimizer works, and while what it made is gathered."""
        own = [p for b in self.buckets for p in b.pieces(self.rank if self.stage else 0)]
        parts = max((p.numel * p.slot.parameter.element_size() for p in own), default=0)
        kept_sums = self.stage >= 2 and not self.away
        shards = sum(size(b) // self.n for b in self.buckets) if kept_sums else 0
        working = 0 if self.away or not rule.states else TEMPORARIES * parts
        copies = sorted(size(b) // self.n for b in self.buckets)[-IN_FLIGHT:]
        return shards + max(working, sum(copies) if self.stage in (1, 2) else 0)


def size(bucket: Bucket) -> int:
    return bucket.padded * bucket.dtype.itemsize
