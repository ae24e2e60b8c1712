"""`make accept-gpu`: what counts as acceptance, how its stages read what they ran, a rehearsal.

The stages run here for real, on small courses of a few tests; only the GPUs are elsewhere.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import nbformat
import pytest

from course_classroom.doctor import torch_build
from course_classroom.doctor.torch_build import Torch
from tests.support.commands import ROOT, gone, python
from tools.accept_gpu import __main__ as accept
from tools.accept_gpu import one_gpu, reading, road, running, stages
from tools.accept_gpu.resuming import resuming
from tools.accept_gpu.scaling import judged, scaling
from tools.accept_gpu.stages import Place, Stage
from tools.accept_gpu.training import training
from tools.accept_gpu.verdict import why_not

# --- the verdict ---------------------------------------------------------------------------------


def results(world: int = 4) -> list[dict[str, Any]]:
    """What the stages of a node with `world` GPUs say where all is well."""
    good: dict[str, dict[str, Any]] = {
        "doctor": {"backends": ["nccl"]},
        "tests": {"skipped": [{"name": "t", "why": "no Chromium"}]},
        "gpu tests": {"skipped": []},
        "forked ranks": {"skipped": []},
        "six ways": {"skipped": []},
        f"bandwidth at world {world}": {"backends": ["nccl"]},
    }
    for n in sorted({2, world}):
        good[f"notebooks at world {n}"] = {"world": n, "nccl_communicators": {str(n): 3}}
        for name in ("training", "resuming", "scaling"):
            good[f"{name} at world {n}"] = {"world": n, "backends": ["nccl"]}
    order = [stage.name for stage in stages.stages(world)]
    assert sorted(order) == sorted(good)
    return [{"name": name, "ok": True, "found": "fine", **good[name]} for name in order]


def reasons(found: list[dict[str, Any]], gpus: int = 4, rehearsal: bool = False) -> list[str]:
    wanted = [stage.name for stage in stages.stages(max(2, gpus))]
    return why_not(found, wanted, gpus, rehearsal)


def test_the_tests_that_are_run_are_there() -> None:
    named = [*stages.FORKED, stages.WAYS[-1], *one_gpu.DEVICE_TESTS]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_all_well_on_nccl_is_accepted() -> None:
    assert reasons(results()) == []
    assert reasons(results(2), gpus=2) == []


@pytest.mark.parametrize(
    ("stage", "change", "says"),
    [
        ("doctor", {"ok": False, "found": "to repair: disk"}, "doctor: to repair: disk"),
        ("doctor", {"backends": ["gloo"]}, "doctor: the ranks used gloo, not nccl"),
        ("tests", {"ok": False, "found": "9 passed, 1 failed"}, "tests: 9 passed, 1 failed"),
        ("gpu tests", {"skipped": [{"name": "a", "why": "b"}]}, "gpu tests: a was skipped (b)"),
        (
            "notebooks at world 4", {"nccl_communicators": {"2": 9}},
            "notebooks at world 4: NCCL made no communicator of 4 ranks",
        ),
        ("training at world 2", {"backends": ["gloo"]}, "training at world 2: the ranks used g"),
        ("resuming at world 4", {"backends": ["gloo"]}, "resuming at world 4: the ranks used g"),
        ("scaling at world 2", {"backends": ["gloo"]}, "scaling at world 2: the ranks used gloo"),
        ("bandwidth at world 4", {"backends": []}, "bandwidth at world 4: the ranks used nothing"),
    ],
)  # fmt: skip
def test_one_thing_amiss_is_not_accepted(stage: str, change: dict[str, Any], says: str) -> None:
    found = results()
    next(one for one in found if one["name"] == stage).update(change)
    (reason,) = reasons(found)
    assert reason.startswith(says)


def test_a_part_a_rehearsal_or_one_gpu_is_not_accepted() -> None:
    assert reasons(results()[1:]) == ["doctor was not run"]
    assert reasons(results(), rehearsal=True) == ["this was a rehearsal"]
    assert reasons(results(2), gpus=1) == ["torch sees 1 GPU(s), but NCCL needs two or more"]


# --- reading -------------------------------------------------------------------------------------


def test_nccls_own_words_are_counted_once_for_each_communicator(tmp_path: Path) -> None:
    line = "box:{pid}:1 [0] NCCL INFO ncclCommInitRankConfig comm 0xab rank {r} nranks {n} cudaDev "
    line += "{r} nvmlDev {r} busId 1000 commId 0x1 - Init {what}\n"
    for rank in range(4):
        text = line.format(pid=rank, r=rank, n=4, what="START")
        text += line.format(pid=rank, r=rank, n=4, what="COMPLETE")
        text += line.format(pid=rank, r=rank % 2, n=2, what="COMPLETE")
        (tmp_path / str(rank)).write_text(text)
    assert reading.read_nccl(tmp_path) == {2: 2, 4: 1}
    (tmp_path / "0").write_text(line.format(pid=0, r=0, n=4, what="START"))
    assert 4 not in reading.read_nccl(tmp_path)


# --- the stages, on a small course ---------------------------------------------------------------

TESTS = """
import pytest

