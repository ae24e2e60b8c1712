"""Who this rank is under torchrun and under SLURM, and where its group meets."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

from course_lib import ranks
from tests.support.commands import python
from tests.support.failures import RanksFailed

SCRIPT = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from course_lib import ranks

me = ranks.start(timeout=20)
value = torch.tensor([me.rank + 1], device=me.device)
dist.all_reduce(value)
seen = (me.rank, me.world, me.local_rank, me.local_world, value.item())
(Path(sys.argv[1]) / f"rank-{me.rank}").write_text(repr(seen))
ranks.stop()
"""


def test_torchrun_really(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = python(*launcher, script, tmp_path, env={"OMP_NUM_THREADS": "1"})
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "rank-0").read_text() == "(0, 2, 0, 2, 3)"
    assert (tmp_path / "rank-1").read_text() == "(1, 2, 1, 2, 3)"


def task(rank, world, local_rank, node, per_node):
    """What SLURM tells a task."""
    names = ("PROCID", "NTASKS", "LOCALID", "NODEID", "TASKS_PER_NODE")
    values = (rank, world, local_rank, node, per_node)
    return {f"SLURM_{name}": str(value) for name, value in zip(names, values, strict=True)}


THIRD = {"RANK": "3", "WORLD_SIZE": "4"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({**THIRD, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, (3, 4, 1, 2)),
        ({**THIRD, "LOCAL_WORLD_SIZE": "2"}, (3, 4, 1, 2)),
        (THIRD, (3, 4, 3, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (0, 1, 0, 1)),
        (task(25, 26, 1, 3, "8(x3),2"), (25, 26, 1, 2)),
        (task(9, 26, 1, 1, "8(x3),2"), (9, 26, 1, 8)),
        (task(5, 7, 1, 1, "4,3"), (5, 7, 1, 3)),
        # torchrun inside a SLURM job wins
        ({"RANK": "1", "WORLD_SIZE": "2", **task(0, 1, 0, 0, "1")}, (1, 2, 1, 2)),
    ],
)
def test_who_the_environment_says(variables, expected):
    assert ranks._identity_from_environment(dict(variables)) == expected


def test_slurm_gives_all_nodes_one_address():
    base = {"SLURM_NTASKS": "26", "SLURM_JOB_NODELIST": "gpu[07-09,12]", "SLURM_JOB_ID": "4711"}
    nodes = [{**base, "SLURM_PROCID": str(rank)} for rank in (0, 25)]
    for node in nodes:
        ranks._identity_from_environment(node)
    assert {node["MASTER_ADDR"] for node in nodes} == {"gpu07"}
    assert {node["MASTER_PORT"] for node in nodes} == {"24711"}
    set_by_hand = {**nodes[0], "MASTER_ADDR": "head", "MASTER_PORT": "5"}
    ranks._identity_from_environment(set_by_hand)
    assert (set_by_hand["MASTER_ADDR"], set_by_hand["MASTER_PORT"]) == ("head", "5")


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("gpu1", "gpu1"),
        ("gpu1,gpu2", "gpu1"),
        ("gpu[07-09,12]", "gpu07"),
        ("gpu[12,7-9],cpu1", "gpu12"),
        (" node-a-3 ", "node-a-3"),
        ("cpu1,gpu[07-09]", "cpu1"),
        ("rack[2-3]node[11-14]", "rack2node11"),
        ("n[001-128]-ib.cluster", "n001-ib.cluster"),
        ("[1-2]", "1"),  # a name may be all digits
    ],
)
def test_the_first_host_of_a_list(nodelist, first):
    assert ranks.first_host(nodelist) == first


@pytest.mark.parametrize("nodelist", ["", " ", ",a"])
def test_a_list_without_a_host(nodelist):
    with pytest.raises(ValueError, match="names no host"):
        ranks.first_host(nodelist)


def start_under_slurm(me, job):
    ranks.stop()
    os.environ.update(task(me.rank, me.world, me.rank, 0, me.world))
    os.environ.update(SLURM_JOB_NODELIST="localhost", SLURM_JOB_ID=str(job))
    mine = ranks.start(timeout=10)
    value = torch.tensor([mine.rank + 1])
    dist.all_reduce(value)
    return mine.rank, mine.local_world, value.item()


def test_slurm_variables_really_start_a_group(pool):
    for attempt in range(3):  # the port follows from the job's number and may be taken
        try:
            seen = pool.run(2, start_under_slurm, 1000 + os.getpid() + 977 * attempt)
        except RanksFailed as failed:
            if "address already in use" not in str(failed).lower():
                raise
        else:
            assert seen == [(0, 2, 3), (1, 2, 3)]
            return
    pytest.skip("three ports in a row were taken")
