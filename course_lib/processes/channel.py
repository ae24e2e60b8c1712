"""A channel of JSON messages with descriptors over a pair of sockets.

Both ends are on one machine and belong to one user. Nothing that arrives is unpickled.
"""

from __future__ import annotations

import json
import os
import socket
import struct

_LENGTH = struct.Struct("<I")
MOST_DESCRIPTORS = 16
MOST_BYTES = 1 << 24


class Closed(EOFError):
    """The error if the other end of the channel is gone."""


def send(end: socket.socket, message: dict, descriptors: list[int] | None = None) -> None:
    """Send a message; the descriptors travel with its first byte."""
    text = json.dumps(message).encode()
    raw = _LENGTH.pack(len(text)) + text
    try:
        end.sendall(raw[socket.send_fds(end, [raw], descriptors or []) :])
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Closed(str(error)) from None


def receive(end: socket.socket) -> tuple[dict, list[int]]:
    """Receive a message and its descriptors, which the caller must close."""
    try:
        head, descriptors, _, _ = socket.recv_fds(end, _LENGTH.size, MOST_DESCRIPTORS)
        for number in descriptors:
            os.set_inheritable(number, False)
        head += _exactly(end, _LENGTH.size - len(head)) if head else b""
        if not head:
            raise Closed("the channel has ended")
        (length,) = _LENGTH.unpack(head)
        if length > MOST_BYTES:
            raise Closed(f"a message of {length} bytes, larger than any process here sends")
        return json.loads(_exactly(end, length)), descriptors
    except ConnectionResetError as error:
        raise Closed(str(error)) from None


def _exactly(end: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = end.recv(min(count, 1 << 16))
        if not part:
            raise Closed("the channel ended within a message")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
