"""ZeRO-3: a parameter is a promise. A unit of them is gathered before use and freed after.

Between uses a rank holds its shard of the unit and nothing else; the peak is all shards and the
largest unit. Lesson 11 derives it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from course_lib.collectives.agreement import checksum
from course_lib.collectives.direct import all_gather
from course_lib.collectives.transport import Handle
from course_lib.meta import numbers
from course_lib.zero.outside_changes import bring_back
from course_lib.zero.partition import Bucket, Slot
from course_lib.zero.stage3.branch_guard import Together

# What may be asked of a parameter whose numbers are elsewhere; all else would compute with nothing.
NO_NUMBERS = {
    *("size", "dim", "numel", "stride", "element_size", "is_floating_point", "__repr__"),
    *("requires_grad_", "register_hook", "register_post_accumulate_grad_hook", "untyped_storage"),
    *("__hash__", "__len__", "storage_offset", "is_contiguous", "is_complex", "data_ptr", "to"),
    *("_has_compatible_shallow_copy_type", "has_names", "is_shared"),
}
NUMBERS = {"T", "mT", "H", "mH", "real", "imag"}  # properties that are operations


class Promise(nn.Parameter):
    """What a parameter is while its numbers are on other ranks: computing with it is an error, and
    so is saving it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", str(func))
        if name in ("__get__", "__set__", "__delete__"):
            name = getattr(func.__self__, "__name__", name)
            fine = name not in NUMBERS
        else:
            fine = name in NO_NUMBERS
        if fine:
            return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})
        names = [x.promised for x in tree_leaves((args, kwargs)) if isinstance(x, Promise)]
        raise RuntimeError(
            f"{name} needs the numbers of {', '.join(names)}, which at stage 3 are sharded over "
            "the ranks and gathered only while its unit runs: use it inside the forward of a "
            "module that has it, or, on all ranks, inside `with engine.gathered(parameter):`"
        )

    def __deepcopy__(self, memo: dict):
        return torch.clone(self)  # which refuses

    def __reduce_ex__(self, protocol: int):
        return torch.clone(self)


def outside_inference(method: Callable) -> Callable:
    """Buffers and parameters outlive an evaluation: what is made under `torch.inference_mode` could
    not be written to by the training after it."""

    @wraps(method)
    def normally(*args, **keys):
        if not torch.is_inference_mode_enabled():
            return method(*args, **keys)
        with torch.inference_mode(False), torch.no_grad():
            return method(*args, **keys)

    return normally


