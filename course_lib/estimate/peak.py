"""The most that a rank's device holds in a step: states, activations, and what is under way.

A walk backwards through the decoder: activations go, gradients come, buckets leave, units are
gathered. Not a bound but an estimate, held to 10 % of the meter. Lesson 12.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from torch import nn

from course_lib.collectives.agreement import summing
from course_lib.estimate.backward import Cut, Event, events
from course_lib.estimate.memory import RULES, Rule, States, states
from course_lib.gpt import GPT, Config
from course_lib.zero import Precision
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


def step_peak(
    model: GPT | Config,
    rows: int,
    length: int,
    *,
    stage: int,
    n: int,
    rank: int = 0,
    precision: str | Precision = "as is",
    optimizer: str | Rule = "adamw",
    offload: str | Mapping | Plan | None = None,
    accumulate: int = 1,
    bucket_bytes: int = BUCKET,
    units: Sequence[nn.Module] | None = None,
    persist: int = PERSIST,
    keep: int = 0,
    prefetch: int = 1,
    cut: Cut | None = None,
    held: States | None = None,
) -> Peak:
    """The device's peak in a step of `model` on `rows` sequences of `length` tokens.

    For a cross-entropy of torch's over whole logits that nobody else keeps, or, where `cut` says
    how the model was parallelized, our own; and an optimizer that goes from part to part
    (foreach=False). Of `accumulate` micro-batches it is the last, which from stage 2 on finds the
    sums of those before it. `held`: the states, where they are counted already.
    """
    held = held or states(
        model, stage=stage, n=n, rank=rank, precision=precision, optimizer=optimizer,
        offload=offload, bucket_bytes=bucket_bytes, units=units, persist=persist,
    )  # fmt: skip
    device = held.by_tier()["device"]
    plan = Plan.named(offload, stage)
    away = plan is not None and plan.optimizer is not None
    leave = held.partition.buckets[:: -1 if stage == 3 else 1]  # as their gradients do
    master = Precision.named(precision).master
    fetches = plan is not None and plan.parameters is not None
    way = _Way(leave, held.kept, stage, n, rank, away, fetches, keep, prefetch, master)
    if accumulate > 1:
        way.begin_with_sums()
    walk = way.walk(events(held.outline, rows, length, cut=cut))
    points = [(one.activations, working, one.name) for one, working in walk]
    points.append((0, way.update(RULES.get(optimizer, optimizer)), "update"))
    activations, working, where = max(points, key=lambda one: one[0] + one[1])
    return Peak(device, activations, working, where)


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
        fetches: bool,
        keep: int,
        prefetch: int,
        master: bool,
    ):
        self.master = master
        self.buckets, self.kept = buckets, kept_whole
        self.stage, self.n, self.rank, self.away = stage, n, rank, away
        self.fetches, self.keep, self.prefetch = fetches, keep, prefetch
        self.order = [unit for unit in buckets[::-1] if unit not in kept_whole]
        self.of = {slot.parameter: b for b in buckets for slot in b.slots}
        self.missing = {b: {s.parameter for s in b.slots} for b in buckets}
        self.open: set[Bucket] = set()  # that hold some gradients
        self.flying: deque[Bucket] = deque()
        self.summed = 0  # bytes of this rank's shards of gradients
        self.first = True  # of the micro-batches: the sums are still to be made
        self.whole: set[Bucket] = set()
        self.sent = 0

    def begin_with_sums(self) -> None:
        """A micro-batch went before: its sums are there, and take what comes."""
        if self.stage >= 2 and not self.away:
            self.summed = sum(map(self._shard, self.buckets))
        self.first = False

    def walk(self, backward: Iterator[Event]) -> Iterator[tuple[Event, int]]:
        """Each stretch, and the bytes at its highest point beside activations."""
        if self.keep and self.stage == 3:
            for unit in self.order:
                if sum(map(size, self.whole)) + size(unit) <= self.keep:
                    self.whole.add(unit)
        for event in backward:
            self._bring(event.uses)
            most = event.own + self._now() + max((p.nbytes for p in event.gradients), default=0)
            after = 0 if event.last else event.own
            for p in event.gradients:
                if p in self.of:  # the gradient is copied into its bucket, and then let go
                    most = max(most, event.own + self._take(p) + p.nbytes, after + self._sends())
            yield event, most
        ends = [self._land() for _ in tuple(self.flying)]
        yield Event("last sums", 0, 0, ()), max(ends, default=0)

    def _bring(self, uses: tuple[nn.Parameter, ...]) -> None:
        if self.stage < 3:
            return
        gone = set(self.buckets[: self.sent])
        for unit in dict.fromkeys(self.of[p] for p in uses if p in self.of):
            if unit in self.kept or unit in gone:  # a unit may leave before its block is done
                continue
            place = self.order.index(unit)
            self.whole |= {unit, *self.order[max(0, place - self.prefetch) : place]} - gone

    def _take(self, p: nn.Parameter) -> int:
        bucket = self.of[p]
        self.open.add(bucket)
        self.missing[bucket].discard(p)
        return self._now()

    def _sends(self) -> int:
        """Send what is full: the most meanwhile."""
        most = 0
        while self.sent < len(self.buckets) and not self.missing[self.buckets[self.sent]]:
            most = max(most, self._send(self.buckets[self.sent]))
            self.sent += 1
        return most

    def _send(self, bucket: Bucket) -> int:
        if self.stage == 0:
            return self._now()
        most = self._land() if len(self.flying) >= IN_FLIGHT else 0
        self.open, self.whole = self.open - {bucket}, self.whole - {bucket}
        self.flying.append(bucket)
        return max(most, self._now())

    def _land(self) -> int:
        """The oldest message is there. More than two pieces are summed in float32, in memory of
        their own; a master copy's gradient is in float32 too, in the end or part by part."""
        bucket = self.flying[0]
        own, width, beside = size(bucket) // self.n, bucket.dtype.itemsize, self.n > 2
        summing = beside * (own if width >= 4 else own * 4 // width + own)
        taking = beside * own
        if self.master and self.stage >= 2 and not self.away:
            parts = max((piece.numel for piece in bucket.pieces(self.rank)), default=0)
            taking += self._shard(bucket) if self.first else 4 * parts
        most = self._now() + max(summing, taking)
        self.flying.popleft()
        if self.stage >= 2 and not self.away and self.first:
            self.summed += self._shard(bucket)
        return most

    def _shard(self, bucket: Bucket) -> int:
        """Bytes of this rank's sums for a bucket."""
        there = bool(bucket.pieces(self.rank))
        return there * (size(bucket) // self.n * self._wider(bucket))

    def _wider(self, bucket: Bucket) -> int:
        """How much wider than a parameter what the optimizer updates is."""
        return 4 // bucket.dtype.itemsize if self.master else 1

    def _now(self) -> int:
        # Of each message the pieces of the others; one rank alone copies its own.
        arriving = sum(size(b) // self.n * max(1, self.n - 1) for b in self.flying)
        if self.stage < 2:  # the buckets' memory is held between steps too
            return arriving
        filled = sum(map(size, [*self.open, *self.flying]))
        return filled + arriving + self.summed + sum(map(size, self.whole))

    def update(self, rule: Rule) -> int:
        """While the optimizer works, and while what it made is gathered."""
        pieces = [(b, p) for b in self.buckets for p in b.pieces(self.rank if self.stage else 0)]
        wide = [p.numel * b.dtype.itemsize * self._wider(b) for b, p in pieces]
        parts = max(wide, default=0)
        kept_sums = (self.stage >= 2 or self.master) and not self.away
        shards = sum(wide) if kept_sums else 0
        working = 0 if self.away or not rule.states else TEMPORARIES * parts
        copies = sorted(size(b) // self.n for b in self.buckets)[-IN_FLIGHT:]
        if self.stage < 3:
            return shards + max(working, sum(copies) if self.stage else 0)
        # What is kept whole is looked through for changes, and gathered from where its shard is.
        looked = max((summing(b.padded) for b in self.kept), default=0)
        fetched = max((size(b) // self.n for b in self.kept), default=0) if self.fetches else 0
        return shards + max(working, looked, fetched)


def size(bucket: Bucket) -> int:
    return bucket.padded * bucket.dtype.itemsize
