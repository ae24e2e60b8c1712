"""Tensors that say they are on a GPU, and whose copies off it are late, as a real GPU's may be.

Their memory is the host's. A copy that need not be waited for is made when its stream is waited
for, and no earlier: who reads or writes too soon sees it in the bytes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import torch

from course_lib.zero import Engine

LOCK = threading.Lock()


class Stream:
    """A queue of copies."""

    current: Stream

    def __init__(self, device: torch.device | None = None):
        self.copies: list[Callable[[], object]] = []

    def wait_stream(self, other: Stream) -> None:
        """What computes here has ended when its call returns."""

    def synchronize(self) -> None:
        with LOCK:
            while self.copies:
                self.copies.pop(0)()


class OnGpu(torch.Tensor):
    """Its views and what is computed of it are of this kind too."""

    device = property(lambda self: torch.device("cuda", 0))

    def record_stream(self, stream: Stream) -> None:
        """Its memory stays: nothing is handed out anew here."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        plain = [arg.as_subclass(torch.Tensor) if isinstance(arg, cls) else arg for arg in args]
        if func is torch.Tensor.copy_ and kwargs.pop("non_blocking", False):
            Stream.current.copies.append(lambda: plain[0].copy_(plain[1]))
            return args[0].fill_(77)  # not what the stream will bring
        if func is torch.empty_like and kwargs.get("device") == "cpu":
            assert kwargs.pop("pin_memory")
            return torch.empty_like(*plain, **kwargs)
        if func is torch.Tensor.copy_:  # into memory of the host
            return args[0].copy_(plain[1])
        return super().__torch_function__(func, types, args, kwargs)


@contextlib.contextmanager
def late_copies(engine: Engine) -> Iterator[list[int]]:
    """A block in which the engine's own tensors are such tensors; the sizes of pinned buffers."""
    pinned: list[int] = []
    cuda, empty, own = torch.cuda, torch.empty, engine.own_tensors
    before = cuda.Stream, cuda.current_stream, cuda.stream

    def on_gpu() -> Iterator[tuple[str, torch.Tensor]]:
        for name, x in own():
            yield name, x.as_subclass(OnGpu)

    def empty_here(*size: int, pin_memory: bool = False, **options) -> torch.Tensor:
        if pin_memory:
            pinned.extend(size)
        return empty(*size, **options)

    @contextlib.contextmanager
    def stream(chosen: Stream) -> Iterator[None]:
        Stream.current, outside = chosen, Stream.current
        yield
        Stream.current = outside

    Stream.current = Stream()
    cuda.Stream, cuda.current_stream, cuda.stream = Stream, lambda device: Stream.current, stream
    torch.empty = empty_here
    engine.own_tensors = on_gpu
    try:
        yield pinned
    finally:
        cuda.Stream, cuda.current_stream, cuda.stream = before
        torch.empty = empty
        del engine.own_tensors
