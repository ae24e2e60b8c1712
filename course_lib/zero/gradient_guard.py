"""Guards for gradients between a backward pass and its step, when a rank may lack their sums.

Changes by torch's `clip_grad_norm_`, an `optimizer.zero_grad()` or the user's own code would be
lost, or would apply to only one rank's shard. Each raises an error with a remedy. Lesson 09.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from course_lib.zero.buckets import Gradients
from course_lib.zero.shards import Copies

REMEDY = (
    "Let the engine do it: clip=… limits the gradients' norm over all ranks, and "
    "engine.zero_grad() drops all gradients since the last step. Or train at stage 0, where "
    "each parameter has its full gradient"
)
EDITED = (
    "the gradients of {of} were edited after engine.backward(), perhaps by clip_grad_norm_, but "
    f"a rank has only part of them, or they must still be divided by tokens or a scale. {REMEDY}"
)
SAMPLED = 16  # elements sampled per gradient, at least
# Functions allowed on a gradient that is elsewhere, for its shape and similar, and its release.
ALLOWED = {
    *("size", "dim", "numel", "stride", "element_size", "sym_numel", "storage_offset", "data_ptr"),
    *("untyped_storage", "has_names", "detach_", "requires_grad_"),
    *("__repr__", "__hash__", "__len__", "__get__", "__set__", "__delete__"),
}


class Elsewhere(Tensor):
    """A placeholder in `parameter.grad` for a gradient of which each rank has only its shard. It
    has the parameter's shape but no memory, and computing with it raises an error."""

    name = "a parameter"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        called = getattr(func, "__name__", str(func))
        if called in ALLOWED or called.lstrip("_").startswith("is_"):
            return torch._C._disabled_torch_function_impl(func, types, args, kwargs or {})
        names = [x.name for x in tree_leaves(args) if isinstance(x, Elsewhere)]
        raise RuntimeError(
            f"{called} needs the gradient of {', '.join(names[:3])}"
            f"{' and others' if len(names) > 3 else ''}, but each rank has only its own shard "
            f"between engine.backward() and engine.step(). {REMEDY}"
        )


def elsewhere(name: str, parameter: nn.Parameter) -> Elsewhere:
    """Return a placeholder for a parameter's gradient, which refuses every computation."""
    with torch._C.DisableTorchFunctionSubclass():
        data = parameter.data
        shape = data.as_strided(data.shape, [0] * data.dim())  # all elements share one address
        stand_in = shape.as_subclass(Elsewhere)
    stand_in.name = name
    return stand_in


def unversioned(x: Tensor) -> bool:
    """Return True if an operation can write to a tensor without changing its version, as torch's
    foreach operations on a GPU do, including clip_grad_norm_."""
    return x.is_cuda


def sample(gradients: Sequence[Tensor]) -> Tensor | None:
    """Sample elements of each gradient whose version is unreliable. Operations that keep the
    version write to full tensors, so a few elements are enough."""
    plain = [x.detach() for x in gradients if unversioned(x)]
    parts = [x.reshape(-1)[:: max(1, x.numel() // SAMPLED)] for x in plain]
    return torch.cat(parts) if parts else None


class Edits:
    """A record of the gradients at the end of a backward pass, to detect changes since then."""

    def __init__(self, stage: int, gradients: Gradients, shards: Copies, *, sample: bool):
        self.stage, self.gradients, self.shards, self.sample = stage, gradients, shards, sample
        self._seen: list[tuple[str, Tensor, Tensor, int]] = []
        self._samples: Tensor | None = None
        self._sampled: list[Tensor] = []  # for each micro-batch, True if its samples have changed
        self._stand_ins: list[nn.Parameter] = []

    def before_backward(self) -> None:
        """Prepare for the next micro-batch, in which autograd must not find placeholders."""
        self._check(may_edit=False)
        self._compare_samples()
        self._take_away()

    def after_backward(self, *, summed: bool) -> None:
        """Record the gradients. If each rank has only its shard of the sums, put placeholders into
        the model's parameters."""
        holders = [(piece.slot.name, part) for piece, part in self.shards.parts()]
        if self.stage and summed:
            for slot in self.gradients.partition.slots():
                if slot.parameter in self.gradients.used:
                    slot.parameter.grad = elsewhere(slot.name, slot.parameter)
                    self._stand_ins.append(slot.parameter)
        else:
            slots = self.gradients.partition.slots()
            holders += [(slot.name, slot.parameter) for slot in slots]
        self._seen = [
            (name, p, p.grad, p.grad._version) for name, p in holders if p.grad is not None
        ]
        self._samples = sample([grad for _, _, grad, _ in self._seen]) if self.sample else None

    def before_step(self, *, ready: bool) -> None:
        """Check before the step. At stage 0 the optimizer sees a parameter's gradient itself, so
        the user may edit it if it is `ready`, that is, needs no more division."""
        own = self.stage == 0 and not self.shards.home.copied
        self._check(may_edit=own and ready)
        self._compare_samples()
        if self._sampled and not (own and ready) and torch.stack(self._sampled).any().item():
            raise RuntimeError(EDITED.format(of="some parameters"))

    def _compare_samples(self) -> None:
        """Compare samples; the result stays a tensor, so that the host need not wait."""
        before, self._samples = self._samples, None
        if before is not None:
            now = sample([grad for _, _, grad, _ in self._seen])
            self._sampled.append(((now != before) & ~(now.isnan() & before.isnan())).any())

    def forget(self) -> None:
        self._seen, self._samples, self._sampled = [], None, []
        self._take_away()

    def _take_away(self) -> None:
        for parameter in self._stand_ins:
            if isinstance(parameter.grad, Elsewhere):
                parameter.grad = None
        self._stand_ins = []

    def _check(self, *, may_edit: bool) -> None:
        dropped = [name for name, p, *_ in self._seen if p.grad is None]
        edited = [
            name
            for name, p, grad, version in self._seen
            if p.grad is not None and (p.grad is not grad or grad._version != version)
        ]
        if dropped and not may_edit:
            raise RuntimeError(
                f"the gradients of {_some(dropped)} were dropped after engine.backward(), perhaps "
                "by a zero_grad(), together with the sums of this step's micro-batches. "
                "engine.step() drops them after the update, engine.zero_grad() before it"
            )
        if edited and not may_edit:
            raise RuntimeError(EDITED.format(of=_some(edited)))


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
