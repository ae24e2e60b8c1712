"""Offload to the host: this rank's values, their gradients and the states are in host memory.

Gradients are copied during the backward pass, on a GPU through pinned memory and a separate stream.
The update runs on the host, and its result is copied back. torch's allocator rounds each pinned
block up to a power of two, which `held` and `estimate` do not count. Lesson 12.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.memory import tier
from course_lib.meta import host_of
from course_lib.zero.optimizer_home import Home, OnDevice, Own
from course_lib.zero.outside_changes import Untouched, take_over
from course_lib.zero.partition import IN_FLIGHT, BucketPiece


def on_host(numel: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Allocate memory of the tier host, pinned if a GPU copies from and to it."""
    with tier("host"):
        pinned = device.type == "cuda"
        return torch.empty(numel, dtype=dtype, device=host_of(device), pin_memory=pinned)


@contextmanager
def updating() -> Iterator[None]:
    """Create the block's new tensors on the host. Some releases of torch create step counts on the
    default device, which a user may have set to a GPU."""
    place = nullcontext() if torch.get_default_device().type == "cpu" else torch.device("cpu")
    with tier("host"), place:
        yield


def real(pieces: Sequence[BucketPiece]) -> int:
    """Count the elements of a shard that belong to parameters, without its padding."""
    return pieces[-1].at + pieces[-1].numel if pieces else 0


class Incoming:
    """Sums of gradients on their way to the host, at most `IN_FLIGHT` at once."""

    def __init__(self, device: torch.device):
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._under_way: deque[tuple[Own, Tensor, torch.cuda.Event | None]] = deque()

    def take(self, own_parts: Own, result: Tensor) -> None:
        """Send the values for a shard's parameters from `result` to the host, without waiting."""
        count = real([piece for piece, _ in own_parts])
        if not count:
            return
        host, event = on_host(count, result.dtype, self.device), None
        if self.stream is None:
            host.copy_(result[:count])
        else:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self.stream):
                host.copy_(result[:count], non_blocking=True)
            result.record_stream(self.stream)  # its memory is not reused before the copy
            event = self.stream.record_event()
        self._under_way.append((own_parts, host, event))
        while len(self._under_way) > (IN_FLIGHT if self.stream is not None else 0):
            self._land()

    def land(self) -> None:
        """Wait until all sums have arrived, and add them to the gradients."""
        while self._under_way:
            self._land()

    def _land(self) -> None:
        own_parts, host, event = self._under_way.popleft()
        if event is not None:
            event.synchronize()
        with tier("host"):
            for piece, part in own_parts:
                new = piece.of(host).to(part.dtype)
                part.grad = new if part.grad is None else part.grad.add_(new)


class AwayHome(Home):
    """A home off the device: gradients arrive during the backward pass, and shards that have not
    changed since the last update are recognized."""

    def __init__(self, device: torch.device, *, master: bool, parameters: str | None):
        self.device, self.master, self.parameters = device, master, parameters
        self.incoming = Incoming(device)
        self._untouched, self._followed = Untouched(), ()

    def placed(self) -> AbstractContextManager:
        return tier("host")

    def store(self) -> HostStore | None:
        return HostStore(self.device) if self.parameters == "cpu" else None

    def take(self, own_parts: Own, result: Tensor) -> None:
        self.incoming.take(own_parts, result)

    def land(self) -> None:
        self.incoming.land()

    def updated(self) -> None:
        if self.incoming.stream is not None:
            self._untouched.note(self._followed)

    def close(self) -> None:
        self.incoming.land()


class HostHome(AwayHome):
    """This rank's parts on the host. With `copied` they are copies of a shard that is on the
    device, or in 16 bits on the host; otherwise they are that shard's memory."""

    def __init__(self, device: torch.device, *, master: bool, parameters: str | None = None):
        super().__init__(device, master=master, parameters=parameters)
        self.copied = master or parameters is None
        self._copies_back: torch.cuda.Event | None = None

    @torch.no_grad()
    def keep(
        self, i: int, pieces: Sequence[BucketPiece], shard: Tensor, store: object = None
    ) -> list[nn.Parameter]:
        """Return the parameters for the optimizer from the shard of bucket i."""
        if not self.copied:
            return [nn.Parameter(piece.of(shard)) for piece in pieces]
        dtype = torch.float32 if self.master else shard.dtype
        flat = on_host(real(pieces), dtype, self.device)
        flat.copy_(shard[: real(pieces)])
        return [nn.Parameter(piece.of(flat)) for piece in pieces]

    def follow(self, own_parts: Sequence[Own], shards: Sequence[Tensor]) -> None:
        """Copy changes of the shards to the optimizer's copies; only changed shards are copied."""
        if self.copied:
            self._followed = shards
            changed = self._untouched.changed(shards)
            every = zip(own_parts, shards, changed, strict=True)
            written = ((parts, shard) for parts, shard, new in every if new)
            take_over((part, piece.of(shard)) for parts, shard in written for piece, part in parts)

    def step(self, optimizer: Optimizer) -> None:
        """Update on the host; the `gather` of the shards then copies the result to the device."""
        if self._copies_back is not None:  # the last step's copies read this memory
            self._copies_back.synchronize()
        with updating():
            optimizer.step()

    def updated(self) -> None:
        """Record the copies back to the device, for which the next update waits."""
        if self.incoming.stream is not None:
            self._copies_back = torch.cuda.current_stream(self.device).record_event()
        super().updated()

    def at_hand(
        self, i: int, own_parts: Own, optimizer: Optimizer, *, write: bool = False
    ) -> AbstractContextManager:
        if write and self.incoming.stream is not None:  # copies to the device read this memory
            torch.cuda.current_stream(self.device).synchronize()
        return nullcontext()


class HostStore:
    """The store of a unit's shard on the host between uses."""

    def __init__(self, device: torch.device):
        self.device = device

    def begin(self, numel: int, dtype: torch.dtype) -> Tensor:
        return on_host(numel, dtype, self.device).zero_()

    def settled(self, shard: Tensor) -> Tensor:
        return shard

    def fetch(self) -> None:
        """Do nothing, because the shard is in memory already."""

    def drop(self) -> None:
        """Do nothing, because nothing was read ahead."""

    def without_files(self, shard: Tensor) -> tuple[Tensor, HostStore]:
        """Return the shard, which is in memory already."""
        return shard, self

    def on_device(self, shard: Tensor) -> Tensor:
        """Copy the shard to the rank's device, from where the gather sends and frees it."""
        there = torch.empty(shard.numel(), dtype=shard.dtype, device=self.device)
        return there.copy_(shard, non_blocking=True)


class LentHome(OnDevice):
    """Offload of only the parameters: shards stay on the host, and the optimizer updates a copy on
    the device, in float32 for a model in 16 bits. A model in float32 therefore gains nothing."""

    def __init__(self, device: torch.device, *, master: bool):
        super().__init__(master=True)  # always a copy
        self.device, self.wide = device, torch.float32 if master else None

    def store(self) -> HostStore:
        return HostStore(self.device)

    @torch.no_grad()
    def keep(
        self, i: int, pieces: Sequence[BucketPiece], shard: Tensor, store: object = None
    ) -> list[nn.Parameter]:
        dtype = self.wide or shard.dtype
        return [nn.Parameter(piece.of(shard).to(self.device, dtype, copy=True)) for piece in pieces]
