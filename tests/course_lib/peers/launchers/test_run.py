"""A program under a launcher: output by rank, every wait bounded, nothing left behind."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import time

import pytest

from course_lib.peers.launchers import commands
from course_lib.peers.launchers.programs import path
from course_lib.peers.launchers.run import WRAPPER, run
from course_lib.peers.launchers.table import read
from tests.course_lib.peers.launchers.parts import MEET, need, program, shell
from tests.support.commands import gone

TWO = "RANK=0 $PYTHON $RANK_PY & RANK=1 $PYTHON $RANK_PY & wait"


def test_each_rank_has_its_own_output_and_errors(tmp_path, monkeypatch):
    text = "import os, sys\nprint('out', os.environ['RANK'])\nprint('err', file=sys.stderr)"
    ran = run(shell(monkeypatch, f"echo mine >&2; {TWO}"), program(tmp_path, text))
    assert (ran.stdout, ran.stderr) == (("out 0\n", "out 1\n"), ("err\n", "err\n"))
    assert (ran.said, ran.returncode, ran.timed_out, ran.left) == ("mine\n", 0, False, 0)


def test_a_program_gets_its_arguments_and_its_own_folder_first_on_the_path(tmp_path):
    text = "import sys\nprint(sys.argv, sys.path[0], __name__)"
    file = program(tmp_path, text)
    ran = run("by hand", file, ["--steps", "2"], world=1)
    assert ran.stdout == (f"{[str(file), '--steps', '2']} {tmp_path} __main__\n",)


def test_a_rank_that_waits_is_ended_and_says_where_it_waited(tmp_path):
    text = "import os, time\nprint(os.getpid(), flush=True)\n"
    text += "def in_a_collective():\n    time.sleep(600)\nin_a_collective()\n"
    began = time.monotonic()
    ran = run("by hand", program(tmp_path, text), world=1, timeout=4.0)
    assert ran.timed_out and "in in_a_collective" in ran.stderr[0]
    assert gone(int(ran.stdout[0])) and time.monotonic() - began < 60


def test_what_a_launcher_writes_to_the_temporary_folder_is_gone_with_the_run(tmp_path, monkeypatch):
    ran = run(shell(monkeypatch, "mktemp; mktemp -d"), path("variables"))
    assert len(ran.said.split()) == 2
    assert not any(os.path.exists(name) for name in ran.said.split())


@pytest.mark.skipif(shutil.which("setsid") is None, reason="this system has no setsid command")
def test_ranks_that_a_launcher_has_left_are_counted_and_ended(tmp_path, monkeypatch):
    text = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    wait = "until [ $(cat $COURSE_LAUNCH_FOLDER/*.out | wc -l) = 2 ]; do sleep 0.05; done"
    left = f"RANK=0 setsid $PYTHON $RANK_PY & RANK=1 setsid $PYTHON $RANK_PY & {wait}"
    ran = run(shell(monkeypatch, left), program(tmp_path, text))
    assert (ran.left, ran.timed_out) == (2, False)
    assert gone(*map(int, ran.stdout))


def test_a_rank_ends_by_itself_where_nobody_is_left_to_end_it(tmp_path):
    file = program(tmp_path, "import time\ntime.sleep(20)")
    folder = tmp_path / "ranks"
    folder.mkdir()
    names = {"COURSE_LAUNCH_FOLDER": folder, "COURSE_LAUNCH_PROGRAM": file}
    env = {**os.environ, **{k: str(v) for k, v in names.items()}, "COURSE_LAUNCH_SECONDS": "1"}
    code = os.spawnve(os.P_WAIT, sys.executable, [sys.executable, str(WRAPPER)], env)
    assert code == 1
    (errors,) = folder.glob("*.err")
    assert "Timeout" in errors.read_text()


@pytest.mark.parametrize(
    ("name", "module", "package"),
    [
        ("deepspeed", "deepspeed", "course_lib[deepspeed]"),
        ("accelerate", "accelerate", "course_lib[huggingface]"),
        ("torchrun", "torch", "pip install torch"),
    ],
)
def test_a_launcher_that_is_not_installed_names_the_package(monkeypatch, name, module, package):
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda x, *a: None if x == module else there(x, *a)
    )
    with pytest.raises(commands.NotInstalled, match="is not installed") as caught:
        run(name, path("variables"))
    assert package in str(caught.value)


def test_what_cannot_be_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no launcher is called 'mpirun'. Use one of torchrun"):
        run("mpirun", path("variables"))
    with pytest.raises(FileNotFoundError, match=r"absent\.py does not exist"):
        run("torchrun", tmp_path / "absent.py")
    with pytest.raises(ValueError, match=r"world=1, not 2 \(only one process"):
        run("by hand", path("variables"), world=2)


def test_a_launcher_around_this_process_is_not_taken_for_the_one_that_runs(monkeypatch, tmp_path):
    for name in ("RANK", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "TORCHELASTIC_RUN_ID", "MASTER_PORT"):
        monkeypatch.setenv(name, "77")
    text = "import json, os\nprint(json.dumps(dict(os.environ)))"
    values = json.loads(run("by hand", program(tmp_path, text), world=1).stdout[0])
    assert [name for name, value in values.items() if value == "77"] == []
    assert set(commands.five(0, 1, 0)) <= set(values)


@pytest.mark.parametrize(("port", "code"), [(None, 0), (29501, 1)])
def test_a_port_that_was_taken_meanwhile_is_tried_again_unless_it_is_asked_for(
    tmp_path, monkeypatch, port, code
):
    once = f"[ -e {tmp_path}/again ] || {{ touch {tmp_path}/again; echo EADDRINUSE; exit 1; }}"
    lines = f"{once}; RANK=0 $PYTHON $RANK_PY"
    assert run(shell(monkeypatch, lines), path("variables"), port=port).returncode == code


def test_only_what_a_launcher_has_set_is_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("OF_THE_USER", "1")
    lines = "export LOCAL_RANK=0 OF_THE_USER=2; RANK=0 $PYTHON $RANK_PY --local_rank=0"
    ran = run(shell(monkeypatch, lines), path("variables"), variables={"ALSO": "1"})
    rank = read(ran.stdout[0])
    assert rank.variables == {
        "LOCAL_RANK": "0", "RANK": "0", "OF_THE_USER": "2",
    } | {k: v for k, v in rank.variables.items() if k in ("PYTHON", "RANK_PY")}  # fmt: skip
    assert rank.arguments == ("--local_rank=0",)


@pytest.mark.parametrize(
    ("name", "options"),
    [("torchrun", None), ("accelerate", None), ("deepspeed", None), ("slurm", None)]
    + [("slurm", ["one node"]), ("slurm", ["deepspeed"])],
)
@pytest.mark.slow
def test_two_ranks_meet_by_what_the_launcher_has_said(name, options):
    need(name, *(options or ()))
    ran = run(name, MEET, options=options, timeout=150)
    assert ran.stdout == ("rank 0 of 2: the sum is 3\n", "rank 1 of 2: the sum is 3\n"), ran.heard
