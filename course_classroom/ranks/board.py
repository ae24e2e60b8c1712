"""A board that all ranks of a notebook share: the activity of each rank and its collective calls.

It is a small file in shared memory with one slot per rank. Only its owner writes a slot, and all
ranks can read it, so reading never waits. Lesson 00 shows its use: the explanation of a hang.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

_HEAD = struct.Struct("<QII")  # number, length, checksum
_COUNT = struct.Struct("<Q")  # calls posted so far
_STATUS = 4096  # bytes for a rank's status
_CALL = 512  # bytes for one call
KEPT = 96  # calls of each rank that the board keeps
_SLOT = _COUNT.size + _STATUS + KEPT * _CALL


class Board:
    """A board whose slots 0 … n−1 belong to the ranks, and slot n to the notebook's process."""

    def __init__(self, path: Path, slots: int):
        self.slots = slots
        with open(path, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), slots * _SLOT)
        self._versions = [0] * slots
        self._posted = 0  # by the one rank that posts through this object

    @staticmethod
    def create(path: Path, slots: int) -> Board:
        path.write_bytes(bytes(slots * _SLOT))
        return Board(path, slots)

    def set_status(self, slot: int, status: dict) -> None:
        self._versions[slot] += 1
        self._write(slot * _SLOT + _COUNT.size, _STATUS, self._versions[slot], status)

    def status(self, slot: int) -> dict:
        """Return the last status that could be read completely, or {} before the first status."""
        found = self._read(slot * _SLOT + _COUNT.size, _STATUS)
        return found[1] if found else {}

    def post(self, slot: int, call: dict) -> int:
        """Add a call to this rank's list; return its number in the list, counted from 1."""
        self._posted += 1
        self._write(self._place(slot, self._posted), _CALL, self._posted, call)
        _COUNT.pack_into(self._memory, slot * _SLOT, self._posted)
        return self._posted

    def newest(self, slot: int) -> int:
        """Return the number of the last call of this slot."""
        return _COUNT.unpack_from(self._memory, slot * _SLOT)[0]

    def calls(self, slot: int, since: int = 0) -> list[tuple[int, dict]]:
        """Return (number, call) of the calls after `since` that the board still has."""
        found = [self._read(self._place(slot, k), _CALL) for k in range(KEPT)]
        return sorted(
            (item for item in found if item and item[0] > since), key=lambda item: item[0]
        )

    def call(self, slot: int, number: int) -> dict | None:
        """Return a call by its number, or None if it is not yet or no longer on the board."""
        found = self._read(self._place(slot, number), _CALL)
        return found[1] if found and found[0] == number else None

    def _place(self, slot: int, number: int) -> int:
        return slot * _SLOT + _COUNT.size + _STATUS + number % KEPT * _CALL

    def _write(self, at: int, room: int, number: int, value: dict) -> None:
        text = _fit(value, room - _HEAD.size)
        # The checksum includes the number, so a reader of an incomplete write detects and skips it.
        self._memory[at + _HEAD.size : at + _HEAD.size + len(text)] = text
        self._memory[at : at + _HEAD.size] = _HEAD.pack(number, len(text), _check(number, text))

    def _read(self, at: int, room: int) -> tuple[int, dict] | None:
        for _ in range(20):
            number, length, check = _HEAD.unpack_from(self._memory, at)
            if number == 0 or length > room - _HEAD.size:
                return None
            text = self._memory[at + _HEAD.size : at + _HEAD.size + length]
            if _check(number, text) == check:
                return number, json.loads(text)
        return None


class Inbox:
    """The other ranks' posts in the current cell, read from the board call by call and stored for
    each peer by group and number in the group."""

    def __init__(self, board: Board):
        self.board = board
        self.cell = 0
        self._next: Counter[int] = Counter()
        self._calls: dict[int, dict[tuple[str, int], dict]] = defaultdict(dict)

    def open(self, cell: int) -> None:
        self.cell = cell
        self._calls.clear()

    def find(self, peer: int, key: str, number: int) -> dict | None:
        """Return the peer's call `number` on the group `key`, or None if it is not posted yet."""
        while (call := self.board.call(peer, self._next[peer] + 1)) is not None:
            self._next[peer] += 1
            self._keep(peer, call)
        newest = self.board.newest(peer)
        if newest > self._next[peer]:  # the board has dropped some: take those that remain
            for at, call in self.board.calls(peer, self._next[peer]):
                if at > newest:  # posted during the read, so the one before may have been missed
                    break
                self._next[peer] = at
                self._keep(peer, call)
        return self._calls[peer].get((key, number))

    def _keep(self, peer: int, call: dict) -> None:
        if call["cell"] == self.cell:
            self._calls[peer][call["key"], call["n"]] = call

    def posts(self, peer: int) -> Iterable[dict]:
        return self._calls[peer].values()


def _check(number: int, text: bytes) -> int:
    return zlib.crc32(text, number & 0xFFFFFFFF)


def _fit(value: dict, room: int) -> bytes:
    """Return the value as JSON, with long strings and lists truncated if it does not fit."""
    text = json.dumps(value, separators=(",", ":")).encode()
    limit = 200
    while len(text) > room:
        if limit < 4:
            raise ValueError(f"{len(text)} bytes do not fit into the {room} of a board's slot")
        value = {k: v[:limit] if isinstance(v, str | list) else v for k, v in value.items()}
        text = json.dumps(value, separators=(",", ":")).encode()
        limit //= 2
    return text
