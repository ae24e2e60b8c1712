"""Held, peak and budgets of a rank, on the device where it computes and on its host."""

from __future__ import annotations

import torch
from torch import nn

from course_lib.memory import OutOfMemory, budget, held, peak, tier
from course_lib.memory.tiers import rank_computes_on
from course_lib.zero.offload.host import on_host

MIB = 1 << 20  # every allocator hands out whole ones to the byte


def block(mib, device):
    return torch.empty(mib * MIB, dtype=torch.uint8, device=device)


def a_known_pattern(me):
    with peak() as top:
        first, second = block(2, me.device), block(4, me.device)
        del first
        third = block(6, me.device)
        del second
    return top.device.type, top.bytes, top.held_after, third.nbytes


def test_the_peak_of_a_rank_to_the_byte(pool):
    for kind, most, after, kept in pool.run(2, a_known_pattern):
        assert (most, after, kept) == (10 * MIB, 6 * MIB, 6 * MIB)
        assert kind == ("cuda" if torch.cuda.is_available() else "cpu")


def by_tier(me):
    """A trained layer on the device, and a copy of its weight in pinned memory of the host."""
    assert rank_computes_on() == me.device.type
    model = nn.Linear(30, 20, bias=False, device=me.device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(2, 30, device=me.device)).sum().backward()
    optimizer.step()
    copy = on_host(600, torch.float32, me.device)
    sums = held(model, optimizer, copy).by_tier
    return sums["device"], sums["host"]


def test_what_a_rank_holds_by_tier(pool):
    weight = 30 * 20 * 4
    assert pool.run(2, by_tier) == [(4 * weight + 4, weight)] * 2  # 4: the step's number


def within(me):
    """What budgets of 4 MiB on the device and 3 on the host let a rank make."""
    refusals = []
    with budget(device=4 * MIB, host=3 * MIB, from_now=True):
        kept = [block(4, me.device), on_host(3 * MIB, torch.uint8, me.device)]
        for make in (lambda: block(1, me.device), lambda: on_host(MIB, torch.uint8, me.device)):
            try:
                kept.append(make())
            except OutOfMemory as error:
                refusals.append(str(error))
        kept.pop(0)
        kept.append(block(2, me.device))
        with tier("host"):
            kept.pop(0)
            kept.append(block(1, "cpu"))
    return refusals


def test_a_rank_has_a_budget_for_its_device_and_one_for_its_host(pool):
    for rank, refusals in enumerate(pool.run(2, within)):
        assert len(refusals) == 2
        assert all(f"rank {rank}" in text for text in refusals)
        assert "device" in refusals[0] and "host" in refusals[1]
