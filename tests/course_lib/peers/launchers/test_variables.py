"""Who sets which variable: measured under each launcher on two ranks, and shown as a table."""

from __future__ import annotations

import pytest

from course_lib.peers.launchers.programs import path
from course_lib.peers.launchers.run import run
from course_lib.peers.launchers.table import heard, table
from tests.course_lib.peers.launchers.parts import need

ONES = {"RANK": "0 1", "LOCAL_RANK": "0 1", "WORLD_SIZE": "2"}
# What each launcher is known to say: a change in a release is a change in the lesson.
EXPECTED = {
    "torchrun": ONES | {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "MASTER_ADDR": "localhost",
                        "MASTER_PORT": "a port", "TORCHELASTIC_RUN_ID": "an id"},
    "deepspeed": ONES | {"LOCAL_SIZE": "2", "CROSS_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                         "MASTER_PORT": "a port", "LOCAL_WORLD_SIZE": None, "GROUP_RANK": None},
    "accelerate": ONES | {"LOCAL_WORLD_SIZE": "2", "ACCELERATE_MIXED_PRECISION": "no",
                          "MASTER_PORT": "a port"},
    "slurm": {"RANK": "0 1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1",
              "GROUP_RANK": "0 1", "MASTER_ADDR": "localhost"},
    "by hand": {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": None,
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "a port"},
}  # fmt: skip
LATER = pytest.mark.slow  # lesson 13 runs them in each test run


@pytest.mark.parametrize(
    "name",
    ["torchrun", "deepspeed", "by hand"]
    + [pytest.param(name, marks=LATER) for name in ("accelerate", "slurm")],
)
def test_what_a_launcher_sets(name):
    need(name)
    ran = run(name, path("variables"), world=1 if name == "by hand" else 2, timeout=150)
    assert ran.returncode == 0, ran.heard
    rows = dict(line.split("  ", 1) for line in table({name: heard(ran)}).splitlines()[1:])
    cells = {key: text.strip() for key, text in rows.items()}
    for variable, expected in EXPECTED[name].items():
        assert cells.get(variable) == expected, variable
    assert cells["(processes)"] == ("1" if name == "by hand" else "2")
    assert not [key for key in cells if key.startswith("COURSE_LAUNCH_")]
    assert ("(an argument)" in cells) == (name == "deepspeed")
    if name == "deepspeed":
        assert cells["(an argument)"] == "--local_rank=0 --local_rank=1"


@pytest.mark.slow
def test_accelerate_for_a_cpu_starts_one_process_alone():
    """MULTI_CPU, but with mpirun: no rank is told of another."""
    need("accelerate")
    options = ["--cpu", "--num_processes", "2", "--num_machines", "1", "--mixed_precision", "no"]
    (rank,) = heard(run("accelerate", path("variables"), options=options, timeout=150))
    assert "RANK" not in rank.variables and "WORLD_SIZE" not in rank.variables


@pytest.mark.slow
def test_deepspeeds_include_on_a_cpu_wants_local_size():
    need("deepspeed")
    options = ["--include", "localhost:0,1"]
    refused = run("deepspeed", path("variables"), options=options, timeout=150)
    if refused.returncode:  # a host of one NUMA node has one device
        assert "No slot '1' specified on host 'localhost'" in refused.said
    ran = run(
        "deepspeed", path("variables"), options=options, variables={"LOCAL_SIZE": "2"}, timeout=150
    )  # fmt: skip
    assert [rank.variables["RANK"] for rank in heard(ran)] == ["0", "1"]
