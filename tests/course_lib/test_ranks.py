"""Who am I: the choice of a backend, starts and refusals, groups and the mesh."""

from __future__ import annotations

import re
import time
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from course_lib import ranks

# --- the choice of a backend ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "local_world", "gpus", "backend", "device_type", "says"),
    [
        (1, None, 0, "gloo", "cpu", "No GPU"),
        (4, None, 0, "gloo", "cpu", "No GPU"),
        (2, None, 2, "nccl", "cuda", "one GPU per rank"),
        (2, None, 8, "nccl", "cuda", "8 GPU"),
        (3, None, 2, "gloo", "cuda", "3 ranks share 2 GPU"),
        (4, None, 1, "gloo", "cuda", "4 ranks share 1 GPU"),
        (16, 8, 8, "nccl", "cuda", "8 GPU(s) for 8 rank(s)"),
        (16, 8, 4, "gloo", "cuda", "8 ranks share 4 GPU"),
        (2, None, 2, "gloo", "cuda", "no NCCL"),  # in this build of torch
    ],
)
def test_choose(monkeypatch, world, local_world, gpus, backend, device_type, says):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: says != "no NCCL")
    choice = ranks.choose(world, local_world=local_world, gpus=gpus)
    assert (choice.backend, choice.device_type) == (backend, device_type)
    assert says in choice.why


def test_choose_counts_the_gpus_itself(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert ranks.choose(3).backend == "nccl"
    assert ranks.choose(4).backend == "gloo"


# --- starts that are refused ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "world", "timeout", "says"),
    [
        (0, 0, 9.0, "a world of 0 ranks cannot be started"),
        (0, -1, 9.0, "a world of -1 ranks cannot be started"),
        (-1, 2, 9.0, "no rank -1 in a world of 2: ranks are 0 … 1"),
        (2, 2, 9.0, "no rank 2 in a world of 2: ranks are 0 … 1"),
        (0, 1, 0, "needs a bound above zero"),
        (0, 1, -3.0, "needs a bound above zero"),
        (None, 2, 9.0, "needs both rank= and world="),
        (0, None, 9.0, "needs both rank= and world="),
    ],
)
def test_a_start_that_cannot_be_is_refused(rank, world, timeout, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        ranks.start(rank, world, rendezvous=tmp_path / "meet", timeout=timeout)


def test_no_launcher_at_all(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RuntimeError, match="the rank of this process is unknown") as caught:
        ranks.start()
    assert all(word in str(caught.value) for word in ("torchrun", "srun", "rendezvous="))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there, so nccl may be asked for")
def test_nccl_without_gpus_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"'nccl' was requested.*offers 'gloo': 0 GPU\(s\)"):
        ranks.start(0, 2, rendezvous=tmp_path / "meet", backend="nccl")


def start_again(me, path):
    with pytest.raises(RuntimeError, match=rf"rank {me.rank} already belongs to a group of 2"):
        ranks.start(me.rank, me.world, rendezvous=path)
    return dist.get_world_size()


def test_a_second_start_is_refused_and_harms_nothing(pool, tmp_path):
    assert pool.run(2, start_again, tmp_path / "meet") == [2, 2]


def wait_for_nobody(me, path):
    ranks.stop()
    began = time.monotonic()
    with pytest.raises(RuntimeError):
        ranks.start(0, 2, rendezvous=path, timeout=1.0)
    assert not dist.is_initialized()
    return time.monotonic() - began


def test_a_start_gives_up_after_its_timeout(pool, tmp_path):
    (seconds,) = pool.run(1, wait_for_nobody, tmp_path / "meet")
    assert 0.5 < seconds < 10


# --- start, stop, describe -----------------------------------------------------------------------


def stop_twice_and_restart(me, folder):
    seen = []
    for turn in range(3):
        ranks.stop()
        ranks.stop()
        seen.append(dist.is_initialized())
        mine = ranks.start(me.rank, me.world, rendezvous=folder / f"meet-{turn}", timeout=9)
        value = torch.tensor([mine.rank + turn])
        dist.all_reduce(value)
        seen.append(value.item())
    return seen, mine


