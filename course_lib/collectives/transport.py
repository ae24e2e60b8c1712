"""How gloo and NCCL carry the verbs: staging through the host, uneven exchanges, handles.

Here live the differences between backends and between releases of torch, so that the vocabulary in
`verbs.py` reads the same everywhere. Staging happens only where ranks share a GPU: it copies the
whole tensor through pageable memory before the exchange begins. Lesson 01 measures each road.
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

# torch 2.13 renamed two calls and deprecates the old names; older releases know only those.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Handle:
    """A verb under way. `wait()` ends it and gives its result; calling it again gives it again."""

    def __init__(self, work: dist.Work | None, finish: Callable[[], object]):
        self._work = work
        self._finish: Callable[[], object] | None = finish
        self._result: object = None

    def wait(self):
        if self._work is not None:
            # On CUDA this makes the current stream wait, not the host: what `finish` launches next
            # on that stream runs after the data has come.
            self._work.wait()
        if self._finish is not None:
            self._result = self._finish()
            # Dropping both frees the buffers that the transport was using.
            self._work = self._finish = None
        return self._result

    def is_completed(self) -> bool:
        return self._work is None or self._work.is_completed()


def deliver(work: dist.Work | None, finish: Callable[[], object], async_op: bool):
    """The handle of a verb under way, or, for a synchronous call, its result."""
    handle = Handle(work, finish)
    return handle if async_op else handle.wait()


def uses_gloo(x: Tensor, group: Group) -> bool:
    """Whether gloo carries x in this group, which may hold a backend per kind of device; or torch's
    fake group would, which carries nothing and stands for it."""
    return group._get_backend(x.device).name() in ("gloo", "fake")


def on_wire(x: Tensor, op: str, group: Group) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """x where the backend can take it from, and the way back for a result."""
    if x.is_cuda and op not in GLOO_ON_CUDA and uses_gloo(x, group):
        home = x.device
        return x.cpu(), lambda result: result.to(home)
    return x, lambda result: result


def from_host(out: Tensor, into: Tensor) -> Tensor:
    """Copy a result that came through the host into memory that the caller has given."""
    token = _copies_a_result.set(True)
    try:
        return into.copy_(out)
    finally:
        _copies_a_result.reset(token)


def copies_a_result() -> bool:
    """Whether a verb copies right now for its own sake, and no offload does."""
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
    """Fill x along a chain in which this rank stands `steps` after the one that has it.

    Every rank but the last sends each byte once; it passes one segment on while the next comes in.
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
    """x with `dim` in front and its rows in one block, as transports want them."""
    return x.movedim(dim, 0).contiguous()


def dim_back(x: Tensor, dim: int) -> Tensor:
    return x.movedim(0, dim).contiguous()


def row_bytes(x: Tensor) -> int:
    """Bytes of one row along the first dim."""
    return x.element_size() * x.shape[1:].numel()
