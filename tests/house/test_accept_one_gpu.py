"""`make accept-gpu` with --one-gpu and with --seconds: choice, time, what hangs, what is killed.

Commands run here for real, on small programs; only the GPU is elsewhere.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from tests.house.test_accept_gpu import TRAIN, stage, with_commands, with_gpus, with_notebook
from tests.support.commands import ROOT, gone, until
from tools.accept_gpu import __main__ as accept
from tools.accept_gpu import one_gpu, road, running, stages
from tools.accept_gpu.report import Report
from tools.accept_gpu.sizes import BY_MEMORY, TINY, fitting
from tools.accept_gpu.stages import Place, Stage
from tools.accept_gpu.training import trained

# A child in a session of its own, as a rank is, which does not hear an interrupt.
HANG = """\
import subprocess, sys, time
sleep = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True)
print(child.pid, flush=True)
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="it is found in /proc")
def test_a_stage_that_hangs_is_ended_with_its_sessions_and_the_next_goes_on(
    course, tmp_path
) -> None:
    (course.root / "hang.py").write_text(HANG)
    pid = tmp_path / "pid"
    chosen = [
        Stage("hangs", "a", 3.0, lambda place, limit: _ran(place, limit, "hang.py", str(pid))),
        Stage("goes on", "b", 60.0, lambda place, limit: _ran(place, limit, "-c", "print(1)")),
    ]
    report = Report(tmp_path / "found.json", {}, tmp_path / "summary.txt")
    road.travel(chosen, course, report, time.monotonic() + 600)
    assert gone(int(pid.read_text()))
    first, second = json.loads((tmp_path / "found.json").read_text())["stages"]
    assert (first["ok"], second["ok"]) == (False, True)
    assert first["found"].startswith("unfinished after 3 s"), "its own time was up, not that of all"
    assert "left_out" not in first


def _ran(place: Place, limit: float, *words: str) -> dict[str, Any]:
    ended = place.python(limit, *words)
    return {"ok": ended.code == 0, "late": ended.code is None, "found": ended.how()}


# --- time ----------------------------------------------------------------------------------------


def test_time_is_shared_out_and_what_has_none_is_left_out(course, tmp_path, monkeypatch) -> None:
    limits: dict[str, float] = {}

    def stage(name: str, limit: float, **found: Any) -> Stage:
        def work(place: Place, limit: float) -> dict[str, Any]:
            limits[name] = limit
            now[0] += limit
            return {"ok": True, "found": "fine", **found}

        return Stage(name, name, limit, work)

    now = [1000.0]
    monkeypatch.setattr(road.time, "monotonic", lambda: now[0])
    report = Report(tmp_path / "found.json", {})
    chosen = [stage("a", 50.0), stage("b", 100.0, ok=False, late=True), stage("c", 10.0)]
    road.travel(chosen, course, report, now[0] + 100 + road.RESERVE)
    assert limits == {"a": 50.0, "b": 50.0}, "b has what a left, and c has nothing"
    a, b, c = report.document["stages"]
    assert a["ok"] and "left_out" not in a
    assert b["ok"] and b["left_out"], "cut off by the time of all, it is no failure"
    assert c["ok"] and c["found"] == "not started, no time was left" and c["left_out"]
    now[0], report.document["stages"][:] = 1000.0, []
    bad = [stage("b", 100.0, ok=False, late=True, failed=[{"name": "t"}])]
    road.travel(bad, course, report, now[0] + 50 + road.RESERVE)
    assert not report.document["stages"][0]["ok"], "a test that failed before the cut has failed"


def test_a_part_that_is_cut_off_is_told_from_one_that_takes_too_long(course, monkeypatch) -> None:
    monkeypatch.setattr(running, "LEAST", 0.5)
    sleep = ["-c", "import time; time.sleep(60)"]
    jobs = {"long": sleep, "cut": sleep, "never": sleep}
    ended = dict(course.together(3.0, 2.0, jobs))
    assert ended["long"].code is None and not ended["long"].left_out
    assert ended["long"].how().startswith("unfinished after 2 s")
    assert ended["cut"].left_out.startswith("ended after 1 s")
    assert ended["never"].left_out == "not started, no time was left"
    left_out = {name: one.left_out for name, one in ended.items() if one.left_out}
    assert running.grouped({**left_out, "nor this": "not started, no time was left"})[1:] == [
        "never, nor this: not started, no time was left"
    ]


# --- what is chosen ------------------------------------------------------------------------------


