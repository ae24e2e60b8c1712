"""Bringing .venv into its right condition, one run at a time, and saying what is done and why.

Interrupted at any moment, it leaves a note that the next run understands.
No lesson derives it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Iterator, NamedTuple

from . import hashed
from .closed import refusal as closed
from .condition import STAMP, UNFINISHED, Condition, contents, look, python_of, write_note
from .interpreters import choose, make_environment
from .pins import fingerprint, torch_pin
from .pip_run import Pip
from .room import need_leave, need_room
from .say import Refusal, Watch, say
from .torch_build import CPU_INSTALLED, install_torch, same_release

# Without torch, measured on Linux: what each extra brings to the disk, in bytes.
SIZES = {"classroom": 0.5e9, "dev": 0.3e9, "huggingface": 0.2e9, "deepspeed": 0.1e9}
EMPTY = 0.05e9
DOWNLOADS = 0.3e9  # what pip holds in TMPDIR at one time


class Environment(NamedTuple):
    """A Python with everything in it, and whether the course may change it."""

    folder: Path
    python: Path
    ours: bool


def ensure(root: Path, wanted: tuple[str, ...]) -> Environment:
    """`.venv` with the extras `wanted`, made, mended or found ready."""
    watch, venv, pins = Watch(), root / ".venv", fingerprint(root)
    hashes = hashed.fingerprint(hashed.asked(root))
    torch_pin(root / "constraints.txt")  # refuses what cannot work before anything is made
    now = look(venv, wanted, pins, hashes)
    if now.state == "closed" and not os.access(str(root), os.W_OK):
        raise closed(str(venv), Path(now.why))
    if now.state != "ready":
        need_leave(root)
        with _alone(root):
            now = look(venv, wanted, pins, hashes)  # another run may have finished meanwhile
            if now.state != "ready":
                _mend(root, venv, now, wanted, pins)
                say(f".venv is ready ({watch}): {', '.join(now.extras or wanted)}")
    return Environment(venv, python_of(venv), True)


def _mend(root: Path, venv: Path, now: Condition, wanted: tuple[str, ...], pins: str) -> None:
    if now.state == "link":
        raise Refusal(
            f".venv cannot be used: {now.why}, and what a link points to is never changed.",
            "remove the link, or name the environment itself: COURSE_VENV=/its/path make ...",
        )
    python = None if now.state == "update" else choose()  # before anything is taken away
    if now.state == "foreign":
        aside = _free_name(venv)
        venv.rename(aside)
        say(f".venv: {now.why}; kept as {aside.name}, a new one is made")
    elif now.state == "closed":
        say(f".venv: {now.why} may not be read; it is made anew")
        _remove(venv)
    elif now.state == "renew":
        say(f".venv: {now.why}; it is made anew (pip's cache keeps what was downloaded)")
        _remove(venv)
    elif now.state == "update":
        say(f".venv: {now.why}; it is brought up to date")
    extras = now.extras or wanted
    if python is not None:
        rest = sum(SIZES.get(one, 0.1e9) for one in extras)
        need_room(root, EMPTY + CPU_INSTALLED + rest, downloads=DOWNLOADS)
        venv.mkdir(exist_ok=True)
    write_note(venv, UNFINISHED, {"extras": extras})
    if python is not None:
        make_environment(python, venv)
    try:
        _install(root, venv, extras, pins)
    except Refusal as refusal:
        if not refusal.halfway:  # the next run may carry on from here
            with suppress(OSError):  # on a full disk not even that can be noted
                write_note(venv, UNFINISHED, {"extras": extras, "ended": True})
        raise


def _install(root: Path, venv: Path, extras: tuple[str, ...], pins: str) -> None:
    found = contents(venv)
    if found is None:
        raise Refusal(
            "The new .venv's own Python does not run.", "PYTHON=/path/to/another make ..."
        )
    constraints = root / "constraints.txt"
    pip = Pip(python_of(venv), venv / "setup.log", root)
    file = hashed.asked(root)
    if file is not None:
        hashed.install(pip, file, extras)
    else:
        _install_unverified(pip, constraints, extras, found["packages"].get("torch"))
    found = contents(venv)
    if found is None:
        raise Refusal("The environment's Python stopped running.", "make clean, then try again")
    stamp = {
        "pins": pins,
        "hashes": hashed.fingerprint(file),
        "home": str(venv.resolve()),
        "python": found["python"],
        "extras": list(extras),
        "packages": found["packages"],
    }
    write_note(venv, STAMP, stamp)
    (venv / UNFINISHED).unlink()


def _install_unverified(
    pip: Pip, constraints: Path, extras: tuple[str, ...], torch: str | None
) -> None:
    """torch from the nearest place, and the rest at its pins."""
    pin = torch_pin(constraints)
    if not same_release(torch, pin):
        install_torch(pip, pin, torch, constraints)
    say(f"installing {', '.join(extras)} at the versions of constraints.txt (log: .venv/setup.log)")
    pip.install("-c", str(constraints), "-e", f".[{','.join(extras)}]")


def clean(root: Path) -> None:
    """Remove .venv, if it is ours."""
    venv = root / ".venv"
    if venv.is_symlink():
        raise Refusal(".venv is a link; it and its target are left alone.", "rm .venv")
    if not venv.exists():
        say(".venv: there is none")
        return
    if not (venv / STAMP).exists() and not (venv / UNFINISHED).exists():
        raise Refusal(".venv was not made by this course; it is left alone.", "rm -r .venv")
    with _alone(root):
        _remove(venv)
    say(".venv removed")


def _remove(venv: Path) -> None:
    """Out of the way at once under another name, then gone: never half an environment as .venv."""
    try:
        doomed = Path(tempfile.mkdtemp(prefix=".venv.old-", dir=str(venv.parent)))
        venv.rename(doomed / "venv")
        shutil.rmtree(str(doomed))
    except OSError as error:
        raise Refusal(
            f"{venv} cannot be removed ({error.strerror}); was it made by another user?",
            f"remove it as its owner: sudo rm -rf {venv}",
        ) from None


def _free_name(venv: Path) -> Path:
    number = 1
    while (venv.parent / f".venv.kept-{number}").exists():
        number += 1
    return venv.parent / f".venv.kept-{number}"


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """One setup at a time in one clone; the lock goes with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # not on this system: two runs at once are then the user's own care
        yield
        return
    handle = os.open(str(root / ".venv.lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another run is setting .venv up in this folder; waiting for it to end")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
