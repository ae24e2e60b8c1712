"""`course doctor` as a whole: the report, the guard, what is left out, a machine in trouble."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import course_lib
from course_classroom.doctor import privacy
from course_classroom.doctor.finding import Check, Finding, guarded
from course_classroom.doctor.privacy import Private, scrubbed

DOCTOR = [sys.executable, "-m", "course_classroom.cli", "doctor"]


def run(*options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DOCTOR, *options], env={**os.environ, **variables}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip


def test_this_machine_is_well_and_really_summed() -> None:
    done = run("--json")
    report = json.loads(done.stdout)  # one document, and nothing else on standard output
    found = {one["name"]: one for one in report["checks"]}
    bad = {name: one["found"] for name, one in found.items() if one["level"] == "bad"}
    assert (done.returncode, report["ok"], bad) == (0, True, {}), done.stderr
    assert report["course"] == course_lib.__version__
    assert "PyTorch version: " in report["collect_env"], "torch's own account of the machine"
    assert str(Path.home()) not in report["collect_env"]
    assert set(found["all-reduce"]) == {"name", "level", "found", "remedy"}
    assert found["all-reduce"]["found"].startswith("2 ranks, ")
    assert "right on every rank" in found["all-reduce"]["found"]
    assert found["bandwidth"]["level"] == "ok"
    sizes = [row["bytes"] for row in report["bandwidth"]]
    assert sizes[0] == 1 << 10 and sizes[-1] == 1 << 24 and sizes == sorted(sizes)
    for row in report["bandwidth"]:
        assert row["gb_per_s"] == pytest.approx(row["bytes"] / row["seconds"] / 1e9)
        assert (row["world"], row["collective"]) == (2, "all_reduce")
        assert row["backend"] in found["all-reduce"]["found"]
    looked_at = {"Python", "packages", "CPU", "memory", "shared memory", "open files", "loopback"}
    looked_at |= {"temporary files", "the ranks' sockets", "GPUs", "torch", "NCCL"}
    looked_at |= {"C++ compiler", "libaio", "JupyterLab", "kernel", "grading"}
    assert looked_at <= set(found) and any(name.startswith("disk") for name in found)


def test_a_machine_in_trouble_gets_red_lines_with_remedies(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 90)
    done = run(PATH=str(tmp_path), CXX="no-such-compiler", COURSE_RUNTIME_DIR=str(long))
    assert done.returncode == 1, done.stdout + done.stderr
    lines, _, mend = done.stdout.partition("\nTo be fixed:\n")
    for name in ("the ranks' sockets", "C++ compiler", "all-reduce"):
        assert any(line.startswith(f"bad   {name}") for line in lines.splitlines()), lines
        assert f"\n{name}: " in f"\n{mend}"
    assert "too long for the ranks' sockets" in mend
    assert "remedy: set COURSE_RUNTIME_DIR to a short path" in mend
    red = [line for line in lines.splitlines() if line.startswith("bad ")]
    assert mend.count("remedy: ") == len(red) >= 3
    assert "ok    JupyterLab" in lines, "the other checks went on"
    assert "\x1b" not in done.stdout, "plain where nobody looks"


# --- the report ----------------------------------------------------------------------------------


def test_what_is_bad_has_a_remedy() -> None:
    with pytest.raises(ValueError, match="disk is bad but has no remedy: full"):
        Finding("disk", "bad", "full")
    assert Finding("disk", "note", "nearly full").remedy == ""


# --- the guard -----------------------------------------------------------------------------------


def crash() -> list[Finding]:
    raise KeyError("odd")


def leave() -> list[Finding]:
    sys.exit("a library gives up")


@pytest.mark.parametrize(("look", "says"), [(crash, "KeyError: 'odd'"), (leave, "SystemExit: a")])
def test_a_check_that_crashes_becomes_a_line(look, says: str) -> None:
    (found,) = guarded(Check("odd one", look))
    assert (found.name, found.level) == ("odd one", "bad")
    assert f"this check failed: {says}" in found.found and found.remedy


def test_a_check_that_lacks_a_package_says_which() -> None:
    def look() -> list[Finding]:
        import no_such_package  # noqa: F401

        return []

    (found,) = guarded(Check("kernel", look))
    assert found.found == "this check needs the package no_such_package, which is not installed"
    assert found.level == "bad" and found.remedy.startswith("make setup")


def test_a_check_that_hangs_is_left_behind() -> None:
    free = threading.Event()

    def wait() -> list[Finding]:
        free.wait(60)
        return []

    try:
        (found,) = guarded(Check("driver", wait, 0.2))
        assert (found.level, found.found) == ("bad", "no answer within 0.2 s")
    finally:
        free.set()


# --- what a report does not carry ----------------------------------------------------------------


@pytest.fixture
def ana() -> Private:
    return Private("/home/ana", "ana", ("node7.lab.org", "node7"))


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("83 GB free in /home/ana/course", "83 GB free in ~/course"),
        ("/home/anabel is another's", "/home/anabel is another's"),
        ("/scratch/ana/run-1, by banana", "/scratch/<user>/run-1, by banana"),
        ("ana@node7: no route", "<user>@<host>: no route"),
        ("node7.lab.org has no address", "<host> has no address"),
        ("http://127.0.0.1:8888/lab?token=abc123", "http://127.0.0.1:8888/lab?token=***"),
        ("HF_TOKEN=hf_x and api_key: y", "HF_TOKEN=*** and api_key:***"),
        ("from https://me:pw@index.org/simple", "from https://***@index.org/simple"),
        ("2 ranks, gloo on cpu", "2 ranks, gloo on cpu"),
    ],
)
def test_names_and_tokens_stay_at_home(ana: Private, text: str, clean: str) -> None:
    assert ana.without(text) == clean
    assert scrubbed({"checks": [{"found": text}], "n": 3}, ana) == {
        "checks": [{"found": clean}], "n": 3,
    }  # fmt: skip


def test_the_word_root_is_not_a_name() -> None:
    root = Private("/root", "root", ())
    assert root.without("/root/course: run as root") == "~/course: run as root"


def test_names_are_those_of_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/homes/eva")
    monkeypatch.setenv("LOGNAME", "eva")
    monkeypatch.setattr("socket.gethostname", lambda: "box.site")
    assert privacy.of_this_machine() == Private("/homes/eva", "eva", ("box.site", "box"))
    monkeypatch.setattr("socket.gethostname", lambda: "localhost")
    assert privacy.of_this_machine().hosts == ()


# --- real ranks ----------------------------------------------------------------------------------


def test_a_sum_that_is_wrong_is_seen(two) -> None:
    from course_classroom.doctor import real_ranks

    assert real_ranks.real_sum(two).level == "ok"
    two.run(
        "kept = dist.all_reduce\n"
        "def slightly_wrong(x, group):\n"
        "    kept(x, group=group)\n"
        "    x[-1] += rank\n"
        "dist.all_reduce = slightly_wrong"
    )
    found = real_ranks.real_sum(two)
    two.run("dist.all_reduce = kept")
    assert found.level == "bad" and found.found.startswith("the sum is wrong on rank(s) 1, over ")


def test_a_rank_that_fails_is_told_in_the_clusters_words(two) -> None:
    from course_classroom.doctor import real_ranks

    two.run("kept = dist.all_reduce\ndist.all_reduce = None", ranks=[1])
    found = real_ranks.real_sum(two)
    two.run("dist.all_reduce = kept", ranks=[1])
    assert found.level == "bad" and "rank 1 raised TypeError" in found.found, found.found
    assert "course stop --all" in found.remedy


def test_ranks_that_end_while_they_start_are_told_without_ipykernels_banner(monkeypatch) -> None:
    from course_classroom.doctor.real_ranks import RealRanks
    from course_classroom.ranks.cluster import Cluster

    last = "import os, sys; print('a last word', file=sys.__stderr__, flush=True); os._exit(3)"
    monkeypatch.setattr(Cluster, "join", lambda self, _: self.everywhere(lambda r: last, 60.0))
    (found,) = RealRanks(2).look()
    first, *more = found.found.splitlines()
    assert first.startswith("2 ranks cannot start: rank ") and "exit code 3" in first
    assert [line.strip() for line in more] == ["a last word"]


def test_others_on_the_node_are_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose memory somebody else holds: the refusal names them, the report does not."""
    from course_classroom.doctor.real_ranks import RealRanks, lease
    from course_classroom.leases import share
    from course_classroom.leases.claims import Claim
    from course_classroom.leases.machine import look

    claim = Claim(1, 0.0, "lesson", [], False, 1, 1 << 60, user="zoe")
    machine = look()
    with pytest.raises(MemoryError, match="zoe") as refused:
        share.check_memory(2, share.part(machine, 0), machine, [claim])

    def refuse(world: int, env: object) -> None:
        raise refused.value

    monkeypatch.setattr("course_classroom.ranks.crew.check_world", refuse)
    (found,) = RealRanks().look()
    assert found.level == "bad" and "not held by others" in found.found
    assert "zoe" not in found.found + found.remedy

    class Ranks:
        lease = SimpleNamespace(told=["All 8 are held (by zoe)."], claim=("file", 3), gpus=[])

    (note,) = lease(Ranks())
    assert note.level == "note" and "zoe" not in note.found + note.remedy
    Ranks.lease.told = []
    assert lease(Ranks()) == []


def test_rows_count_the_slowest_rank_and_what_must_be_sent() -> None:
    from course_classroom.doctor.real_ranks import SIZES, rows

    quick, slow = [1.0] * len(SIZES), [2.0] * len(SIZES)
    last = rows([quick, slow, quick, quick], 4, "nccl")[-1]
    assert last["seconds"] == 2.0 and last["backend"] == "nccl" and last["bytes"] == 1 << 24
    assert last["gb_per_s"] == pytest.approx(1.5 * (1 << 24) / 2.0 / 1e9)