def test_lists_name_what_is_there() -> None:
    assert [one for one in one_gpu.DEVICE_TESTS if not (ROOT / one).exists()] == []
    lessons = [list(ROOT.glob(f"notebooks/{one}_*.ipynb")) for one in one_gpu.LESSONS]
    assert [len(found) for found in lessons] == [1] * len(one_gpu.LESSONS)


def test_stages_have_groups_and_the_one_for_a_gpu_alone_says_so(course) -> None:
    for gpu in (True, False):
        every = one_gpu.stages(TINY, gpu, 16)
        assert list(dict.fromkeys(one.group for one in every)) == list(one_gpu.GROUPS)
        assert [one.name for one in every if one.beside] == ["lessons", "device tests"]
    found = next(one for one in every if one.name == "gpu tests").run(course, 60.0)
    assert found["ok"] and found["left_out"] == ["it needs a GPU, but torch sees none here"]


def test_sizes_follow_the_memory_that_is_free() -> None:
    large, medium, small = BY_MEMORY
    assert fitting(79 << 30) is large and fitting(22 << 30) is medium
    assert fitting(7 << 30) is small, "a laptop's 8 GB"
    assert fitting(2 << 30) is TINY
    for sizes in BY_MEMORY:  # logits, their gradient, and three times as much in float32
        assert 5 * 4 * sizes.tokens * sizes.vocabulary < sizes.free


@pytest.mark.parametrize(
    ("gpus", "options", "done", "code"),
    [
        (1, [], [stage("doctor", "doctor", True)], 0),
        (1, [], [stage("doctor", "doctor", True, "half of it")], 1),
        (1, [], [stage("doctor", "doctor", False)], 1),
        (1, [], [stage("training", "training", True, devices=["cpu"])], 1),
        (1, [], [stage("layouts on one rank", "layouts", True, backends=["gloo"])], 1),
        (0, ["--rehearse"], [stage("doctor", "doctor", True, "half of it")], 0),
        (0, ["--rehearse"], [stage("doctor", "doctor", False)], 1),
        (1, ["--only", "micro"], [stage("doctor", "doctor", False), stage("m", "micro", True)], 0),
        (0, [], [stage("doctor", "doctor", True)], 1),
    ],
)
def test_the_exit_code_says_whether_all_that_ran_was_good_and_all_ran(
    gpus, options, done, code, tmp_path, monkeypatch, capsys
) -> None:
    with_gpus(monkeypatch, gpus)
    monkeypatch.setattr(one_gpu, "sizes_here", lambda place: TINY)
    monkeypatch.setattr(one_gpu, "stages", lambda sizes, gpu, cores: done)
    out = tmp_path / "out"
    assert accept.main(["--one-gpu", "--out", str(out), *options]) == code
    if not gpus and not options:
        assert "torch sees 0 GPU(s) here; --one-gpu needs one" in capsys.readouterr().err
        return
    found = json.loads((out / "found.json").read_text())
    assert found["finished"] and found["accepted"] == (code == 0 and not found["rehearsal"])
    assert capsys.readouterr().out.strip() == (out / "summary.txt").read_text().strip()


