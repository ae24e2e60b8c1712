"""Leases: no two notebooks on one GPU, nothing kept by the dead, and never a lesson lost to them.

A notebook is simulated by a small process that takes a real lease, on GPUs that only have names.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from course_classroom import leases
from course_classroom.leases import claims, folder, gpus, machine, share
from course_classroom.leases.gpus import Gpu
from course_classroom.leases.machine import Machine
from course_classroom.notebook.extra import extra_ranks
from course_classroom.notebook.magic import default_world
from course_classroom.ranks.cluster import Cluster
from course_classroom.ranks.crew import environment
from tests.course_classroom.conftest import told, works
from tests.course_classroom.leases.test_leases_claims import NODE
from tests.course_classroom.notebook.test_magic import Session

NOTEBOOK = """
import json, os, signal, sys, time
from course_classroom import leases
from course_classroom.leases.gpus import Gpu
from course_classroom.leases.machine import Machine

name, count, machine = sys.argv[1], int(sys.argv[2]), Machine(*json.loads(sys.argv[3]))
if len(sys.argv) > 4:  # from now on as somebody else, whom no file of this Python concerns
    os.setgroups([])
    os.setgid(int(sys.argv[4]))
    os.setuid(int(sys.argv[4]))
seen, lease = [Gpu(str(n), f"uuid-{n}") for n in range(count)], None
print("ready", flush=True)
for line in sys.stdin:
    what, *numbers = line.split()
    answer = {}
    if what == "take":
        while time.monotonic() < float(numbers[1]):
            pass
        try:
            lease = leases.take(int(numbers[0]), notebook=name, seen=seen, machine=machine)
            asked = ("told", "cores", "threads", "memory", "variables")
            answer = {name: getattr(lease, name) for name in asked}
            answer["gpus"] = None if lease.gpus is None else [gpu.name for gpu in lease.gpus]
        except MemoryError as error:
            answer = {"refused": str(error)}
    elif what == "back" and lease:
        lease.give_back()
    elif what == "fork":
        answer = os.fork()
        if answer == 0:
            os.close(0), os.close(1), os.close(2)
            signal.alarm(120)
            while True:
                signal.pause()
    print(json.dumps(answer), flush=True)
