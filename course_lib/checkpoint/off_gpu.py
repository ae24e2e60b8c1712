"""Copies from a GPU into pinned memory for a checkpoint, blocking or concurrent with training.

A copy into pageable memory goes through small driver buffers, so it is slower than the link and
blocks the program. Tensors that are already on the host are not copied. Lesson 14.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

WINDOW = 32 << 20  # bytes; torch's pinned-memory allocator rounds up to a power of two


class Window:
    """A pinned buffer through which the bytes of GPU tensors pass in pieces."""

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None

    def pieces(self, x: torch.Tensor) -> Iterator[tuple[int, memoryview]]:
        """Yield (offset, bytes) in order; each piece is valid until you ask for the next."""
        flat = x.detach().contiguous().reshape(-1).view(torch.uint8)
        if x.device.type != "cuda":
            yield 0, memoryview(flat.cpu().numpy())
            return
        if self._buffer is None:
            self._buffer = torch.empty(WINDOW, dtype=torch.uint8, device="cpu", pin_memory=True)
        for at in range(0, max(1, len(flat)), WINDOW):  # at least one piece, even if empty
            piece = flat[at : at + WINDOW]
            yield at, memoryview(self._buffer[: len(piece)].copy_(piece).numpy())


class Beside:
    """Copies of tensors in their current state. GPU tensors are copied on a separate stream, so the
    host waits before it reads the copies, and before an optimizer changes the originals."""

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
        x.record_stream(self._stream)  # its memory is not reused before the copy is done
        return copy

    def wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def before(self, optimizer: Optimizer) -> RemovableHandle | None:
        """Make every update wait for the copies until the returned handle is removed. Return None
        if no copy is pending."""
        if self._stream is None:
            return None
        return optimizer.register_step_pre_hook(lambda *_: self.wait())
