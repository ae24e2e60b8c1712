"""The sandbox of a submission: the isolation that this system allows, tested and described.

It consists of namespaces for process numbers and network, and of Landlock for the ranks.
"""

from __future__ import annotations

import fcntl
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from course_classroom.ranks import confine

# Separate process numbers: a process inside cannot reach or outlive its supervisor.
_NUMBERS = ("unshare", "--user", "--map-current-user", "--pid", "--fork", "--mount-proc")
_NUMBERS += ("--kill-child",)
_NETWORK = ("--net", "--ipc", "--keep-caps")  # capabilities, to switch on its own loopback
_MODULE = "course_classroom.grading.walls"
_UP, _GET_FLAGS, _SET_FLAGS = 0x1, 0x8913, 0x8914  # an interface's up flag; the calls for its flags


@dataclass(frozen=True)
class Walls:
    landlock: int = 0  # its version; 0 if there is none
    numbers: bool = False
    network: bool = False

    @property
    def confined(self) -> bool:
        return self.landlock > 0

    @property
    def command(self) -> Sequence[str]:
        """Return the command prefix that starts a supervisor in these namespaces."""
        if not self.numbers:
            return ()
        return (*_NUMBERS, *(_NETWORK if self.network else ()))

    def __str__(self) -> str:
        if self.confined:
            said = f"Answers are confined by Landlock (release {self.landlock})"
        else:
            said = (
                "Answers are not confined, because this system has no Landlock (Linux 5.13 and "
                "later). They can read and change everything that this user can. Rows note this"
            )
        parts = [("process numbers", self.numbers), ("a network", self.network)]
        own = " and ".join(name for name, there in parts if there)
        shared = " and ".join(name.replace("a ", "the ") for name, there in parts if not there)
        told = [f"they have {own} to themselves"] if own else []
        told += [f"they share {shared} with this run"] if shared else []
        return "; ".join([said, *told]) + "."


def built() -> Walls:
    """Test each form of isolation, and return the forms that work."""
    numbers = _stands(_NUMBERS)
    network = numbers and _stands((*_NUMBERS, *_NETWORK))
    return Walls(confine.version(), numbers, network)


def _stands(command: Sequence[str]) -> bool:
    if shutil.which(command[0]) is None:
        return False
    try:
        tried = subprocess.run(
            [*command, sys.executable, "-m", _MODULE], capture_output=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


def loopback() -> None:
    """Enable this network's loopback interface if it is off, because ranks use it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("16sh22x", b"lo", 0)
        (flags,) = struct.unpack_from("16xh", fcntl.ioctl(any_socket, _GET_FLAGS, asked))
        if not flags & _UP:
            fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", flags | _UP))


def main() -> None:
    """Enable the loopback, and raise an error unless it accepts a connection between ranks."""
    loopback()
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), timeout=5).close()


if __name__ == "__main__":
    main()
