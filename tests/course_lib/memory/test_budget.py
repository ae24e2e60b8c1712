"""Budgets: the allocation that crosses one raises, names the numbers, and leaves all as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib.memory import OutOfMemory, budget, charge, held, peak, tier

pytestmark = pytest.mark.cpu("tensors of the CPU; test_on_device.py has the GPU's")

MB = 1_000_000


def block(megabytes):
    return torch.empty(int(megabytes * MB), dtype=torch.uint8)


def test_the_allocation_that_crosses_raises_and_the_last_that_fits_does_not():
    with budget(device=10 * MB, from_now=True) as b:
        a = block(6)
        exact = block(4)
        del exact
        with pytest.raises(OutOfMemory) as caught:
            a.clone()
        assert (b.in_use(), b.most()) == (6 * MB, 10 * MB)
        again = block(4)
    error = caught.value
    assert isinstance(error, torch.OutOfMemoryError)
    assert (error.tier, error.what) == ("device", "aten::clone")
    assert (error.asked, error.in_use, error.limit) == (6 * MB, 6 * MB, 10 * MB)
    assert str(error).startswith(
        "this process is out of memory on its device: aten::clone asked for 6,000,000 bytes "
        "(6.0 MB), 6,000,000 bytes (6.0 MB) are in use, and the budget is 10,000,000 bytes "
        "(10.0 MB), so 2,000,000 bytes (2.0 MB) are too many."
    )
    assert again.nbytes == 4 * MB


def test_the_error_keeps_neither_the_refused_tensor_nor_the_arguments_alive():
    with budget(device=10 * MB, from_now=True) as b:
        a = block(6)
        with pytest.raises(OutOfMemory) as caught:
            a.clone()
        del a
        assert b.in_use() == 0
    assert caught.value.__context__ is None


def test_what_was_there_before_counts_unless_told_otherwise():
    old = block(3)
    with budget() as b:
        before = b.in_use()
        assert before >= 3 * MB
        del old
        assert b.in_use() == before - 3 * MB
    old = block(3)
    refused = pytest.raises(OutOfMemory, match="memory from before the budget")
    with refused, budget(device=2 * MB):
        pass
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
    with budget(device=2 * MB, from_now=True) as b:
        old.add_(1)
        block(2)
    assert old.nbytes


def training():
    model = nn.Sequential(nn.Linear(300, 500), nn.ReLU(), nn.Linear(500, 200))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    x, y = torch.randn(64, 300), torch.randint(0, 200, (64,))

    def step():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    return model, optimizer, step


def test_a_step_fits_its_own_peak_exactly_and_not_one_byte_less():
    _, _, step = training()
    with budget(from_now=True) as b:
        step()
    need = b.most()
    with peak(by="watch") as p:
        step()
    assert need == p.bytes
    with budget(device=need, from_now=True):
        step()
    with pytest.raises(OutOfMemory), budget(device=need - 1, from_now=True):
        step()


def test_a_backward_is_refused_where_it_crosses_and_training_goes_on():
    model, optimizer, step = training()
    states = held(model, optimizer).total
    loss = F.cross_entropy(model(torch.randn(64, 300)), torch.randint(0, 200, (64,)))
    refused = pytest.raises(OutOfMemory, match="is out of memory on its device")
    with refused, budget(device=300_000, from_now=True):
        loss.backward()
    optimizer.zero_grad()
    assert held(model, optimizer).total == states
    step()


def test_a_huge_tensor_is_refused_before_its_memory_is_touched():
    with budget(device=MB, from_now=True) as b:
        for make in (torch.empty, torch.zeros, torch.ones, torch.randn):
            with pytest.raises(OutOfMemory, match="asked for 4,000,000,000,000,000 bytes"):
                make(10**15)
        with pytest.raises(OutOfMemory, match="asked for 16,000,000 bytes"):
            torch.full((1000, 1000), 1.0, dtype=torch.complex128)
        torch.empty(10**15, device="meta")
        assert b.in_use() == 0


def test_storages_that_grow_are_refused_before():
    with budget(device=3 * MB, from_now=True) as b:
        a = block(1)
        with pytest.raises(OutOfMemory, match="resize_ asked for 3,000,000"):
            a.untyped_storage().resize_(4 * MB)
        assert (a.untyped_storage().nbytes(), b.in_use()) == (MB, MB)
        a.untyped_storage().resize_(3 * MB)
        assert b.in_use() == 3 * MB
        a.untyped_storage().resize_(0)
        assert b.in_use() == 0
        a.untyped_storage().resize_(2 * MB)
        del a
        assert b.in_use() == 0


def test_tiers_are_counted_apart():
    with budget(device=2 * MB, host=5 * MB, from_now=True) as b:
        a = block(2)
        with tier("host"):
            c = block(4)
            with pytest.raises(OutOfMemory, match=r"out of memory on its host.*move some to disk"):
                block(2)
            a.add_(1)
        with pytest.raises(OutOfMemory, match="on its device"):
            block(1)
        assert (b.in_use("device"), b.in_use("host")) == (2 * MB, 4 * MB)
    # The mark stays with the memory, for a later budget.
    with budget() as b:
        host = b.in_use("host")
        del c
        assert b.in_use("host") == host - 4 * MB


def test_on_a_gpu_rank_cpu_tensors_are_host():
    with budget(device=MB, host=3 * MB, from_now=True, computes_on="cuda") as b:
        a = block(2)
        assert (b.in_use("device"), b.in_use("host")) == (0, a.nbytes)
        with pytest.raises(OutOfMemory, match="on its host"):
            block(2)


def test_disk_is_charged_by_hand():
    with budget(disk=3 * MB) as b:
        first = charge("disk", 2 * MB, "moments.bin")
        with pytest.raises(OutOfMemory, match=r"on its disk: more\.bin asked for 2,000,000 bytes"):
            charge("disk", 2 * MB, "more.bin")
        first.release()
        first.release()
        assert (b.in_use("disk"), b.most("disk")) == (0, 2 * MB)
        with budget(disk=MB) as inner:
            with pytest.raises(OutOfMemory):
                charge("disk", 2 * MB)
            with charge("disk", MB):
                assert (b.in_use("disk"), inner.in_use("disk")) == (MB, MB)
        assert b.in_use("disk") == 0
        with pytest.raises(ValueError, match="-1 bytes cannot be charged"):
            charge("disk", -1)
    with charge("disk", 10**15):
        pass  # no budget is open


def test_nested_budgets_with_a_meter_between():
    with budget(device=5 * MB, from_now=True) as outer, peak() as p:
        with budget(device=3 * MB, from_now=True) as inner:
            a = block(2)
            with pytest.raises(OutOfMemory, match="the budget is 3,000,000"):
                block(2)
        with pytest.raises(OutOfMemory, match="the budget is 5,000,000"):
            block(4)
        assert (inner.in_use(), outer.in_use()) == (2 * MB, 2 * MB)
    assert p.held_after == a.nbytes


def test_budgets_that_make_no_sense_are_refused():
    for limit in (-1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="it must be 0 or more"):
            budget(device=limit, from_now=True)
    with pytest.raises(ValueError, match="no tier 'ram'"):
        budget(from_now=True).in_use("ram")