def test_good(): pass
@pytest.mark.parametrize("n", [1, 2])
def test_bad(n): assert n == 1, "two is too many"
@pytest.mark.skip(reason="no such device")
def test_left_out(): pass
@pytest.fixture
def broken(): raise OSError("no fixture")
def test_in_error(broken): pass
"""


def test_tests_are_counted_with_names_and_reasons(course: Place) -> None:
    (course.root / "tests" / "test_toy.py").write_text(TESTS)
    found = stages.tests(course, 120)
    assert (found["ok"], found["passed"], found["found"]) == (
        False, 2, "2 passed, 2 failed, 1 skipped",
    )  # fmt: skip
    names = [one["name"].rpartition("::")[2] for one in found["failed"]]
    assert sorted(names) == ["test_bad[2]", "test_in_error"]
    assert "two is too many" in found["failed"][0]["why"]
    assert found["skipped"][0]["why"] == "no such device"


def test_a_run_in_which_nothing_passed_is_no_success(course: Place) -> None:
    found = stages.tests(course, 120)
    assert not found["ok"] and found["found"] == "pytest itself ended with 5: 0 passed"
    assert any("collected 0 items" in line for line in found["tail"]), found["tail"]
    (course.root / "tests" / "test_toy.py").write_text(TESTS)
    found = stages.tests(course, 120, "-k", "left_out")
    assert (found["ok"], found["found"]) == (False, "0 passed, 1 skipped")


def with_commands(course: Place, program: str) -> None:
    """Make this program the `course` of the small course."""
    (course.root / "course_classroom").mkdir()
    (course.root / "course_classroom" / "__init__.py").touch()
    (course.root / "course_classroom" / "cli.py").write_text(program)


TRAIN = """
import json, sys
fault = sys.argv[sys.argv.index("--stage") + 1] if "--stage" in sys.argv else "0"
rank = {"rank": 0, "held": 8, "sent": 6, "peak": 11, "estimate": {"held": 8, "sent": 6, "peak": 10}}
run = {"losses": [2.0, 1.0], "ranks": [rank], "backend": "nccl", "device": "cuda:0",
       "tokens_per_second": 1500.0, "mfu": 0.2}
if fault == "1":
    rank["held"] = 9
if fault == "2":
    run["losses"][1] = 1.01
if fault == "3":
    sys.exit("no memory")
if fault == "4":
    rank["sent"] = 7
print("step 1/10  loss 7.0  10 tokens/s  MFU 1.0 %", file=sys.stderr)
print("step 5/10  loss 7.0  3,000 tokens/s  MFU 3.0 %", file=sys.stderr)
print(json.dumps(run))
"""


def test_training_is_held_against_stage_0_and_the_formulas(course: Place) -> None:
    with_commands(course, TRAIN)
    whole = {"0": [], "again": ["--precision", "float32"]}
    good = training(course, 60, 2, whole)
    assert good["ok"] and good["backends"] == ["nccl"] and good["world"] == 2
    assert good["found"].endswith("; peaks 1.10 to 1.10 of the estimate")
    bad = training(course, 60, 2, {**whole, **{n: ["--stage", n] for n in "123"}})
    assert not bad["ok"]
    assert bad["found"] == (
        "1: rank 0 held 9 bytes, by formula 8; 2: its losses differ by 1.0e-02 from stage 0's; "
        "3: ended with 1: no memory"
    )


RESUME = """
import json, sys
from pathlib import Path
kept = Path(sys.argv[sys.argv.index("--out") + 1] + ".first")
losses = [2.0, 1.5, 1.0]
if "--resume" in sys.argv:
    layout = dict(zip(sys.argv, sys.argv[1:]))
    assert {"--tp", "--stage", "--offload"} <= set(layout)  # said, whatever the first one's were
    if kept.read_text() != "--stage 2" or layout["--stage"] != "2":
        losses[2] = 1.01
    if layout["--stage"] == "3":
        sys.exit("no memory")
else:
    at = sys.argv.index("--stage") if "--stage" in sys.argv else len(sys.argv)
    kept.write_text(" ".join(sys.argv[at:at + 2]))
