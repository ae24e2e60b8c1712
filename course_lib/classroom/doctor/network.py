"""The loopback interface, over which ranks of one machine talk, and the machine's own name.

No lesson derives it; lesson 01 counts what goes over that interface.
"""

from __future__ import annotations

import socket

from course_lib.classroom.doctor.finding import Finding

WAIT = 5.0  # seconds for one handshake with ourselves


def loopback() -> list[Finding]:
    """A connection to ourselves, made and used."""
    from course_lib.ranks import loopback_interface

    name = "loopback"
    try:
        interface = loopback_interface()
        _talk_to_myself()
    except (OSError, RuntimeError) as error:
        remedy = "sudo ip link set lo up (a container without network: not with --network=none)"
        return [Finding(name, "bad", f"127.0.0.1 does not work: {error}", remedy)]
    return [Finding(name, "ok", f"{interface}, a connection to 127.0.0.1 carries data")]


def _talk_to_myself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.settimeout(WAIT)
        with socket.create_connection(door.getsockname(), WAIT) as one:
            other, _ = door.accept()
            with other:
                one.sendall(b"!")
                other.settimeout(WAIT)
                if other.recv(1) != b"!":
                    raise OSError("another byte arrived than was sent")


def host_name(name: str | None = None) -> list[Finding]:
    """Whether the machine's own name has an address: launchers of many nodes ask for it."""
    name = socket.gethostname() if name is None else name
    try:
        found = {item[4][0] for item in socket.getaddrinfo(name, None)}
    except (OSError, UnicodeError):
        told = "this machine's own name has no address; torchrun and deepspeed may wait for it"
        remedy = 'echo "127.0.1.1 $(hostname)" | sudo tee -a /etc/hosts'
        return [Finding("host name", "note", told, remedy)]
    kind = "the loopback" if all(_is_loopback(one) for one in found) else "this machine"
    return [Finding("host name", "ok", f"it resolves, to an address of {kind}")]


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
