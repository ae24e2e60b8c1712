"""`make` on toy clones, as a person meets it: fresh, again, stale, moved, broken, interrupted.

The real Makefile, bootstrap, venv and pip run; only the packages are toys. Wrong Pythons, and uv,
are played by small scripts at the head of the PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.house.toy import Toy, lay_out
from tests.support.commands import gone, until
from tools.bootstrap import __main__ as bootstrap
from tools.bootstrap import condition, environment, install
from tools.bootstrap.failures import diagnose
from tools.bootstrap.say import Refusal

DEAD = "http://127.0.0.1:9/simple"  # nothing answers there


def stamp(toy: Toy) -> dict:
    return json.loads((toy.venv / "course-stamp.json").read_text())


def script(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_a_fresh_clone_ends_in_the_target(finished: tuple[Toy, str]) -> None:
    toy, said = finished
    assert "creating .venv with Python" in said
    assert f"course lab --port 9 0 False {toy.venv}" in said  # LAB_ARGS as a shell would split it
    assert toy.version("torch") == "2.13.0"
    assert toy.version("alpha") == "1.0", "the pin, not the newest"
    assert toy.version("beta") == "none", "the lab asks for no tools of a contributor"
    assert stamp(toy)["extras"] == ["classroom", "deepspeed", "huggingface"], "what lessons need"
    assert not (toy.venv / "course-unfinished.json").exists()


def test_a_second_run_does_not_install_and_another_target_adds_what_it_needs(ready: Toy) -> None:
    log = (ready.venv / "setup.log").stat()
    assert ready.said("lab").startswith("course lab"), "there is nothing to say on the way"
    assert (ready.venv / "setup.log").stat().st_mtime_ns == log.st_mtime_ns
    said = ready.said("setup")
    assert ".venv is updated, because it lacks bench, dev" in said
    assert ready.version("beta") == "2.0" and "creating" not in said
    assert stamp(ready)["extras"] == ["bench", "classroom", "deepspeed", "dev", "huggingface"]


CHANGES = {
    "ready": ({}, "ready", "as stamped"),
    "pins": ({"pins": "others"}, "update", "constraints.txt or pyproject.toml has changed"),
    "a package": ({"packages": {"alpha": "0.9"}}, "update", "removed or changed since then: alpha"),
    "extras": ({"extras": []}, "update", "it lacks classroom"),
    "a build of torch": ({"packages": {"torch": "2.13.0+cpu"}}, "ready", ""),
    "python": ({"python": "3.9"}, "renew", "it has Python"),
    "hashes": ({"hashes": "of another file"}, "renew", "not verified by the requested hashes"),
    "home": ({"home": "/elsewhere"}, "renew", "has been moved"),
}


@pytest.mark.parametrize(("change", "state", "why"), CHANGES.values(), ids=CHANGES)
def test_what_has_changed_decides_what_is_done(
    finished: tuple[Toy, str], tmp_path: Path, monkeypatch, change, state, why
) -> None:
    monkeypatch.delenv("PYTHON", raising=False)
    shutil.copytree(finished[0].venv, venv := tmp_path / ".venv", symlinks=True)
    told = {**stamp(finished[0]), "home": str(venv), "hashes": "h", "pins": "p", **change}
    condition.write_note(venv, condition.STAMP, told)
    now = condition.look(venv, ("classroom",), "p", "h")
    assert now.state == state and why in now.why
    condition.write_note(venv, condition.UNFINISHED, {"extras": ["dev"], "ended": True})
    now = condition.look(venv, ("classroom",), "p", "h")
    assert now.state == "update" and {"dev", "classroom"} <= set(now.extras)


SLOW = """
import os, time
_quick = build_editable
def build_editable(*arguments):
    open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "building"), "w").write(
        str(os.getpid())
    )
    time.sleep(60)
    return _quick(*arguments)