class Unit:
    """Parameters that come and go together: this rank's shard of them, and a buffer for the whole.

    The buffer's memory is given back and taken anew under the tensors that look at it, since a
    graph keeps such views: a weight that was transposed for a product, say. Where a user may keep
    views (`shown`), after an evaluation or a `gathered` block, the memory is left to them instead,
    and the next gather takes another. A view that a training forward puts aside is not kept: put
    a clone aside.
    """

    def __init__(
        self, name: str, module: nn.Module, bucket: Bucket, together: Together, store=None
    ):
        self.name, self.module, self.bucket = name, module, bucket
        self.group, self.together = together.group, together
        self.store = store  # where the shard is, if it is offloaded
        self.shard = torch.empty(0, dtype=bucket.dtype, device=bucket.device)
        self.missing = len(bucket.slots)  # parameters whose numbers are still to come
        self.buffer = torch.empty(0, dtype=bucket.dtype, device=bucket.device)
        self.persistent = False
        self.pinned = 0  # how many `gathered` blocks hold it
        self.shown = False  # a `gathered` block may have handed out views of the buffer
        self.seen: list[int] | None = None  # checksum of the last gather, if it may change
        trained = [slot.parameter.requires_grad for slot in bucket.slots]
        self.frozen, self._trained = not all(trained), any(trained)  # some of it, some of it
        self.forget()
        self._kinds = [type(slot.parameter) for slot in bucket.slots]
        self._arriving: Handle | None = None
        self.whole = False

    @property
    def nbytes(self) -> int:
        return self.bucket.padded * self.shard.element_size()

    @property
    def _gathering(self) -> str:
        return f"gather {self.together.gathers}, of {self.name!r}"

    @outside_inference
    def start(self) -> None:
        """Ask the other ranks for their shards, and do not wait."""
        if self.whole or self._arriving is not None:
            return
        self.together.gather(self.name)
        shard = self.shard if self.store is None else self.store.on_device(self.shard)
        if not self.buffer.numel() or self.shown:
            self.buffer, self.shown = self.buffer.new_empty(self.bucket.padded), bool(self.pinned)
        else:  # of a new one it would move the memory
            self.buffer.untyped_storage().resize_(self.nbytes)
        self.bucket.shard(self.buffer, self.group.rank()).copy_(shard)
        with self.together.waiting(self._gathering):
            self._arriving = all_gather(self.buffer, self.group, async_op=True)

    @outside_inference
    def fetch(self) -> None:
        """It is about to be asked for: what lies in a file is read ahead."""
        if self.store is not None and not self.whole and self._arriving is None:
            self.store.fetch()

    @outside_inference
    def gather(self) -> None:
        """Have the parameters whole."""
        if self.whole:
            return
        self.start()
        arriving, self._arriving = self._arriving, None
        with self.together.waiting(self._gathering):
            arriving.wait()
        self.whole = True
        for slot, kind in zip(self.bucket.slots, self._kinds, strict=True):
            slot.parameter.__class__ = kind
        self._point()
        self.seen = self._sums() if self.persistent or self.pinned else None

    @outside_inference
    def pin(self) -> None:
        """Have the parameters whole, and leave them so, until `unpin`: somebody looks at them."""
        self.gather()
        self.pinned, self.shown = self.pinned + 1, True
        if self.seen is None:
            self.seen = self._sums()

    @outside_inference
    def unpin(self) -> None:
        """The end of a block. What stays whole goes on in memory of its own, so that nothing that
        is written to it later changes a view that was taken in the block."""
        self.pinned -= 1
        if self.shown and (self.persistent or self.pinned):
            self.buffer, self.shown = self.buffer.clone(), bool(self.pinned)
            self._point()

    def _point(self) -> None:
        """Have the parameters look at the buffer."""
        for slot in self.bucket.slots:
            slot.parameter.data = self.bucket.view(self.buffer, slot)
            if slot.parameter.grad is not None:  # a stand-in, as large as a placeholder
                slot.parameter.grad = None

    def changed(self) -> bool:
        """Whether the whole parameters, which somebody may look at, are no longer those that were
        gathered: somebody has written to them."""
        return self.whole and self.seen is not None and self.seen != numbers(self.now(), self.seen)

    def _sums(self) -> list[int]:
        return numbers(checksum(self.buffer), [])  # no tensor: a rank holds no byte for it

    def now(self) -> Tensor:
        """The checksum of the whole parameters as they are."""
        for slot in self.bucket.slots:
            bring_back(slot.name, slot.parameter, self.bucket.view(self.buffer, slot))
        return checksum(self.buffer)

    def give_up(self) -> None:
        """A backward broke off: what is under way may never come, and that is not the news."""
        if self._arriving is not None:
            arriving, self._arriving = self._arriving, None
            with suppress(RuntimeError):
                arriving.wait()

    @outside_inference
    def free(self) -> None:
        """Keep the shard alone. The parameters are then of size 0: placeholders."""
        if self._arriving is not None:
            arriving, self._arriving = self._arriving, None
            arriving.wait()
        if self.store is not None:
            self.store.drop()
        if self.persistent or self.pinned:
            return
        for slot in self.bucket.slots:
            self.promise(slot)
        if self.shown:  # views of it are the user's, and stay as they are
            self.buffer, self.shown = self.buffer.new_empty(0), False
        else:
            self.buffer.untyped_storage().resize_(0)
        self.whole, self.seen = False, None

    def forget(self) -> None:
        """No backward is under way."""
        self.owes = self._trained  # a gradient, which has not left yet
        self.uses = 0  # calls whose backward reads what is frozen

    def free_if_done(self) -> None:
        """In a backward: free it, unless one of its gradients or readers is still to come."""
        if not (self.owes or self.uses):
            self.free()

    def promise(self, slot: Slot) -> None:
        """Let a parameter's numbers go."""
        slot.parameter.data = self.buffer.new_empty(0)
        slot.parameter.promised = slot.name
        slot.parameter.__class__ = Promise

    @outside_inference
    def outline(self) -> None:
        """The parameters' shapes without their numbers: autograd wants them to take a gradient in,
        and where the backward reads no number nothing has to be sent for it."""
        if not self.whole:
            for slot in self.bucket.slots:
                slot.parameter.data = self.buffer.new_empty(1).expand(slot.shape)

    def renew(self) -> None:
        """The shards have changed: what is whole is so no longer."""
        self.free()
        self.whole = False

    @outside_inference
    def end_offload(self) -> None:
        """Files go: what they have of the shard comes to the host's memory."""
        if self.store is not None:
            self.shard, self.store = self.store.without_files(self.shard)

    @torch.no_grad()
    def keep_own(self, slot: Slot, value: Tensor) -> None:
        """Take of a whole parameter what belongs to this rank's shard."""
        if not self.shard.numel():
            make = self.buffer.new_zeros if self.store is None else self.store.begin
            self.shard = make(self.bucket.cut.shard, dtype=self.bucket.dtype)
        self.missing -= 1
        for piece in self.bucket.pieces(self.group.rank()):
            if piece.slot is slot:
                piece.of(self.shard).copy_(value.reshape(-1)[piece.start : piece.stop])
