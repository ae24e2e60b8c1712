"""ZeRO-3: a parameter is a promise. A unit of parameters is gathered before use and freed after.

Between uses a rank holds only its shard of the unit, so the peak is all shards plus the largest
unit. Lesson 11 derives it.
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

# Functions allowed on a parameter without its values; all others would compute with nothing.
NO_NUMBERS = {
    *("size", "dim", "numel", "stride", "element_size", "is_floating_point", "__repr__"),
    *("requires_grad_", "register_hook", "register_post_accumulate_grad_hook", "untyped_storage"),
    *("__hash__", "__len__", "storage_offset", "is_contiguous", "is_complex", "data_ptr", "to"),
    *("_has_compatible_shallow_copy_type", "has_names", "is_shared"),
}
NUMBERS = {"T", "mT", "H", "mH", "real", "imag"}  # properties that are operations


class Promise(nn.Parameter):
    """A parameter whose values are sharded over the ranks. Computing with it or saving it raises an
    error."""

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
            f"{name} needs the values of {', '.join(names)}, which at stage 3 are sharded over "
            "the ranks and gathered only while its unit runs. Use it inside the forward of a "
            "module that has it, or, on all ranks, inside `with engine.gathered(parameter):`"
        )

    def __deepcopy__(self, memo: dict):
        return torch.clone(self)  # which raises

    def __reduce_ex__(self, protocol: int):
        return torch.clone(self)


def outside_inference(method: Callable) -> Callable:
    """Run a method outside of `torch.inference_mode`, because buffers and parameters outlive an
    evaluation, and inference tensors could not be trained later."""

    @wraps(method)
    def normally(*args, **keys):
        if not torch.is_inference_mode_enabled():
            return method(*args, **keys)
        with torch.inference_mode(False), torch.no_grad():
            return method(*args, **keys)

    return normally


class Unit:
    """Parameters that are gathered and freed together: this rank's shard, and a buffer for all.

    The buffer's memory is freed and allocated again under its views, because a graph may keep
    views, for example of a weight transposed for a product. If a user may keep views (`shown`),
    after an evaluation or a `gathered` block, the memory is left to them, and the next gather
    allocates a new buffer. A view that a training forward saves becomes invalid, so save a clone.
    """

    def __init__(
        self, name: str, module: nn.Module, bucket: Bucket, together: Together, store=None
    ):
        self.name, self.module, self.bucket = name, module, bucket
        self.group, self.together = together.group, together
        self.store = store  # where the shard is, if it is offloaded
        self.shard = torch.empty(0, dtype=bucket.dtype, device=bucket.device)
        self.missing = len(bucket.slots)  # parameters whose values have not arrived yet
        self.buffer = torch.empty(0, dtype=bucket.dtype, device=bucket.device)
        self.persistent = False
        self.pinned = 0  # number of `gathered` blocks that hold it
        self.shown = False  # True if views of the buffer may be outside
        self.seen: list[int] | None = None  # checksum of the last gather, if it may change
        trained = [slot.parameter.requires_grad for slot in bucket.slots]
        self.frozen, self._trained = not all(trained), any(trained)  # True for any
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
        """Start to gather the shards of the other ranks, without waiting."""
        if self.whole or self._arriving is not None:
            return
        self.together.gather(self.name)
        shard = self.shard if self.store is None else self.store.on_device(self.shard)
        if not self.buffer.numel() or self.shown:
            self.buffer, self.shown = self.buffer.new_empty(self.bucket.padded), bool(self.pinned)
        else:  # for a new buffer, this would move the memory
            self.buffer.untyped_storage().resize_(self.nbytes)
        self.bucket.shard(self.buffer, self.group.rank()).copy_(shard)
        with self.together.waiting(self._gathering):
            self._arriving = all_gather(self.buffer, self.group, async_op=True)

    @outside_inference
    def fetch(self) -> None:
        """Read the shard ahead from its file, shortly before `start`."""
        if self.store is not None and not self.whole and self._arriving is None:
            self.store.fetch()

    @outside_inference
    def gather(self) -> None:
        """Gather the parameters and wait for them."""
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
        """Gather the parameters and keep them until `unpin`, because user code reads them."""
        self.gather()
        self.pinned, self.shown = self.pinned + 1, True
        if self.seen is None:
            self.seen = self._sums()

    @outside_inference
    def unpin(self) -> None:
        """End a block. If the unit stays gathered, it moves to new memory, so that later changes do
        not affect views taken in the block."""
        self.pinned -= 1
        if self.shown and (self.persistent or self.pinned):
            self.buffer, self.shown = self.buffer.clone(), bool(self.pinned)
            self._point()

    def _point(self) -> None:
        """Make the parameters views of the buffer."""
        for slot in self.bucket.slots:
            slot.parameter.data = self.bucket.view(self.buffer, slot)
            if slot.parameter.grad is not None:  # a placeholder without memory
                slot.parameter.grad = None

    def changed(self) -> bool:
        """Return True if the gathered parameters have changed since the gather, for example because
        user code has written to them."""
        return self.whole and self.seen is not None and self.seen != numbers(self.now(), self.seen)

    def _sums(self) -> list[int]:
        return numbers(checksum(self.buffer), [])  # Python numbers, which use no tensor memory

    def now(self) -> Tensor:
        """Return the checksum of the gathered parameters in their current state."""
        for slot in self.bucket.slots:
            bring_back(slot.name, slot.parameter, self.bucket.view(self.buffer, slot))
        return checksum(self.buffer)

    def give_up(self) -> None:
        """Wait after a failed backward pass for a gather that may never end; ignore its error."""
        if self._arriving is not None:
            arriving, self._arriving = self._arriving, None
            with suppress(RuntimeError):
                arriving.wait()

    @outside_inference
    def free(self) -> None:
        """Keep only the shard. The parameters become placeholders of size 0."""
        if self._arriving is not None:
            arriving, self._arriving = self._arriving, None
            arriving.wait()
        if self.store is not None:
            self.store.drop()
        if self.persistent or self.pinned:
            return
        for slot in self.bucket.slots:
            self.promise(slot)
        if self.shown:  # the user's views of it stay valid
            self.buffer, self.shown = self.buffer.new_empty(0), False
        else:
            self.buffer.untyped_storage().resize_(0)
        self.whole, self.seen = False, None

    def forget(self) -> None:
        """Reset the state for the next backward pass."""
        self.owes = self._trained  # a gradient that has not been sent yet
        self.uses = 0  # calls whose backward reads frozen weights

    def free_if_done(self) -> None:
        """Free the unit in a backward pass, unless a gradient or a reader is still to come."""
        if not (self.owes or self.uses):
            self.free()

    def promise(self, slot: Slot) -> None:
        """Release a parameter's values."""
        slot.parameter.data = self.buffer.new_empty(0)
        slot.parameter.promised = slot.name
        slot.parameter.__class__ = Promise

    @outside_inference
    def outline(self) -> None:
        """Set the parameters' shapes without values. autograd needs a shape for a gradient, and if
        the backward pass reads no values, nothing must be sent."""
        if not self.whole:
            for slot in self.bucket.slots:
                slot.parameter.data = self.buffer.new_empty(1).expand(slot.shape)

    def renew(self) -> None:
        """Free the unit after its shards have changed."""
        self.free()
        self.whole = False

    @outside_inference
    def end_offload(self) -> None:
        """Move the shard from its files to the host's memory."""
        if self.store is not None:
            self.shard, self.store = self.store.without_files(self.shard)

    @torch.no_grad()
    def keep_own(self, slot: Slot, value: Tensor) -> None:
        """Copy this rank's shard of a full parameter."""
        if not self.shard.numel():
            make = self.buffer.new_zeros if self.store is None else self.store.begin
            self.shard = make(self.bucket.cut.shard, dtype=self.bucket.dtype)
        self.missing -= 1
        for piece in self.bucket.pieces(self.group.rank()):
            if piece.slot is slot:
                piece.of(self.shard).copy_(value.reshape(-1)[piece.start : piece.stop])