@pytest.mark.parametrize("world", [1, 3])
def test_stop_twice_and_start_again(pool, tmp_path, world):
    sums = [world * (world - 1) // 2 + turn * world for turn in range(3)]
    for rank, (seen, mine) in enumerate(pool.run(world, stop_twice_and_restart, tmp_path)):
        assert seen == [False, sums[0], False, sums[1], False, sums[2]]
        assert (mine.rank, mine.world) == (mine.local_rank, mine.local_world) == (rank, world)
        assert mine.timeout == 9.0
        if not torch.cuda.is_available():
            assert (mine.backend, mine.device) == ("gloo", torch.device("cpu"))


def test_describe_says_it_in_one_sentence():
    cpu = torch.device("cpu")
    alone = ranks.Me(1, 3, 1, 3, "gloo", cpu, 20.0, "No GPU.")
    assert alone.describe() == (
        "rank 1 of 3 (on one machine), gloo on cpu; every wait ends after 20 s. No GPU."
    )
    spread = ranks.Me(9, 16, 1, 8, "gloo", cpu, 2.5, "")
    assert "8 of them on this machine" in spread.describe()
    assert "after 2.5 s" in spread.describe()


# --- groups and the mesh -------------------------------------------------------------------------


def look_at(me, group):
    """(members, my place among them, the sum of their 2^rank, the group's timeout)"""
    value = torch.tensor([2.0**me.rank], device=me.device)
    dist.all_reduce(value, group=group)
    timeout = group._get_backend(me.device).options._timeout.total_seconds()
    return dist.get_process_group_ranks(group), group.rank(), value.item(), timeout


def one_group(me, members, timeout):
    group = ranks.new_group(me, members, timeout=timeout)
    if me.rank not in members:
        return group is dist.GroupMember.NON_GROUP_MEMBER
    return look_at(me, group)


def test_a_group_of_some_ranks(pool):
    first, outside, last = pool.run(3, one_group, [0, 2], 7.5)
    assert outside is True
    assert first == ([0, 2], 0, 5.0, 7.5)
    assert last == ([0, 2], 1, 5.0, 7.5)
    # Without a timeout of its own a group takes that of the start.
    assert [seen[-1] for seen in pool.run(2, one_group, [0, 1], None, timeout=12)] == [8.0, 8.0]


def wait_in_a_short_group(me, over):
    group = ranks.new_group(me, [0, 1], timeout=1.5)
    began = time.monotonic()
    if me.rank == 0:
        with pytest.raises(RuntimeError):
            dist.recv(torch.empty(1), group=group, group_src=1)
        over.touch()
    while me.rank and not over.exists() and time.monotonic() - began < 30:
        time.sleep(0.05)  # a rank that returns leaves the group, and that would end the wait too
    return time.monotonic() - began


def test_a_groups_timeout_ends_a_wait(pool, tmp_path):
    seconds, _ = pool.run(2, wait_in_a_short_group, tmp_path / "over")
    assert 1 < seconds < 20  # of the 30 that its neighbour stays


def look_at_mesh(me, dp, tp):
    mesh = ranks.mesh(me, dp=dp, tp=tp)
    seen = {axis: look_at(me, mesh.get_group(axis)) for axis in ("dp", "tp")}
    assert all(mesh.get_local_rank(axis) == place for axis, (_, place, *_) in seen.items())
    return mesh.mesh_dim_names, tuple(mesh.shape), mesh.device_type, seen


SHAPES = [(1, 1), (1, 3), (3, 1), (2, 2)]


@pytest.mark.parametrize(("dp", "tp"), SHAPES)
def test_the_mesh(pool, dp, tp):
    seen_by_rank = pool.run(dp * tp, look_at_mesh, dp, tp, timeout=12)  # so groups take 8 s
    for rank, (names, shape, kind, seen) in enumerate(seen_by_rank):
        assert (names, shape) == (("dp", "tp"), (dp, tp))
        assert kind == ("cuda" if torch.cuda.is_available() else "cpu")
        row, column = divmod(rank, tp)
        neighbours = [row * tp + t for t in range(tp)]
        apart = [d * tp + column for d in range(dp)]
        assert seen["tp"] == (neighbours, column, sum(2.0**r for r in neighbours), 8.0)
        assert seen["dp"] == (apart, row, sum(2.0**r for r in apart), 8.0)


def refused(me):
    for members in ([], [0, 0], [0, me.world], [-1, 0]):
        says = f"a group needs distinct ranks between 0 and 1, but got {members}"
        with pytest.raises(ValueError, match=re.escape(says)):
            ranks.new_group(me, members)
    with pytest.raises(ValueError, match="bound above zero"):
        ranks.new_group(me, [0], timeout=0)
    for dp, tp in ((1, 1), (2, 2), (-1, -2), (0, 2)):
        says = rf"dp={dp} times tp={tp} is {dp * tp}, but .* 2 ranks"
        with pytest.raises(ValueError, match=says):
            ranks.mesh(me, dp=dp, tp=tp)


def test_groups_and_meshes_that_are_refused(pool):
    pool.run(2, refused)


def current_gpu(me):
    return torch.cuda.current_device(), me


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="needs a GPU")
def test_a_rank_claims_its_gpu(pool):
    for rank, (*_, me) in enumerate(pool.run(2, current_gpu)):
        assert me.device == torch.device("cuda", rank % torch.cuda.device_count())
        assert me.backend == ("nccl" if torch.cuda.device_count() >= 2 else "gloo")


def when_a_group_is_there(me, slow):
    """(when this rank had connected, when new_group let it go)."""
    plain, connected = c10d._new_process_group_helper, []

    def connect(*args, **kwargs):
        made = plain(*args, **kwargs)
        if me.rank == slow:
            time.sleep(0.5)
        connected.append(time.monotonic())
        return made

    with patch.object(c10d, "_new_process_group_helper", connect):
        ranks.new_group(me, list(range(me.world)))
    return connected[0], time.monotonic()


def test_nobody_gets_a_group_before_everybody_has_connected(pool):
    """Else a rank that drops it at once breaks the connection its neighbour is still making."""
    times = pool.run(3, when_a_group_is_there, 2)
    assert min(free for _, free in times) >= max(connected for connected, _ in times)
