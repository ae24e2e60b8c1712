"""A child of the prepared process is what a started one would be, and none is left behind."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import psutil
import pytest

from course_lib import processes as prepared
from course_lib.processes import (
    Child,
    NotPrepared,
    Preparer,
    Wanted,
    channel,
    processes,
    torch_build,
)
from course_lib.processes.leftovers import belonging, end_all

ROOT = Path(__file__).resolve().parents[3]
HERE = "tests.course_lib.processes.targets"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks on Linux only")


@pytest.fixture(autouse=True)
def _forks(monkeypatch) -> None:
    monkeypatch.setenv("COURSE_START", "fork")  # this is about forked ones, whatever the rest does


@pytest.fixture(scope="module")
def preparer() -> Iterator[Preparer]:
    made = Preparer((*processes.MODULES, HERE))
    yield made
    made.close()


@pytest.fixture(scope="module")
def light() -> Iterator[Preparer]:
    made = Preparer((HERE,))
    yield made
    made.close()


def call(preparer: Preparer, tmp_path: Path, name: str, *arguments, given=(), **more):
    """A child that calls a target, and the file of what it prints."""
    file = tmp_path / f"output-{time.monotonic_ns()}"
    with file.open("wb") as out:
        env = more.pop("env", dict(os.environ))
        target = Wanted(f"{HERE}:{name}", list(arguments), env, out.fileno(), list(given), **more)
        return preparer.child(target), file


def told(preparer: Preparer, tmp_path: Path, **more) -> dict:
    child, file = call(preparer, tmp_path, "tell", 7, **more)
    assert child.wait(30) == 0, file.read_text()
    return json.loads(file.read_text())


def gone(pid: int, seconds: float = 10.0) -> bool:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_a_child_has_its_own_session_signals_streams_and_surroundings(preparer, tmp_path):
    env = {**os.environ, "COLOUR": "red", "OMP_NUM_THREADS": "3"}
    env.pop("HOME", None)
    before = os.umask(0o027)
    try:
        one = told(preparer, tmp_path, env=env, folder=str(tmp_path))
    finally:
        os.umask(before)
    assert one["session"] == one["pid"] and one["parent"] == preparer.process.pid
    assert one["umask"] == 0o027 and one["folder"] == str(tmp_path)
    assert one["colour"] == "red" and one["threads"] == 3
    assert one["environment"] == sorted(env)
    assert one["files"] == list(resource.getrlimit(resource.RLIMIT_NOFILE))
    assert one["interrupt"] and one["child"] and one["blocked"] == 0
    assert one["number"] == 7 and one["input"] == ""
    assert one["modules"] == [] and one["compiler"]


def test_a_child_holds_no_descriptor_but_its_own(preparer, tmp_path):
    read, write = os.pipe()
    try:
        child, file = call(preparer, tmp_path, "tell", 7)
        child.wait(30)
        places = json.loads(file.read_text())["descriptors"]
        assert set(places) == {"0", "1", "2"}, places
        assert places["0"] == "/dev/null" and places["1"] == places["2"] == str(file)
        child, _ = call(preparer, tmp_path, "write", "heard", given=[write])
        assert child.wait(30) == 0 and os.read(read, 100) == b"heard"
    finally:
        os.close(read)
        os.close(write)


def test_children_share_the_hash_secret_an_odd_one_has_another_and_each_draws_its_own(
    preparer, light, tmp_path
):
    one, two = told(preparer, tmp_path), told(preparer, tmp_path)
    assert one["hash"] == two["hash"] != told(light, tmp_path)["hash"]
    assert all(a != b for a, b in zip(one["drawn"], two["drawn"], strict=True))  # each its own


def test_a_module_beside_the_python_path_is_found(light, tmp_path):
    (tmp_path / "beside.py").write_text("")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert str(tmp_path) in told(light, tmp_path, env=env)["path"]


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [("0", 0, ""), ("3", 3, ""), ("raise", 1, "LookupError: nothing here"), ("kill", -9, "")],
)
def test_the_end_of_a_child_is_told(light, tmp_path, how, code, said):
    child, file = call(light, tmp_path, "end", how)
    assert child.wait(30) == code == child.poll() == child.returncode
    assert said in file.read_text()


def test_a_child_lives_until_it_is_killed(light, tmp_path):
    child, _ = call(light, tmp_path, "sleep")
    assert child.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.05)
    child.kill()
    assert child.wait(10) == -signal.SIGKILL and gone(child.pid)
    child.kill()  # the number may be another's by now


def test_a_library_with_a_thread_is_not_forked_and_the_process_starts_all_the_same(tmp_path):
    threaded = Preparer((HERE, "tests.course_lib.processes.threaded"))
    with pytest.raises(NotPrepared, match="has 2 threads"):
        call(threaded, tmp_path, "tell", 7)
    threaded.close()
    started_anew(tmp_path, ("tests.course_lib.processes.threaded",), "has 2 threads")


def test_an_import_that_fails_is_told_and_the_process_starts_all_the_same(tmp_path):
    started_anew(tmp_path, ("tests.course_lib.processes.broken",), "a library of its is missing")


def started_anew(tmp_path: Path, modules: tuple[str, ...], why: str) -> None:
    code = "import os; print(os.getppid())"
    with (tmp_path / "output").open("wb") as out:
        wanted = Wanted(f"{HERE}:tell", [7], dict(os.environ), out.fileno())
        process = prepared.start(wanted, [sys.executable, "-c", code], modules=modules)
    assert isinstance(process, subprocess.Popen) and process.wait(60) == 0
    assert (tmp_path / "output").read_text() == f"{os.getpid()}\n"
    (told,) = [text for kind, text in processes._prepared.reasons.items() if modules[0] in kind[0]]
    assert why in told


def test_where_no_process_can_be_forked_the_error_says_so(tmp_path):
    full = Preparer((HERE, "tests.course_lib.processes.refusing"))
    with pytest.raises(OSError, match="no process could be forked: Resource temporarily"):
        call(full, tmp_path, "tell", 7)
    full.close()


def test_a_killed_prepared_process_takes_its_children_along_and_another_one_comes(tmp_path):
    modules = (HERE, "json")
    with (tmp_path / "output").open("wb") as out:
        wanted = Wanted(f"{HERE}:sleep", [], dict(os.environ), out.fileno())
        child = prepared.start(wanted, ["false"], modules=modules)
        assert isinstance(child, Child)
        os.kill(psutil.Process(child.pid).ppid(), signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL and gone(child.pid)
        again = prepared.start(wanted, ["false"], modules=modules)
    assert isinstance(again, Child) and again.poll() is None
    again.kill()
    again.wait(10)


def test_another_environment_leaves_the_children_there_are_alone(tmp_path, monkeypatch):
    modules = (HERE, "csv")
    with (tmp_path / "output").open("wb") as out:
        wanted = Wanted(f"{HERE}:sleep", [], dict(os.environ), out.fileno())
        one = prepared.start(wanted, ["false"], modules=modules)
        monkeypatch.setenv("PYTORCH_SOMETHING", "1")
        wanted = Wanted(f"{HERE}:sleep", [], dict(os.environ), out.fileno())
        two = prepared.start(wanted, ["false"], modules=modules)
    parents = {psutil.Process(child.pid).ppid() for child in (one, two)}
    time.sleep(0.3)
    assert len(parents) == 2 and one.poll() is None and two.poll() is None
    for child in (one, two):
        child.kill()
        child.wait(10)


def test_an_interrupt_between_a_question_and_its_answer_mixes_nothing_up(
    light, tmp_path, monkeypatch
):
    """The stop button while ranks start: the next start gets its own child."""
    told(light, tmp_path)
    send = channel.send

    def send_and_be_interrupted(*arguments) -> None:
        send(*arguments)
        signal.raise_signal(signal.SIGINT)

    # A job that a shell has put in the background may ignore interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(channel, "send", send_and_be_interrupted)
            with pytest.raises(KeyboardInterrupt):
                call(light, tmp_path, "end", "0")
    finally:
        signal.signal(signal.SIGINT, before)
    child, file = call(light, tmp_path, "tell", 7)
    assert child.wait(30) == 0 and json.loads(file.read_text())["pid"] == child.pid


def test_nothing_outlives_the_one_who_started_it(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    script = f"""
import os, sys, time
sys.path.insert(0, {str(ROOT)!r})
from course_lib.processes import Preparer, Wanted
out = os.open({str(folder / "rank-0.log")!r}, os.O_CREAT | os.O_WRONLY)
env = {{**os.environ, "COURSE_RUN_DIR": {str(folder)!r}}}
made = Preparer(({HERE!r},))
child = made.child(Wanted("{HERE}:sleep", [{str(tmp_path / "pids")!r}], env, out))
while not os.path.exists({str(tmp_path / "pids")!r}):
    time.sleep(0.01)
