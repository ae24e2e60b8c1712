"""Checks of temporary files, socket folders, the disk, the loopback interface and the host name.

Each check uses its resource, because only actual use is a reliable test.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path

from course_classroom.doctor.finding import Finding, size
from course_lib.files import sync_file

DISK_LEAST, DISK_COMFORT = 200e6, 2e9
PROBE = 1 << 20  # bytes; enough for a three-line program
WAIT = 5.0  # seconds for one handshake with this process itself


def temporary(folder: Path | None = None) -> list[Finding]:
    """Report whether the folder for temporary files is writable. Python silently skips a full
    folder, but compilers fail."""
    name = "temporary files"
    named = next(filter(None, map(os.environ.get, ("TMPDIR", "TEMP", "TMP"))), "/tmp")
    folder = Path(named) if folder is None else folder
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(bytes(PROBE))
            sync_file(file)
    except OSError as error:
        told = f"{folder} is not writable ({error.strerror})"
        remedy = "free some space there, or set TMPDIR=/a/folder/you/can/write/to"
        return [Finding(name, "bad", told, remedy)]
    return [Finding(name, "ok", f"{folder} is writable")]


def runtime() -> list[Finding]:
    """Report whether the ranks' sockets have a private, writable folder with a short path."""
    from course_classroom.ranks import runs

    name = "the ranks' sockets"
    remedy = "set COURSE_RUNTIME_DIR to a short path on a local disk that you can write to"
    try:
        folder = runs.new_folder()
    except (RuntimeError, OSError) as error:
        return [Finding(name, "bad", str(error), remedy)]
    try:
        with socket.socket(socket.AF_UNIX) as meeting:
            meeting.bind(str(folder / "rank-999-ipc-5"))  # the longest name that a rank uses
            meeting.listen()
    except OSError as error:
        why = error.strerror or error
        told = f"cannot create a socket in {folder.parent} ({why}); some network disks forbid it"
        return [Finding(name, "bad", told, remedy)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [Finding(name, "ok", f"{folder.parent}; paths use {len(str(folder))} of 85 characters")]


def disk(root: Path, temporary: Path | None = None) -> list[Finding]:
    """Report the free space where the learner works and where temporary files go."""
    temporary = Path(tempfile.gettempdir()) if temporary is None else temporary
    places = {"disk (the course)": root, "disk (temporary files)": temporary}
    if os.stat(root).st_dev == os.stat(temporary).st_dev:
        places = {"disk": root}
    return [_room(name, folder, shutil.disk_usage(folder).free) for name, folder in places.items()]


def _room(name: str, folder: Path, free: int) -> Finding:
    told = f"{size(free)} free in {folder}"
    remedy = "free some space there (`du -xh --max-depth=1 | sort -h` shows the largest folders)"
    if free < DISK_LEAST:
        return Finding(name, "bad", f"{told}; a lesson's files need {size(DISK_LEAST)}", remedy)
    if free < DISK_COMFORT:
        more = f"checkpoints and NVMe offload need {size(DISK_COMFORT)}"
        return Finding(name, "note", f"{told}; {more}", remedy)
    return Finding(name, "ok", told)


def loopback() -> list[Finding]:
    """Report whether a loopback connection works, because ranks on one machine use it."""
    from course_lib.ranks import loopback_interface

    try:
        interface = loopback_interface()
        with socket.create_server(("127.0.0.1", 0)) as door:
            door.settimeout(WAIT)
            with socket.create_connection(door.getsockname(), WAIT) as one, door.accept()[0] as two:
                one.sendall(b"!")
                two.settimeout(WAIT)
                two.recv(1)
    except (OSError, RuntimeError) as error:
        remedy = "sudo ip link set lo up (a container needs its network, so not --network=none)"
        return [Finding("loopback", "bad", f"127.0.0.1 does not work: {error}", remedy)]
    return [Finding("loopback", "ok", f"{interface}; a connection to 127.0.0.1 carries data")]


def host_name() -> list[Finding]:
    """Report whether the machine's own name resolves, because multi-node launchers look it up."""
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except (OSError, UnicodeError):
        told = "this machine's own name has no address, so torchrun and deepspeed may wait for it"
        remedy = 'echo "127.0.1.1 $(hostname)" | sudo tee -a /etc/hosts'
        return [Finding("host name", "note", told, remedy)]
    return [Finding("host name", "ok", "it has an address")]
