"""One process as any rank of any world: who it is, what it hears, and that torch is as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_lib import collectives
from course_lib.collectives.agreement import any_goes_on, same_everywhere, who_says
from course_lib.collectives.transport import uses_gloo
from course_lib.dry import alone
from course_lib.dry.as_on_cpu import UnderWay
from course_lib.ledger import ledger
from course_lib.memory import budget

ROOT = Path(__file__).resolve().parents[3]


def test_one_file_touches_what_is_private_to_torch():
    """A release of torch may move it: then one file has to follow."""
    naming = [
        str(file.relative_to(ROOT))
        for folder in (
            "course_lib",
            "course_classroom",
            "course_lessons",
            "tests",
            "benchmarks",
            "tools",
        )
        for file in sorted((ROOT / folder).rglob("*.py"))
        if "fake" + "_pg" in file.read_text() or "FakeProcess" + "Group" in file.read_text()
    ]
    assert naming == ["course_lib/dry/alone.py"]


def test_every_verb_goes_past_a_ledger_with_its_bytes_and_no_byte_moves():
    with alone(4, 1) as me:
        group = dist.group.WORLD
        x = torch.empty(8, 3, device="meta")
        with ledger() as book:
            assert collectives.all_reduce(x, group).shape == (8, 3)
            assert collectives.all_gather(x, group).shape == (32, 3)
            assert collectives.all_gather(x, group, sizes=[1, 8, 2, 3]).shape == (14, 3)
            assert collectives.reduce_scatter(x, group).shape == (2, 3)
            assert collectives.broadcast(x, group, 2).is_meta
            handle = collectives.all_reduce(x, group, async_op=True)
            assert handle.wait().is_meta and handle.is_completed()
            collectives.barrier(group)
        assert uses_gloo(x, group) and me.backend == "fake"
        assert [book.count(op) for op in ("all_reduce", "all_gather", "barrier")] == [2, 2, 1]
        assert book.bytes("all_reduce") == 2 * 2 * 96 * 3 / 4 and book.bytes(column="moved") is None


def test_what_is_sent_is_in_memory_until_its_handle_goes():
    with alone(2), UnderWay(), budget(computes_on="meta") as watched:
        out, before = torch.empty(2000, device="meta"), watched.in_use()
        handle = collectives.all_gather(
            torch.empty(1000, device="meta"), dist.group.WORLD, into=out, async_op=True
        )
        torch.empty(0, device="meta")  # any operation: the handle alone keeps it now
        assert watched.in_use() - before == 4000
        handle.wait()
        assert watched.in_use() - before == 0


def test_the_others_say_what_this_rank_says():
    with alone(3, 2):
        world = [dist.group.WORLD]
        same_everywhere("this", world, "{ranks} differ from {first}", "no remedy")
        assert any_goes_on(True, world[0], "asked") and not any_goes_on(False, world[0], "asked")
        assert [report for _, report in who_says("so", world)] == ["so"] * 3
        flag = torch.tensor([5, 7])
        assert collectives.all_reduce(flag, world[0], "max").tolist() == [5, 7]


@pytest.mark.parametrize(("world", "rank"), [(0, 0), (4, 4), (4, -1)])
def test_a_rank_that_there_is_not_is_refused(world, rank):
    with pytest.raises(ValueError, match=f"{world}"), alone(world, rank):
        raise AssertionError("it was begun")


def test_a_rank_of_a_group_cannot_be_another_one():
    with alone(2), pytest.raises(RuntimeError, match="in a separate process"), alone(4):
        raise AssertionError("it was begun")


def test_a_run_that_breaks_off_leaves_the_group():
    with pytest.raises(ZeroDivisionError), alone(2):
        raise ZeroDivisionError
    assert not dist.is_initialized()
