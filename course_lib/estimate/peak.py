"""The peak memory of a rank's device in a step: states, activations and working memory.

The estimate walks through the decoder's backward pass, in which activations are freed, gradients
appear, buckets are sent and units are gathered. Tests limit its error to 10 %. Lesson 12.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from course_lib.collectives.agreement import summing
from course_lib.estimate.backward import BackwardStretch, Cut, events
from course_lib.estimate.memory import States, states
from course_lib.gpt import GPT, Config
from course_lib.zero.partition import IN_FLIGHT, Bucket

TEMPORARIES = 2  # tensors as large as a part, while Adam divides by the root of its second moment


@dataclass(frozen=True)
class PeakEstimate:
    """Bytes `held` between steps, and the `activations` and `working` bytes at the peak of a step.
    `working` is gradients, buckets, gathered units and temporaries; `where` names the peak."""

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
    accumulate: int = 1,
    keep: int = 0,
    prefetch: int = 1,
    cut: Cut | None = None,
    held: States | None = None,
    **zero: object,
) -> PeakEstimate:
    """Estimate the device's peak in a step of `model` on `rows` sequences of `length` tokens. Pass
    the options of `states` as keywords, or its result as `held`.

    The loss is torch's cross-entropy over full logits that no other code keeps, or our own loss if
    `cut` describes how the model was parallelized. The optimizer updates part by part
    (foreach=False). The last of `accumulate` micro-batches is counted; from stage 2 on, sums of
    earlier ones exist.
    """
    held = held or states(model, **zero)
    way = _Way(held, keep, prefetch, first=accumulate == 1)
    walk = way.walk(events(held.outline, rows, length, cut=cut))
    points = [(event.activations, working, event.name) for event, working in walk]
    points.append((0, way.update(), "update"))
    activations, working, where = max(points, key=lambda point: point[0] + point[1])
    return PeakEstimate(held.by_tier()["device"], activations, working, where)


class _Way:
    """Buckets, gradient shards and units during the backward pass of a micro-batch. The `first`
    micro-batch creates the gradient sums, and later ones add to them."""

    def __init__(self, held: States, keep: int, prefetch: int, *, first: bool):
        self.zero, self.kept, self.prefetch, self.first = held.zero, held.kept, prefetch, first
        self.stage, self.n, self.rank = held.zero[:3]
        # In the order in which gradients are complete, and in the order of the forward pass.
        self.buckets = held.partition.buckets[:: -1 if self.stage == 3 else 1]
        self.order = [unit for unit in self.buckets[::-1] if unit not in self.kept]
        self.of = {slot.parameter: b for b in self.buckets for slot in b.slots}
        self.missing = {b: {s.parameter for s in b.slots} for b in self.buckets}
        self.open: set[Bucket] = set()  # buckets that hold some gradients
        self.flying: deque[Bucket] = deque()
        self.sent = 0
        self.here = self.zero.home is None  # gradients stay on the device
        self.sums = self.stage >= 2 and self.here
        self.summed = 0 if first or not self.sums else sum(map(self._shard, self.buckets))
        self.whole: set[Bucket] = set()
        for unit in self.order if self.stage == 3 else ():
            if keep and sum(map(size, self.whole)) + size(unit) <= keep:
                self.whole.add(unit)

    def walk(self, backward: Iterator[BackwardStretch]) -> Iterator[tuple[BackwardStretch, int]]:
        """Yield each stretch, and its peak bytes in addition to activations."""
        for event in backward:
            self._bring(event.uses)
            most = event.own + self._now() + max((p.nbytes for p in event.gradients), default=0)
            after = 0 if event.last else event.own
            for p in event.gradients:
                if p in self.of:  # the gradient is copied into its bucket, and then freed
                    most = max(most, event.own + self._take(p) + p.nbytes, after + self._sends())
            yield event, most
        ends = [self._land() for _ in tuple(self.flying)]
        yield BackwardStretch("last sums", 0, 0, ()), max(ends, default=0)

    def _bring(self, uses: tuple[nn.Parameter, ...]) -> None:
        if self.stage < 3:
            return
        gone = set(self.buckets[: self.sent])
        for unit in dict.fromkeys(self.of[p] for p in uses if p in self.of):
            if unit in self.kept or unit in gone:  # a unit may be freed before its block is done
                continue
            place = self.order.index(unit)
            self.whole |= {unit, *self.order[max(0, place - self.prefetch) : place]} - gone

    def _take(self, p: nn.Parameter) -> int:
        self.open.add(self.of[p])
        self.missing[self.of[p]].discard(p)
        return self._now()

    def _sends(self) -> int:
        """Send all full buckets, and return the most bytes held meanwhile."""
        most = 0
        while self.sent < len(self.buckets) and not self.missing[self.buckets[self.sent]]:
            if self.stage > 0:
                if len(self.flying) >= IN_FLIGHT:
                    most = max(most, self._land())
                bucket = self.buckets[self.sent]
                self.open, self.whole = self.open - {bucket}, self.whole - {bucket}
                self.flying.append(bucket)
            most = max(most, self._now())
            self.sent += 1
        return most

    def _land(self) -> int:
        """Receive the oldest message, and return the peak bytes. More than two pieces are summed in
        separate float32 memory. A master copy's gradient is also float32, in full or in parts."""
        bucket = self.flying[0]
        own, width, beside = size(bucket) // self.n, bucket.dtype.itemsize, self.n > 2
        summing = beside * (own if width >= 4 else own * 4 // width + own)
        taking = beside * own
        if self.zero.master and self.sums:
            parts = max((piece.numel for piece in bucket.pieces(self.rank)), default=0)
            taking += self._shard(bucket) if self.first else 4 * parts
        most = self._now() + max(summing, taking)
        self.flying.popleft()
        if self.sums and self.first:
            self.summed += self._shard(bucket)
        return most

    def _shard(self, bucket: Bucket) -> int:
        """Compute the bytes of this rank's sums for a bucket."""
        return size(bucket) // self.n * self._wider(bucket) if bucket.pieces(self.rank) else 0

    def _wider(self, bucket: Bucket) -> int:
        """Compute the ratio of the width that the optimizer updates to a parameter's width."""
        return 4 // bucket.dtype.itemsize if self.zero.master else 1

    def _now(self) -> int:
        # Of each message, the pieces of the other ranks, or its own copy with one rank.
        arriving = sum(size(b) // self.n * max(1, self.n - 1) for b in self.flying)
        if self.stage < 2:  # the buckets' memory counts as held between steps
            return arriving
        filled = sum(map(size, [*self.open, *self.flying]))
        return filled + arriving + self.summed + sum(map(size, self.whole))

    def update(self) -> int:
        """Compute the peak bytes while the optimizer works and while its result is gathered."""
        pieces = [(b, p) for b in self.buckets for p in b.pieces(self.rank)]
        wide = [p.numel * b.dtype.itemsize * self._wider(b) for b, p in pieces]
        parts = max(wide, default=0)
        shards = sum(wide) if self.sums or (self.zero.master and self.here) else 0
        working = TEMPORARIES * parts if self.here and self.zero.rule.states else 0
        copies = sorted(size(b) // self.n for b in self.buckets)[-IN_FLIGHT:]
        if self.stage < 3:
            return shards + max(working, sum(copies) if self.stage else 0)
        # Kept units are compared for changes, and gathered from the place of their shards.
        looked = max((summing(b.padded) for b in self.kept), default=0)
        fetched = max((size(b) // self.n for b in self.kept if self.zero.lent), default=0)
        return shards + max(working, looked, fetched)


def size(bucket: Bucket) -> int:
    return bucket.padded * bucket.dtype.itemsize
