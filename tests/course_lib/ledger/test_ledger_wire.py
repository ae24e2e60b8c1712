"""The socket counters on connections of known traffic, and the sharing out of what they count."""

from __future__ import annotations

import socket
import struct
import sys
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_lib.ledger import ledger, wire

pytestmark = [
    pytest.mark.cpu("the sockets' counters"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts for us"),
]


@dataclass
class Call:
    must: float
    moved: int | None = None


@pytest.fixture
def connect():
    """Connections on loopback: connect(timeout) gives both ends, the first one marked as gloo's."""
    ends: list[socket.socket] = []

    def make(timeout: int) -> tuple[socket.socket, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            ours = socket.create_connection(server.getsockname())
            theirs, _ = server.accept()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", timeout, 0))
        ends.extend((ours, theirs))
        return ours, theirs

    yield make
    for end in ends:
        end.close()


def pass_bytes(ours: socket.socket, theirs: socket.socket, count: int) -> None:
    ours.sendall(bytes(count))
    left = count
    while left:
        left -= len(theirs.recv(left))


def test_only_what_was_written_to_gloos_sockets_since_counts(connect):
    gloo, peer = connect(timeout=20)
    other, other_peer = connect(timeout=0)
    pass_bytes(gloo, peer, 1000)
    counters = wire.GlooSockets()
    assert counters.found
    pass_bytes(gloo, peer, 12345)
    pass_bytes(other, other_peer, 777)
    peer.sendall(bytes(50))  # received, not sent
    assert counters.read() == 12345
    gloo.sendall(bytes(3000))  # written, whether or not anybody has read it
    assert counters.read() == 15345


def test_a_connection_made_later_counts_from_its_first_byte(connect):
    counters = wire.GlooSockets()
    gloo, peer = connect(timeout=20)
    pass_bytes(gloo, peer, 500)
    before = counters.read()
    counters.scan()
    counters.scan()
    assert counters.read() - before == 500


def test_a_closed_connection_keeps_its_last_reading_even_if_its_number_is_reused(connect):
    gloo, peer = connect(timeout=20)
    counters = wire.GlooSockets()
    pass_bytes(gloo, peer, 400)
    assert counters.read() == 400
    number = gloo.fileno()
    gloo.close()
    assert counters.read() == 400
    later, later_peer = connect(timeout=20)
    assert number in (later.fileno(), later_peer.fileno())
    pass_bytes(later, later_peer, 60)
    assert counters.read() == 400
    counters.scan()
    assert counters.read() == 460


def test_a_flow_shares_out_every_byte_once(connect):
    gloo, peer = connect(timeout=20)
    flow = wire.Flow()
    first, second, third = Call(must=30), Call(must=10), Call(must=0)
    flow.begin(first, on_gloo=True, new_group=False)
    pass_bytes(gloo, peer, 100)
    flow.begin(second, on_gloo=True, new_group=False)
    flow.begin(third, on_gloo=True, new_group=False)
    pass_bytes(gloo, peer, 400)
    flow.end(first)
    pass_bytes(gloo, peer, 7)
    flow.end(second)
    flow.end(third)
    pass_bytes(gloo, peer, 1000)  # nobody's, but sent
    assert (first.moved, second.moved, third.moved) == (400, 107, 0)
    assert flow.total() == 1507
    flow.close()
    pass_bytes(gloo, peer, 1)
    assert flow.total() == 1507


@given(
    st.integers(0, 10**12),
    st.lists(st.one_of(st.integers(0, 10**9), st.floats(0, 1e9)), min_size=1, max_size=8),
)
def test_shares_are_whole_proportional_and_add_up(total, weights):
    shares = wire.split(total, weights)
    assert sum(shares) == total
    weights = weights if sum(weights) else [1] * len(weights)
    for share, weight in zip(shares, weights, strict=True):
        assert share == pytest.approx(total * weight / sum(weights), abs=1 + total * 1e-12)


def test_without_counters_nothing_is_claimed(monkeypatch, connect):
    monkeypatch.setattr(wire, "_kernel_query", lambda: None)
    gloo, peer = connect(timeout=20)
    flow = wire.Flow()
    sending, idle = Call(must=8), Call(must=0)
    for call in (sending, idle):
        flow.begin(call, on_gloo=True, new_group=True)
    pass_bytes(gloo, peer, 8)
    for call in (sending, idle):
        flow.end(call)
    assert (sending.moved, idle.moved, flow.total()) == (None, 0, None)


def test_a_backend_whose_sockets_are_unknown_is_not_counted(connect):
    connect(timeout=20)
    flow, call = wire.Flow(), Call(must=8)
    flow.begin(call, on_gloo=False, new_group=False)
    assert (call.moved, flow.total()) == (None, None)


def test_a_ledger_without_any_group_reads_as_empty():
    with ledger() as book:
        pass
    assert (book.count(), book.bytes(), book.bytes(column="moved")) == (0, 0, 0)
