"""Failures that readers meet: what each launcher says and returns, and the sentence about it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

from course_lib.peers.launchers import failures
from course_lib.peers.launchers.commands import LOOPBACK, five, free_port
from course_lib.peers.launchers.failures import SIGNS, explain, told
from course_lib.peers.launchers.programs import path
from course_lib.peers.launchers.run import Ran, run
from course_lib.peers.launchers.table import heard
from tests.course_lib.peers.launchers.parts import MEET, need, program

# Lines of launchers as they print them, the exit code, a word of the sentence.
TEXTS = {
    "torchrun, killed": ("torchrun", 1, "  rank      : 0 (local_rank: 0)\n  exitcode  : -15 (pid: "
                         "28650)  (SIGTERM)\nRoot Cause (first observed failure):\n  exitcode  : "
                         "-9 (pid: 28654)  (SIGKILL)",
                         "killed by SIGKILL, which leaves no traceback"),
    "deepspeed, killed": ("deepspeed", 247, "[ERROR] [launch.py:259:sigkill_handler] ['python', "
                          "'-u', 'train.py', '--local_rank=1'] exits with return code = -9",
                          "killed by SIGKILL"),
    "deepspeed, killed and quiet": ("deepspeed", 247, "", "killed by SIGKILL"),
    "course train, killed": ("course train", 1, "course train: rank 1 was ended by SIGKILL; so the "
                             "other ranks were ended too.", "killed by SIGKILL"),
    "slurm, killed": ("slurm", 137, "", "memory is full"),
    "slurm, by its own word": ("slurm", 1,
                               "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0.",
                               "memory is full"),
    "a process alone": ("by hand", -9, "", "killed by SIGKILL"),
    "a launcher killed": ("torchrun", -9, "", "launcher torchrun was itself ended by SIGKILL"),
    "a segmentation fault": ("torchrun", 1, "  exitcode  : -11 (pid: 5)  (SIGSEGV)",
                             "PYTHONFAULTHANDLER=1"),
    "ended by a person": ("torchrun", 1, "  exitcode  : -15 (pid: 5)  (SIGTERM)",
                          "ended by SIGTERM"),
    "a port": ("deepspeed", 1, "torch.distributed.DistNetworkError: The server socket has failed "
               "to listen on any local network address. port: 29500, useIpv6: false, code: -98, "
               "name: EADDRINUSE, message: address already in use\n exits with return code = 1",
               "a different port"),
    "no compiler": ("torchrun", 1, "/bin/sh: 1: c++: not found", "install g++"),
    "no compiler, from bash": ("torchrun", 1, "sh: line 1: g++: command not found", "torch_adam"),
    "a lock": ("torchrun", 1, '  File "torch/file_baton.py", line 50 in wait',
               "TORCH_EXTENSIONS_DIR"),
    "no device": ("deepspeed", 1, "ValueError: No slot '1' specified on host 'localhost'",
                  "LOCAL_SIZE"),
    "a hostfile": ("deepspeed", 1, "ValueError: Hostfile contains a bad entry: a slot=8, unable to "
                   "proceed with launching", "shows the line"),
    "no accelerator": ("deepspeed", 1,
                       "RuntimeError: Unable to proceed, no GPU resources available",
                       "DS_ACCELERATOR=cpu"),
    "no deepspeed": ("torchrun", 1, "ModuleNotFoundError: No module named 'deepspeed'",
                     "course_lib[deepspeed]"),
    "no mpi": ("by hand", 1, "ModuleNotFoundError: No module named 'mpi4py'", "LOCAL_RANK"),
    "no rank": ("by hand", 1, "ValueError: Error initializing torch.distributed using env:// "
                "rendezvous: environment variable RANK expected, but not set",
                "no launcher has set RANK"),
    "a part missing": ("torchrun", 1, "FileNotFoundError: [Errno 2] No such file or directory: "
                       "'checkpoint/step/zero_pp_rank_1_mp_rank_00_optim_states.pt'",
                       "use_node_local_storage"),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_becomes_a_sentence_of_cause_and_remedy(name):
    launcher, code, text, word = TEXTS[name]
    said = explain(launcher, code, text)
    assert word.lower() in said.lower()
    assert "Remedy: " in said and said.endswith(".") and "{" not in said


def test_every_sign_has_a_text():
    for pattern, *_ in SIGNS:
        assert any(re.search(pattern, text) for _, _, text, _ in TEXTS.values()), pattern


@pytest.mark.parametrize(
    ("code", "text"),
    [(1, "ValueError: the loss is not finite"), (2, ""), (128, ""), (255, ""), (1, "line 137")],
)
def test_what_is_unknown_stays_unknown(code, text):
    said = explain("torchrun", code, text)
    assert f"The output does not say why torchrun ended with {code}" in said
    assert "SIGKILL" not in said


def test_success_is_believed_but_for_deepspeeds():
    assert explain("torchrun", 0, "") == "torchrun reports success."
    assert "check the files that the program should have written" in explain("deepspeed", 0, "")


def test_a_run_whose_time_was_up_is_no_failure_of_its_own():
    said = told(Ran("torchrun", 1, True, "", (), ()))
    assert said.startswith("torchrun had to be ended. The ranks had not ended at the time")


def test_a_killed_process_has_no_traceback_and_minus_nine():
    ran = failures.killed("by hand")
    assert (ran.returncode, ran.stderr, ran.said) == (-9, ("",), "")
    assert told(ran).startswith("by hand ended with -9. A rank was killed by SIGKILL")


def test_a_process_without_a_launcher_does_not_kill_its_caller():
    ran = run("by hand", path("killed"), ["launcher"], world=1)
    assert ran.returncode == 1 and "this rank has no launcher" in ran.stderr[0]


CODES = {"torchrun": 1, "deepspeed": 247, "accelerate": 1}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CODES, "slurm"])
def test_a_rank_is_killed_under_every_launcher(name):
    need(name)
    ran = failures.killed(name, timeout=150)
    # Under srun whichever node was ended last decides the code.
    assert ran.returncode == CODES.get(name, ran.returncode) and ran.returncode
    assert (ran.timed_out, ran.left) == (False, 0)
    assert "Traceback" not in ran.stderr[1]
    assert "A rank was killed by SIGKILL" in told(ran)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "left"), [("torchrun", -9, 2), ("deepspeed", 0, 2), ("accelerate", -9, 2)]
)
def test_a_killed_launcher_leaves_ranks_and_deepspeed_calls_it_a_success(name, code, left):
    need(name)
    ran = run(name, path("killed"), ["launcher"], timeout=150)
    assert (ran.returncode, ran.timed_out) == (code, False)
    assert ran.left == left


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchrun", "deepspeed", "slurm", "by hand", "accelerate"])
def test_a_port_that_is_taken_is_an_error_with_a_remedy(name):
    need(name)
    with socket.socket() as other:
        other.bind((LOOPBACK, port := free_port()))
        other.listen()
        world = 1 if name == "by hand" else 2
        ran = run(name, MEET, world=world, port=port, timeout=150)
    if name == "accelerate":  # goes to another port by itself
        assert ran.returncode == 0 and len(ran.stdout) == 2
    else:
        assert ran.returncode and not ran.timed_out and "a different port" in told(ran)


BUILD = """
from deepspeed.ops.op_builder import CPUAdamBuilder
CPUAdamBuilder().load()
"""


@pytest.mark.slow
def test_without_a_compiler_deepspeeds_op_is_an_error_with_a_remedy(tmp_path):
    need("deepspeed")
    tools = tmp_path / "bin"
    tools.mkdir()
    if ninja := shutil.which("ninja", path=f"{os.environ['PATH']}:{Path(sys.executable).parent}"):
        (tools / "ninja").symlink_to(ninja)
    variables = {"TORCH_EXTENSIONS_DIR": str(tmp_path), "PATH": str(tools)}
    variables |= {"CXX": "c++", "CC": "cc"}
    ran = run("torchrun", program(tmp_path, BUILD), variables=variables, timeout=150)
    assert ran.returncode == 1
    assert "there is no compiler" in told(ran) or "ninja" in ran.heard


@pytest.mark.slow
def test_a_lock_that_a_killed_build_has_left_is_a_wait_that_is_recognised_and_ended(tmp_path):
    need("deepspeed")
    (tmp_path / "cpu_adam").mkdir()
    (tmp_path / "cpu_adam" / "lock").touch()
    variables = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    ran = run("torchrun", program(tmp_path, BUILD), variables=variables, timeout=40)
    assert ran.timed_out and any("file_baton.py" in text for text in ran.stderr)
    assert "waits for the lock of an extension" in told(ran)


GROUP = """
import deepspeed
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend=None, verbose=False)
print(f"rank {deepspeed.comm.get_rank()} of {deepspeed.comm.get_world_size()}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["", "RANK", "LOCAL_RANK", "MASTER_PORT"])
def test_deepspeed_wants_all_five_variables_or_mpi(tmp_path, missing):
    need("deepspeed")
    names = [name for name in five(0, 1, 0) if name != missing]
    ran = run("by hand", program(tmp_path, GROUP), world=1, options=names, timeout=150)
    if missing:
        assert ran.returncode == 1 and "MPI" in told(ran) and "LOCAL_RANK" in told(ran)
    else:
        assert ran.stdout == ("rank 0 of 1\n",)


@pytest.mark.slow
def test_a_host_with_fewer_slots_has_fewer_ranks_or_none_without_a_word(tmp_path):
    need("deepspeed")
    hosts = tmp_path / "hosts"

    def started(text: str, *more: str) -> Ran:
        hosts.write_text(text)
        options = ["--hostfile", str(hosts), "--master_addr", "127.0.0.1", *more]
        return run("deepspeed", path("variables"), options=options, timeout=150)

    ran = started("localhost slots=0\n", "--no_ssh", "--node_rank", "0")
    assert (ran.returncode, ran.stdout) == (0, ())  # it starts no rank and calls it a success
    # On a later host with fewer slots the local ranks do not begin at 0.
    later = heard(started("a slots=3\nb slots=2\n", "--no_ssh", "--node_rank", "1"))
    ranks = [(x.variables["RANK"], x.variables["LOCAL_RANK"]) for x in later]
    assert ranks == [("3", "1"), ("4", "0")]
