"""Lines that only one process can have written: each is numbered and sealed with a key.

An answer may find the pipe on which its judge reports verdicts, but it does not have the key.
Repeated or forged lines are refused and reported.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets

KEY = 32  # bytes


class Seal:
    """One direction of a pipe; both ends have the key and count the lines."""

    def __init__(self, key: bytes):
        self.key = key
        self._next = 0

    def closed(self, event: dict) -> bytes:
        """Return an event as a sealed line, for the sending end."""
        text = json.dumps(event).encode()
        line = self._mark(text) + b" " + text
        self._next += 1
        return line

    def opened(self, line: bytes) -> dict | None:
        """Return the event of the next line, for the receiving end; None if the line is forged."""
        mark, _, text = line.partition(b" ")
        if not hmac.compare_digest(mark, self._mark(text)):
            return None
        self._next += 1
        event = json.loads(text)
        return event if isinstance(event, dict) else None

    def _mark(self, text: bytes) -> bytes:
        number = str(self._next).encode()
        return hmac.new(self.key, number + b" " + text, hashlib.sha256).hexdigest().encode()


def new() -> Seal:
    return Seal(secrets.token_bytes(KEY))
