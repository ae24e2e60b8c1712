"""`course train` over two hosts, beside what appendix C runs: equal bits, a cut link,
a folder that is not shared, other releases, numbers that came twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from course_lib.peers.nodes.on_hosts import LIMIT, OnHosts
from course_lib.peers.nodes.two_hosts import NoHosts, TwoHosts
from tests.course_lib.train.conftest import environment
from tests.course_lib.train.test_layouts import SMALL as LAYOUT
from tests.course_lib.train.test_layouts import trained
from tests.support.commands import until

SMALL = [*(word for word in LAYOUT if word != "--json"), "--tp", "1", "--stage", "2", "--no-pack"]
SECONDS = 6
BOUNDED = 4 * SECONDS  # for a rank to notice, on a busy machine
SLOW = """
import time
from course_lib.train import program
step = program.one_step
program.one_step = lambda *args: (time.sleep(0.3), step(*args))[1]
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two hosts, each with the program imported, for all tests of this file."""
    try:
        with TwoHosts() as hosts:
            yield OnHosts(hosts, tmp_path_factory.mktemp("hosts"))
    except NoHosts as reason:
        pytest.skip(str(reason))


def in_one_place(me, argv: list[str], out: str) -> list[float]:
    return trained(me, [*argv, "--json"], out)["losses"]


@pytest.fixture(scope="module")
def one_host(pool, tmp_path_factory) -> tuple[list[float], Path]:
    """The losses and the folder of the run on one host."""
    out = tmp_path_factory.mktemp("one") / "run"
    return pool.run(2, in_one_place, SMALL, str(out), timeout=60)[0], out


def tensors(out: Path) -> dict[str, bytes]:
    last = out / "checkpoints" / (out / "checkpoints/latest").read_text().strip()
    return {file.name: file.read_bytes() for file in last.glob("*.safetensors")}


@pytest.mark.slow
def test_a_host_that_is_dead_is_noticed_on_the_other(cluster, tmp_path):
    out = tmp_path / "run"
    argv = [*SMALL, "--save-every", "1", "--timeout", str(SECONDS), "--out", str(out)]
    runs = cluster.both(argv, (SLOW, SLOW))
    until((out / "checkpoints/latest").exists)
    began = time.monotonic()
    cluster.hosts.cut()
    try:
        cluster.hosts.start(cluster.hosts.b, ["kill", "-KILL", str(runs[1].pid)])
        assert runs[0].wait() == 1 and runs[1].wait() == -9
    finally:
        cluster.hosts.mend()
    assert time.monotonic() - began < BOUNDED
    assert "rank 0 on host-a heard nothing from another rank" in runs[0].said


def test_other_options_are_told_before_the_first_step(cluster, tmp_path):
    other = "import sys\nfrom course_lib.train import entry\nparse = entry.parse\n"
    other += "entry.parse = lambda argv, prog: parse([*argv, '--lr', '0.5'], prog)"
    argv = [*SMALL, "--timeout", str(SECONDS), "--out", str(tmp_path / "run")]
    first, second = cluster.both(argv, ("", other))
    assert first.wait() and second.wait()
    assert "started with --lr 0.01 and 0.5. Run the same command on every host" in first.said
    assert second.said == "" and not (tmp_path / "run").exists()


@pytest.mark.slow
def test_torchrun_starts_them_as_well(cluster, one_host, tmp_path):
    want, out = one_host
    hosts, port = cluster.hosts, str(next(cluster.ports))
    env = {k: v for k, v in environment().items() if k != "GLOO_SOCKET_IFNAME"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    command += ["--master-addr=host-a", f"--master-port={port}"]
    program = ["-m", "course_lib.train", *SMALL, "--json", "--out", str(tmp_path / "run")]
    runs = [
        hosts.start(host, [*command, f"--node-rank={number}", *program], env=env)
        for number, host in enumerate((hosts.a, hosts.b))
    ]
    told = [run.communicate(timeout=LIMIT) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], told
    assert json.loads(told[0][0])["losses"] == want
    assert tensors(tmp_path / "run") == tensors(out) != {}


HOLD = """
import subprocess, sys, time
from course_lib.peers.nodes.two_hosts import TwoHosts
with TwoHosts() as hosts:
    for host in (hosts.a, hosts.b):
        hosts.start(host, ["sleep", "98765.4321"])
    time.sleep(0.5)
    print(hosts.folder, flush=True)
    time.sleep(100)
"""


def sleepers() -> list[int]:
    return [
        p.pid for p in psutil.process_iter(["cmdline"]) if "98765.4321" in (p.info["cmdline"] or ())
    ]


def test_nothing_is_left_where_their_process_is_killed(cluster):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], env=environment(), stdout=subprocess.PIPE, text=True
    )
    folder = Path(holder.stdout.readline().strip())
    try:
        assert len(sleepers()) >= 2
        holder.kill()
        holder.wait()
        until(lambda: not sleepers())
    finally:
        shutil.rmtree(folder)
        for pid in sleepers():
            os.kill(pid, signal.SIGKILL)


def test_why_there_can_be_none_is_said(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoHosts, match="unshare, nsenter, ip, mount, hostname is not installed"):
        TwoHosts().__enter__()
