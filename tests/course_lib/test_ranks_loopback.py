"""Nothing of a group on one host listens beyond loopback, whatever the host is called."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import sys

import psutil
import pytest
import torch
import torch.distributed as dist

from course_lib import ranks

NEW_UTS_NAMESPACE = 0x04000000  # CLONE_NEWUTS of unshare(2): a host name of one's own


def other_address():
    """An address of this machine that is not loopback; connecting a datagram sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return None
        return probe.getsockname()[0]


def addresses_of(listening):
    """Local addresses of this process's own TCP sockets, those that listen or those connected."""
    found = psutil.Process().net_connections("tcp")
    return sorted({c.laddr.ip for c in found if (c.status == psutil.CONN_LISTEN) == listening})


def with_no_interface_chosen():
    ranks.stop()
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        os.environ.pop(variable, None)


def start_under_another_name(me, name, path, bind):
    """A group made on a machine whose host name resolves to `name`, an address of its own."""
    with_no_interface_chosen()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_UTS_NAMESPACE) or libc.sethostname(name.encode(), len(name)):
        pytest.skip(f"a host name of one's own: {os.strerror(ctypes.get_errno())}")
    assert socket.gethostbyname(socket.gethostname()) == name
    if not bind:
        ranks._bind_to_loopback = lambda: None
    ranks.start(me.rank, me.world, rendezvous=path, timeout=10)
    dist.all_reduce(torch.ones(3))
    return addresses_of(listening=True), addresses_of(listening=False)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and unshares")
@pytest.mark.parametrize("bind", [True, False], ids=["as-shipped", "without-our-binding"])
def test_gloo_listens_on_loopback_whatever_the_host_name(pool, tmp_path, bind):
    name = other_address()
    if name is None:
        pytest.skip("this machine has no address beyond loopback, so nothing could listen there")
    # The second case shows that the first one means something.
    expected = ["127.0.0.1"] if bind else [name]
    where = {"OWN_HOST_NAME": str(bind)}  # processes of their own: the name stays theirs
    for seen in pool.run(2, start_under_another_name, name, tmp_path / "meet", bind, env=where):
        assert seen == (expected, expected)


def test_the_loopback_interface_is_a_loopback():
    assert ranks.loopback_interface() in ("lo", "lo0")


def test_no_loopback_interface_is_said(monkeypatch):
    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "eth0"), (2, "lowpan0")])
    with pytest.raises(RuntimeError, match="set GLOO_SOCKET_IFNAME"):
        ranks.loopback_interface()


def interfaces(me, path, chosen):
    with_no_interface_chosen()
    if chosen:
        os.environ["GLOO_SOCKET_IFNAME"] = chosen
    with contextlib.suppress(RuntimeError):  # gloo knows no such interface
        ranks.start(0, 1, rendezvous=path)
    return os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]


def test_an_interface_that_was_chosen_is_left_alone(pool, tmp_path):
    loopback = ranks.loopback_interface()
    assert pool.run(1, interfaces, tmp_path / "a", None) == [(loopback, loopback)]
    assert pool.run(1, interfaces, tmp_path / "b", "mine0") == [("mine0", loopback)]