"""


@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_an_interrupted_installation_is_noticed_and_leaves_no_pip(
    ready: Toy, how: signal.Signals
) -> None:
    backend = ready.root / "toy_backend.py"
    backend.write_text(backend.read_text() + SLOW)
    # Tests that run as a shell's background job ignore it, and would hand that on.
    heard = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    child = subprocess.Popen(**ready.call("setup"), **heard, start_new_session=True)
    builder = ready.root / "building"
    until(lambda: builder.exists() and builder.read_text(), 40)
    os.killpg(child.pid, how)
    said, _ = child.communicate(timeout=40)
    assert child.returncode != 0
    if how is signal.SIGINT:
        assert "interrupted; the next run repairs the incomplete environment" in said
    assert gone(int(builder.read_text())), "the builder outlived the make that was interrupted"
    now = condition.look(ready.venv, ("classroom",), condition.fingerprint(ready.root))
    assert (now.state, now.why) == ("renew", "an installation was interrupted")
    assert "dev" in now.extras, "what was under way"


def test_no_network_is_named_and_the_next_run_carries_on(ready: Toy) -> None:
    cut_off = {"PIP_NO_INDEX": None, "PIP_FIND_LINKS": None, "PIP_INDEX_URL": DEAD}
    said = ready.said("setup", fails=True, **cut_off, PIP_RETRIES="1")
    assert "The package index could not be reached." in said
    assert "Remedy: connect this machine" in said
    said = ready.said("lab")
    assert ".venv is updated, because the last installation failed before its end" in said
    assert "creating" not in said, "what went in stays in"


@pytest.mark.slow
def test_two_at_once_wait_for_each_other(ready: Toy) -> None:
    both = [subprocess.Popen(**ready.call("setup")) for _ in range(2)]
    said = [child.communicate(timeout=100)[0] for child in both]
    assert [child.returncode for child in both] == [0, 0], said
    assert sum("installs bench, classroom" in one for one in said) == 1, "the second found it done"


def test_what_is_not_ours_is_left_alone(ready: Toy, tmp_path: Path) -> None:
    target = ready.venv.rename(tmp_path / "target")
    ready.venv.symlink_to(target)
    for make in ("lab", "clean"):
        assert "Remedy:" in ready.said(make, fails=True)
    assert (target / "course-stamp.json").exists()
    ready.venv.unlink()
    target.rename(ready.venv)
    ready.said("clean")
    assert not ready.venv.exists()
    ready.venv.mkdir()
    (ready.venv / "my notes").write_text("dear diary")
    for make in ("lab", "clean"):
        assert "not created by this course" in ready.said(make, fails=True)
    assert (ready.venv / "my notes").exists()


# --- which Python


PYTHONS = {
    "none at all": ({}, "No Python was found on this PATH", "install Python 3.10 to 3.13"),
    "too old": (
        {"python3": ([3, 9, 1], True)},
        "The course needs Python 3.10 to 3.13, but this PATH has 3.9.1.",
        "apt install python3",
    ),
    "without venv": (
        {"python3": ([3, 11, 2], False)},
        "has no venv module with ensurepip",
        "apt install python3-venv",
    ),
    "named, and too new": (
        {"python3": ([3, 12, 1], True), "named": ([3, 14, 0], True)},
        "is Python 3.14.0; the course needs 3.10 to 3.13",
        "or unset PYTHON",
    ),
    "named, and does not run": ({"named": None}, "does not run for you", "or unset PYTHON"),
    "a shim that fails": (
        {"python3": None, "python3.12": ([3, 9, 0], True)},
        "but this PATH has 3.9.0",
        "apt install python3",
    ),
}


@pytest.mark.parametrize("case", PYTHONS)
def test_a_python_that_does_not_do_is_said_before_anything_is_made(
    toy: Toy, tmp_path: Path, case: str
) -> None:
    pythons, cause, remedy = PYTHONS[case]
    path = tmp_path / "path"
    path.mkdir()
    shutil.copy(shutil.which("make") or "make", path / "make")
    for name, described in pythons.items():
        body = "exit 127"
        if described is not None:
            answer = json.dumps({"version": described[0], "path": "x", "venv": described[1]})
            body = f"if [ \"$1\" = -I ]; then echo '{answer}'; exit 0; fi\n"
            body += f'exec "{sys.executable}" "$@"'
        script(path, name, body)
    if pythons and "python3" not in pythons:  # the Makefile needs one that runs the bootstrap
        script(path, "python", f'exec "{sys.executable}" "$@"')
    named = str(path / "named") if "named" in pythons else None
    said = toy.said("setup", fails=True, PATH=str(path), PYTHON=named)
    assert cause in said and remedy in said and not toy.venv.exists()


# --- where it cannot be written, and another's environment


def test_a_read_only_folder(wheels: Path) -> None:
    """pytest's own folders are private, and root may write anywhere: so another place and user."""
    folder = Path(tempfile.mkdtemp(prefix="course-house-"))
    try:
        folder.chmod(0o755)
        toy = lay_out(folder / "clone", wheels)
        prefix, python = [], sys.executable
        if os.getuid() == 0:
            prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env"]
            python = "/usr/bin/python3"
            question = "import sys, ensurepip; sys.exit(sys.version_info < (3, 10))"
            tried = shutil.which("setpriv") and subprocess.run(
                [*prefix, python, "-c", question], capture_output=True, check=False
            )
            if not tried or tried.returncode:
                pytest.skip("root, and no Python that an ordinary user could run")
        toy.root.chmod(0o555)
        call = toy.call("lab", *prefix, PYTHON=python, HOME=str(toy.root))
        done = subprocess.run(**call, timeout=120, check=False)
        toy.root.chmod(0o755)
        assert done.returncode != 0 and "Traceback" not in done.stdout
        assert f"You may not read or write a file or folder: {toy.root}/.venv.lock" in done.stdout
        assert "or set COURSE_VENV to an existing" in done.stdout
        assert not toy.venv.exists()
    finally:
        shutil.rmtree(folder)


