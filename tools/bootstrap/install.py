"""Installing into .venv at the course's pins: by uv if it is installed, else by pip.

The torch build is a local wheel, the CPU build, or the build for NVIDIA GPUs. No lesson derives it.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Callable

from .failures import complaints, diagnose
from .say import Refusal, complain, say

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
GPU_DOWNLOAD = 3e9  # bytes of torch and its CUDA libraries
GPU_INSTALLED = 8e9
# pip's settings under the names that uv reads.
_UV = {
    "index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX", "cert": "SSL_CERT_FILE", "trusted-host": "UV_INSECURE_HOST",
}  # fmt: skip
# The installer's lines that a person wants to see: large downloads, builds, the end.
_SHOWN = re.compile(
    r"\s*(Downloading \S+ \((\d\d[\d.]* ?M|[\d.]+ ?G)i?B|Building (wheels|\S+$)|"
    r"Installing collected|Installed )"
)
_NOT_AT_HAND = re.compile("No matching distribution|No solution found")


class Installer:
    """pip or uv, for one environment, and its log."""

    def __init__(self, python: Path, root: Path, uv: str | None = None) -> None:
        self.python, self.root, self.uv = python, root, uv
        self.name = "uv" if uv else "pip"
        self.log = python.parent.parent / "setup.log"

    def try_install(self, *arguments: str) -> tuple[bool, str]:
        """Install silently; return (success, output)."""
        code, output = self._run(arguments, quiet=True)
        return code == 0, output

    def install(self, *arguments: str, alone: bool = False) -> None:
        """Install with readable messages; raise a Refusal on failure.

        With `alone`, no configured index or folder of packages is used.
        """
        code, output = self._run(arguments, alone=alone)
        if code != 0:
            self.refuse(code, output)

    def refuse(self, code: int, output: str) -> None:
        """Raise the Refusal that matches the failure."""
        complain(f"{self.name} said:\n{complaints(output)}")
        remedy = f"read {self.log}, then run the same command again"
        refusal = diagnose(output) or Refusal(f"{self.name} failed (exit {code}).", remedy)
        if code in (-9, 137):
            what = f"{self.name} was killed, usually because the machine ran out of memory."
            refusal = Refusal(what, "ask for more memory, then run the same command again")
        refusal.halfway = "Installing collected packages" in output or "\nPrepared " in output
        raise refusal

    def _run(
        self, arguments: tuple[str, ...], *, quiet: bool = False, alone: bool = False
    ) -> tuple[int, str]:
        command = [str(self.python), "-m", "pip", "install", *arguments]
        if self.uv:
            command = [self.uv, "pip", "install", "--python", str(self.python), *arguments]
        lines = []
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(command)}\n")
            child = subprocess.Popen(
                command, cwd=str(self.root), env=self._variables(alone), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            )  # fmt: skip
            try:
                for line in child.stdout:
                    lines.append(line)
                    log.write(line)
                    if _SHOWN.match(line) and not quiet:
                        say(f"  {line.strip()[:90]}")
                return child.wait(), "".join(lines)
            finally:
                end(child, patience=3.0)

    def _variables(self, alone: bool) -> dict[str, str]:
        """Return the caller's environment without variables that redirect the installer or make it
        ask; uv also gets the settings of pip's variables and files."""
        kept = dict(os.environ)
        if alone:
            kept = {name: one for name, one in kept.items() if not name.startswith(("PIP_", "UV_"))}
            kept["PIP_CONFIG_FILE"] = os.devnull
        for name in ("PIP_TARGET", "PIP_PREFIX", "PYTHONPATH", "PYTHONHOME", "PIP_REQUIRE_HASHES"):
            kept.pop(name, None)
        kept.update(
            PIP_USER="0", PIP_NO_INPUT="1", PIP_PROGRESS_BAR="off", PYTHONNOUSERSITE="1",
            PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_ROOT_USER_ACTION="ignore", PYTHONUNBUFFERED="1",
        )  # fmt: skip
        if kept.get("PIP_RETRIES", "") in ("", "0"):
            kept["PIP_RETRIES"] = "2"  # with no retries, pip does not report a failed connection
        if self.uv:
            asked = [str(self.python), "-m", "pip", "config", "list"]
            told = subprocess.run(asked, env=kept, capture_output=True, text=True, check=False)
            settings = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip searches all indexes
            for name, value in re.findall(r"^\S*\.([\w-]+)=('.*')$", told.stdout, re.MULTILINE):
                if name in _UV:  # the environment is last in the list, so it wins
                    separator = "," if name == "find-links" else " "
                    settings[_UV[name]] = separator.join(ast.literal_eval(value).split())
            kept = {**settings, **kept}  # the user's uv settings win
        return kept


