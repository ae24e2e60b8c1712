"""Random streams go on: each replica has its own, on as many; on others, new ones, all distinct."""

from __future__ import annotations

import random

import pytest
import torch

from course_lib import checkpoint, ranks
from course_lib.checkpoint.streams import restore_streams, streams_of
from course_lib.pretrained.header import CheckpointError
from tests.course_lib.checkpoint.parts import Layout, engine_of, losses
from tests.course_lib.tensor_parallel.parts import said


def drawn() -> list:
    return [*torch.rand(3).tolist(), random.random(), random.gauss(0, 1)]


def saved(me, folder: str, layout: Layout) -> tuple:
    with engine_of(me, layout, folder) as (engine, mesh):
        torch.manual_seed(7 + mesh.get_group("dp").rank())
        random.seed(mesh.get_group("dp").rank())
        losses(engine, mesh, 0, 1)
        random.gauss(0, 1)  # leaves a second one behind
        checkpoint.save(folder, 1, engine, mesh)
        return mesh.get_group("dp").rank(), drawn()


def gone_on(me, folder: str, layout: Layout) -> tuple:
    with engine_of(me, layout, folder) as (engine, mesh):
        torch.manual_seed(1)
        checkpoint.load(f"{folder}/step-000001", engine, mesh)
        return mesh.get_group("dp").rank(), drawn()


def test_each_replica_goes_on_with_its_own_at_any_tp(pool, tmp_path):
    want = dict(pool.run(2, saved, str(tmp_path), Layout("2x1", 1)))
    assert len(set(map(tuple, want.values()))) == 2
    for world, mesh in ((2, "2x1"), (4, "2x2")):
        for replica, numbers in pool.run(world, gone_on, str(tmp_path), Layout(mesh, 0)):
            assert numbers == want[replica]


def test_other_replicas_get_streams_of_their_own(pool, tmp_path):
    before = [numbers for _, numbers in pool.run(2, saved, str(tmp_path), Layout("2x1", 1))]
    first = pool.run(4, gone_on, str(tmp_path), Layout("4x1", 1))
    again = pool.run(4, gone_on, str(tmp_path), Layout("4x1", 3))
    assert first == again  # from the saved ones alone
    for some in (slice(0, 3), slice(3, 4)):  # torch's, and Python's
        streams = {tuple(numbers[some]) for _, numbers in first}
        assert len(streams) == 4 and not streams & {tuple(numbers[some]) for numbers in before}
    alike = pool.run(2, gone_on, str(tmp_path), Layout("1x2", 0))
    assert alike[0] == alike[1]  # the tp ranks of a replica share theirs


@pytest.mark.parametrize("change", [{"torch": "nothing"}, {"python": None}])
def test_a_stream_that_is_damaged_is_refused(pool, change):
    (message,) = pool.run(1, damaged, change)
    assert "random streams cannot be used here" in message and "streams=False" in message


def damaged(me, change: dict) -> str:
    mesh = ranks.mesh(me, dp=1, tp=1)
    streams = streams_of(mesh)
    streams[0].update(change)
    return said(CheckpointError, restore_streams, streams, mesh)
