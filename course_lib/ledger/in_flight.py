"""Calls in progress: the end of each call, its caller's waiting time, and the bytes it sent.

A call ends with its last piece of work, perhaps long before its caller waits for it. Lesson 01
draws this. Lesson 09 uses these times to show the overlap with a backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import perf_counter, sleep
from types import FrameType
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.collectives import Verb, current
from course_lib.ledger.book import Record
from course_lib.ledger.torch_calls.waits import WaitListener
from course_lib.ledger.wire import Flow


class DeviceTimes:
    """Two events around one call on a CUDA device. NCCL's calls return at once, so only its streams
    have the times. The times are read on demand, because a ledger must not block a GPU."""

    def __init__(self, record: Record, device: torch.device) -> None:
        self._record = record
        self._device = device
        self._begun = torch.cuda.Event(enable_timing=True)
        self._ended: torch.cuda.Event | None = None
        self._begun.record(torch.cuda.current_stream(device))

    def arrived(self, _future: object = None) -> None:
        """Record the end on the stream on which torch continues after the collective."""
        ended = torch.cuda.Event(enable_timing=True)
        ended.record(torch.cuda.current_stream(self._device))
        self._ended = ended

    def book(self, wait: bool) -> bool:
        """Write the times into the record if they are known; return True if they are."""
        if self._ended is None:
            return False
        if wait:
            self._ended.synchronize()
        elif not self._ended.query():
            return False
        # The device's clock has no zero, so an event recorded now links it to the host's clock.
        now = torch.cuda.Event(enable_timing=True)
        now.record(torch.cuda.current_stream(self._device))
        now.synchronize()
        host = perf_counter()
        begun = host - self._begun.elapsed_time(now) / 1e3
        ended = host - self._ended.elapsed_time(now) / 1e3
        record = self._record
        # A verb may consist of several calls.
        record.start = begun if record.end is None else min(record.start, begun)
        record.end = max(ended, record.end or ended)
        return True


@dataclass(eq=False)
class Landing:
    """One of a record's works until it completes. A wait inside the `verb` that issued it is
    synchronous."""

    record: Record
    verb: Verb | None
    complete: bool = False
    timed_by_device: bool = False


class Flights(WaitListener):
    """The works that are not yet known to be complete.

    torch gives the caller the same Python object for a work as it gave the ledger, while either
    holds it. The ledger therefore holds the newest work until a wait or a newer work. After that
    only its caller keeps it alive, so the ledger keeps no buffer alive.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._lock = Lock()
        self._pending: dict[Record, int] = {}  # number of works in progress of each record
        self._landing_of: WeakKeyDictionary[dist.Work, Landing] = WeakKeyDictionary()
        self._newest: dist.Work | None = None
        self._landing_of_storage: dict[int, Landing] = {}
        self._tellers: WeakKeyDictionary[partial, torch.futures.Future] = WeakKeyDictionary()
        self._device_times: list[DeviceTimes] = []

    def depart(self, record: Record, on_gloo: bool, new_group: bool) -> Landing:
        """Prepare for a torch operation that is about to be issued for this record."""
        with self._lock:
            self._pending[record] = self._pending.get(record, 0) + 1
        self._flow.begin(record, on_gloo, new_group)
        return Landing(record, current.get())

    def follow(self, landing: Landing, work: dist.Work | None, on_device: DeviceTimes | None):
        """Track the issued operation. `work` is torch's handle, or None if it has ended already."""
        if work is None:
            landing.record.asynchronous = False
            self.land(landing)
            return
        self._landing_of[work] = landing
        self._newest = work
        try:
            future = work.get_future()
        except RuntimeError:
            return  # point-to-point and coalesced works have no future; the wait ends them
        if on_device is not None:
            landing.timed_by_device = True
            self._device_times.append(on_device)
        tell = partial(on_device.arrived) if on_device else partial(self.land, landing)
        self._tellers[tell] = future
        future.add_done_callback(tell)

    def returned(self, landing: Landing, tensors: Iterable[Tensor]) -> None:
        """Track a functional collective, which returns tensors instead of a handle."""
        for tensor in tensors:
            self._landing_of_storage[_storage(tensor)] = landing

    def after_wait(self, work: dist.Work, start: float, caller: FrameType) -> None:
        """Book the end of a `work.wait()`: the work is complete, and its caller was blocked."""
        end = perf_counter()
        landing = self._landing_of.pop(work, None)
        if landing is None:
            return
        if self._newest is work:
            self._newest = None
        inside_verb = landing.verb is not None and current.get() is landing.verb
        if inside_verb or _is_blocking_call(caller):
            landing.record.asynchronous = False
        self._waited(landing, start, end)

    def waited_for_tensor(self, tensor: Tensor, start: float) -> None:
        landing = self._landing_of_storage.pop(_storage(tensor), None)
        if landing is not None:
            self._newest = None
            self._waited(landing, start, perf_counter())

    def _waited(self, landing: Landing, start: float, end: float) -> None:
        landing.record.waits.append((start, end))
        self.land(landing, when=end)

    def land(self, landing: Landing, _future: object = None, *, when: float | None = None) -> None:
        """Book the completion of a work. torch calls this on the backend's thread at once."""
        record, when = landing.record, when or perf_counter()
        with self._lock:
            if landing.complete:
                return
            landing.complete = True
            if not landing.timed_by_device:
                record.end = max(when, record.end or when)
            self._pending[record] -= 1
            last = self._pending[record] == 0
            if last:
                del self._pending[record]
        if last:
            self._flow.end(record)

    def refresh(self, wait: bool) -> None:
        """Book all known times; `wait` also waits for times that GPUs are still measuring."""
        # A thread that waits for a future may continue before its callbacks have run. A callback is
        # in `_tellers` until it has run and its thread has released it.
        patience = perf_counter() + 1.0
        while perf_counter() < patience and any(f.done() for f in list(self._tellers.values())):
            sleep(1e-4)
        self._device_times = [t for t in self._device_times if not t.book(wait)]

    def close(self) -> None:
        """Release all works. Works in progress may still report their completion."""
        self.refresh(wait=False)
        self._flow.close()
        self._newest = None
        self._landing_of_storage.clear()


def _is_blocking_call(caller: FrameType) -> bool:
    """Return True if a wait comes from a blocking call inside torch.distributed."""
    # The manager of coalesced calls is in that file too, but its `wait` is called by the user.
    in_distributed = caller.f_globals.get("__name__") == "torch.distributed.distributed_c10d"
    return in_distributed and caller.f_code.co_name != "wait"


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
