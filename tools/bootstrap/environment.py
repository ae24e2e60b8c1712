"""Bringing .venv into its right condition, in one run at a time, with messages about each action.

If it is interrupted at any moment, it leaves a note that the next run understands. No lesson
derives it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Iterator, NamedTuple

from .condition import (
    STAMP,
    UNFINISHED,
    Condition,
    contents,
    fingerprint,
    look,
    python_of,
    torch_pin,
    write_note,
)
from .failures import diagnose
from .install import install
from .interpreters import Interpreter, choose
from .say import Refusal, Watch, say

# Disk space of each extra in bytes, measured on Linux; torch is its CPU build.
SIZES = {"classroom": 0.5e9, "dev": 0.3e9, "huggingface": 0.2e9, "deepspeed": 0.1e9}
WITH_TORCH = 0.85e9
DOWNLOADS = 0.3e9  # maximum bytes that pip holds in TMPDIR


class Environment(NamedTuple):
    """A Python with all packages; `ours` is True if the course may change it."""

    folder: Path
    python: Path
    ours: bool


def ensure(root: Path, wanted: tuple[str, ...]) -> Environment:
    """Return `.venv` with the extras `wanted`, after creating, repairing or checking it."""
    watch, venv, pins, hashes = Watch(), root / ".venv", fingerprint(root), _hashes(root)
    digest = hashlib.sha256(hashes.read_bytes()).hexdigest() if hashes else ""
    torch = torch_pin(root / "constraints.txt")  # refuses before anything is created
    if look(venv, wanted, pins, digest).state != "ready":
        with _alone(root):
            now = look(venv, wanted, pins, digest)  # another run may have finished meanwhile
            if now.state != "ready":
                _prepare(root, venv, now)
                room = partial(need_room, venv)
                with _noted(venv, now.extras):
                    install(python_of(venv), root, now.extras, torch, hashes, room)
                _stamp(venv, now.extras, {"pins": pins, "hashes": digest})
                say(f".venv is ready ({watch}): {', '.join(now.extras)}")
    return Environment(venv, python_of(venv), True)


def _prepare(root: Path, venv: Path, now: Condition) -> None:
    """Prepare an environment with pip, and a note that an installation is in progress."""
    if now.state == "foreign":
        raise Refusal(
            f".venv cannot be used because it is {now.why}; it is not changed.",
            "move or remove it, or use it with COURSE_VENV=/its/path make ...",
        )
    if now.state == "update":
        say(f".venv is updated, because {now.why}")
        write_note(venv, UNFINISHED, {"extras": now.extras})
        return
    python = choose()  # before anything is removed
    if now.state == "renew":
        say(f".venv is recreated, because {now.why} (downloads are kept)")
        _remove(venv)
    need_room(root, WITH_TORCH + sum(SIZES.get(one, 0.1e9) for one in now.extras), DOWNLOADS)
    venv.mkdir(exist_ok=True)
    write_note(venv, UNFINISHED, {"extras": now.extras})
    _make(python, venv)


def _make(python: Interpreter, venv: Path) -> None:
    """Create an empty environment with pip, by uv if it is installed, else by the module venv."""
    say(f"creating {venv.name} with Python {python.dotted} ({python.path})")
    uv, said = shutil.which("uv"), ""
    by_uv = [uv, "venv", "--seed", "--allow-existing", "--python", python.path, str(venv)]
    by_venv = [python.path, "-m", "venv", "--prompt", "course", str(venv)]
    for command in ([by_uv] if uv else []) + ([by_venv] if python.venv else []):
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", check=False,
        )  # fmt: skip
        if done.returncode == 0 and contents(venv) is not None:
            return
        said = done.stdout
    raise diagnose(said) or Refusal(
        f"no environment can be created with {python.path}:\n{said.strip()[-600:]}",
        "if it names ensurepip, apt install python3-venv, else PYTHON=/another/python make ...",
    )


@contextmanager
def _noted(venv: Path, extras: tuple[str, ...]) -> Iterator[None]:
    """Let the next run continue after an installation that ended with a refusal."""
    try:
        yield
    except Refusal as refusal:
        if not refusal.halfway:
            with suppress(OSError):  # a full disk may prevent even this
                write_note(venv, UNFINISHED, {"extras": extras, "ended": True})
        raise


def _stamp(venv: Path, extras: tuple[str, ...], told: dict[str, str]) -> None:
    found = contents(venv)
    if found is None:
        raise Refusal("The environment's Python stopped running.", "make clean, then try again")
    write_note(venv, STAMP, {**told, **found, "home": str(venv.resolve()), "extras": list(extras)})
    (venv / UNFINISHED).unlink()


def clean(root: Path) -> None:
    """Remove .venv, if it is ours."""
    venv = root / ".venv"
    if venv.is_symlink() or (
        venv.exists() and not (venv / STAMP).exists() and not (venv / UNFINISHED).exists()
    ):
        raise Refusal(".venv was not created by this course, so it is not changed.", "rm -r .venv")
    with _alone(root):
        _remove(venv)
    say(".venv removed")


def _remove(venv: Path) -> None:
    """Rename the environment, then delete it, so that .venv is never incomplete."""
    if venv.exists():
        doomed = Path(tempfile.mkdtemp(prefix=".venv.old-", dir=str(venv.parent)))
        venv.rename(doomed / "venv")
        shutil.rmtree(str(doomed))


def need_room(folder: Path, installed: float, downloads: float) -> None:
    """Refuse unless `installed` bytes fit in `folder` and `downloads` where pip unpacks."""
    temporary = Path(tempfile.gettempdir())
    needs = [(folder, installed, "clone the course to a larger disk")]
    if os.stat(folder).st_dev == os.stat(temporary).st_dev:
        needs = [(folder, installed + downloads, needs[0][2])]
    else:
        needs.append((temporary, downloads, "TMPDIR=/a/folder/with/room make ..."))
    for place, needed, other in needs:
        free = shutil.disk_usage(place).free
        if free < needed:
            raise Refusal(
                f"{place} has {free / 1e9:.1f} GB free; this step needs about "
                f"{needed / 1e9:.1f} GB there.",
                f"free some space there, or {other}",
            )


def _hashes(root: Path) -> Path | None:
    """Return the file that HASHES names, or None."""
    named = os.environ.get("HASHES")
    file = root / Path(named).expanduser() if named else None
    if file is not None and not file.is_file():
        raise Refusal(
            f"HASHES={named} is not a file.",
            "python -m tools.hashes FOLDER_OF_PACKAGES FILE creates such a file",
        )
    return file


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Allow one setup at a time per clone; the lock disappears with the process."""
    with open(root / ".venv.lock", "a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run is setting up .venv in this folder; waiting for it to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
