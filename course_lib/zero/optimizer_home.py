"""The home of a rank's part of the optimizer: on the device, on the host, or in files.

`Home` is what the stages ask of any of them; `OnDevice`, here, is the home of an engine that
offloads nothing, and lesson 12 derives the two others. Read it before the shards of lesson 09.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.zero.outside_changes import take_over
from course_lib.zero.partition import BucketPiece

# Of one bucket, what this rank updates: pieces of the model's parameters, and for each the
# parameter that the optimizer knows it as.
Own = Sequence[tuple[BucketPiece, nn.Parameter]]


class Home:
    """Where the optimizer's parameters of this rank live, with their states and gradients.

    What is written here is right for a home in memory; one in files has more to do.
    `copied`: they are copies of a shard, which `gather` of the shards brings back to it.
    `survives_errors`: an update that raised has left nothing half done.
    """

    copied: bool
    survives_errors = False
    file_bytes = 0  # of this rank's files

    def memory(self) -> list[Tensor]:
        """What is held in memory beside the parameters and the optimizer's states."""
        return []

    def placed(self) -> AbstractContextManager:
        """A block whose new tensors belong to this home's tier of memory."""
        return nullcontext()

    def together(self, *, update: bool = False) -> AbstractContextManager:
        """A block whose errors on one rank are raised on all; all ranks enter it. `update`: it is
        a whole update, and the error says how far that came."""
        return nullcontext()

    # ---- at the start
    def store(self) -> object | None:
        """A store for the shard of a unit (stage 3) between uses; None leaves it on the device."""

    def keep(
        self, i: int, pieces: Sequence[BucketPiece], shard: Tensor, store: object = None
    ) -> list[nn.Parameter]:
        """(shard,) numbers of bucket i → a parameter for the optimizer for each of the pieces."""
        raise NotImplementedError

    def ready(self) -> None:
        """Check, all ranks together, that every bucket has found its place."""

    def take_in(self, optimizer: Optimizer) -> None:
        """Move in the states that the optimizer has made before its first step."""

    # ---- gradients
    def take(self, own_parts: Own, result: Tensor) -> None:
        """Add (shard,) sums to the gradients of a bucket's parameters; it need not be awaited."""
        raise NotImplementedError

    def land(self) -> None:
        """Wait for the gradients that are under way."""

    # ---- a step
    def follow(self, own_parts: Sequence[Own], shards: Sequence[Tensor]) -> None:
        """Start the next update of every bucket from what its shard, which stays where it is,
        shows."""
        if self.copied:
            both = zip(own_parts, shards, strict=True)
            take_over((part, piece.of(shard)) for parts, shard in both for piece, part in parts)

    def step(self, optimizer: Optimizer) -> None:
        """Update this rank's parameters."""
        optimizer.step()

    def updated(self) -> None:
        """Take note that the shards have been gathered after a step."""

    # ---- from outside
    def rewritten(self, i: int, own_parts: Own, shard: Tensor) -> None:
        """Take over what differs in `shard`, now: it was written to, and will not last."""
        if self.copied:
            take_over((part, piece.of(shard)) for piece, part in own_parts)

    def states(self, i: int, own_parts: Own, optimizer: Optimizer) -> list[Mapping[str, object]]:
        """The states of each of a bucket's parameters, without numbers where a file has them."""
        return [optimizer.state.get(part, {}) for _, part in own_parts]

    def at_hand(
        self, i: int, own_parts: Own, optimizer: Optimizer, *, write: bool = False
    ) -> AbstractContextManager:
        """A block in which a bucket's parameters and states lie in memory; with `write`, what they
        are at its end is kept."""
        return nullcontext()

    def close(self) -> None:
        """End what is under way, and give everything back."""


class OnDevice(Home):
    """The home of an engine that offloads nothing: views of the shards where those lie, or, with
    `master`, copies of them in float32."""

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
