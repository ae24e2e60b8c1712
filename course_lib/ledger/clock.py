"""When a collective began and ended on a GPU, in the seconds that the host's clock shows.

NCCL's calls return at once, so only events recorded on its streams know. They are read when
somebody asks for the times, never earlier: a ledger does not make a GPU wait. Lesson 09.
"""

from __future__ import annotations

from time import perf_counter

import torch

from course_lib.ledger.book import Record


class DeviceTimes:
    """Two events round one call on a CUDA device."""

    def __init__(self, record: Record, device: torch.device) -> None:
        self._record = record
        self._device = device
        self._begun = torch.cuda.Event(enable_timing=True)
        self._ended: torch.cuda.Event | None = None
        self._begun.record(torch.cuda.current_stream(device))

    def arrived(self, _future: object = None) -> None:
        """Called by torch with a stream current that goes on when the collective is complete."""
        ended = torch.cuda.Event(enable_timing=True)
        ended.record(torch.cuda.current_stream(self._device))
        self._ended = ended

    def book(self, wait: bool) -> bool:
        """Write the times into the record, if they are known by now. Whether they were."""
        if self._ended is None:
            return False
        if wait:
            self._ended.synchronize()
        elif not self._ended.query():
            return False
        # The device's clock has no zero of its own: an event recorded now ties it to the host's.
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
