"""The doctor's probes of the machine, each held against a small machine made for the purpose."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from course_classroom.doctor import machine, places
from course_classroom.doctor.finding import Finding
from course_classroom.leases.machine import Limits
from course_classroom.leases.machine import limits as limits_of
from course_classroom.leases.share import GPU_RANK_BYTES, RANK_BYTES
from tests.course_classroom.conftest import only

GB = 10**9


# --- cores and memory ----------------------------------------------------------------------------


def groups(tmp_path: Path, own: str, files: dict[str, str]) -> Limits:
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text)
    (tmp_path / "own").write_text(own)
    return limits_of(tmp_path / "fs", tmp_path / "own")


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/docker/a/cpu.cfs_quota_us": "400000",
        "cpu,cpuacct/docker/a/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/memory.usage_in_bytes": "5",
        "memory/docker/memory.limit_in_bytes": "4000000000",
        "memory/docker/memory.usage_in_bytes": "5000000000",
    }
    own = "3:memory:/docker/a\n2:cpu,cpuacct:/docker/a\n1:pids:/x\n"
    assert groups(tmp_path, own, files) == Limits(4.0, 4_000_000_000, 0)


def test_a_container_that_sees_its_own_group_as_the_top(tmp_path: Path) -> None:
    limits = groups(tmp_path, "0::/../abc\n", {"cpu.max": "50000 100000"})
    assert limits == Limits(0.5, None, None)
    assert limits_of(tmp_path / "nothing", tmp_path / "nothing") == Limits()


def memory(ranks: float, limits: Limits, gpus: int = 0) -> Finding:
    each = GPU_RANK_BYTES if gpus else RANK_BYTES
    return only(machine.memory(16 * GB, int(ranks * each), limits, gpus=gpus))


SMALL = 2 * GB  # a container's limit
PROBES = {
    "a quota of cores": (
        lambda: only(machine.cpu(8, Limits(cores=3.5))), "ok", "this process may use 3.5 cores",
    ),
    "a quota beyond the cores": (lambda: only(machine.cpu(2, Limits(cores=16))), "ok", "2 cores"),
    "one core": (lambda: only(machine.cpu(1, Limits())), "note", "two ranks take turns"),
    "memory for nine ranks": (lambda: memory(9, Limits()), "ok", "available"),
    "memory for three": (lambda: memory(3.9, Limits()), "note", "; 4 ranks need"),
    "memory for one": (lambda: memory(1.9, Limits()), "bad", "; 2 ranks need"),
    "a container for one": (
        lambda: memory(9, Limits(memory=SMALL, left=RANK_BYTES)), "bad", "may use 2 GB",
    ),
    "a container for five": (
        lambda: memory(9, Limits(memory=SMALL, left=5 * RANK_BYTES)), "ok", "may use 2 GB",
    ),
    "a limit beyond the memory": (lambda: memory(9, Limits(memory=64 * GB, left=0)), "ok", "16 GB"),
    "three ranks on a GPU": (lambda: memory(3.9, Limits(), 1), "note", "; 4 ranks need 4.29 GB"),
    "few files": (lambda: only(machine.open_files(255)), "bad", "notebooks with ranks need 256"),
    "some files": (lambda: only(machine.open_files(256)), "note", "need 1024"),
    "enough files": (lambda: only(machine.open_files(1024)), "ok", "at most 1024"),
    "files without a limit": (lambda: only(machine.open_files(-1)), "ok", "no limit"),
}  # fmt: skip


@pytest.mark.parametrize(("probe", "level", "says"), PROBES.values(), ids=PROBES)
def test_what_a_machine_has_is_judged(probe, level: str, says: str) -> None:
    found = probe()
    assert (found.level, says in found.found) == (level, True), found


@pytest.mark.parametrize(
    ("free", "gpus", "level"),
    [
        (8 * GB, 8, "ok"),
        (64_000_000, 1, "ok"),  # what a container has unless it is told otherwise
        (64_000_000, 2, "bad"),
        (600_000_000, 8, "ok"),
        (1_000_000, 0, "bad"),
    ],
)
def test_shared_memory_has_to_hold_nccls_ranks(
    tmp_path: Path, free: int, gpus: int, level: str
) -> None:
    found = only(machine.shared_memory(tmp_path, gpus, free))
    assert found.level == level, found
    assert level == "ok" or "docker run --shm-size=8g" in found.remedy


def test_shared_memory_is_tried_by_writing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert only(machine.shared_memory(tmp_path, 0, 8 * GB)).level == "ok"
    assert list(tmp_path.iterdir()) == []

    def refuse(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    found = only(machine.shared_memory(tmp_path, 0, 8 * GB))
    assert found.level == "bad" and "it is not writable: No space left" in found.found


def test_shared_memory_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for system, level in (("linux", "bad"), ("darwin", "ok")):
        monkeypatch.setattr("sys.platform", system)
        assert only(machine.shared_memory(tmp_path / "shm")).level == level


# --- folders and network -------------------------------------------------------------------------


def test_temporary_files_are_tried_by_writing_one(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where Python would pass over one that is full
    assert only(places.temporary()).found == f"{tmp_path} is writable"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "gone", tmp_path / "file"):
        found = only(places.temporary(folder))
        assert found.level == "bad" and str(folder) in found.found and "TMPDIR" in found.remedy


def test_the_ranks_sockets_need_a_folder_of_ones_own_with_a_short_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    cases = {
        tmp_path / "file" / "below": "no folder for the ranks' sockets can be created",
        tmp_path / "open": "is not a folder that belongs only to you",
        tmp_path / ("x" * 80): "is too long for the ranks' sockets",
    }
    for folder, says in cases.items():
        monkeypatch.setenv("COURSE_RUNTIME_DIR", str(folder))
        found = only(places.runtime())
        assert found.level == "bad" and says in found.found, found
        assert found.remedy.startswith("set COURSE_RUNTIME_DIR to a short path")


def test_the_ranks_sockets_are_tried_and_nothing_is_left(monkeypatch, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("s")
    monkeypatch.setenv("COURSE_RUNTIME_DIR", str(folder))
    assert only(places.runtime()).level == "ok"
    assert list(folder.iterdir()) == []

    def no_sockets(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    with monkeypatch.context() as patch:
        patch.setattr("socket.socket.bind", no_sockets)
        found = only(places.runtime())
    assert found.level == "bad" and "Operation not supported" in found.found
    assert list(folder.iterdir()) == []


def test_disks_are_judged_by_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, level in ((100e6, "bad"), (1e9, "note"), (3e9, "ok")):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr("shutil.disk_usage", lambda folder, usage=usage: usage)
        assert only(places.disk(tmp_path, tmp_path)).level == level


def test_loopback_is_used_and_its_loss_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(places.loopback()).level == "ok"

    def unreachable(*_: object, **__: object) -> None:
        raise OSError("Network is unreachable")

    monkeypatch.setattr("socket.create_connection", unreachable)
    found = only(places.loopback())
    assert found.level == "bad" and "Network is unreachable" in found.found


def test_a_machine_whose_name_has_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "localhost")
    assert only(places.host_name()).level == "ok"

    def unknown(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    found = only(places.host_name())
    assert found.level == "note" and "hostname" in found.remedy