"""
NOBODY = 65534


class Notebook:
    """A process with a lease of its own."""

    def __init__(self, name: str, count: int = 8, node: Machine = NODE, user: int | None = None):
        size = json.dumps([node.cores, node.memory, node.own_cores, node.own_memory])
        words = [name, str(count), size, *([str(user)] if user else [])]
        self.process = subprocess.Popen(
            [sys.executable, "-c", NOTEBOOK, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, what: str) -> None:
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()

    def answer(self):
        return json.loads(self.process.stdout.readline())

    def take(self, world: int = 2) -> dict:
        self.say(f"take {world} 0")
        return self.answer()

    def give_back(self) -> None:
        self.say("back")
        self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def node(tmp_path, monkeypatch) -> Path:
    """A node's folder that no other test uses."""
    monkeypatch.setenv("COURSE_LEASES", str(tmp_path / "node"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path / "node"


@pytest.fixture
def start(node) -> Iterator[Callable[..., list[Notebook]]]:
    begun: list[Notebook] = []

    def several(number: int, **options) -> list[Notebook]:
        new = [Notebook(f"{len(begun) + k}.ipynb", **options) for k in range(number)]
        begun.extend(new)
        for one in new:
            assert one.process.stdout.readline() == "ready\n"
        return new

    yield several
    for one in begun:
        one.kill()


def at_once(notebooks: list[Notebook], world: int = 2) -> list[dict]:
    """All take a lease in the same instant, as far as the machine allows."""
    for one in notebooks:
        one.say(f"take {world} {time.monotonic() + 0.02}")
    return [one.answer() for one in notebooks]


def fake(number: int) -> list[Gpu]:
    return [Gpu(str(n), f"uuid-{n}") for n in range(number)]


def held(number: int = 8) -> dict[str, list[str]]:
    """Which GPU is held by which notebooks."""
    found = leases.node_report(fake(number), NODE)["gpus"]
    return {g["gpu"]: sorted(c["notebook"] for c in g["held_by"]) for g in found if g["held_by"]}


def claim_files(node: Path) -> int:
    return len(list(node.glob("claim-*")))


@pytest.mark.slow
def test_twenty_notebooks_on_eight_gpus_never_meet(start, node, monkeypatch):
    monkeypatch.setenv("COURSE_LEARNERS", "20")
    twenty = start(20)
    got = at_once(twenty)
    lucky = [k for k in range(20) if got[k]["gpus"]]
    assert sorted(got[k]["gpus"][0] for k in lucky) == list("01234567"), "eight have one each"
    poor = [k for k in range(20) if k not in lucky]
    assert all(got[k]["variables"]["CUDA_VISIBLE_DEVICES"] == "" for k in poor)
    assert all(got[k]["told"] == [] for k in lucky)
    for k in poor:
        (text,) = got[k]["told"]
        assert text.startswith("All 8 GPUs of this node are held (by ") and " 2 more)" in text
        assert text.endswith("so these ranks compute on the CPU. `%ranks restart` asks again.")
        assert sum(f"{n}.ipynb" in text.replace(",", " ").split() for n in lucky) == 6
    assert held() == {got[k]["gpus"][0]: [f"{k}.ipynb"] for k in lucky}

    dead = lucky[:4] + poor[:6]
    for k in dead:
        twenty[k].process.send_signal(signal.SIGKILL)
    for k in dead:
        twenty[k].process.wait()
    left = {got[k]["gpus"][0]: [f"{k}.ipynb"] for k in lucky[4:]}
    assert held() == left, "the dead hold nothing, the living what they held"
    assert claim_files(node) == 10
    freed = sorted(got[k]["gpus"][0] for k in lucky[:4])
    again = [twenty[k] for k in poor[6:]]
    for one in again:
        one.give_back()
    assert sorted(gpu for one in at_once(again) for gpu in one["gpus"]) == freed


def test_notebooks_that_start_together_never_claim_more_than_there_is(start, monkeypatch):
    monkeypatch.setenv("COURSE_LEARNERS", "4")
    eight = start(8)
    for _ in range(10):
        got = at_once(eight, world=4)
        granted = [one for one in got if "refused" not in one]
        assert len(granted) == 4, "the node's memory is four parts"
        assert sum(one["memory"] for one in granted) == NODE.memory
        assert sum(one["cores"] for one in granted) == NODE.cores
        assert sorted(gpu for one in granted for gpu in one["gpus"]) == list("01234567")
        assert {len(one["gpus"]) for one in granted} == {2}, "a fourth of the GPUs for each"
        for one in eight:
            one.give_back()


def test_what_a_stopped_notebook_held_is_had_by_the_next(start, node):
    first, second = start(2)
    assert first.take(3)["gpus"] == ["0", "1", "2"]
    assert second.take(2)["gpus"] == ["3", "4"]
    first.give_back()
    assert claim_files(node) == 1
    second.kill()
    assert first.take(8)["gpus"] == list("01234567"), "the dead hold nothing"


def test_fewer_gpus_than_ranks_are_shared_by_the_ranks_and_said(start):
    first, second = start(2)
    first.take(7)
    got = second.take(4)
    assert got["variables"]["CUDA_VISIBLE_DEVICES"] == "7"
    assert got["told"][0].startswith(
        "Only 1 of 8 GPUs of this node is free, and the others are held"
    )
    assert "so 4 ranks share it." in got["told"][0]


def test_a_gpu_is_shared_with_the_fewest_where_the_instructor_allows_it(start, monkeypatch):
    monkeypatch.setenv("COURSE_SHARE_GPUS", "1")
    five = start(5, count=2)
    got = [one.take(1) for one in five]
    assert [one["gpus"] for one in got] == [["0"], ["1"], ["0"], ["1"], ["0"]]
    assert got[0]["told"] == got[1]["told"] == []
    assert "so these ranks share GPU 0 with another notebook" in got[2]["told"][0]
    # Who came later goes on where the first has left: the GPU is not free for one alone.
    five[1].give_back()
    assert held(2) == {"0": ["0.ipynb", "2.ipynb", "4.ipynb"], "1": ["3.ipynb"]}
    monkeypatch.delenv("COURSE_SHARE_GPUS")
    (alone,) = start(1, count=2)
    assert alone.take(1)["gpus"] == []


def test_a_process_that_the_notebook_forked_keeps_nothing(start):
    (one,) = start(1)
    one.take(8)
    one.say("fork")
    child = psutil.Process(one.answer())
    try:
        one.kill()
        assert child.is_running() and child.status() != psutil.STATUS_ZOMBIE
        assert held() == {}
        lease = leases.take(8, seen=fake(8), machine=NODE)
        assert len(lease.gpus) == 8
        lease.give_back()
    finally:
        child.kill()


def test_names_of_holders_each_once_and_not_without_end():
    def of(user: str) -> claims.Claim:
        return claims.Claim(1, 1.0, "a.ipynb", ["x"], False, 1, 1, user)

    assert claims.names([of("ana"), of("bo"), of("ana")]) == "ana, bo"
    assert claims.names([of(str(n)) for n in range(9)]) == "0, 1, 2, 3, 4, 5, 3 more"


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that other users reach; pytest's own are closed to them."""
    if os.geteuid() != 0:
        pytest.skip("acting as another user needs root")
    place = Path(tempfile.mkdtemp(prefix="course-leases-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


def test_two_users_share_a_node_and_cannot_touch_each_others_claims(open_place, start, monkeypatch):
    monkeypatch.setenv("COURSE_LEASES", str(open_place / "node"))
    before = os.umask(0o077)
    try:
        mine = leases.take(2, notebook="/home/me/mine.ipynb", seen=fake(8), machine=NODE)
    finally:
        os.umask(before)
    (other,) = start(1, user=NOBODY)
    got = other.take(6)
    assert mine.gpus == fake(2) and got["gpus"] == list("234567")
    user = claims._user(NOBODY)
    report = leases.node_report(fake(8), NODE)
    assert {(c["user"], c["notebook"]) for c in report["claims"]} == {
        (claims._user(0), "mine.ipynb"),
        (user, "0.ipynb"),
    }
    third = leases.take(2, seen=fake(8)[2:], machine=NODE, env={"CUDA_VISIBLE_DEVICES": "x"})
    assert third.gpus == [], "the notebook's own hold none of these"
    third.give_back()
    # My claim dies and cannot be removed by the other, who goes by its lock.
    os.close(mine.claim[1])
    other.give_back()
    assert other.take(8)["gpus"] == list("01234567")
    assert claim_files(open_place / "node") == 2 and len(held()) == 8
    assert claim_files(open_place / "node") == 1, "I may remove it"


def hostile(kind: str, node: Path, aside: Path) -> str:
    """Something bad in the place of the folder or of a file in it; what is said of it."""
    if kind == "no parent":
        return f"{node}: No such file or directory"
    aside.mkdir()
    if kind == "a link":
        node.symlink_to(aside)
        return f"{node} is a link, not a folder"
    if kind == "a file":
        node.write_text("mine")
        return f"{node} is a file, not a folder"
    node.mkdir()
    node.chmod(0o777)
    return f"in {node} any user can remove others' files (`chmod 1777` corrects it)"


@pytest.mark.parametrize("kind", ["a link", "a file", "no parent", "all may remove"])
def test_a_bad_folder_costs_the_leases_and_not_the_lesson(node, tmp_path, kind, monkeypatch):
    if kind == "no parent":
        node = tmp_path / "nowhere" / "node"
        monkeypatch.setenv("COURSE_LEASES", str(node))
    said = hostile(kind, node, tmp_path / "aside")
    lease = leases.take(2, seen=fake(2), machine=NODE)
    assert lease.told == [f"Leases are off, so others may compute where these ranks do: {said}."]
    assert lease.gpus is None and lease.variables == {"OMP_NUM_THREADS": "32"}
    assert lease.status() == lease.told
    lease.give_back()
    assert not list(tmp_path.glob("aside/*")), "nothing was written through a link"


def test_the_wait_for_the_others_ends(node):
    said = []

    def wait() -> None:
        try:
            with folder.one_at_a_time(node, patience=0.05):
                said.append("had it")
        except folder.Unusable as trouble:
            said.append(str(trouble))

    with folder.one_at_a_time(node):
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(20)
        ended = list(said)
    waiting.join()
    assert ended == [f"another process has held {node} for 0.05 s"]
    with folder.one_at_a_time(node, patience=0.05) as there:
        assert there


@pytest.mark.parametrize(
    ("learners", "set_by_user", "world", "threads"),
    [
        ("", None, 2, 32),
        ("", None, 3, 21),
        ("", "48", 2, 48),
        ("20", None, 2, 1),
        ("4", None, 3, 5),
        ("4", "3,2", 2, 3),
        ("4", "64", 2, 8),
        ("4", "many", 2, 8),
        ("40", None, 4, 1),
    ],
)
def test_threads_come_from_the_cores_leased(
    node, monkeypatch, learners, set_by_user, world, threads
):
    monkeypatch.setenv("COURSE_LEARNERS", learners)
    if set_by_user:
        monkeypatch.setenv("OMP_NUM_THREADS", set_by_user)
    lease = leases.take(world, seen=[], machine=NODE)
    env = environment(0, world, node, lease, {"EXTRA": "1"})
    lease.give_back()
    assert env["OMP_NUM_THREADS"].split(",")[0] == str(threads) and env["EXTRA"] == "1"
    assert lease.cores == min(NODE.cores, world * threads)


def test_the_cores_that_others_hold_are_left_out(start):
    (one,) = start(1, node=Machine(64, 64 << 30, 40, 64 << 30))
    assert one.take(2)["cores"] == 40
    mine = leases.take(2, seen=[], machine=NODE)
    checks = leases.take(3, seen=[], machine=NODE, env={"OMP_NUM_THREADS": "1"})
    try:
        assert (mine.cores, checks.cores) == (24, 3)
        # A notebook's ranks wait while its checks run: they are counted once.
        assert leases.node_report([], NODE)["cores"] == {"total": 64, "claimed": 64}
    finally:
        mine.give_back()
        checks.give_back()


def test_what_the_process_may_really_use(tmp_path, monkeypatch):
    (tmp_path / "self").write_text("12:cpu:/old\n0::/user/ana\n")
    inner = tmp_path / "control" / "user" / "ana"
    inner.mkdir(parents=True)
    (tmp_path / "control" / "cpu.max").write_text("max 100000\n")
    (tmp_path / "control" / "memory.max").write_text("max\n")
    (inner / "cpu.max").write_text("350000 100000\n")
    for name, text in (("max", 9 << 20), ("current", 5 << 20), ("stat", "inactive_file 1048576")):
        (inner / f"memory.{name}").write_text(f"{text}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)), raising=False)
    where = (tmp_path / "control", tmp_path / "self")
    total = psutil.virtual_memory().total
    assert machine.look(*where) == Machine(12, total, 3, 9 << 20)
    assert machine.available_bytes(*where) == 5 << 20
    (tmp_path / "control" / "cpu.max").write_text("800000 100000\n")  # a container's own root
    assert machine.look(*where).cores == 8
    assert machine.look(tmp_path / "none", tmp_path / "none") == Machine(12, total, 12, total)


def test_a_world_beyond_the_part_is_refused_with_numbers(node, monkeypatch):
    monkeypatch.setenv("COURSE_LEARNERS", "64")
    with pytest.raises(MemoryError) as refused:
        share.check_memory(5, share.part(NODE, 0), NODE, [])
    assert str(refused.value) == (
        "5 ranks need about 1.4 GB, but a notebook's part of this node is 1.1 GB (68.7 GB for 64 "
        "learners); ask for 3"
    )
    monkeypatch.setenv("COURSE_LEARNERS", "1000000")
    with pytest.raises(MemoryError, match="for 1000000 learners"):
        Cluster(1).start()
    assert default_world() == 1, "what cannot start is not what is started unasked"


def test_a_world_beyond_what_others_left_is_refused_and_says_who_holds_it(start, node, monkeypatch):
    total = machine.look().memory
    monkeypatch.setenv("COURSE_LEARNERS", "1")
    (one,) = start(1, node=Machine(64, total, 64, total))
    one.take(2)
    monkeypatch.delenv("COURSE_LEARNERS")
    with pytest.raises(MemoryError) as refused:
        share.check_world(2)
    assert f"Holders: {claims._user(os.getuid())} in 0.ipynb {total / 1e9:.1f} GB" in str(
        refused.value
    )
    assert "0.0 GB are not held by others" in str(refused.value)
    one.give_back()
    share.check_world(1)


@pytest.mark.parametrize("text", ["0", "-3", "twenty", "2.5"])
def test_a_number_of_learners_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("COURSE_LEARNERS", text)
    with pytest.raises(ValueError, match="is not a number of learners"):
        share.learners()


def test_the_ranks_started_unasked_fit_the_part(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr(share, "look", lambda: NODE)
    found = {}
    for many in ("1", "2", "4", "8", "20"):
        monkeypatch.setenv("COURSE_LEARNERS", many)
        found[many] = default_world()
    monkeypatch.setenv("COURSE_LEARNERS", "40")  # 1.7 GB of the host: a rank with a GPU takes 1.1
    found["40"] = default_world()
    assert found == {"1": 8, "2": 4, "4": 2, "8": 2, "20": 2, "40": 1}


def test_a_rank_with_a_gpu_takes_a_gigabyte_of_the_host(monkeypatch):
    """torch's build for GPUs and a context; the checks' ranks, which see no GPU, do without."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr(share, "available_bytes", lambda: 3 << 30)
    share.check_world(3, {})
    with pytest.raises(
        MemoryError, match=r"4 ranks need about 4.3 GB, but only 3.2 GB .* can take 3 "
    ):
        share.check_world(4, {})
    share.check_world(8, {"CUDA_VISIBLE_DEVICES": ""})
    with pytest.raises(MemoryError, match=r"65 ranks need about 69.8 GB, but of this node's"):
        share.check_memory(65, share.part(NODE, 1), NODE, [])


SMI = """#!/bin/sh
echo "0, GPU-aaa1, T4, 2000, 400, 580.65, Default, [N/A]"
echo "1, GPU-bbb2, T4, 2000, 1600, 580.65, Default, [N/A]"
echo "2, GPU-ccc3, GB10, [N/A], [N/A], 580.65, Default, [N/A]"
exit $FAILS
"""


def test_ranks_that_a_gpu_has_no_room_for_are_refused(tmp_path, node, monkeypatch):
    """Half a gigabyte for each context. What the driver does not tell is not refused."""
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("FAILS", "0")
    a, b, c = Gpu("0", "GPU-aaa1"), Gpu("1", "GPU-bbb2"), Gpu("2", "GPU-ccc3")
    for world, seen in ((3, [a]), (4, [a, c]), (60, [c])):
        leases.take(world, seen=seen, machine=NODE).give_back()
    with pytest.raises(MemoryError) as refused:
        leases.take(4, seen=[a], machine=NODE)
    assert str(refused.value).startswith(
        "4 rank(s) on GPU 0 need about 2.1 GB of its memory before they allocate tensors, but "
        "1.7 GB are free, enough for 3. `nvidia-smi` shows"
    )
    with pytest.raises(MemoryError, match=r"^1 rank\(s\) on GPU 1 .* enough for 0\."):
        leases.take(2, seen=[a, b], machine=NODE)
    leases.take(3, seen=[a], machine=NODE).give_back()  # the refused have kept no lock
    monkeypatch.setenv("FAILS", "9")
    leases.take(4, seen=[a], machine=NODE).give_back()


@pytest.mark.parametrize(
    ("chosen", "names", "keys"),
    [
        (None, ["0", "1", "2"], ["GPU-aaa1", "GPU-bbb2", "GPU-ccc3"]),
        ("2,0", ["2", "0"], ["GPU-ccc3", "GPU-aaa1"]),
        ("GPU-bbb2, GPU-c", ["GPU-bbb2", "GPU-c"], ["GPU-bbb2", "GPU-ccc3"]),
        ("MIG-x,7", ["MIG-x", "7"], ["MIG-x", "7"]),
        ("", [], []),
    ],
)
def test_a_gpu_has_one_key_whatever_it_is_called(tmp_path, monkeypatch, chosen, names, keys):
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("FAILS", "0")
    count = 3 if chosen is None else len(chosen.split(","))
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    env = {} if chosen is None else {"CUDA_VISIBLE_DEVICES": chosen}
    found = gpus.visible(env)
    assert [gpu.name for gpu in found] == names and [gpu.key for gpu in found] == keys
    monkeypatch.setenv("FAILS", "9")  # a driver that does not answer: the names have to do
    assert [gpu.key for gpu in gpus.visible(env)] == names


def test_indices_that_we_chose_count_as_the_driver_counts(node):
    free = leases.take(1, seen=fake(2), machine=NODE, env={})
    assert free.variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    free.give_back()
    given = leases.take(1, seen=fake(2), machine=NODE, env={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert "CUDA_DEVICE_ORDER" not in given.variables
    given.give_back()


def test_a_cluster_holds_its_lease_while_it_runs_and_its_extra_ranks_join(node, monkeypatch):
    monkeypatch.setattr(gpus, "visible", lambda env: fake(3) if env.get("HIDE") is None else [])
    see = "__import__('os').environ.get('CUDA_VISIBLE_DEVICES')"
    cluster = Cluster(2, notebook="/home/me/lesson.ipynb", idle_minutes=0)
    cluster.start()
    try:
        assert cluster.pull(see) == ["0,1"] * 2
        assert held(3) == {"0": ["lesson.ipynb"], "1": ["lesson.ipynb"]}
        with extra_ranks(1) as one:
            assert one.pull(see) == ["0,1"], "the notebook's own, and no more"
            assert held(3)["0"] == ["extra ranks", "lesson.ipynb"]
        lease = cluster.lease
        text = told(cluster.run("import os\nif rank: os.kill(os.getpid(), 9)"))
        assert "The ranks were restarted" in text
        assert cluster.lease is lease, "nobody can take it while ranks are replaced"
        assert cluster.pull(see) == ["0,1"] * 2
    finally:
        cluster.stop()
    assert cluster.lease is None and held(3) == {} and claim_files(node) == 0
    monkeypatch.setenv("COURSE_RUNTIME_DIR", str(node / ("long" * 25)))
    with pytest.raises(RuntimeError, match="too long for the ranks' sockets"):
        cluster.start()
    assert claim_files(node) == 0, "a start that failed gives back as well"


@pytest.mark.skipif(
    not hasattr(__import__("resource"), "prlimit"), reason="Linux alone has prlimit"
)
def test_a_memory_hog_raises_in_its_own_cell_and_the_rest_goes_on(node, monkeypatch):
    many = max(1, min(20, machine.look().memory // (1200 << 20)))  # two ranks fit each part
    monkeypatch.setenv("COURSE_LEARNERS", str(many))
    cluster = Cluster(2, idle_minutes=0)
    cluster.start()
    try:
        most = cluster.lease.most_data()
        part = share.part(machine.look(), 0)
        assert most == max(part.memory // 2, share.LEAST_DATA)
        limits = "__import__('resource').getrlimit(__import__('resource').RLIMIT_DATA)"
        assert cluster.pull(limits) == [(most, most)] * 2
        before = [rank.process.pid for rank in cluster.ranks]
        cluster.run("kept = rank")
        text = told(cluster.run(f"if rank == 0:\n    big = torch.empty({most}, dtype=torch.uint8)"))
        assert "rank 0 raised RuntimeError" in text and "allocate memory" in text
        little = f"hog = []\nfor _ in range({most >> 22}):\n    hog.append(torch.empty(1 << 21))"
        text = told(cluster.run(f"if rank == 1:\n    {little.replace(chr(10), chr(10) + '    ')}"))
        assert "rank 1 raised RuntimeError" in text
        cluster.run("hog = None")
        works(cluster)
        assert cluster.pull("kept") == [0, 1]
        assert [rank.process.pid for rank in cluster.ranks] == before
    finally:
        cluster.stop()


def test_no_bound_on_memory_where_ranks_have_a_gpu_or_nobody_shares(node, monkeypatch):
    monkeypatch.setenv("COURSE_LEARNERS", "20")
    on_gpu = leases.take(1, seen=fake(1), machine=NODE)
    assert on_gpu.most_data() is None
    on_gpu.give_back()
    node.chmod(0o777)
    assert leases.take(1, seen=fake(1), machine=NODE).most_data() is None, "its GPUs are not hidden"
    monkeypatch.delenv("COURSE_LEARNERS")
    assert leases.take(1, seen=[], machine=NODE).most_data() is None


def test_the_notebook_tells_what_was_refused_and_its_part(node, monkeypatch):
    node.write_text("in the way")
    monkeypatch.setenv("COURSE_LEARNERS", "2")
    monkeypatch.setenv("WORLD_SIZE", "1")
    off = f"Leases are off, so others may compute where these ranks do: {node} is a file, not a "
    off += "folder."
    session = Session()
    with session.client.setup_kernel():
        session.text("%load_ext course_classroom")
        assert session.text("%%ranks\nprint(1)") == f"{off}\n[rank 0] 1\n"
        assert session.text("%%ranks\nprint(2)") == "[rank 0] 2\n"
        node.unlink()
        _, first, last = session.text("%ranks").splitlines()
        assert first == off
        assert last.startswith("This node is shared by 2 learners. These ranks hold no GPU, ")
        restarted = session.text("%ranks restart").splitlines()
        assert restarted[-1] == last and off not in restarted, "it has asked again"