os.close(out)
print(made.process.pid, child.pid, flush=True)
time.sleep(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pids = list(map(int, owner.stdout.readline().split()))
    pids += json.loads((tmp_path / "pids").read_text())
    pids += belonging({pids[1]}, [str(folder)])
    assert len(set(pids)) == 5  # the prepared one, its child, two programs, and a fork
    owner.kill()
    owner.wait()
    left = [pid for pid in dict.fromkeys(pids) if not gone(pid)]
    for pid in left:  # where the watch is broken, this test must not leave them either
        os.kill(pid, signal.SIGKILL)
    assert left == []
    limit = time.monotonic() + 5
    while folder.exists() and time.monotonic() < limit:
        time.sleep(0.02)
    assert not folder.exists()


def test_what_a_rank_has_left_is_found_by_session_environment_and_open_file(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    env = {"PATH": os.environ["PATH"]}
    own = {"start_new_session": True}
    session = subprocess.Popen(["sleep", "600"], env=env, **own)
    named = subprocess.Popen(["sleep", "600"], env={**env, "COURSE_RUN_DIR": str(folder)}, **own)
    with (folder / "rank-0.log").open("w") as log:
        writing = subprocess.Popen(["sleep", "600"], env=env, stdout=log, **own)
    other = subprocess.Popen(["sleep", "600"], env={**env, "COURSE_RUN_DIR": f"{folder}x"}, **own)
    try:
        assert end_all([session.pid], [str(folder)], remove=True) == 3
        codes = [p.wait(5) for p in (session, named, writing)]
        assert codes == [-9] * 3 and other.poll() is None
        assert not folder.exists()
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize(
    ("asked", "platform", "built", "why"),
    [
        ("spawn", "linux", "", "COURSE_START=spawn"),
        ("", "darwin", "", "not safe on darwin"),
        ("", "linux", "12.8", "built for GPUs"),
        ("fork", "linux", "12.8", ""),
        ("fork", "darwin", "", "not safe on darwin"),
        ("", "linux", "", ""),
        ("frok", "linux", "", "'frok' must be fork or spawn"),
    ],
)
def test_where_forking_is_not_safe_processes_are_started(monkeypatch, asked, platform, built, why):
    monkeypatch.setenv("COURSE_START", asked)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(processes, "gpu_build", lambda: built)
    try:
        found = prepared.why_spawned()
    except ValueError as refusal:
        found = str(refusal)
    assert (why in found) if why else found == ""


def test_who_hears_of_a_child_finds_it_settled(light, tmp_path):
    for _ in range(20):  # its own settings come first, whatever is set to it comes after them
        child, _ = call(light, tmp_path, "sleep")
        try:
            _, hard = resource.prlimit(child.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (123, hard))
            time.sleep(0.01)
            assert resource.prlimit(child.pid, resource.RLIMIT_NOFILE)[0] == 123
        finally:
            child.kill()
            child.wait(10)


def test_the_build_of_torch_is_read_without_importing_it(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('not to be imported')")
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]\n"
        "from course_lib.processes.torch_build import gpu_build; print(repr(gpu_build()))"
    )
    for line, built in (("cuda: Optional[str] = '12.8'", "12.8"), ("cuda: str = None", "")):
        (tmp_path / "torch" / "version.py").write_text(f"from typing import Optional\n{line}\n")
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert told.stdout == f"{built!r}\n", told.stderr
    import torch

    with pytest.MonkeyPatch.context() as patch:  # another thread is importing it
        half = ModuleType("torch")
        half.__spec__ = torch.__spec__
        patch.setitem(sys.modules, "torch", half)
        assert torch_build.gpu_build() == (torch.version.cuda or torch.version.hip or "")
    assert torch_build.gpu_build() == (torch.version.cuda or torch.version.hip or "")
    assert torch_build.gpu_count() == torch.cuda.device_count()


def on_a_gpu(device: int) -> None:
    import torch

    torch.cuda.set_device(device)
    print((torch.arange(4.0, device="cuda") * 2).sum().item())


@pytest.mark.gpu
@pytest.mark.skipif(torch_build.gpu_count() < 1, reason="needs a GPU")
def test_a_child_computes_on_a_gpu_that_its_parent_has_not_touched(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_START", "fork")
    file = tmp_path / "output"
    for _ in range(2):  # the first child's context is its own: the second finds none
        with file.open("wb") as out:
            wanted = Wanted(f"{__name__}:on_a_gpu", [0], dict(os.environ), out.fileno())
            child = prepared.start(wanted, ["false"], modules=(HERE,))
        assert isinstance(child, Child) and child.wait(120) == 0, file.read_text()
        assert file.read_text() == "12.0\n"
