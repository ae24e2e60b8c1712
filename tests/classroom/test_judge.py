"""The judge's ranks: what they hold of the process that judges, and what a trial makes of them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lib.classroom.checks.judge import Judge


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    made = Judge(idle_minutes=0)
    yield made
    made.stop()


def held(process: int | str) -> set[str]:
    """What a process's descriptors lead to."""
    folder = Path(f"/proc/{process}/fd")
    return {
        os.readlink(folder / name) for name in os.listdir(folder) if (folder / name).is_symlink()
    }


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="descriptors are read in /proc")
def test_a_rank_holds_no_descriptor_of_the_process_that_judges(judge, tmp_path):
    """A verdict goes out by a pipe of that process: an answer must not find it open."""
    pipe, (one, other) = os.pipe(), socket.socketpair()
    book = os.open(tmp_path / "verdicts", os.O_CREAT | os.O_WRONLY)
    ours = [*pipe, one.fileno(), other.fileno(), book]
    for descriptor in ours:
        os.set_inheritable(descriptor, True)
    secret = {os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in ours}
    try:
        judge.ready()
        mine = held("self")
        assert secret <= mine
        for rank in judge.ranks:
            theirs = held(rank.process.pid)
            assert any(link.startswith("socket:") for link in theirs), "its own channels"
            shared = {link for link in mine & theirs if link.startswith(("pipe:", "socket:"))}
            assert not shared | (secret & theirs)
    finally:
        one.close()
        other.close()
        for descriptor in (*pipe, book):
            os.close(descriptor)