print(json.dumps({"losses": losses, "backend": "gloo"}))
"""


def test_runs_that_go_on_are_held_against_the_one_never_cut(course: Place) -> None:
    with_commands(course, RESUME)
    same = {"same": (["--stage", "2"], ["--stage", "2"])}
    good = resuming(course, 60, 2, same)
    assert good == {
        "ok": True, "found": "1 pairs of layouts resume with the same losses", "world": 2,
        "backends": ["gloo"], "left_out": [],
    }  # fmt: skip
    others = {n: (["--stage", "2"], ["--stage", n]) for n in "13"}
    bad = resuming(course, 60, 2, {**same, **others, "first": (["--stage", "1"], ["--stage", "2"])})
    assert not bad["ok"]
    assert bad["found"] == (
        "1: its losses differ by up to 1.0e-02 from the uninterrupted run; 3: ended with 1: no "
        "memory; first: its losses differ by up to 1.0e-02 from the uninterrupted run"
    )


def with_notebook(course: Place, name: str, *cells: nbformat.NotebookNode) -> None:
    """Make these cells the only notebook of the small course."""
    (course.root / "notebooks").mkdir()
    book = nbformat.v4.new_notebook(cells=list(cells))
    nbformat.write(book, course.root / "notebooks" / f"{name}.ipynb")


NOTEBOOK = """\
import os
where = os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid()))
assert os.environ["NCCL_DEBUG"] == "INFO"
world = os.environ["WORLD_SIZE"]
with open(where, "w") as file:
    print(f"comm 0x1 rank 0 nranks {world} cudaDev 0 - Init COMPLETE", file=file)
