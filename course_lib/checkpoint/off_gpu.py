"""Copies off a GPU for a checkpoint, into pinned memory: waited for, or made beside the training.

A copy into other memory goes through small buffers of the driver, at a part of the link's rate, and
holds the program up until it is made. What lies on the host already is not copied here. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

WINDOW = 32 << 20  # bytes; torch's allocator of pinned memory rounds up to a power of two


class Window:
    """The bytes of one tensor after another, in pieces through one pinned buffer."""

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None

    def pieces(self, x: torch.Tensor) -> Iterator[tuple[int, memoryview]]:
        """(offset, bytes) in order; each piece is valid until the next is asked for."""
        flat = x.detach().contiguous().reshape(-1).view(torch.uint8)
        if x.device.type != "cuda":
            yield 0, memoryview(flat.cpu().numpy())
            return
        if self._buffer is None:
            self._buffer = torch.empty(WINDOW, dtype=torch.uint8, device="cpu", pin_memory=True)
        for at in range(0, max(1, len(flat)), WINDOW):  # of no element: one, empty
            piece = flat[at : at + WINDOW]
            yield at, memoryview(self._buffer[: len(piece)].copy_(piece).numpy())


class Beside:
    """Copies of tensors as they are now. Those of a GPU's are made on a stream of their own: the
    host waits for them before it reads, and before an optimizer changes what they are of."""

    def __init__(self) -> None:
        self._stream: torch.cuda.Stream | None = None

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "cuda":
            return torch.empty(x.shape, dtype=x.dtype, device="cpu").copy_(x)
        if self._stream is None:
            self._stream = torch.cuda.Stream(x.device)
        self._stream.wait_stream(torch.cuda.current_stream(x.device))
        copy = torch.empty_like(x, device="cpu", pin_memory=True)
        with torch.cuda.stream(self._stream):
            copy.copy_(x, non_blocking=True)
        x.record_stream(self._stream)  # its memory is not handed out before the copy
        return copy

    def wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def before(self, optimizer: Optimizer) -> RemovableHandle | None:
        """Let every update wait for the copies, until the handle is removed; none where all are
        made."""
        if self._stream is None:
            return None
        return optimizer.register_step_pre_hook(lambda *_: self.wait())
