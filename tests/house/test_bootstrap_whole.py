"""`make` on toy clones, as a person meets it: fresh, again, stale, moved, broken, interrupted.

Everything here runs the real Makefile, bootstrap, venv and pip; only the packages are toys.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

from tests.house.toy import Toy
from tools.bootstrap import condition
from tools.bootstrap.pins import fingerprint


def stamp(toy: Toy) -> dict:
    return json.loads((toy.venv / "course-stamp.json").read_text())


def test_a_fresh_clone_ends_in_the_target(finished: tuple[Toy, str]) -> None:
    toy, said = finished
    assert "making .venv with Python" in said
    assert "torch 2.13.0: from a wheel that pip found on this machine" in said
    assert f"course lab --port 9 0 False {toy.venv}" in said  # LAB_ARGS as a shell would split it
    assert toy.version("torch") == "2.13.0"
    assert toy.version("alpha") == "1.0", "the pin, not the newest"
    assert toy.version("beta") == "none", "the lab asks for no tools of a contributor"
    assert stamp(toy)["extras"] == ["classroom", "deepspeed", "huggingface"], "what lessons need"
    assert not (toy.venv / "course-unfinished.json").exists()


def test_a_second_run_does_not_call_pip(ready: Toy) -> None:
    log = (ready.venv / "setup.log").stat()
    done = ready.make("lab")
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("course lab"), "there is nothing to say on the way"
    assert (ready.venv / "setup.log").stat().st_mtime_ns == log.st_mtime_ns


def test_another_target_adds_what_it_needs_and_keeps_the_rest(ready: Toy) -> None:
    done = ready.make("setup")
    assert done.returncode == 0, done.stdout
    assert "it still lacks: bench, dev; it is brought up to date" in done.stdout
    assert ready.version("beta") == "2.0"
    assert "making" not in done.stdout
    assert stamp(ready)["extras"] == ["bench", "classroom", "deepspeed", "dev", "huggingface"]


def test_stale_pins_are_noticed_and_followed(ready: Toy) -> None:
    pins = ready.root / "constraints.txt"
    pins.write_text(pins.read_text().replace("alpha==1.0", "alpha==1.1"))
    done = ready.make("lab")
    assert done.returncode == 0, done.stdout
    assert "constraints.txt or pyproject.toml has changed since" in done.stdout
    assert ready.version("alpha") == "1.1"


def test_a_removed_package_comes_back(ready: Toy) -> None:
    subprocess.run(
        [str(ready.venv / "bin" / "python"), "-m", "pip", "uninstall", "-q", "-y", "alpha"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    done = ready.make("lab")
    assert done.returncode == 0, done.stdout
    assert ".venv: alpha has been removed from it; it is brought up to date" in done.stdout
    assert ready.version("alpha") == "1.0"


def test_a_moved_clone_gets_a_new_environment(ready: Toy, tmp_path: Path) -> None:
    elsewhere = Toy(tmp_path / "moved here", ready.wheels)
    ready.root.rename(elsewhere.root)
    done = elsewhere.make("lab")
    assert done.returncode == 0, done.stdout
    assert f"it was made as {ready.venv} and has been moved; it is made anew" in done.stdout
    assert stamp(elsewhere)["home"] == str(elsewhere.venv)
    assert [one.name for one in elsewhere.root.glob(".venv*")].count(".venv.lock") == 1
    assert not list(elsewhere.root.glob(".venv.old-*")), "the old one is gone, not only renamed"


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


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_installation_is_noticed_and_leaves_no_pip(
    ready: Toy, how: signal.Signals
) -> None:
    backend = ready.root / "toy_backend.py"
    backend.write_text(backend.read_text() + SLOW)
    child = subprocess.Popen(
        ["make", "--no-print-directory", "setup"], cwd=ready.root, env=ready.variables(),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        # Tests that run as a shell's background job ignore it, and would hand that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    builder = ready.root / "building"
    deadline = time.monotonic() + 40
    while not (builder.exists() and builder.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(child.pid, how)
    said, _ = child.communicate(timeout=40)
    assert child.returncode != 0
    if how is signal.SIGINT:
        assert "interrupted; the next run repairs what was left half-done" in said
    pid = int(builder.read_text())
    while Path(f"/proc/{pid}").exists() and _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(pid), "pip's builder outlived the make that was interrupted"

    now = condition.look(ready.venv, ("classroom",), fingerprint(ready.root))
    assert now.state == "renew"
    assert now.why == "an installation was interrupted in the middle"
    assert now.extras == ("bench", "classroom", "deepspeed", "dev", "huggingface"), (
        "what was under way"
    )


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_no_network_is_named_and_the_next_run_carries_on(ready: Toy) -> None:
    dead = "http://127.0.0.1:9/simple"  # nothing answers there
    done = ready.make(
        "setup", PIP_NO_INDEX=None, PIP_FIND_LINKS=None, PIP_INDEX_URL=dead, PIP_RETRIES="1"
    )
    assert done.returncode != 0
    assert "The package index could not be reached." in done.stdout
    assert "Remedy: connect this machine" in done.stdout
    assert "Traceback" not in done.stdout

    done = ready.make("lab")
    assert done.returncode == 0, done.stdout
    assert "the last installation failed before its end; it is brought up to date" in done.stdout
    assert "making" not in done.stdout, "what went in stays in"
    assert stamp(ready)["extras"] == ["bench", "classroom", "deepspeed", "dev", "huggingface"]


def test_a_failure_while_packages_are_written_is_not_built_upon(ready: Toy) -> None:
    """A package torn in the middle of its files looks installed to pip: begin again instead."""
    torn = ready.root.parent / "torn"
    shutil.copytree(ready.wheels, torn)
    with zipfile.ZipFile(torn / "beta-2.0-py3-none-any.whl", "a") as file:
        file.writestr("beta-2.0.data/data/pyvenv.cfg/torn", "a file where none can be")
    done = ready.make("setup", PIP_FIND_LINKS=str(torn))
    assert done.returncode != 0
    assert "pip said:" in done.stdout
    now = condition.look(ready.venv, ("classroom",), fingerprint(ready.root))
    assert now.state == "renew", done.stdout


def test_two_at_once_wait_for_each_other(ready: Toy) -> None:
    both = [
        subprocess.Popen(
            ["make", "--no-print-directory", "setup"], cwd=ready.root, env=ready.variables(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    said = [child.communicate(timeout=100)[0] for child in both]
    assert [child.returncode for child in both] == [0, 0], said
    assert sum("installing bench, classroom" in one for one in said) == 1, (
        "the second found it done"
    )


def test_a_link_is_left_alone(ready: Toy, tmp_path: Path) -> None:
    target = tmp_path / "target"
    ready.venv.rename(target)
    ready.venv.symlink_to(target)
    for make in ("lab", "clean"):
        done = ready.make(make)
        assert done.returncode != 0
        assert "Remedy:" in done.stdout
    assert (target / "course-stamp.json").exists()


def test_clean_removes_ours_and_nothing_else(ready: Toy) -> None:
    done = ready.make("clean")
    assert done.returncode == 0, done.stdout
    assert not ready.venv.exists()
    ready.venv.mkdir()
    (ready.venv / "my notes").write_text("dear diary")
    done = ready.make("clean")
    assert done.returncode != 0
    assert "was not made by this course; it is left alone" in done.stdout
    assert (ready.venv / "my notes").exists()
