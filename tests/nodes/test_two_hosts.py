"""`course train` over two hosts: as on one, bit for bit; what is amiss ends every rank in bounded
time with a sentence, and the run goes on."""

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

from course_lib.nodes.on_hosts import LIMIT
from course_lib.nodes.two_hosts import NoHosts, TwoHosts
from tests.train.conftest import environment
from tests.train.test_layouts import SMALL as LAYOUT
from tests.train.test_layouts import trained

SMALL = [*(word for word in LAYOUT if word != "--json"), "--tp", "1", "--stage", "2", "--no-pack"]
SECONDS = 6
BOUNDED = 4 * SECONDS  # for a rank to notice, on a busy machine
SLOW = """
import time
from course_lib.train import program
step = program.one_step
program.one_step = lambda *args: (time.sleep(0.3), step(*args))[1]
"""


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


def until(there) -> None:
    limit = time.monotonic() + 60
    while not there():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_over_two_hosts_it_is_the_run_of_one_bit_for_bit_and_a_clock_that_is_off_is_told(
    cluster, one_host, tmp_path
):
    want, out = one_host
    argv = [*SMALL, "--json", "--timeout", "30", "--out", str(tmp_path / "two")]
    late = "import time\nnow = time.time\ntime.time = lambda: now() - 7200"
    runs = cluster.both(argv, ("", late))
    assert [run.wait() for run in runs] == [0, 0], [run.said for run in runs]
    assert json.loads(runs[0].out.read_text())["losses"] == want
    assert tensors(tmp_path / "two") == tensors(out) != {}
    assert "the clock of host-b is 7200 s behind that of host-a" in runs[0].said
    assert "let NTP set both" in runs[0].said and runs[1].said == ""
    assert not list((tmp_path / "two").glob(".*"))  # no file by which they saw one folder is left


def test_a_link_that_is_cut_ends_every_rank_and_the_run_goes_on(cluster, one_host, tmp_path):
    (want, _), out = one_host, tmp_path / "run"
    argv = ["--save-every", "2", "--timeout", str(SECONDS), "--out", str(out)]
    runs = cluster.both([*SMALL, *argv], (SLOW, SLOW))
    until((out / "checkpoints/latest").exists)
    cut = time.monotonic()
    cluster.hosts.cut()
    try:
        assert [run.wait() for run in runs] == [1, 1]
    finally:
        cluster.hosts.mend()
    assert time.monotonic() - cut < BOUNDED
    for number, run in enumerate(runs):
        assert f"course train: rank {number} on host-{'ab'[number]} heard nothing from" in run.said
        assert f"for {SECONDS} s (--timeout)" in run.said and "--resume" in run.said
        assert run.said.count("\n") == 0
    again = cluster.both(["--resume", "--json", "--timeout", "30", "--out", str(out)])
    assert [run.wait() for run in again] == [0, 0], [run.said for run in again]
    assert json.loads(again[0].out.read_text())["losses"] == want


@pytest.mark.slow  # by the road of the cut link
def test_a_host_that_is_dead_is_noticed_on_the_other(cluster, tmp_path):
    out = tmp_path / "run"
    argv = [*SMALL, "--save-every", "1", "--timeout", str(SECONDS), "--out", str(out)]
    runs = cluster.both(argv, (SLOW, SLOW))
    until((out / "checkpoints/latest").exists)
    began = time.monotonic()
    cluster.hosts.cut()
    try:
        runs[1].starter.ask({"kill": runs[1].pid})
        assert runs[0].wait() == 1 and runs[1].wait() == -9
    finally:
        cluster.hosts.mend()
    assert time.monotonic() - began < BOUNDED
    assert "rank 0 on host-a heard nothing from another rank" in runs[0].said


def refused(cluster, argv, firsts=("", "")) -> list[str]:
    runs = cluster.both([*SMALL, "--timeout", str(SECONDS), *argv], firsts)
    assert all(run.wait() for run in runs)
    return [run.said for run in runs]


def test_other_releases_and_other_options_are_told_before_the_first_step(cluster, tmp_path):
    out = tmp_path / "run"
    newer = "import course_lib\ncourse_lib.__version__ = '99.0'"
    said = refused(cluster, ["--out", str(out)], ("", newer))
    assert "rank 0 on host-a and rank 1 on host-b have course_lib " in said[0]
    assert " and 99.0: install the same on every host" in said[0] and said[1] == ""
    other = "import sys\nfrom course_lib.train import entry\nparse = entry.parse\n"
    other += "entry.parse = lambda argv, prog: parse([*argv, '--lr', '0.5'], prog)"
    said = refused(cluster, ["--out", str(out)], ("", other))
    assert "were started with --lr 0.01 and 0.5: run the same command on every host" in said[0]
    assert not out.exists()


def test_a_folder_that_is_not_shared_is_told(cluster, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    cluster.hosts.private(cluster.hosts.b, folder)
    quick = "from course_lib.train import alike\nalike.SEEN = 0.5"
    said = refused(cluster, ["--out", str(folder / "run")], (quick, quick))
    assert f"--out {folder / 'run'} is another folder on host-b than on rank 0's host" in said[0]
    assert said[1] == "" and not list(folder.iterdir())


def test_a_host_that_does_not_answer_and_one_that_nobody_comes_to(cluster):
    argv = [*SMALL, "--timeout", "3"]
    runs = [
        cluster.b.start(1, argv, next(cluster.ports)),
        cluster.a.start(0, argv, next(cluster.ports)),
    ]
    assert [run.wait() for run in runs] == [1, 1]
    assert "rank 1 on host-b: nobody answered at host-a:295" in runs[0].said
    assert "within 3 s: is the host of rank 0 up" in runs[0].said
    assert "rank 0 on host-a: 1 of 2 ranks had come to host-a:295" in runs[1].said
    assert all(run.said.count("\n") == 0 for run in runs), [run.said for run in runs]


def test_two_ranks_with_one_number_are_told(cluster):
    port, argv = next(cluster.ports), [*SMALL, "--timeout", "4"]
    runs = [cluster.a.start(0, argv, port), cluster.b.start(0, argv, port)]
    assert all(run.wait() for run in runs)
    said = "\n".join(run.said for run in runs)
    assert "rank 0 is there twice, process " in said
    assert "on host-a" in said and "on host-b" in said and "its --node-rank" in said


@pytest.mark.slow
def test_torchrun_starts_them_as_well(cluster, one_host, tmp_path):
    want, _ = one_host
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


SEND = """
import socket, sys, time
with socket.create_connection(("host-b", 4000), 10) as link:
    began = time.monotonic()
    link.sendall(bytes(1 << 20))
    link.shutdown(socket.SHUT_WR)
    link.recv(1)
    print(time.monotonic() - began)
"""
TAKE = """
import socket
with socket.create_server(("10.77.0.2", 4000)) as door:
    print(flush=True)
    link, _ = door.accept()
    while link.recv(1 << 16):
        pass
    link.close()
"""


def test_the_link_is_as_slow_as_was_asked(cluster):
    with TwoHosts(rate="8mbit") as hosts:
        take = hosts.start(hosts.b, [sys.executable, "-c", TAKE])
        take.stdout.readline()
        send = hosts.start(hosts.a, [sys.executable, "-c", SEND])
        told, complaints = send.communicate(timeout=30)
        assert float(told) > 0.5, complaints  # 8 Mbit, of which a burst goes at once


HOLD = """
import subprocess, sys, time
from course_lib.nodes.two_hosts import TwoHosts
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
