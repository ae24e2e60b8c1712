"""A launcher that forks itself: its children are what started ones would be, and it knows when not
to fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TARGETS = "tests.course_lib.processes.targets"

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks on Linux only")

# A process of its own: pytest's has threads, and is never forked.
LAUNCHER = """
import json, os, signal, sys, threading, time
from course_lib.processes import Wanted
from course_lib.processes.here import Forked, start_here, without_threads
from course_lib.processes.processes import MODULES

def started(name, *arguments, given=(), env=None, command=(sys.executable, "-c", "print('new')")):
    target = f"tests.course_lib.processes.targets:{name}"
    env = env or dict(os.environ)
    wanted = Wanted(target, list(arguments), env, out.fileno(), list(given), errors=err.fileno())
    return start_here(wanted, list(command), modules=("json",))

out, err = open(sys.argv[1], "wb"), open(sys.argv[2], "wb")
"""


def launched(tmp_path: Path, code: str, **env: str) -> tuple[dict, str, str]:
    """What a launcher told in JSON, and what its children printed and complained."""
    out, err = tmp_path / "out", tmp_path / "err"
    done = subprocess.run(
        [sys.executable, "-c", LAUNCHER + code, str(out), str(err)],
        env={**os.environ, "COURSE_START": "fork", "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), out.read_text(), err.read_text()


def test_a_child_is_forked_and_is_what_a_started_one_would_be(tmp_path):
    code = """
secret = open(sys.executable)  # no child's business
signal.signal(signal.SIGTERM, lambda *_: None)
child = started("tell", 7, env={**os.environ, "COLOUR": "red", "OMP_NUM_THREADS": "2"})
code = child.wait(60)
print(json.dumps([type(child).__name__, child.pid, os.getpid(), code, child.returncode]))
"""
    (kind, pid, launcher, *codes), printed, complaints = launched(tmp_path, code)
    assert kind == "Forked" and codes == [0, 0] and complaints == ""
    one = json.loads(printed)
    assert one["pid"] == one["session"] == pid and one["parent"] == launcher
    assert one["colour"] == "red" and one["number"] == 7 and one["input"] == ""
    assert one["interrupt"] and one["child"] and one["blocked"] == 0
    assert set(one["descriptors"]) == {"0", "1", "2"}, one["descriptors"]
    assert one["descriptors"]["2"] == str(tmp_path / "err")


@pytest.mark.parametrize(("how", "code"), [("3", 3), ("raise", 1), ("kill", -9)])
def test_its_end_is_told_and_its_complaints_go_their_own_way(tmp_path, how, code):
    told, printed, complaints = launched(
        tmp_path,
        f"""
child = started("end", {how!r})
print(json.dumps([child.poll() in (None, {code}), child.wait(60), child.poll()]))
child.send_signal(signal.SIGTERM)  # to nobody
child.kill()
""",
    )
    assert told == [True, code, code] and printed == ""
    assert ("LookupError: nothing here" in complaints) == (how == "raise")


@pytest.mark.parametrize(
    ("before", "more", "env"),
    [
        ("threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", "", {}),
        ("", "", {"COURSE_START": "spawn"}),
        ("", ", env={**os.environ, 'LD_PRELOAD': ''}", {}),
    ],
    ids=["a thread", "asked", "a variable that would come too late"],
)
def test_where_that_is_not_safe_a_new_interpreter_starts(tmp_path, before, more, env):
    code = f"{before}\nchild = started('tell', 7{more})\n"
    code += "print(json.dumps([type(child).__name__, child.wait(60)]))"
    told, printed, _ = launched(tmp_path, code, **env)
    assert told == ["Popen", 0] and printed == "new\n"


def test_numpy_imported_without_threads_may_be_forked(tmp_path):
    code = """
with without_threads():
    import numpy, torch
left = os.environ.get("OPENBLAS_NUM_THREADS")
child = started("tell", 7)
print(json.dumps([type(child).__name__, child.wait(60), left]))
"""
    for given in ("", "3"):
        env = {"OPENBLAS_NUM_THREADS": given} if given else {}
        assert launched(tmp_path, code, **env)[0] == ["Forked", 0, given or None]
