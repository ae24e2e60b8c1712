"""Transport of the verbs on gloo and NCCL: staging through the host, uneven exchanges, handles.

This file hides the differences between backends and between releases of torch, so that `verbs.py`
is the same for all of them. Only ranks that share a GPU stage a message. Staging copies the full
tensor through pageable memory before the exchange begins. Lesson 01 measures each route.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar

import torch.distributed as dist
from torch import Tensor

from course_lib.collectives.call import Group

# Verbs that gloo performs on CUDA tensors by itself; for the others we stage through the host.
GLOO_ON_CUDA = frozenset({"all_reduce", "broadcast"})
SEGMENT = 1 << 20  # bytes; a broadcast passes one segment on while it receives the next
_copies_a_result: ContextVar[bool] = ContextVar("copies_a_result", default=False)

# torch 2.13 renamed two calls and deprecates the old names; older releases know only the old names.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Handle:
    """A verb in progress. `wait()` completes it and returns its result, the same on each call."""

    def __init__(self, work: dist.Work | None, finish: Callable[[], object]):
        self._work = work
        self._finish: Callable[[], object] | None = finish
        self._result: object = None

    def wait(self):
        if self._work is not None:
            # On CUDA the current stream waits, not the host, so that work launched on it by
            # `finish` runs after the data has arrived.
            self._work.wait()
        if self._finish is not None:
            self._result = self._finish()
            # Dropping both frees the buffers that the transport was using.
            self._work = self._finish = None
        return self._result

    def is_completed(self) -> bool:
        return self._work is None or self._work.is_completed()


def deliver(work: dist.Work | None, finish: Callable[[], object], async_op: bool):
    """Return the handle of an asynchronous call, or the result of a synchronous call."""
    handle = Handle(work, finish)
    return handle if async_op else handle.wait()


def uses_gloo(x: Tensor, group: Group) -> bool:
    """Return True if gloo carries x in this group, which may have one backend per device type.
    torch's fake group, which sends nothing, counts as gloo."""
    return group._get_backend(x.device).name() in ("gloo", "fake")


def on_wire(x: Tensor, op: str, group: Group) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Return x on a device that the backend can use, and a function that moves a result back."""
    if x.is_cuda and op not in GLOO_ON_CUDA and uses_gloo(x, group):
        home = x.device
        return x.cpu(), lambda result: result.to(home)
    return x, lambda result: result


def from_host(out: Tensor, into: Tensor) -> Tensor:
    """Copy a result that came through the host into memory provided by the caller."""
    token = _copies_a_result.set(True)
    try:
        return into.copy_(out)
    finally:
        _copies_a_result.reset(token)


def copies_a_result() -> bool:
    """Return True while a verb copies its own result to the device; this copy is not an offload."""
    return _copies_a_result.get()


def exchange(
    out: Tensor,
    x: Tensor,
    received: Sequence[int],
    sent: Sequence[int],
    group: Group,
    async_op: bool,
) -> dist.Work | None:
    """Send `sent[r]` rows of x to each rank r, and receive `received[r]` rows from it."""
    return dist.all_to_all_single(out, x, list(received), list(sent), group, async_op=async_op)


def pass_along(x: Tensor, group: Group, *, steps: int) -> None:
    """Fill x from the source along a chain, in which this rank is `steps` places after the source.

    Every rank except the last sends each byte once, one segment while it receives the next.
    """
    n, rank = group.size(), group.rank()
    segments = x.view(-1).split(max(1, SEGMENT // x.element_size()))
    arriving = []
    if steps > 0:
        before = (rank - 1) % n
        arriving = [dist.irecv(part, group=group, group_src=before) for part in segments]
    leaving = []
    for index, part in enumerate(segments):
        if arriving:
            arriving[index].wait()
        if steps < n - 1:
            leaving.append(dist.isend(part, group=group, group_dst=(rank + 1) % n))
    for work in leaving:
        work.wait()


def dim_first(x: Tensor, dim: int) -> Tensor:
    """Move `dim` to the front and make the result contiguous, as transports require."""
    return x.movedim(dim, 0).contiguous()


def dim_back(x: Tensor, dim: int) -> Tensor:
    return x.movedim(0, dim).contiguous()


def row_bytes(x: Tensor) -> int:
    """Return the bytes of one row along the first dim."""
    return x.element_size() * x.shape[1:].numel()
