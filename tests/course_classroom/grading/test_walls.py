"""What an answer's rank can reach of everything else: nothing that decides about points.

The code here runs on a rank as if nobody had read it before: the walls have to hold by themselves.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import textwrap
from pathlib import Path

import pytest

from course_classroom.grading import walls
from course_classroom.grading.walls import Walls
from course_classroom.ranks import confine
from tests.support.commands import ROOT, python

pytestmark = pytest.mark.skipif(not confine.version(), reason="this system has no Landlock")

# Each gives text of what was reached, or raises; `judge` is the process that would decide.
REACHES = {
    "the judge's descriptors": "open(f'/proc/{judge}/fd/{pipe}', 'wb', 0).write(b'points')",
    "the judge's memory": "open(f'/proc/{judge}/mem', 'rb').read(1)",
    "the judge's environment": "open(f'/proc/{judge}/environ', 'rb').read()",
    "its parent's descriptors": "[os.readlink(f'/proc/{up}/fd/{n}') for n in os.listdir(f'/proc/{up}/fd')]",  # noqa: E501
    "another rank's memory": "open(f'/proc/{other}/mem', 'rb').read(1)",
    "another rank's descriptors": "os.readlink(f'/proc/{other}/fd/1')",
    "a signal to the judge": "os.kill(judge, 0) or 'heard'",
    "a signal to its parent": "os.kill(up, 0) or 'heard'",
    "a signal to another rank": "os.kill(other, 0) or 'heard'",
    "ptrace": "attached(judge)",
    "the solutions": "os.listdir(f'{root}/solutions')",
    "the tests": "os.listdir(f'{root}/tests')",
    "the history": "open(f'{root}/.git/HEAD').read()",
    "git": "subprocess.run(['git', '-C', root, 'show', 'HEAD:README.md'], capture_output=True, check=True).stdout[:9]",  # noqa: E501
    "a neighbour's file": "open(f'{theirs}/answer.txt').read()",
    "a neighbour's folder": "os.listdir(theirs)",
    "a neighbour's file's place": "os.remove(f'{theirs}/answer.txt') or 'gone'",
    "a link to a neighbour": "os.symlink(theirs, f'{mine}/link') or os.listdir(f'{mine}/link')",
    "a hard link to a neighbour": "os.link(f'{theirs}/answer.txt', f'{mine}/hard') or 'linked'",
    "the course's own files": "open(f'{root}/course_lib/ranks.py', 'a').write('#')",
    "the environment's packages": "open(os.path.join(os.path.dirname(json.__file__), 'zzz'), 'w')",
    "the home of root": "os.listdir('/root')",
    "passwords": "open('/etc/shadow').read(1)",
    "a disk": "open(disks()[0], 'rb').read(1)",
    "the devices": "os.listdir('/dev')",
    "shared memory": "open('/dev/shm/zzz-reached', 'w')",
    "a shared folder": "open(f'{mine}/../reached', 'w')",
    "a file system": "subprocess.run(['mount', '-ttmpfs', 'x', mine], check=True, stderr=-3)",
    "namespaces and what is behind": "subprocess.run(['unshare', '-Urm', 'ls', theirs], check=True, stderr=-3)",  # noqa: E501
    "another user": "os.setuid(12345) or 'changed'",
    "a descriptor of the judge": "inherited()",
    "capabilities": "caps()",
    "another rank's key": "[open(os.path.join(run, n)).read() for n in os.listdir(run) if n.startswith('rank-') and n.endswith('.json')][0]",  # noqa: E501
}
ALLOWED = {
    "its own folder": "open(f'{mine}/kept', 'w').write('x')",
    "the library": "open(f'{root}/course_lib/ranks.py').read(9)",
    "a package": "__import__('torch.distributed.tensor')",
    "its own descriptors": "os.listdir('/proc/self/fd')",
    "a program": "subprocess.run(['true'], check=True)",
    "the hosts": "open('/etc/hosts').read(1)",
}
PRELUDE = """
import ctypes, json, os, subprocess, sys
run = os.environ["COURSE_RUN_DIR"]

