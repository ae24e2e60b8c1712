"""Sizes for measurements on one GPU, by its free memory; tiny sizes for a rehearsal.

No lesson derives it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The sizes of a measurement, and the free GPU bytes that it needs."""

    name: str
    free: int
    copied: int  # bytes of one tensor
    product: int  # rows and columns of a square matrix
    tokens: int  # of the loss
    vocabulary: int
    hidden: int  # of the states before the loss's head
    transfer: int  # bytes of a copy from the host
    model: str  # options of `course train`
    tp: str  # settings of `course bench tp`
    zero: str

    def __str__(self) -> str:
        return f"sizes {self.name}: a loss of {self.tokens} × {self.vocabulary}, {self.model}"


BY_MEMORY = (
    Sizes(
        "for 48 GiB free", 48 << 30, 1 << 30, 8192, 8192, 128256, 2048, 1 << 28,
        "--hidden 1024 --layers 16 --heads 16 --length 1024 --rows 16",
        "hidden=2048 heads=16 layers=6 sequence=1024 batch=8 vocabulary=32768",
        "hidden=1024 heads=16 layers=12 sequence=512 batch=8 vocabulary=16384",
    ),
    Sizes(
        "for 20 GiB free", 20 << 30, 1 << 29, 8192, 4096, 128256, 2048, 1 << 28,
        "--hidden 1024 --layers 16 --heads 16 --length 1024 --rows 6",
        "hidden=1024 heads=16 layers=6 sequence=1024 batch=4 vocabulary=32768",
        "hidden=1024 heads=16 layers=6 sequence=512 batch=4 vocabulary=16384",
    ),
    Sizes(
        "for 5 GiB free", 5 << 30, 1 << 28, 4096, 1024, 128256, 1024, 1 << 28,
        "--hidden 768 --layers 8 --heads 12 --length 1024 --rows 2",
        "hidden=512 heads=8 layers=6 sequence=512 batch=4 vocabulary=16384",
        "hidden=512 heads=8 layers=6 sequence=256 batch=4 vocabulary=8192",
    ),
)  # fmt: skip
TINY = Sizes(
    "the smallest", 0, 1 << 20, 256, 64, 512, 64, 1 << 20,
    "--hidden 64 --layers 2 --heads 4 --length 64 --rows 4 --steps 10 --corpus-bytes 300000",
    "hidden=64 heads=4 layers=1 sequence=64 vocabulary=512",
    "hidden=64 heads=4 layers=1 sequence=64 vocabulary=512",
)  # fmt: skip


def fitting(free: int) -> Sizes:
    """Select the largest sizes that fit this free memory; tiny ones if none fit."""
    return next((sizes for sizes in BY_MEMORY if sizes.free <= free), TINY)