"""


def test_notebooks_run_at_the_world_asked_for_and_nccl_is_listened_to(
    course: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in the repository, its kernel talks over files: a port drawn for it may be taken by then.
    monkeypatch.setenv("PYTEST_PLUGINS", "nbval.plugin,tests.support.strict_notebooks")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with_notebook(course, "toy", nbformat.v4.new_code_cell(NOTEBOOK, id="one"))
    found = stages.notebooks(course, 120, 3)
    assert found["ok"], found
    assert found["nccl_communicators"] == {"3": 1} and found["world"] == 3
    assert found["found"] == "1 passed; NCCL communicators: 1 of 3 ranks"


def test_a_stage_that_crashes_is_a_result_like_any_other(course: Place) -> None:
    def crash(place: Place, limit: float) -> dict[str, Any]:
        raise RuntimeError("ended with 3 and no report")

    told = road.run(Stage("doctor", "doctor", 5.0, crash), course)
    assert (told["name"], told["ok"]) == ("doctor", False)
    assert told["found"] == "RuntimeError: ended with 3 and no report"


def test_what_outlives_its_limit_is_ended_with_its_children(
    course: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_with", lambda mark: [])  # a system without /proc
    # A shell's background child does not hear the interrupt: only its group's end reaches it.
    command = ["sh", "-c", "sleep 600 & echo $!; wait"]
    ended = running.bounded(command, 3.0, course.root, course.scratch, os.environ, course.stop)
    assert ended.code is None
    assert gone(int(ended.out.read_text()))


# --- the whole command ---------------------------------------------------------------------------


def with_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    torch = Torch("2.13.0", None, count, None)
    monkeypatch.setattr(torch_build, "of_this_process", lambda: torch)


def stage(name: str, group: str, ok: bool, *left_out: str, **more: Any) -> Stage:
    found = {"ok": ok, "found": "fine" if ok else "bad", "left_out": list(left_out), **more}
    return Stage(name, group, 60.0, lambda place, limit: dict(found))


@pytest.mark.parametrize(
    ("gpus", "folder", "says"),
    [
        (0, ".", "torch sees 0 GPU(s) here; acceptance needs two or more"),
        (1, ".", "torch sees 1 GPU(s) here; acceptance needs two or more"),
        (2, "no", "cannot be written (No such file or directory)"),
    ],
)
def test_what_cannot_be_is_said_before_the_work(gpus, folder, says, tmp_path, monkeypatch, capsys):
    with_gpus(monkeypatch, gpus)
    monkeypatch.setattr(accept, "stages", lambda world: [stage("tests", "tests", True)])
    out = tmp_path / folder / "v.json"
    assert accept.main(["--out", str(out)]) == 1
    told = capsys.readouterr().err
    assert says in told and ('ACCEPT_ARGS="--rehearse"' in told) == (gpus < 2)
    assert "tests (at most" not in told and not out.exists(), "no stage was begun"


def test_stages_go_on_and_the_verdict_is_written_without_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", "/home/ana")
    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    with_gpus(monkeypatch, 2)
    lost = stage("tests", "tests", False, found="lost in /home/ana/x on node7")
    chosen = [lost, stage("gpu tests", "tests", True)]
    monkeypatch.setattr(accept, "stages", lambda world: chosen)
    out = tmp_path / "v.json"
    assert accept.main(["--out", str(out)]) == 1
    verdict = json.loads(out.read_text())
    assert [one["ok"] for one in verdict["stages"]] == [False, True], "one failed, the next ran"
    assert verdict["why_not"] == ["tests: lost in ~/x on <host>"]
    assert (verdict["accepted"], verdict["finished"], verdict["rehearsal"]) == (False, True, False)
    told = capsys.readouterr().err
    assert "1/2 tests: FAILED" in told and "2/2 gpu tests: ok" in told
    monkeypatch.setattr(accept, "stages", lambda world: [stage("tests", "tests", True)])
    assert accept.main(["--out", str(out)]) == 0
    verdict = json.loads(out.read_text())
    assert verdict["accepted"] is True and verdict["why_not"] == []


def test_a_rehearsal_measures_for_real(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = tmp_path / "v.json"
    words = ("-m", "tools.accept_gpu", "--rehearse", "--only", "bandwidth", "--out", out)
    own = {"COURSE_RUNTIME_DIR": str(tmp_path_factory.mktemp("r"))}
    done = python(*words, cwd=ROOT, env=own)
    assert done.returncode == 0, done.stderr
    verdict = json.loads(out.read_text())
    assert (verdict["accepted"], verdict["rehearsal"]) == (False, True)
    assert (
        "this was a rehearsal" in verdict["why_not"] and "doctor was not run" in verdict["why_not"]
    )
    (measured,) = verdict["stages"]
    assert measured["ok"] and measured["rows"][-1]["bytes"] == 1 << 24
    assert "right on every rank" in measured["found"]
    assert verdict["versions"]["torch"] and verdict["date"].endswith("+00:00")
    text = out.read_text()
    assert str(Path.home()) + "/" not in text
    assert f'"{socket.gethostname()}"' not in text


# --- scaling -------------------------------------------------------------------------------------


def scaled() -> dict[str, Any]:
    """What `course bench scale` prints of two ranks, as far as it is read."""
    rows = []
    for scaling_of in ("weak", "strong"):
        for dp, tp in ((1, 2), (2, 1)):
            sent = {axis: 64.0 * (n > 1) for axis, n in (("dp", dp), ("tp", tp))}
            rows.append({
                "name": f"dp {dp}, tp {tp}, {scaling_of}", "scaling": scaling_of, "ranks": 2,
                "dp": dp, "tp": tp, "efficiency": 0.75,
                "bytes": {axis: {"counted": n, "form": n} for axis, n in sent.items()},
            })  # fmt: skip
    return {"methods": rows, "worlds": [{"backend": "nccl"}], "notes": []}


def test_scaling_tells_efficiencies_and_judges_the_bytes() -> None:
    good = judged(scaled(), 2)
    assert good["ok"] and good["backends"] == ["nccl"] and len(good["methods"]) == 4
    assert good["found"].startswith("dp 1, tp 2, weak 75%; ")
    other = scaled()
    other["methods"][0]["bytes"]["tp"]["counted"] = 65.0
    bad = judged(other, 2)
    assert not bad["ok"]
    assert bad["found"] == "dp 1, tp 2, weak: 65 bytes over tp, but the form says 64"
    silent = scaled()
    silent["methods"][1]["bytes"]["dp"] = {"counted": 0.0, "form": 0.0}
    assert "0 bytes over dp" in judged(silent, 2)["found"]
    part = {**scaled(), "methods": scaled()["methods"][:3]}
    assert judged(part, 2)["found"] == "no strong scaling over dp"


def test_scaling_that_ends_early_is_told_with_its_last_words(course: Place) -> None:
    found = scaling(Place(ROOT, course.scratch), 120, 2, {"heads": 0})
    assert not found["ok"] and found["found"].startswith("ended with ")
    assert found["backends"] == [] and "heads=0" in " ".join(found["tail"])


@pytest.mark.slow
def test_scaling_is_rehearsed_on_processors(course: Place) -> None:
    small = {"hidden": 24, "heads": 4, "length": 8, "layers": 1, "vocabulary": 66}
    found = scaling(Place(ROOT, course.scratch), 300, 2, small)
    assert found["ok"], found
    assert found["backends"] == ["gloo"] and found["found"].count("%") == 4