def test_a_shared_environment_is_used_and_not_changed(finished: tuple[Toy, str], toy: Toy) -> None:
    def times() -> dict[Path, int]:
        found = [one for one in shared.rglob("*") if "__pycache__" not in str(one)]
        return {one: one.stat().st_mtime_ns for one in found}

    shared = finished[0].venv
    before = times()
    said = toy.said("lab", COURSE_VENV=str(shared))
    assert f"COURSE_VENV={shared}: all requirements are met" in said
    assert f"course lab False {shared}" in said and not toy.venv.exists()
    said = toy.said("setup", fails=True, COURSE_VENV=str(shared))
    assert "is not sufficient (it is never changed):" in said and "lacks beta>=2.0" in said
    said = toy.said("lab", fails=True, COURSE_VENV="/nowhere/at/all")
    assert "has no working Python" in said
    assert times() == before


# --- disk, torch, failures, uv


def test_the_disk_that_is_too_small_is_named(monkeypatch, tmp_path: Path) -> None:
    usage = shutil._ntuple_diskusage(10**10, 0, 15 * 10**8)
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda folder: usage)
    environment.need_room(tmp_path, 1e9, 0.4e9)
    with pytest.raises(Refusal, match=r"1\.5 GB free; this step needs about 2\.0 GB") as refused:
        environment.need_room(tmp_path, 1.6e9, 0.4e9)
    assert "larger disk" in refused.value.remedy


NO_MATCH = "ERROR: No matching distribution found for torch==2.13.0\n"
FULL = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
LOCAL = ("--no-index", "--no-deps", "torch==2.13.0")
MIRROR = "https://mirror/whl"


class Written:
    """An installer that writes its calls down; it finds a local wheel or not, as told."""

    def __init__(self, output: str) -> None:
        self.output = output
        self.calls: list[tuple[str, ...]] = []

    def try_install(self, *arguments: str) -> tuple[bool, str]:
        self.calls.append(arguments)
        return not self.output, self.output

    def install(self, *arguments: str) -> None:
        self.calls.append(arguments)

    def refuse(self, code: int, output: str) -> None:
        raise diagnose(output) or AssertionError


@pytest.mark.parametrize(
    ("output", "driver", "index", "asked"),
    [
        ("", True, MIRROR, None),
        (NO_MATCH, False, "", ("--index-url", install.CPU_INDEX, "--no-deps", "torch==2.13.0+cpu")),
        (NO_MATCH, False, MIRROR, ("--index-url", MIRROR, "--no-deps", "torch==2.13.0")),
        (NO_MATCH, True, MIRROR, ("--index-url", MIRROR, "--no-deps", "torch==2.13.0")),
        (NO_MATCH, True, "", ("-c", "constraints.txt", "torch==2.13.0")),
    ],
    ids=["a local wheel", "no driver", "an index named", "and a driver", "a driver"],
)
def test_which_torch_is_asked_for_from_where(monkeypatch, output, driver, index, asked) -> None:
    monkeypatch.setenv("TORCH_INDEX_URL", index)
    monkeypatch.setattr(install.platform, "system", lambda: "Linux")
    monkeypatch.setattr(install, "has_nvidia_driver", lambda: driver)
    by, needs = Written(output), []
    constraints = Path("constraints.txt")
    install.install_torch(by, "2.13.0", constraints, lambda *sizes: needs.append(sizes))
    assert by.calls == [LOCAL] + ([asked] if asked else [])
    assert bool(needs) == (driver and bool(output) and not index), "asked before the large download"


def test_a_local_wheel_that_does_not_fit_on_the_disk_is_no_reason_to_ask_an_index() -> None:
    by = Written(FULL)
    with pytest.raises(Refusal, match="became full"):
        install.install_torch(by, "2.13.0", Path("constraints.txt"), lambda *sizes: None)
    assert by.calls == [LOCAL]


