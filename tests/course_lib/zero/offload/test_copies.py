"""Copies timed beside products: what the times say, and in which order two streams are asked."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch

from course_lib.zero.offload.copies import KINDS, Times, at_once, copy_times


@pytest.mark.cpu("arithmetic of times")
@pytest.mark.parametrize(
    ("copy", "products", "both", "hidden"),
    [
        (4, 5, 5, 1.0),  # the copy runs wholly under the products
        (4, 5, 9, 0.0),  # one after the other
        (4, 5, 7, 0.5),
        (8, 5, 8, 1.0),  # the products under the copy
        (4, 5, 9.5, 0.0),  # a busy machine
        (4, 5, 4.9, 1.0),
    ],
)
def test_how_much_is_hidden(copy, products, both, hidden):
    assert Times(10**9, copy, products, both).hidden == pytest.approx(hidden)


@pytest.mark.cpu("arithmetic of times")
def test_times_are_said_with_their_bandwidth():
    times = Times(268_000_000, 0.0268, 0.03, 0.03)
    assert times.bandwidth == pytest.approx(1e10)
    assert str(times) == (
        "copy  26.80 ms ( 10.0 GB/s), products  30.00 ms, both at once  30.00 ms, 100 % hidden"
    )


@pytest.mark.cpu("arithmetic of times")
def test_without_a_gpu_nothing_is_measured():
    assert copy_times(torch.device("cpu")) is None


class Streams:
    """Two streams that write down what they are asked."""

    def __init__(self):
        self.asked, self.current = [], "computing"

    def stream(self, name):
        streams = self

        class Stream:
            def wait_stream(self, other):
                streams.asked.append(f"{name} waits for {other}")

            def __str__(self):
                return name

        return Stream()

    @contextmanager
    def use(self, stream):
        self.current, before = str(stream), self.current
        yield
        self.current = before

    def note(self, what):
        self.asked.append(f"{self.current}: {what}")


@pytest.mark.cpu("arithmetic of times")
def test_the_copy_is_asked_for_first_and_waits_and_is_waited_for(monkeypatch):
    streams = Streams()
    copying, computing = streams.stream("copying"), streams.stream("computing")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    monkeypatch.setattr(torch.cuda, "stream", streams.use)

    class There:
        device = "cuda:0"

        def copy_(self, host, non_blocking):
            streams.note(f"copy from {host}{' without waiting' if non_blocking else ''}")

        def record_stream(self, stream):
            streams.asked.append(f"memory is used by {stream}")

    at_once("host", There(), copying, lambda: streams.note("products"))
    assert streams.asked == [
        "copying waits for computing",
        "copying: copy from host without waiting",
        "memory is used by copying",
        "computing: products",
        "computing waits for copying",
    ]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_pinned_copy_is_faster_and_runs_under_products():
    times = copy_times(torch.device("cuda"))
    assert list(times) == list(KINDS)
    for each in times.values():
        assert each.copy > 0 and max(each.copy, each.products) < 1.5 * each.both
