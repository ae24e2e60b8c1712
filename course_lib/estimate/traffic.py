"""What a rank must send in a step, by the stage, the micro-batches and the units: closed forms.

In Ψ(N−1)/N: stages 0 and 1 take 2, stage 2 takes 1 + k, stage 3 at most 3k for k micro-batches.
Norms and flags are no part of it. Lessons 09 to 11 derive these, lesson 12 adds offload.
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

FAST, LEAN = 1 << 60, 0  # bytes that stage 3 may keep from forward to backward


def must_bytes(
    model: nn.Module | Config,
    *,
    accumulate: int = 1,
    keep: int = LEAN,
    prefetch: int = 1,
    held: States | None = None,
    **zero: object,
) -> dict[str, float]:
    """Bytes that each rank has to send in one step, by verb, from the second forward on; `zero` are
    the options of `states`, or `held` is what it has counted already.

    Exact for a stage below 3. At stage 3 it counts a GPT's own order of use; of another model, that
    each unit is used once, in the order of its parameters.
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
    """A use of a unit in the forward."""

    unit: Bucket
    unread: bool  # an embedding's own: its backward looks at no weight
    reached: bool  # its output wants a gradient, so that a backward follows


def walk(
    held: States, *, keep: int, prefetch: int
) -> tuple[Mapping[Bucket, int], Mapping[Bucket, int]]:
    """How often a forward and its backward gather each unit, and read its file if it has one.

    A walk over their uses. The last use of a forward stays for the backward, which begins there; so
    does what `keep` has room for. `prefetch` units ahead are asked for, and the one beyond them is
    read: before an embedding's backward, which looks at no weight, in vain. A use that no gradient
    reaches has no backward.
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
    """The units' uses in the order of a forward. A gradient is wanted from the first trained weight
    on; the two embeddings work side by side, and neither hands it to the other."""
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
    """What a step of one rank carries between the tiers: gradients `down` from the device to the
    host, parameters `up` again, and what is `read` from files and `written` to them; `zero` are the
    options of `states`, `offload` among them, or `held` is what it has counted already.

    States cross nothing but the file's border. Padding stays where it is, unless a whole shard is
    brought up for a gather.
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
        if plan.optimizer is None:  # what was updated goes down, and no gradient
            found["down"] += own
        elif any(slot.parameter.requires_grad for slot in bucket.slots):  # the whole shard's sums
            found["down"] += own * (accumulate if stage >= 2 else 1)
        if plan.parameters is None:  # files bring up their updates, the host all that it has
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
