"""The bytes that a rank sends in a step, by stage, micro-batches and units, in closed form.

In units of Ψ(N−1)/N, stages 0 and 1 send 2, stage 2 sends 1 + k, and stage 3 sends at most 3k for k
micro-batches, without norms and flags. Lessons 09 to 11 derive this; lesson 12 adds offload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import nn

from course_lib.estimate.memory import States, states
from course_lib.gpt import GPT, Config
from course_lib.ledger import forms
from course_lib.zero.partition import Bucket
from course_lib.zero.stage3.hooks import UNREAD

FAST, LEAN = 1 << 60, 0  # bytes that stage 3 may keep until the backward pass


def must_bytes(
    model: nn.Module | Config,
    *,
    accumulate: int = 1,
    keep: int = LEAN,
    prefetch: int = 1,
    held: States | None = None,
    **zero: object,
) -> dict[str, float]:
    """Count the bytes that each rank sends in one step, by verb, from the second step on. Pass the
    options of `states` as keywords, or its result as `held`.

    The count is exact below stage 3. At stage 3 it follows the order in which our GPT uses its
    units. For other models it assumes that each unit is used once, in the order of the parameters.
    """
    held = held or states(model, **zero)
    stage, n = held.zero.stage, held.zero.n
    sums = accumulate if stage >= 2 else 1
    walked = walk(held, keep=keep, prefetch=prefetch)[0] if stage == 3 else {}
    found: Counter = Counter()
    for bucket in held.partition.buckets:
        padded = bucket.padded * bucket.dtype.itemsize
        if stage == 0:
            found["all_reduce"] += forms.all_reduce(n, padded)
            continue
        if any(slot.parameter.requires_grad for slot in bucket.slots):
            found["reduce_scatter"] += sums * forms.reduce_scatter(padded, padded // n)
        gathers = 1 if stage < 3 or bucket in held.kept else accumulate * walked[bucket]
        found["all_gather"] += gathers * forms.all_gather(n, padded // n)
    return dict(found)


class Turn(NamedTuple):
    """A use of a unit in the forward pass."""

    unit: Bucket
    unread: bool  # an embedding's unit, whose backward reads no weight
    reached: bool  # its output needs a gradient, so a backward follows


def walk(
    held: States, *, keep: int, prefetch: int
) -> tuple[Mapping[Bucket, int], Mapping[Bucket, int]]:
    """Count the gathers and file reads of each unit in one forward and backward pass.

    The last unit used stays gathered for the backward pass, which begins there, as do units within
    `keep` bytes. The next `prefetch` units are gathered ahead, and the file of the unit after them
    is read. Before an embedding's backward pass, which reads no weight, that read is wasted. A use
    that no gradient reaches has no backward pass.
    """
    units, kept = held.modules, held.kept
    uses = uses_of(held.outline, {unit: units[unit] for unit in units if unit not in kept})
    every = [turn.unit for turn in uses]
    there, under_way, ahead = set(kept), set(), set()
    gathers, reads = (Counter(dict.fromkeys(units, 0)) for _ in range(2))

    def fetch(some: Sequence[Bucket]) -> None:
        for unit in some:
            if unit not in there | under_way | ahead:
                ahead.add(unit)
                reads[unit] += 1

    def start(some: Sequence[Bucket]) -> None:
        for unit in some:
            if unit not in there | under_way:
                fetch([unit])
                ahead.discard(unit)
                under_way.add(unit)
                gathers[unit] += 1

    def have(unit: Bucket) -> None:
        under_way.discard(unit)
        there.add(unit)

    for place, unit in enumerate(every):
        last = place + 1 + prefetch
        start([unit, *every[place + 1 : last]])
        fetch(every[last : last + 1])
        have(unit)
        whole = sum(one.padded * one.dtype.itemsize for one in (there - kept) | {unit})
        stays = place == len(uses) - 1 or whole <= keep
        if not (uses[place].reached and stays):
            there.discard(unit)
    back = [turn for turn in uses if turn.reached]
    every = [turn.unit for turn in back]
    for unit, unread, _ in reversed(back):
        if not unread:
            place = len(every) - 1 - every[::-1].index(unit)
            last = max(0, place - prefetch)
            start([unit, *every[last:place][::-1]])
            fetch(every[max(0, last - 1) : last])
            have(unit)
    return gathers, reads


def uses_of(model: nn.Module, units: Mapping[Bucket, nn.Module]) -> list[Turn]:
    """List the units' uses in the order of a forward pass. From the first trained weight on,
    gradients are needed, except between the two embeddings, which work in parallel."""
    of = {slot.parameter: unit for unit in units for slot in unit.slots}
    inside = {unit: set(module.modules()) for unit, module in units.items()}
    ours = isinstance(model, GPT)
    order = [model.tokens, model.positions, *model.blocks, model.norm, model.head] if ours else []
    found: list[Turn] = []
    met: set[Bucket] = set()
    wanted = False
    for module in [one for one in order if one is not None] or [model]:
        members, here = set(module.modules()), set()
        trained = wanted and not isinstance(module, UNREAD)
        for p in module.parameters():
            unit = of.get(p)
            again = unit in met and module in inside.get(unit, ())
            if unit is not None and unit not in here and not again:
                here.add(unit)
                elsewhere = module not in inside[unit] and units[unit] not in members
                owner = module if elsewhere else units[unit]
                reached = trained or any(q.requires_grad for q in owner.parameters())
                unread = isinstance(module, UNREAD) and units[unit] is module
                found.append(Turn(unit, unread, reached))
            trained = trained or p.requires_grad
        wanted, met = wanted or trained, met | here
    return found


def offload_bytes(
    model: nn.Module | Config,
    *,
    accumulate: int = 1,
    keep: int = LEAN,
    prefetch: int = 1,
    held: States | None = None,
    **zero: object,
) -> dict[str, int]:
    """Count the bytes that a step of one rank moves between the tiers: gradients `down` from the
    device to the host, parameters `up` again, and bytes `read` from files and `written` to them.
    Pass the options of `states`, including `offload`, as keywords, or its result as `held`.

    States move only between host and file. Padding stays in place, unless a full shard moves up for
    a gather.
    """
    held = held or states(model, **zero)
    stage, plan = held.zero.stage, held.zero.plan
    if stage == 3:
        walked = walk(held, keep=keep, prefetch=prefetch)
    found = dict.fromkeys(("down", "up", "read", "written"), 0)
    for bucket in held.partition.buckets:
        width, pieces = bucket.dtype.itemsize, bucket.pieces(held.zero.rank)
        own = sum(piece.numel for piece in pieces) * width
        trained = any(piece.slot.parameter.requires_grad for piece in pieces)
        if plan.optimizer is None:  # updated parameters go down, but no gradients
            found["down"] += own
        elif any(slot.parameter.requires_grad for slot in bucket.slots):  # the full shard's sums
            found["down"] += own * (accumulate if stage >= 2 else 1)
        if plan.parameters is None:  # files send up their updates, the host sends all
            found["up"] += own if trained or plan.optimizer == "cpu" else 0
        else:
            once = bucket in held.kept
            gathers, reads = (1 if once else accumulate * times[bucket] for times in walked)
            found["up"] += gathers * (
                own if plan.parameters == "nvme" else bucket.cut.shard * width
            )
        file = held.files.get(bucket)
        if file is not None:
            if trained:
                found["read"] += file.kept_bytes
                found["written"] += file.nbytes
            if plan.parameters == "nvme":
                found["read"] += reads * (file.half_bytes or file.values_bytes)
    return found