def attached(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(0x4206, pid, 0, 0) != 0:  # without stopping it
        raise OSError(ctypes.get_errno(), "not attached")
    return "attached"

def inherited():
    own = {os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
           if os.path.exists(f"/proc/self/fd/{n}")}
    if f"pipe:[{inode}]" not in own:
        raise OSError("no such descriptor")

def disks():
    import glob
    return [*glob.glob("/dev/vd*"), *glob.glob("/dev/sd*"), *glob.glob("/dev/nvme*"), "/dev/mem"]

def caps():
    (line,) = [l for l in open("/proc/self/status") if l.startswith("CapEff")]
    if line.split()[1].strip("0"):
        return line
    raise OSError("none")

def reached(what):
    try:
        return True, str(eval(what, globals()))[:80]
    except Exception as error:
        return False, type(error).__name__
"""


def program(tmp_path: Path, start: str) -> dict:
    """What a rank of a judge reached, from a process of its own."""
    for name in ("mine", "theirs", "r"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "theirs" / "answer.txt").write_text("42")
    code = textwrap.dedent("""
        import json, os, sys
        from pathlib import Path
        from course_classroom.ranks import confine
        from course_classroom.judge.judge import Judge
        home, prelude, asked = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
        pipe, ours = os.pipe()
        inode = os.fstat(ours).st_ino
        confine.unreadable_by_others()
        os.environ.update(confine.around(home / "mine", home / "r"))
        judge = Judge(idle_minutes=0)
        judge.ready()
        try:
            judge.push({"judge": os.getpid(), "pipe": ours, "root": sys.argv[4], "inode": inode,
                        "mine": str(home / "mine"), "theirs": str(home / "theirs"),
                        "other": judge.ranks[0].process.pid})
            judge.everywhere(lambda r: prelude + "up = os.getppid()", 20, [1])
            found = {name: judge.pull(f"reached({what!r})", [1])[0] for name, what in asked.items()}
            print(json.dumps(found))
        finally:
            judge.stop()
    """)
    paths = [str(tmp_path), PRELUDE, json.dumps(REACHES | ALLOWED), str(ROOT)]
    own = {"COURSE_RUNTIME_DIR": str(tmp_path / "r"), "TMPDIR": str(tmp_path / "mine")}
    done = python("-c", code, *paths, env={"COURSE_START": start, **own})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("start", ["", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_confined_rank_reaches_nothing_that_is_not_its_own(start):
    with tempfile.TemporaryDirectory(prefix="w") as home:  # a short path: sockets lie below it
        found = program(Path(home), start)
        assert Path(home, "theirs", "answer.txt").read_text() == "42"
    assert {name: how for name, (there, how) in found.items() if there and name in REACHES} == {}
    assert {
        name: how for name, (there, how) in found.items() if not there and name in ALLOWED
    } == {}


def test_without_walls_it_would_reach_some_of_it(tmp_path):
    """These attacks are ones: four of them, tried here where nothing is confined, succeed."""
    scope = {"root": str(ROOT), "theirs": str(tmp_path), "mine": str(tmp_path)}
    for name in ("the solutions", "the tests", "a neighbour's folder", "a program"):
        eval((REACHES | ALLOWED)[name], {"os": os, "subprocess": subprocess, **scope})


CONFINED_THREAD = """
import os, threading, time
from course_classroom.ranks import confine
os.environ.update(confine.around())
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
try:
    confine.from_environment()
except confine.NotConfined as error:
    print(error, flush=True)
__import__("os")._exit(0)
"""


def test_a_thread_that_would_stay_outside_is_refused():
    assert "has a second thread" in python("-c", CONFINED_THREAD).stdout


NETWORK = """
import json, socket, sys
import fcntl, struct
from course_classroom.grading.walls import loopback
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:  # some systems leave it off
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh22x", b"lo", 0))
loopback()
told = []
for where in [("127.0.0.1", int(sys.argv[1])), ("192.0.2.1", 80)]:
    try:
        socket.create_connection(where, timeout=3).close()
        told.append("reached")
    except OSError as error:
        told.append(type(error).__name__)
with socket.create_server(("127.0.0.1", 0)) as own:
    socket.create_connection(own.getsockname(), timeout=3).close()
print(json.dumps(told))
"""


def test_a_network_of_its_own_has_a_loopback_and_nothing_else():
    import socket

    whole = Walls(numbers=True, network=True).command
    if subprocess.run([*whole, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare gives no network of its own here")
    standing = walls.built()
    assert standing.network, "a network without a loopback is of no use to ranks"
    with socket.create_server(("127.0.0.1", 0)) as outside:
        done = python("-c", NETWORK, outside.getsockname()[1], before=standing.command)
    assert json.loads(done.stdout) == ["ConnectionRefusedError", "OSError"]


@pytest.mark.parametrize(
    ("standing", "words"),
    [
        (
            Walls(7, True, True),
            "confined by Landlock (release 7); they have process numbers and a network",
        ),
        (
            Walls(2, True),
            "they have process numbers to themselves; they share the network with this run",
        ),
        (Walls(), "not confined, because this system has no Landlock"),
    ],
)
def test_the_head_says_which_walls_stand(standing, words):
    assert words in str(standing)
    assert standing.confined == bool(standing.landlock)
