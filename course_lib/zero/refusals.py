"""Checks of an engine's inputs: a mesh, an optimizer, a model or a loss that do not fit.

Without an error, the training would differ, or each rank would train separately. Lesson 09.
"""

from __future__ import annotations

import difflib
import gc
import weakref
from collections.abc import Container, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from course_lib.collectives.agreement import IN_THEIR_SUM, by_rank, who_says
from course_lib.collectives.call import Group
from course_lib.ranks import axis
from course_lib.zero.buckets import Arrival
from course_lib.zero.partition import Partition

PAST = (
    "a backward pass bypassed the engine: call engine.backward(loss), not loss.backward(). "
    "engine.zero_grad() drops these gradients so that the engine can continue. If a different "
    "engine's loss reaches into this model, freeze this model there (requires_grad_(False))"
)


def check_names(
    options: Iterable[str], known: Iterable[str], stage3: Iterable[str], stage: object
) -> None:
    """Raise for an option that no engine has, because it would have no effect."""
    every = [*known, *stage3]
    for name in options:
        if name not in every:
            near = difflib.get_close_matches(name, every, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise TypeError(f"an engine has no option {name!r}{hint} It takes {', '.join(every)}")
    if options and stage in (0, 1, 2):
        raise ValueError(f"{', '.join(options)} is only for stage 3, but this is stage {stage}")


def dp_of(mesh: DeviceMesh) -> Group:
    """Return the group of the axis 'dp', over which an engine shards."""
    return axis(mesh, "dp")


def check_free(model: nn.Module) -> None:
    """Raise if an open engine or DataParallel already takes this model's gradients."""
    taken = _taken(model)
    if taken:  # an unused engine may wait for the garbage collector
        gc.collect()
        taken = _taken(model)
    if taken:
        raise ValueError(
            f"{', '.join(taken[:4])}{' and others' if len(taken) > 4 else ''} are already trained "
            "by an engine or DataParallel, and both would take each gradient. "
            "Close that engine first: engine.close(), at stage 3 engine.close(whole=True)"
        )


def _taken(model: nn.Module) -> list[str]:
    """Return the parameters that an engine has hooked or still shards."""
    names = []
    with torch._C.DisableTorchFunctionSubclass():
        for name, p in model.named_parameters():
            hooks = (p._post_accumulate_grad_hooks or {}).values()
            open_ones = [h for h in hooks if isinstance(h, Arrival) and h.gradients()]
            if open_ones or hasattr(p, "promised"):
                names.append(name)
    return names


def check_numbers(stage: int, accumulate: int, clip: float | None) -> None:
    if stage not in (0, 1, 2, 3) or isinstance(stage, bool):
        raise ValueError(
            f"stage={stage!r}: 0 shards nothing, 1 the optimizer's states, 2 also the gradients, 3 "
            "also the parameters"
        )
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise ValueError(
            f"accumulate={accumulate!r} micro-batches per step: it must be an integer above 0"
        )
    if clip is not None and not clip > 0:
        raise ValueError(f"clip={clip} must be above 0; None leaves the gradients as they are")


def check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    every = dict(model.named_parameters())
    known = {p for group in optimizer.param_groups for p in group["params"]}
    strange = len(known - set(every.values()))
    lost = [name for name, p in every.items() if p.requires_grad and p not in known]
    if strange or lost:
        raise ValueError(
            f"the optimizer and the model do not match: {strange} of the optimizer's parameters "
            f"are not the model's, and it lacks {len(lost)} of those to be trained"
            f"{': ' + ', '.join(lost[:4]) if lost else ''}. Make it from model.parameters(), "
            "after sharding the model, and freeze (requires_grad_(False)) all other parameters"
        )


def check_model(model: nn.Module) -> None:
    """Raise for weights whose values cannot be exchanged."""
    with torch._C.DisableTorchFunctionSubclass():
        made = [name for name, p in model.named_parameters() if p.is_inference()]
    if made or torch.is_inference_mode_enabled():
        raise ValueError(
            f"{f'{made[0]} was made' if made else 'this is called'} under torch.inference_mode(), "
            "where a tensor can neither be trained nor given new memory. Make the model and the "
            "engine outside of it, under torch.no_grad() if needed"
        )


def check_places(partition: Partition) -> None:
    """Raise after a `model.to(…)` that has changed parameters but not the buckets."""
    with torch._C.DisableTorchFunctionSubclass():  # for a placeholder's dtype
        for bucket in partition.buckets:
            for slot in bucket.slots:
                p = slot.parameter
                if p.dtype != bucket.dtype or p.device != bucket.device:
                    raise RuntimeError(
                        f"{slot.name} is {p.dtype} on {p.device}, but was {bucket.dtype} on "
                        f"{bucket.device} when the engine was made: call model.to(…), .half() or "
                        ".cuda() before the engine is made, or use its precision="
                    )


def step_guard(engine):
    """Return a hook for the optimizer's step, which only the engine may call."""
    reference = weakref.ref(engine)

    def only_by_the_engine(optimizer: Optimizer, *args) -> None:
        if reference() is not None and not reference().updating:
            raise RuntimeError(
                f"{type(optimizer).__name__}.step() was called by hand, which would change only "
                "this rank's part of the weights and no other rank's. Call engine.step()"
            )

    return only_by_the_engine


def check_parameters(model: nn.Module, trained: Container[nn.Parameter]) -> None:
    """Raise for parameters that are not in `trained`, the trained ones at the engine's start."""
    new = [n for n, p in model.named_parameters() if p.requires_grad and p not in trained]
    if new:
        raise RuntimeError(
            f"{', '.join(new[:4])} were added to the model, or unfrozen, after the engine was "
            "made, so no shard has a place for them. Make a new engine"
        )


def check_loss(loss: Tensor, tokens: float | None) -> None:
    if not isinstance(loss, Tensor):
        raise ValueError(f"backward takes a loss, a tensor, but got a {type(loss).__name__}")
    if loss.numel() != 1 or not loss.requires_grad:
        got = f"shape {tuple(loss.shape)}{'' if loss.requires_grad else ' without a graph'}"
        raise ValueError(
            f"backward takes a loss, a scalar tensor with a graph, but got a tensor of {got}"
        )
    if tokens is not None and not tokens >= 0:
        raise ValueError(f"tokens={tokens} must be 0 or more")


def who_has(own: list[str], groups: Sequence[Group]) -> str:
    """Collect each rank's findings on all ranks; every rank must call this."""
    words = ", ".join(own[:3]) + (" and more" if len(own) > 3 else "")
    return by_rank(who_says(words or None, groups)) or IN_THEIR_SUM
