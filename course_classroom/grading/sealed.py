"""Lines that only one process can have written: each is sealed with a key, and counted.

An answer may find the pipe on which its judge tells the verdicts; it has no key, and what is
written twice, or by anybody else, is refused and mentioned.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets

KEY = 32  # bytes


class Seal:
    """One direction of one pipe; both ends have the key, and count the lines."""

    def __init__(self, key: bytes):
        self.key = key
        self._next = 0

    def closed(self, event: dict) -> bytes:
        """An event as a line, for the end that speaks."""
        text = json.dumps(event).encode()
        line = self._mark(text) + b" " + text
        self._next += 1
        return line

    def opened(self, line: bytes) -> dict | None:
        """The event of the next line, for the end that listens; None where that is none."""
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
