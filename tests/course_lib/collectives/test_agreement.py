"""Ranks that decide alike: on one group and on both axes of a mesh, with one rank that is other.

Whatever one rank alone meets, every rank has to return or to raise: one that waited would run into
the pool's timeout.
"""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from course_lib import ranks
from course_lib.collectives.agreement import all_or_none, by_rank, same_everywhere, who_says
from course_lib.ledger import ledger

WHAT, REMEDY = "{ranks} would sail another course than {first}", "set the same {sails}"


def groups_of(me, dp):
    if not dp:
        return [dist.group.WORLD]
    mesh = ranks.mesh(me, dp=dp, tp=me.world // dp)
    return [ranks.axis(mesh, name) for name in ("tp", "dp")]


def message(kind, call, *args, **options):
    """What the call raises in words, or nothing."""
    try:
        call(*args, **options)
    except kind as error:
        return str(error)
    return ""


def compared(me, dp, other):
    """What is said of a value that is one rank's alone, and the bytes that it took."""
    groups, value = groups_of(me, dp), {"wind": 4, "other": me.rank in other}
    with ledger() as book:
        said = message(ValueError, same_everywhere, value, groups, WHAT, REMEDY, error=ValueError)
    assert message(RuntimeError, same_everywhere, "alike", groups, WHAT, REMEDY) == ""
    return said, book.bytes(column="payload")


@pytest.mark.parametrize(
    ("world", "dp", "other", "differ", "first"),
    [
        (2, 0, (1,), "1", 0),
        (3, 0, (0,), "1 and 2", 0),
        (4, 2, (1,), "1", 0),
        (4, 2, (2,), "2", 0),
        (4, 2, (3,), "3", 0),
        (3, 0, (), "", 0),
        (4, 2, (), "", 0),
        (1, 0, (0,), "", 0),
    ],
)
def test_a_value_that_differs_is_refused_on_all_ranks(pool, world, dp, other, differ, first):
    for rank, (said, nbytes) in enumerate(pool.run(world, compared, dp, other)):
        want = f"rank {rank}: rank {differ} would sail another course than rank {first}; "
        assert said == (want + "set the same {sails}" if differ else "")
        assert nbytes == (32 if not dp else 32 + 32 * (world // dp))


def compared_in_part(me):
    """The first rank is that of the group, under the number that the world knows it by."""
    group = ranks.new_group(me, [1, 2])
    if me.rank == 0:
        return ""
    return message(RuntimeError, same_everywhere, me.rank, [group], WHAT, REMEDY)


def test_ranks_of_a_part_have_the_numbers_of_the_world(pool):
    found = pool.run(3, compared_in_part)
    assert found[0] == ""
    assert found[1].startswith("rank 1: rank 2 would sail another course than rank 1")


def test_one_process_agrees_with_itself():
    same_everywhere(1, [], WHAT, REMEDY)
    assert who_says("alone", []) == [(0, "alone")] and who_says(None, []) == []
    with pytest.raises(KeyError), all_or_none([], "sailing"):
        raise KeyError("wind")


class Calm(RuntimeError):
    """There is no wind."""


def attempted(me, dp, bad):
    """(kind, words) of what every rank raised; `bad` says what goes wrong on which rank."""
    groups = groups_of(me, dp)
    try:
        with all_or_none(groups, "sailing", error=Calm):
            if me.rank in bad:
                raise bad[me.rank]
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


@pytest.mark.parametrize(("world", "dp"), [(2, 0), (3, 0), (4, 2)])
def test_a_body_that_fails_on_one_rank_raises_on_all(pool, world, dp):
    last = world - 1
    assert pool.run(world, attempted, dp, {}) == [("", "")] * world
    for error, words in ((Calm("no wind"), "no wind"), (OSError("reef"), "OSError: reef")):
        for rank, (kind, said) in enumerate(pool.run(world, attempted, dp, {last: error})):
            if rank == last:
                assert (kind, said) == (type(error).__name__, str(error))
            else:
                assert kind == "Calm"
                assert said == f"sailing failed on rank {last}, so it stopped here: {words}"
    both = pool.run(world, attempted, dp, {0: OSError("reef"), last: Calm("no wind")})
    assert both[0] == ("OSError", "reef") and both[last] == ("Calm", "no wind")
    assert all("on rank 0" in said for _, said in both[1:last])


def heard(me, dp):
    groups = groups_of(me, dp)
    own = {"course": me.rank} if me.rank % 2 else None
    assert who_says(None, groups) == []
    assert who_says("", groups) == [(rank, "") for rank in range(me.world)]  # a report, too
    return who_says(own, groups)


@pytest.mark.parametrize(("world", "dp"), [(1, 0), (3, 0), (4, 2)])
def test_every_rank_hears_who_says_what(pool, world, dp):
    want = [(rank, {"course": rank}) for rank in range(1, world, 2)]
    assert pool.run(world, heard, dp) == [want] * world


def test_many_reports_are_shortened():
    reports = [(rank, f"wind {rank}") for rank in (0, 2, 3, 5, 6, 7)]
    assert by_rank(reports[:2]) == "on rank 0 wind 0; on rank 2 wind 2"
    assert by_rank(reports[:4]).endswith("on rank 5 wind 5")
    assert by_rank(reports).endswith("on rank 5 wind 5; and on 2 more ranks")
    assert by_rank([]) == ""


def axes_of(me):
    mesh = ranks.mesh(me, dp=2, tp=1)
    assert ranks.axis(mesh, "dp").size() == 2 and ranks.axis(mesh, "tp").size() == 1
    few = DeviceMesh("cpu", [0], mesh_dim_names=("dp",))
    bare = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    return [
        message(TypeError, ranks.axis, dist.group.WORLD, "tp"),
        message(ValueError, ranks.axis, bare, "tp"),
        message(ValueError, ranks.axis, mesh, "pp"),
        message(ValueError, ranks.axis, few, "dp"),
    ]


def test_an_axis_that_is_not_there_is_refused(pool):
    for rank, (group, bare, other, few) in enumerate(pool.run(2, axes_of)):
        assert "a ProcessGroup but must be a DeviceMesh with an axis 'tp'" in group
        assert "has the axes (without names) but no axis 'tp'" in bare
        assert "has the axes dp, tp but no axis 'pp'" in other
        assert few == "" if rank == 0 else "rank 1 is not in this mesh of ranks [0]" in few
