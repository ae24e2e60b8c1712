"""Failures that readers meet: what each launcher says and returns, and the sentence about it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from course_lib.launchers import failures, locks
from course_lib.launchers.explain import SIGNS, explain
from course_lib.launchers.failures import WAYS, Nodes, told
from course_lib.launchers.programs import path
from course_lib.launchers.run import Ran, run

# Lines of launchers as they print them, the exit code, a word of the sentence.
TEXTS = {
    "torchrun, killed": (
        "torchrun", 1,
        "  rank      : 0 (local_rank: 0)\n  exitcode  : -15 (pid: 28650)  (SIGTERM)\n"
        "Root Cause (first observed failure):\n  exitcode  : -9 (pid: 28654)  (SIGKILL)",
        "killed by SIGKILL, which leaves no traceback",
    ),
    "deepspeed, killed": (
        "deepspeed", 247, "[ERROR] [launch.py:259:sigkill_handler] ['python', '-u', 'train.py', "
        "'--local_rank=1'] exits with return code = -9", "killed by SIGKILL",
    ),
    "deepspeed, killed and quiet": ("deepspeed", 247, "", "killed by SIGKILL"),
    "course train, killed": (
        "course train", 1, "course train: rank 1 was ended by SIGKILL; so the other ranks were "
        "ended too.", "killed by SIGKILL",
    ),
    "slurm, killed": ("slurm", 137, "", "memory is used up"),
    "slurm, by its own word": (
        "slurm", 1, "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0.",
        "memory is used up",
    ),
    "a process alone": ("by hand", -9, "", "killed by SIGKILL"),
    "a launcher killed": ("torchrun", -9, "", "launcher torchrun was itself ended by SIGKILL"),
    "a segmentation fault": (
        "torchrun", 1, "  exitcode  : -11 (pid: 5)  (SIGSEGV)", "PYTHONFAULTHANDLER=1",
    ),
    "ended by a person": (
        "torchrun", 1, "  exitcode  : -15 (pid: 5)  (SIGTERM)", "ended by SIGTERM",
    ),
    "a port": (
        "deepspeed", 1, "torch.distributed.DistNetworkError: The server socket has failed to "
        "listen on any local network address. port: 29500, useIpv6: false, code: -98, name: "
        "EADDRINUSE, message: address already in use\n exits with return code = 1",
        "another port",
    ),
    "no compiler": ("torchrun", 1, "/bin/sh: 1: c++: not found", "install g++"),
    "no compiler, from bash": ("torchrun", 1, "sh: line 1: g++: command not found", "torch_adam"),
    "no ninja": (
        "torchrun", 1, "RuntimeError: Unable to JIT load the cpu_adam op due to ninja not being "
        "installed.", "pip install ninja",
    ),
    "a lock": (
        "torchrun", 1, '  File "torch/utils/file_baton.py", line 50 in wait', "remove_stale",
    ),
    "no pdsh": ("deepspeed", 1, "RuntimeError: launcher 'pdsh' not installed.", "install pdsh"),
    "no ssh": (
        "deepspeed", 1, "RuntimeError: Using hostfile at hosts but host=b was not reachable via "
        "ssh.", "ranks of b through ssh",
    ),
    "no device": (
        "deepspeed", 1, "ValueError: No slot '1' specified on host 'localhost'", "LOCAL_SIZE",
    ),
    "no host": ("deepspeed", 1, "ValueError: Hostname 'c' not found in hostfile", "names c"),
    "a hostfile": (
        "deepspeed", 1, "ValueError: Hostfile contains a bad entry: a slot=8, unable to proceed "
        "with launching", "which line",
    ),
    "no accelerator": (
        "deepspeed", 1, "RuntimeError: Unable to proceed, no GPU resources available",
        "DS_ACCELERATOR=cpu",
    ),
    "no deepspeed": (
        "torchrun", 1, "ModuleNotFoundError: No module named 'deepspeed'", "course_lib[deepspeed]",
    ),
    "no mpi": ("by hand", 1, "ModuleNotFoundError: No module named 'mpi4py'", "LOCAL_RANK"),
    "no rank": (
        "by hand", 1, "ValueError: Error initializing torch.distributed using env:// rendezvous: "
        "environment variable RANK expected, but not set", "no launcher has set RANK",
    ),
    "a part missing": (
        "torchrun", 1, "FileNotFoundError: [Errno 2] No such file or directory: "
        "'checkpoint/step/zero_pp_rank_1_mp_rank_00_optim_states.pt'", "use_node_local_storage",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_becomes_a_sentence_of_cause_and_remedy(name):
    launcher, code, text, word = TEXTS[name]
    said = explain(launcher, code, text)
    assert word.lower() in said.lower()
    assert "Remedy: " in said and said.endswith(".") and "{" not in said


def test_every_sign_has_a_text():
    import re

    for pattern, *_ in SIGNS:
        assert any(re.search(pattern, text) for _, _, text, _ in TEXTS.values()), pattern


@pytest.mark.parametrize(
    ("code", "text"),
    [(1, "ValueError: the loss is not finite"), (2, ""), (128, ""), (255, ""), (1, "line 137")],
)
def test_what_is_unknown_stays_unknown(code, text):
    said = explain("torchrun", code, text)
    assert f"Nothing that was printed says why torchrun ended with {code}" in said
    assert "SIGKILL" not in said


def test_success_is_believed_but_for_deepspeeds():
    assert explain("torchrun", 0, "") == "torchrun reports success."
    assert "look for what the program should have written" in explain("deepspeed", 0, "")


def test_a_run_whose_time_was_up_is_no_failure_of_its_own():
    said = told(Ran("torchrun", 1, True, "", (), ()))
    assert said.startswith("torchrun had to be ended. The ranks had not ended when time was up")


def test_a_killed_process_has_no_traceback_and_minus_nine():
    ran = failures.killed("by hand")
    assert (ran.returncode, ran.stderr, ran.said) == (-9, ("",), "")
    assert told(ran).startswith("by hand ended with -9. A rank was killed by SIGKILL")


def test_a_process_without_a_launcher_does_not_kill_its_caller():
    with pytest.raises(ValueError, match="has no launcher"):
        failures.launcher_killed("by hand")
    ran = run("by hand", path("killed"), ["launcher"], world=1)
    assert ran.returncode == 1 and "this rank has no launcher" in ran.stderr[0]


def test_a_lock_is_stale_when_no_process_holds_it(tmp_path):
    free, held = tmp_path / "a" / "lock", tmp_path / "b" / "lock"
    for file in (free, held):
        file.parent.mkdir()
    free.touch()
    opened = os.open(held, os.O_CREAT | os.O_EXCL)
    try:
        found = {lock.path: lock.held for lock in locks.locks(tmp_path)}
        if not sys.platform.startswith("linux"):
            assert set(found.values()) == {None}
            pytest.skip("only Linux shows which files a process has open")
        assert found == {free: False, held: True}
        assert locks.remove_stale(tmp_path) == [free]
        assert held.exists() and not free.exists()
    finally:
        os.close(opened)
    assert locks.remove_stale(tmp_path) == [held]


def test_what_to_do_about_a_lock_depends_on_who_holds_it(tmp_path):
    words = {True: "wait for it", False: "waits for ever", None: "if nothing builds op"}
    for held, word in words.items():
        assert word in locks.Lock(tmp_path / "op" / "lock", held).describe()


def test_locks_are_looked_for_where_extensions_are_built(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert locks.extensions() == tmp_path and locks.locks() == []
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR")
    from torch.utils.cpp_extension import get_default_build_root

    assert str(locks.extensions()) == get_default_build_root()


def test_a_table_of_two_nodes_shows_what_each_has():
    nodes = Nodes((("latest", "a"), ("a",)), {"load": ("loaded", "nothing was loaded")})
    assert nodes.table().splitlines() == [
        "        node 0  node 1",
        "a       yes     yes",
        "latest  yes     –",
        "(load)  loaded  nothing was loaded",
    ]


def test_of_a_rank_that_failed_the_last_error_is_shown():
    error = "[rank1]: Traceback\nValueError: a\n[rank1]: FileNotFoundError: [Errno 2] b: 'c'\n"
    printed = "x\nsaved\nnothing was loaded\n"
    assert failures._outcome(printed, error, 0) == "nothing was loaded"
    assert failures._outcome(printed, error, 1) == "FileNotFoundError"
    assert failures._outcome(printed, "", 1) == "ended with the other"


CODES = {"torchrun": 1, "deepspeed": 247, "accelerate": 1, "course train": 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CODES, "slurm"])
def test_a_rank_is_killed_under_every_launcher(name):
    if name in ("deepspeed", "accelerate"):
        pytest.importorskip(name)
    ran = failures.killed(name, timeout=150)
    # Under srun whichever node was ended last decides the code.
    assert ran.returncode == CODES.get(name, ran.returncode) and ran.returncode
    assert (ran.timed_out, ran.left) == (False, 0)
    assert "Traceback" not in ran.stderr[1]
    assert "A rank was killed by SIGKILL" in told(ran)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "left"),
    [("torchrun", -9, 2), ("deepspeed", 0, 2), ("accelerate", -9, 2)],
)
def test_a_killed_launcher_leaves_ranks_and_deepspeed_calls_it_a_success(name, code, left):
    if name in ("deepspeed", "accelerate"):
        pytest.importorskip(name)
    ran = failures.launcher_killed(name, timeout=150)
    assert (ran.returncode, ran.timed_out) == (code, False)
    assert ran.left == left


@pytest.mark.slow
def test_the_courses_own_ranks_notice_that_their_launcher_was_killed():
    ran = failures.launcher_killed("course train", timeout=150)
    assert (ran.returncode, ran.timed_out, ran.left) == (-9, False, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchrun", "deepspeed", "slurm", "by hand"])
def test_a_port_that_is_taken_is_an_error_with_a_remedy(name):
    if name == "deepspeed":
        pytest.importorskip(name)
    ran = failures.port_taken(name, timeout=150)
    assert ran.returncode and not ran.timed_out
    assert "another port" in told(ran)


@pytest.mark.slow
def test_accelerate_goes_to_another_port_by_itself():
    pytest.importorskip("accelerate")
    ran = failures.port_taken("accelerate", timeout=150)
    assert ran.returncode == 0
    assert ran.stdout == ("rank 0 of 2: the sum is 3\n", "rank 1 of 2: the sum is 3\n")


@pytest.mark.slow
def test_course_train_has_no_port_to_take():
    ran = failures.port_taken("course train", timeout=150)
    assert (ran.returncode, len(ran.stdout)) == (0, 2)


@pytest.mark.slow
def test_without_a_compiler_deepspeeds_op_is_an_error_with_a_remedy():
    pytest.importorskip("deepspeed")
    ran = failures.no_compiler(timeout=150)
    assert ran.returncode == 1
    assert "there is no compiler" in told(ran) or "there is no ninja" in told(ran)


@pytest.mark.slow
def test_a_stale_lock_is_a_wait_without_work_that_is_recognised_and_ended():
    pytest.importorskip("deepspeed")
    stale = failures.stale_lock(timeout=150)
    # The first to end itself may take the other with it, before that has spoken.
    spoken = {text for text in stale.ran.stdout if text}
    assert spoken == {"after 3 s: under 5 % of a processor used\n"}
    assert any("file_baton.py" in text for text in stale.ran.stderr)
    assert "waits for the lock of an extension" in told(stale.ran)
    assert [lock.held for lock in stale.locks] == [False if sys.platform == "linux" else None]
    assert stale.removed == (["cpu_adam/lock"] if sys.platform == "linux" else [])


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["RANK", "LOCAL_RANK", "MASTER_PORT"])
def test_deepspeed_wants_all_five_variables_or_mpi(missing):
    pytest.importorskip("deepspeed")
    ran = failures.without(missing, timeout=150)
    assert ran.returncode == 1
    assert "MPI" in told(ran) and "LOCAL_RANK" in told(ran)


@pytest.mark.slow
def test_with_all_five_variables_deepspeed_starts_alone():
    pytest.importorskip("deepspeed")
    assert failures.without(timeout=150).stdout == ("rank 0 of 1\n",)


PARTS = [f"checkpoint/step/zero_pp_rank_{i}_mp_rank_00_optim_states.pt" for i in range(2)]
MODEL, LATEST = "checkpoint/step/mp_rank_00_model_states.pt", "checkpoint/latest"


@pytest.mark.slow
def test_two_nodes_without_a_shared_disk_each_have_their_part_alone():
    pytest.importorskip("deepspeed")
    nodes = failures.no_shared_disk(False, timeout=200)
    first, second = map(set, nodes.files)
    assert {LATEST, MODEL, PARTS[0]} <= first and PARTS[1] not in first
    assert second == {PARTS[1]}  # the model is not there
    assert nodes.loads[WAYS[0]] == ("loaded", "nothing was loaded")
    assert nodes.loads[WAYS[1]] != ("loaded", "loaded")


@pytest.mark.slow
def test_with_node_local_storage_each_node_has_the_model_and_not_the_latest():
    pytest.importorskip("deepspeed")
    nodes = failures.no_shared_disk(True, other_order=True, timeout=200)
    first, second = map(set, nodes.files)
    assert {LATEST, MODEL, PARTS[0]} <= first and PARTS[1] not in first
    assert second == {MODEL, PARTS[1]}
    assert nodes.loads[WAYS[0]] == ("loaded", "nothing was loaded")
    assert nodes.loads[WAYS[1]] == ("loaded", "loaded")
    assert "FileNotFoundError" in nodes.loads[WAYS[2]]


@pytest.mark.slow
def test_a_host_without_slots_runs_nothing_and_is_called_a_success(tmp_path):
    pytest.importorskip("deepspeed")
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=0\n")
    options = [
        "--hostfile",
        str(hosts),
        "--no_ssh",
        "--node_rank",
        "0",
        "--master_addr",
        "127.0.0.1",
    ]
    ran = run("deepspeed", path("variables"), options=options, timeout=150)
    assert (ran.returncode, ran.stdout) == (0, ())


@pytest.mark.slow
def test_a_later_host_with_fewer_slots_does_not_begin_at_local_rank_0(tmp_path):
    from course_lib.launchers.filters import place
    from course_lib.launchers.table import reported

    pytest.importorskip("deepspeed")
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=3\nb slots=2\n")
    options = [
        "--hostfile",
        str(hosts),
        "--no_ssh",
        "--node_rank",
        "1",
        "--master_addr",
        "127.0.0.1",
    ]
    ran = run("deepspeed", path("variables"), options=options, timeout=150)
    ranks = [(x.variables["RANK"], x.variables["LOCAL_RANK"]) for x in reported(ran)]
    ours = [x for x in place({"a": [0, 1, 2], "b": [0, 1]}) if x.host == "b"]
    assert ranks == [(str(x.rank), str(x.local_rank)) for x in ours] == [("3", "1"), ("4", "0")]


@pytest.mark.slow
def test_deepspeed_says_that_pdsh_is_not_installed(tmp_path):
    import shutil

    pytest.importorskip("deepspeed")
    if shutil.which("pdsh"):
        pytest.skip("pdsh is installed here")
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=1\nb slots=1\n")
    options = ["--hostfile", str(hosts), "--no_ssh_check", "--master_addr", "127.0.0.1"]
    ran = run("deepspeed", path("variables"), options=options, timeout=150)
    assert ran.returncode == 1 and "install pdsh" in told(ran)


def test_programs_say_what_they_hold_and_run_nothing_when_imported():
    names = "build, initialize, killed, meet, save, variables"
    with pytest.raises(ValueError, match=names):
        path("_")
    lines = "\n".join(f"import course_lib.launchers.programs.{x}" for x in names.split(", "))
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