def install(
    python: Path, root: Path, extras: tuple[str, ...], torch: str, hashes: Path | None,
    need_room: Callable[[float, float], None],
) -> None:  # fmt: skip
    """Install the course with its extras; if uv fails, print a message and start again with pip."""
    uv = shutil.which("uv")
    how = partial(_install_verified, hashes) if hashes else partial(_install, torch, need_room)
    if uv:
        try:
            return how(Installer(python, root, uv), extras)
        except Refusal as refusal:
            if refusal.halfway:
                raise
            say(f"uv failed ({refusal.cause}), so pip is used")
    return how(Installer(python, root), extras)


def _install(
    torch: str, need_room: Callable[[float, float], None], by: Installer, extras: tuple[str, ...]
) -> None:
    """Install torch from the nearest source, and the rest at its pins."""
    constraints = by.root / "constraints.txt"
    install_torch(by, torch, constraints, need_room)
    say(f"{by.name} installs {', '.join(extras)} by constraints.txt (log: .venv/setup.log)")
    by.install("-c", str(constraints), "-e", f".[{','.join(extras)}]")


def install_torch(
    by: Installer, pin: str, constraints: Path, need_room: Callable[[float, float], None]
) -> None:
    """Install the pinned torch; a wheel that is found without an index is preferred."""
    wanted = f"torch=={pin}"
    found, output = by.try_install("--no-index", "--no-deps", wanted)
    if found:  # it may be installed already
        return
    failure = diagnose(output)
    if failure is not None and not _NOT_AT_HAND.search(output):
        by.refuse(1, output)
    index = os.environ.get("TORCH_INDEX_URL")
    if index:
        say(f"torch {pin}: from TORCH_INDEX_URL, {index}")
        by.install("--index-url", index, "--no-deps", wanted)
    elif has_nvidia_driver():
        say(
            f"torch {pin}: this machine has an NVIDIA driver, so the CUDA build, about "
            f"{GPU_DOWNLOAD / 1e9:.0f} GB to download, {GPU_INSTALLED / 1e9:.0f} GB installed "
            f"(TORCH_INDEX_URL={CPU_INDEX} selects the CPU build instead)"
        )
        need_room(GPU_INSTALLED, GPU_DOWNLOAD)
        by.install("-c", str(constraints), wanted)
    else:
        say(f"torch {pin}: no NVIDIA driver here, so the CPU build (200 MB) from {CPU_INDEX}")
        # On Linux the CPU build has its own tag. If it is requested by name, no other index can
        # supply the CUDA build of the same release.
        tag = "+cpu" if platform.system() == "Linux" else ""
        by.install("--index-url", CPU_INDEX, "--no-deps", wanted + tag)


def has_nvidia_driver() -> bool:
    """Return True if the NVIDIA driver is loaded, without importing anything."""
    if Path("/proc/driver/nvidia/version").exists():
        return True
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=30, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0 and b"GPU" in done.stdout


def _install_verified(hashes: Path, by: Installer, extras: tuple[str, ...]) -> None:
    """Install everything that the file lists, each package verified by its hash, then only the
    course itself. Build requirements are not verified, because there are no hashes for them."""
    say(f"{by.name} installs the packages of {hashes}, each verified by its hash")
    build = re.search(r"^torch==[\w.]+\+(\w+)", hashes.read_text(encoding="utf-8"), re.MULTILINE)
    index = os.environ.get("TORCH_INDEX_URL") or (CPU_INDEX if build else "")
    more = ["--extra-index-url", index] if index else []
    by.install("--require-hashes", "--no-deps", *more, "-r", str(hashes))
    try:
        course = f".[{','.join(extras)}]"
        by.install("--no-index", "--no-build-isolation", "-e", course, alone=True)
    except Refusal as refusal:
        raise Refusal(
            f"HASHES={hashes} does not list all needed packages ({refusal.cause})",
            "python -m tools.hashes FOLDER_OF_PACKAGES FILE creates such a file. FOLDER must hold "
            "everything (pip download fills it)",
        ) from None


def end(child: subprocess.Popen, patience: float = 0.0) -> None:
    """Leave no child behind: wait (Ctrl-C reached it too), then send requests, then kill.

    SIGINT comes before SIGTERM, because pip and pytest clean up only after the former.
    """
    interrupt = partial(child.send_signal, signal.SIGINT)
    steps = ((None, patience), (interrupt, 5.0), (child.terminate, 5.0), (child.kill, 5.0))
    for act, seconds in steps:
        if act is not None and child.poll() is None:
            act()
        try:
            child.wait(timeout=seconds)
            return
        except subprocess.TimeoutExpired:
            continue
