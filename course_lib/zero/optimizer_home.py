"""The home of a rank's part of the optimizer: on the device, on the host, or in files.

`Home` is the interface that the stages use. `OnDevice` is the home of an engine without offload;
lesson 12 derives the other two. Read this file before the shards of lesson 09.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.zero.outside_changes import take_over
from course_lib.zero.partition import BucketPiece

# The parameters of one bucket on this rank: pieces of the model's parameters, each with the
# corresponding parameter of the optimizer.
Own = Sequence[tuple[BucketPiece, nn.Parameter]]


class Home:
    """The place of this rank's optimizer parameters, their states and their gradients.

    The methods here fit a home in memory, and a home in files overrides them. `copied` means that
    the parameters are copies of a shard, into which the shards' `gather` copies them back.
    `survives_errors` means that an update that raised has changed nothing.
    """

    copied: bool
    survives_errors = False
    file_bytes = 0  # in this rank's files

    def memory(self) -> list[Tensor]:
        """Return other memory of this home, besides parameters and optimizer states."""
        return []

    def placed(self) -> AbstractContextManager:
        """Return a context in which new tensors are allocated in this home's tier of memory."""
        return nullcontext()

    def together(self, *, update: bool = False) -> AbstractContextManager:
        """Return a context whose errors on one rank are raised on all; all ranks enter it. With
        `update` it is a full update, and the error reports its progress."""
        return nullcontext()

    # ---- at the start
    def store(self) -> object | None:
        """Return a store for a unit's shard (stage 3) between uses; None keeps it on the device."""

    def keep(
        self, i: int, pieces: Sequence[BucketPiece], shard: Tensor, store: object = None
    ) -> list[nn.Parameter]:
        """(shard,) elements of bucket i -> one optimizer parameter for each of the pieces."""
        raise NotImplementedError

    def ready(self) -> None:
        """Check, on all ranks together, that every bucket has its place."""

    def take_in(self, optimizer: Optimizer) -> None:
        """Move in the states that the optimizer has before its first step."""

    # ---- gradients
    def take(self, own_parts: Own, result: Tensor) -> None:
        """Add (shard,) sums to the gradients of a bucket's parameters, possibly asynchronously."""
        raise NotImplementedError

    def land(self) -> None:
        """Wait for the gradients in progress."""

    # ---- a step
    def follow(self, own_parts: Sequence[Own], shards: Sequence[Tensor]) -> None:
        """Start every bucket's next update from the values in its shard, which stays in place."""
        if self.copied:
            both = zip(own_parts, shards, strict=True)
            take_over((part, piece.of(shard)) for parts, shard in both for piece, part in parts)

    def step(self, optimizer: Optimizer) -> None:
        """Update this rank's parameters."""
        optimizer.step()

    def updated(self) -> None:
        """Note that the shards have been gathered after a step."""

    # ---- changes from outside
    def rewritten(self, i: int, own_parts: Own, shard: Tensor) -> None:
        """Copy differences from `shard` now, because it was changed and will not last."""
        if self.copied:
            take_over((part, piece.of(shard)) for piece, part in own_parts)

    def states(self, i: int, own_parts: Own, optimizer: Optimizer) -> list[Mapping[str, object]]:
        """Return the states of each parameter of a bucket, without values if a file has them."""
        return [optimizer.state.get(part, {}) for _, part in own_parts]

    def at_hand(
        self, i: int, own_parts: Own, optimizer: Optimizer, *, write: bool = False
    ) -> AbstractContextManager:
        """Return a context in which a bucket's parameters and states are in memory; with `write`,
        their values at its end are kept."""
        return nullcontext()

    def close(self) -> None:
        """Finish all work in progress, and release everything."""


class OnDevice(Home):
    """The home of an engine without offload: views of the shards, or, with `master`, copies of them
    in float32."""

    survives_errors = True

    def __init__(self, *, master: bool = False):
        self.copied = master

    def keep(
        self, i: int, pieces: Sequence[BucketPiece], shard: Tensor, store: object = None
    ) -> list[nn.Parameter]:
        views = [piece.of(shard) for piece in pieces]
        return [nn.Parameter(view.float() if self.copied else view) for view in views]

    def take(self, own_parts: Own, result: Tensor) -> None:
        for piece, part in own_parts:
            new = piece.of(result).to(part.dtype)
            part.grad = new if part.grad is None else part.grad.add_(new)
