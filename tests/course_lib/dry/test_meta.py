"""Shapes where code counts memory."""

from __future__ import annotations

import pytest
import torch

from course_lib.memory import OutOfMemory, budget, held, tier
from course_lib.memory.storages import alive, storages

META = torch.device("meta")


def test_shapes_are_memory_where_a_rank_computes_on_them_and_nowhere_else():
    model = torch.nn.Linear(8, 5, device=META)
    optimizer = torch.optim.AdamW(model.parameters())
    # What other tests left in this process is counted in `all_` alone, so it has no limit.
    limits = {"device": 5_000, "host": 300}
    with (
        budget(computes_on="meta", from_now=True, **limits) as watched,
        budget(computes_on="meta") as all_,
        budget(from_now=True) as plain,
    ):
        assert all_.in_use() >= 4 * 45 and watched.in_use() == 0
        before = watched.in_use()
        for p in model.parameters():
            p.grad = torch.empty_like(p)
        optimizer.step()
        with tier("host"):
            away = torch.empty(50, device=META)
        assert watched.in_use("host") == 200 and tier_of_all(away) == {"host"}
        assert watched.in_use() - before == 3 * 4 * 45 + 2 * 4  # with two counters of steps
        assert watched.most() - before > 3 * 4 * 45 + 2 * 4  # while the update worked
        away.untyped_storage().resize_(0)
        assert watched.in_use("host") == 0
        with pytest.raises(OutOfMemory, match="5,200 bytes"):
            torch.empty(1300, device=META)
        assert plain.most("host") == 0 and plain.in_use() - plain.in_use() == 0
    by_kind = held(model, optimizer, computes_on="meta").by_kind
    assert by_kind["parameters"] == by_kind["gradients"] == 4 * 45
    assert by_kind["optimizer states"] == 2 * 4 * 45 + 2 * 4
    assert held(model).total == 0 and list(storages(model.weight)) == []
    there = model.weight.untyped_storage()
    assert any(one is there for one in alive(meta=True))
    assert not any(one is there for one in alive())


def tier_of_all(*tensors: torch.Tensor) -> set[str]:
    return {row.tier for row in held(*tensors, computes_on="meta").rows}
