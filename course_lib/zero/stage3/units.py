"""ZeRO-3: a parameter is a promise. A unit of them is gathered before use and freed after.

Between uses a rank holds its shard of the unit and nothing else; the peak is all shards and the
largest unit. Lesson 11 derives it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from course_lib.collectives.direct import all_gather
from course_lib.collectives.transport import Handle
from course_lib.zero.partition import Bucket, Slot
from course_lib.zero.stage3.together import Together

# What may be asked of a parameter whose numbers are elsewhere; all else would compute with nothing.
NO_NUMBERS = {
    *("size", "dim", "numel", "stride", "element_size", "is_floating_point", "__repr__"),
    *("requires_grad_", "register_hook", "register_post_accumulate_grad_hook", "untyped_storage"),
    *("__hash__", "__len__", "storage_offset", "is_contiguous", "is_complex", "data_ptr", "to"),
    *("_has_compatible_shallow_copy_type", "__deepcopy__", "has_names", "is_shared"),
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
            f"{name} needs the numbers of {', '.join(names)}, which at stage 3 are shared out over "
            "the ranks and whole only while its unit runs: use it inside the forward of a module "
            "that has it, or, on all ranks, inside `with engine.gathered(parameter):`"
        )


class Unit:
    """Parameters that come and go together: this rank's shard of them, and a buffer for the whole.

    The buffer's memory is given back and taken anew under the tensors that look at it, since a
    graph keeps such views: a weight that was transposed for a product, say.
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

    def start(self) -> None:
        """Ask the other ranks for their shards, and do not wait."""
        if self.whole or self._arriving is not None:
            return
        self.together.gather(self.name)
        shard = self.shard if self.store is None else self.store.on_device(self.shard)
        if not self.buffer.numel():
            self.buffer = self.buffer.new_empty(self.bucket.padded)
        self.buffer.untyped_storage().resize_(self.nbytes)
        self.bucket.shard(self.buffer, self.group.rank()).copy_(shard)
        with self.together.waiting(self._gathering):
            self._arriving = all_gather(self.buffer, self.group, async_op=True)

    def fetch(self) -> None:
        """It is about to be asked for: what lies in a file is read ahead."""
        if self.store is not None and not self.whole and self._arriving is None:
            self.store.fetch()

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
            slot.parameter.data = self.bucket.view(self.buffer, slot)

    def give_up(self) -> None:
        """A backward broke off: what is under way may never come, and that is not the news."""
        if self._arriving is not None:
            arriving, self._arriving = self._arriving, None
            with suppress(RuntimeError):
                arriving.wait()

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
        self.buffer.untyped_storage().resize_(0)
        self.whole = False

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


def choose_units(
    model: nn.Module, units: Sequence[nn.Module] | None = None
) -> list[tuple[str, nn.Module, list[tuple[str, nn.Parameter]]]]:
    """(name, module, its parameters) of every unit, in the order of the model's parameters.

    Without `units`, the members of every ModuleList, such as a decoder's blocks. What is in none of
    them makes a unit for each module that has parameters of its own; those of a ParameterList,
    which is never called, are its owner's.
    """
    names = {module: name for name, module in model.named_modules()}
    if units is None:
        lists = [one for one in model.modules() if isinstance(one, nn.ModuleList)]
        chosen = [m for one in lists for m in one if is_called(m)]
    else:
        chosen = list(units)
        strange = [type(m).__name__ for m in chosen if m not in names]
        if strange:
            raise ValueError(f"units= names modules that are not the model's: {', '.join(strange)}")
        mute = [names[m] for m in chosen if not is_called(m)]
        if mute:
            raise ValueError(
                f"units= names {', '.join(mute)}, without a forward, before which a unit comes: "
                "name the module that calls its parameters or members"
            )
    wanted = set(chosen)
    found: list[tuple[str, nn.Module, list]] = []
    taken: set[nn.Parameter] = set()

    def walk(name: str, module: nn.Module) -> None:
        if module in wanted:
            found.append((name, module, _new(module.named_parameters(name), taken)))
            return
        own = _new(_of(name, module, wanted), taken) if is_called(module) else []
        if own:
            found.append((name or type(model).__name__, module, own))
        for child, inner in module.named_children():
            walk(f"{name}.{child}" if name else child, inner)

    walk("", model)
    return [one for one in found if one[2]]


def is_called(module: nn.Module) -> bool:
    """Whether it has a forward: a ParameterList, say, has none."""
    return type(module).forward is not nn.Module.forward


def _of(name: str, module: nn.Module, units: set[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    """A module's own parameters, and those of what it holds without calling it."""
    yield from module.named_parameters(name, recurse=False)
    for child, inner in module.named_children():
        if inner not in units and not is_called(inner):
            yield from _of(f"{name}.{child}" if name else child, inner, units)


def _new(
    named: Iterable[tuple[str, nn.Parameter]], taken: set[nn.Parameter]
) -> list[tuple[str, nn.Parameter]]:
    """Those that no unit has yet: a tied weight belongs to the first that has it."""
    fresh = [(name, p) for name, p in named if p not in taken and p.numel()]
    taken.update(p for _, p in fresh)
    return fresh