REFUSED = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('Failed to "
    "establish a new connection: [Errno 111] Connection refused')': /simple/torch/\n"
)


@pytest.mark.parametrize(
    ("output", "cause", "remedy"),
    [
        (REFUSED + FULL + "ERROR: Failed building wheel for x\n", "became full", "TMPDIR"),
        ("OSError: [Errno 122] Disk quota exceeded: '/home/me/x'", "became full", "PIP_CACHE_DIR"),
        ("OSError: [Errno 13] Permission denied: '/srv/w/a.whl'", "folder: /srv/w/a.whl.", "root"),
        ("OSError: [Errno 30] Read-only file system: '/c'", "folder: /c.", "COURSE_VENV"),
        (REFUSED + NO_MATCH, "could not be reached", "HTTPS_PROXY"),
        ("[Errno -3] Temporary failure in name resolution", "could not be reached", "it continues"),
        ("error: error sending request for url (https://a/)", "could not be reached", "connect"),
        ("SSLCertVerificationError(1, '[SSL: ...'))" + NO_MATCH, "certificate", "PIP_CERT"),
        (NO_MATCH, "is not available", "PYTHON="),
        ("  × No solution found when resolving dependencies", "is not available", "PIP_NO_INDEX"),
        ("ERROR: Hashes are required in --require-hashes mode", "any known hash", "tools.hashes"),
        ("THESE PACKAGES DO NOT MATCH THE HASHES FROM", "any known hash", "purge"),
        ("x.c:1:10: fatal error: Python.h: No such file\n" + REFUSED, "compiled", "python3-dev"),
    ],
)
def test_each_failure_has_its_own_remedy(output: str, cause: str, remedy: str) -> None:
    told = diagnose(output)
    assert told is not None and cause in told.cause and remedy in told.remedy
    assert diagnose("Segmentation fault\n") is None, "what is not known is not guessed"


UV = """
echo "$@ $UV_FIND_LINKS" >> {asked}
if [ "$1" = venv ]; then exec "$5" -m venv --prompt course "$6"; fi
python="$4"; shift 4
{how} "$python" -m pip install "$@"
"""


def uv(toy: Toy, how: str) -> str:
    """A PATH on which a uv comes first that writes down what it is asked, and asks pip for it."""
    folder = toy.root.parent / "bin"
    script(folder, "uv", UV.format(asked=folder / "asked", how=how))
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize("works", [True, False])
def test_uv_installs_where_it_is_and_pip_where_uv_fails(ready: Toy, works: bool) -> None:
    said = ready.said("setup", PATH=uv(ready, "exec" if works else "exit 2 #"))
    assert ("so pip is used" in said) != works
    assert f"{'uv' if works else 'pip'} installs bench, classroom" in said
    assert ready.version("beta") == "2.0"
    lines = (ready.root.parent / "bin" / "asked").read_text().splitlines()
    assert all(line.startswith(f"pip install --python {ready.venv}/bin/python ") for line in lines)
    assert all(line.endswith(f" {ready.wheels}") for line in lines), "pip's settings are uv's"


@pytest.mark.slow
def test_uv_makes_the_environment_too(toy: Toy) -> None:
    assert "so pip is used" not in toy.said("lab", PATH=uv(toy, "exec"))
    assert toy.version("torch") == "2.13.0" and toy.version("alpha") == "1.0"
    lines = (toy.root.parent / "bin" / "asked").read_text().splitlines()
    assert lines[0].startswith(f"venv --seed --allow-existing --python {sys.executable}")


# --- a learner's copy


def test_a_learners_copy_says_what_to_run_instead(toy: Toy) -> None:
    assert set(bootstrap.FOR_AUTHORS) < set(bootstrap.TARGETS)
    assert toy.make("help").stdout == f"{bootstrap.HELP}\n"
    (toy.root / bootstrap.MARK).touch()
    left = toy.make("help").stdout.splitlines()
    gone = {line.split()[1] for line in bootstrap.HELP.splitlines() if line not in left}
    assert gone == set(bootstrap.FOR_AUTHORS)
    for target in bootstrap.FOR_AUTHORS:
        done = toy.make(target)
        assert done.returncode == 2 and not toy.venv.exists(), "nothing is installed for it"
        said = [line for line in done.stdout.splitlines() if not line.startswith("make: ***")]
        assert len(said) == 1 and f"tests and solutions, but `make {target}` needs" in said[0]
        assert "`make lab`" in said[0] and "check 01" in said[0]