@pytest.mark.parametrize("words", [["--one-gpu", "--only", "docter"], ["--seconds", "0"]])
def test_a_wrong_call(words, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        accept.main(words)
    assert ended.value.code == 2


def test_a_part_of_a_node_names_what_did_not_run(tmp_path, monkeypatch) -> None:
    with_gpus(monkeypatch, 2)
    monkeypatch.setattr(accept, "stages", lambda world: [stage("tests", "tests", True)])
    out = tmp_path / "v.json"
    assert accept.main(["--out", str(out), "--seconds", "15"]) == 1
    reasons = json.loads(out.read_text())["why_not"]
    assert reasons == ["tests: left out: all of it"]


# --- what is found -------------------------------------------------------------------------------


def test_training_beside_the_formulas_is_amiss_and_its_speed_is_that_of_the_end(course) -> None:
    with_commands(course, TRAIN)
    kept: dict[str, dict] = {}
    place = Place(course.root, course.scratch, keep=kept.__setitem__)
    found = trained(place, 60, {"good": [], "bad": ["--stage", "4"]}, at_once=2)
    assert not found["ok"] and found["found"] == "bad: rank 0 sent 7 bytes, by formula 6"
    assert (found["backends"], found["devices"]) == (["nccl"], ["cuda:0"])
    assert kept["good"]["ok"] and kept["good"]["found"] == "3,000 tokens/s, MFU 40.0% at the end"
    assert not kept["bad"]["ok"] and kept["bad"]["run"]["ranks"][0]["sent"] == 7


SLOW = """
import os, time
def test_good(): pass
def test_bad(): raise OSError(os.environ["HOME"] + "/x")
def test_slow(): time.sleep(600)
"""


def test_tests_are_recorded_as_they_end_and_a_file_that_fails_to_load_costs_no_other(
    course, tmp_path, monkeypatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ana")
    (course.root / "tests" / "test_slow.py").write_text(SLOW)
    (course.root / "tests" / "test_broken.py").write_text("import no_such_package\n")
    records = tmp_path / "tests.jsonl"
    found = stages.tests(Place(course.root, course.scratch, records), 10.0)
    assert (found["ok"], found["late"], found["passed"]) == (False, True, 1)
    assert found["found"].endswith(": 1 passed, 2 failed")
    rows = {row["test"]: row for row in map(json.loads, records.read_text().splitlines())}
    assert [row["outcome"] for row in rows.values()] == ["failed", "passed", "failed"]
    assert "no_such_package" in rows["tests/test_broken.py"]["why"]
    assert "~/x" in rows["tests/test_slow.py::test_bad"]["why"]
    assert "/home/ana" not in records.read_text()


def test_a_lesson_goes_on_after_an_error_and_has_to_raise_where_it_says_so(
    course, tmp_path
) -> None:
    code, raises = nbformat.v4.new_code_cell, {"tags": ["raises-exception"]}
    with_notebook(
        course,
        "01_toy",
        nbformat.v4.new_markdown_cell("# A lesson"),
        code("import os; world = os.environ['WORLD_SIZE']"),
        code("1 / 0"),
        code("raise OSError", metadata=raises),
        code("assert world == '2'", metadata=raises),
    )
    report = Report(tmp_path / "found.json", {}, tmp_path / "summary.txt")
    chosen = [one for one in one_gpu.stages(TINY, False, 2) if one.name == "lessons"]
    road.travel(chosen, course, report, time.monotonic() + 150)
    one, two = (report.document["parts"][f"lessons: lesson 01 on {n}"] for n in (1, 2))
    division, *missing = two["errors"]
    assert division["cell"] == 2 and "ZeroDivisionError" in division["error"]
    assert missing == [{"cell": 4, "error": "should raise, but did not"}]
    assert [one["cell"] for one in one["errors"]] == [2], "there the last cell raises, as it says"
    assert (two["cells"], two["ended"], two["ok"]) == (4, True, False)
    (stage,) = report.document["stages"]
    assert not stage["ok"] and "lesson 01 on 2: 2 errors in 4 cells" in stage["found"]
    assert "lesson 01 on 1" in (tmp_path / "summary.txt").read_text()


# --- the whole command, killed -------------------------------------------------------------------

PROGRAM = """
import runpy, sys
from tools.accept_gpu import one_gpu, running
from tools.accept_gpu.stages import Stage
running.PATIENCE = 0.5
def parts(place, limit):
    place.keep("one part", {{"ok": True, "found": "so far"}})
    place.python(limit, {hang!r}, {pid!r})
    raise AssertionError("it was to be killed")
one_gpu.stages = lambda sizes, gpu, cores: [
    Stage("doctor", "doctor", 60.0, lambda place, limit: {{"ok": True, "found": "fine"}}),
    Stage("lessons", "lessons", 500.0, parts, "both"),
    Stage("device tests", "tests", 500.0,
          lambda place, limit: place.python(limit, "-c", "import time; time.sleep(600)"), "both"),
]
sys.argv = ["accept_gpu", "--one-gpu", "--rehearse", "--out", {out!r}]
runpy.run_module("tools.accept_gpu", run_name="__main__")
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="it is found in /proc")
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_killed_it_leaves_whole_files_and_no_process(number, tmp_path) -> None:
    out, pid = tmp_path / "out", tmp_path / "pid"
    (tmp_path / "hang.py").write_text(HANG)
    program = PROGRAM.format(hang=str(tmp_path / "hang.py"), pid=str(pid), out=str(out))
    command = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: pid.exists() and pid.read_text(), 120)
        children = psutil.Process(command.pid).children(recursive=True)
        assert len(children) == 4, "the one that watches, two stages', and one's own"
        command.send_signal(number)
        assert command.wait(60) == (130 if number == signal.SIGTERM else -number)
    finally:
        command.kill()
        command.wait()
    assert gone(*(child.pid for child in children), int(pid.read_text()))
    found = json.loads((out / "found.json").read_text())
    assert (found["finished"], [one["name"] for one in found["stages"]]) == (False, ["doctor"])
    assert found["parts"]["lessons: one part"]["found"] == "so far"
    assert "one part" in (out / "summary.txt").read_text()
