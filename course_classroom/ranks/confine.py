"""Permanent confinement of this process: limits on reading, writing and other processes.

Landlock (Linux 5.13 and later) needs no privilege, binds root as well, and also confines every
child process. Grading confines the ranks in this way, and thereby the answers.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

PLACES = "COURSE_CONFINED"  # a variable: the places for a process that confines itself at its start
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446  # system calls, with the same numbers everywhere
_VERSION, _PATH_BENEATH = 1, 1
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _CAPSET = 4, 38, {"x86_64": 126, "aarch64": 91}
_CAPABILITIES_3 = 0x20080522

# Rights in Landlock's first version, and additional ones of later versions.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_SCOPES = 0b11  # no signal and no abstract socket to processes outside

# Parts of the system: programs, libraries, and data on hosts, users and time.
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/nix/store", "/proc", "/sys")
_ETC = ("hosts", "host.conf", "hostname", "resolv.conf", "nsswitch.conf", "gai.conf", "localtime")
_ETC += ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "passwd", "group", "services", "protocols")
_ETC += ("ssl", "alternatives", "fonts", "mime.types", "timezone", "OpenCL", "python3")
_DEVICES = ("null", "zero", "full", "random", "urandom")  # no disk, no terminal, no shared memory


class NotConfined(RuntimeError):
    """An error for a confinement that the system could not provide, with the reason."""


def version() -> int:
    if not sys.platform.startswith("linux"):
        return 0
    return max(0, _libc().syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)))


def around(*write: Path | str) -> dict[str, str]:
    """Return the environment variable for a process that may read and run the system, this Python
    with its packages and this library, and may write only to the given places."""
    paths = sysconfig.get_paths()
    python = [sys.prefix, sys.base_prefix, *(paths[n] for n in ("stdlib", "purelib", "platlib"))]
    root = Path(__file__).resolve().parents[2]
    ours = [str(root / name) for name in ("course_lib", "course_classroom", "course_lessons")]
    packages = [place for place in sys.path if place.endswith(("site-packages", "dist-packages"))]
    read = [*_SYSTEM, *(f"/etc/{name}" for name in _ETC), *python, *packages, *ours]
    devices = [f"/dev/{name}" for name in _DEVICES]
    return {PLACES: json.dumps({"read": read, "write": [*map(str, write), *devices]})}


def from_environment() -> None:
    """Confine this process if its environment requests it, before a second thread starts."""
    told = os.environ.get(PLACES)
    if told:
        confine(**json.loads(told))


def confine(read: Sequence[str], write: Sequence[str]) -> None:
    """Limit this thread, and everything that it starts, to these places, irrevocably.

    It also gives up root's capabilities and the right to gain new privileges from programs.
    """
    release = version()
    if not release:
        raise NotConfined("this system has no Landlock")
    if len(os.listdir("/proc/self/task")) > 1:
        raise NotConfined("this process has a second thread, which would not be confined")
    handled = (1 << 13) - 1
    handled |= (_REFER if release >= 2 else 0) | (_TRUNCATE if release >= 3 else 0)
    handled |= _IOCTL if release >= 5 else 0
    scopes = _SCOPES if release >= 6 else 0
    known = 24 if release >= 6 else 16 if release >= 4 else 8  # bytes that the system expects
    rules = _called(_CREATE, struct.pack("=QQQ", handled, 0, scopes)[:known], known, 0)
    try:
        for path in read:
            _allow(rules, path, _READ & handled)
        for path in write:
            _allow(rules, path, handled)
        if _libc().prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
            raise NotConfined("this system cannot refuse new privileges")
        _called(_RESTRICT, rules, 0)
    finally:
        os.close(rules)
    without_capabilities()


def unreadable_by_others() -> None:
    """Prevent this user's other processes from reading this process's memory and descriptors."""
    if sys.platform.startswith("linux"):
        _libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # not available on this system
    try:
        if not os.path.isdir(f"/proc/self/fd/{place}"):
            rights &= _OF_FILES
        _called(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)


def without_capabilities() -> None:
    """Give up the capabilities of root, or of the first process of a namespace."""
    number = _CAPSET.get(os.uname().machine)
    if number is None:
        return  # Landlock works without it
    _called(number, struct.pack("=Ii", _CAPABILITIES_3, 0), struct.pack("=6I", *[0] * 6))


def _called(number: int, *arguments: int | bytes) -> int:
    given = [one if isinstance(one, bytes) else ctypes.c_long(one) for one in arguments]
    found = _libc().syscall(ctypes.c_long(number), *given)
    if found < 0:
        error = ctypes.get_errno()
        raise NotConfined(f"system call {number}: {os.strerror(error)}")
    return found


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
