"""Who sets which variable: measured under each launcher on two ranks, and shown as a table."""

from __future__ import annotations

import time

import pytest

from course_lib.launchers.accelerate_config import accelerate_config
from course_lib.launchers.programs import path
from course_lib.launchers.run import Ran, run
from course_lib.launchers.table import Reported, heard, measure, reported, table, together

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
    "course train": ONES | {"LOCAL_WORLD_SIZE": "2", "COURSE_TRAIN_RENDEZVOUS": "a path",
                            "MASTER_ADDR": None, "MASTER_PORT": None},
    "by hand": {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": None,
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "a port"},
}  # fmt: skip
LATER = pytest.mark.slow  # lesson 13 runs them in each test run


@pytest.mark.parametrize(
    "name",
    ["torchrun", "deepspeed", "by hand"]
    + [pytest.param(name, marks=LATER) for name in ("accelerate", "slurm", "course train")],
)
def test_what_a_launcher_sets(name):
    if name in ("deepspeed", "accelerate"):
        pytest.importorskip(name)
    measured = measure([name], timeout=150)
    rows = dict(line.split("  ", 1) for line in table(measured).splitlines()[1:])
    cells = {key: text.strip() for key, text in rows.items()}
    for variable, expected in EXPECTED[name].items():
        assert cells.get(variable) == expected, variable
    assert cells["(processes)"] == ("1" if name == "by hand" else "2")
    assert not [key for key in cells if key.startswith(("SLURM_", "COURSE_LAUNCH_"))]
    assert ("(an argument)" in cells) == (name == "deepspeed")
    if name == "deepspeed":
        assert cells["(an argument)"] == "--local_rank=0 --local_rank=1"


def test_a_table_has_a_row_for_each_variable_and_a_column_for_each_launcher():
    two = [
        Reported((), {"RANK": str(i), "MASTER_PORT": str(4000 + i), "HOME_OF": f"/tmp/{i}"})
        for i in range(2)
    ]
    other = [Reported(("--x=1",), {"RANK": "0", "SLURM_NODEID": "0", "LONG": "x" * 40})]
    assert table({"a": two, "b": other}).splitlines() == [
        "               a       b",
        "RANK           0 1     0",
        "MASTER_PORT    a port  ·",
        "HOME_OF        a path  ·",
        f"LONG           ·       {'x' * 17}…",
        "(an argument)  ·       --x=1",
        "(processes)    2       1",
    ]
    assert table({"b": other}, rows=["RANK", "GROUP_RANK"]).splitlines()[1:3] == [
        "RANK           0", "GROUP_RANK     ·",
    ]  # fmt: skip


def test_what_ranks_reported_before_their_launcher_failed_can_be_read():
    line = '{"arguments": [], "variables": {"RANK": "0"}}\nmore\n'
    assert heard(Ran("torchrun", 1, False, "", (line,), ("",))) == [Reported((), {"RANK": "0"})]


def test_launchers_are_started_two_at_a_time_and_answers_keep_their_order():
    alive, most = [], []

    def start(name):
        alive.append(name)
        most.append(len(alive))
        time.sleep(0.05)
        alive.remove(name)
        return name.upper()

    assert list(together(["c", "b", "a", "d"], start).items()) == [
        ("c", "C"), ("b", "B"), ("a", "A"), ("d", "D"),
    ]  # fmt: skip
    assert max(most) <= 2


def test_a_launcher_that_failed_reports_nothing():
    failed = Ran("torchrun", 1, False, "its words", (), ("the rank's",))
    with pytest.raises(RuntimeError, match=r"torchrun ended with 1:\nthe rank's\nits words"):
        reported(failed)


def test_a_config_for_accelerate_is_checked():
    with pytest.raises(ValueError, match="none of MULTI_GPU"):
        accelerate_config(2, kind="FSDP")
    for kind, file in (("MULTI_GPU", "x.json"), ("DEEPSPEED", None)):
        with pytest.raises(ValueError, match="go together"):
            accelerate_config(2, kind=kind, deepspeed=file)
    assert "\nnum_processes: 3\n" in accelerate_config(3)


def accelerated(tmp_path, **options) -> list[Reported]:
    pytest.importorskip("accelerate")
    file = tmp_path / "accelerate.yaml"
    file.write_text(accelerate_config(2, **options))
    return reported(run("accelerate", path("variables"), options=["--config_file", str(file)]))


@pytest.mark.slow
def test_accelerates_config_for_a_cpu_starts_one_process_alone(tmp_path):
    (rank,) = accelerated(tmp_path, kind="MULTI_CPU", port=29500)
    assert "RANK" not in rank.variables and "WORLD_SIZE" not in rank.variables


@pytest.mark.slow
def test_accelerates_config_with_deepspeed_starts_two_ranks(tmp_path):
    pytest.importorskip("deepspeed")
    config = tmp_path / "ds.json"
    config.write_text('{"train_micro_batch_size_per_gpu": 1}')
    ranks = accelerated(tmp_path, kind="DEEPSPEED", deepspeed=str(config))
    assert [rank.variables["RANK"] for rank in ranks] == ["0", "1"]
    assert {rank.variables["ACCELERATE_USE_DEEPSPEED"] for rank in ranks} == {"true"}
    # It is torch's launcher, not DeepSpeed's.
    assert all("TORCHELASTIC_RUN_ID" in rank.variables for rank in ranks)
    assert not any("CROSS_RANK" in rank.variables for rank in ranks)


@pytest.mark.slow
def test_deepspeeds_include_on_a_cpu_wants_local_size():
    pytest.importorskip("deepspeed")
    options = ["--include", "localhost:0,1"]
    refused = run("deepspeed", path("variables"), options=options, timeout=150)
    if refused.returncode:  # a host of one NUMA node has one device
        assert "No slot '1' specified on host 'localhost'" in refused.said
    ran = run(
        "deepspeed", path("variables"), options=options, variables={"LOCAL_SIZE": "2"}, timeout=150
    )  # fmt: skip
    assert [rank.variables["RANK"] for rank in reported(ran)] == ["0", "1"]
