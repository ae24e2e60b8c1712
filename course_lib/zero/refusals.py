"""What an engine refuses, in words: a mesh, an optimizer, a model, a loss that do not fit.

Silence would train something else, or each rank for itself. Lesson 09.
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
    "a backward went past the engine: call engine.backward(loss), not loss.backward(). "
    "engine.zero_grad() drops what came, and the engine goes on. Where another engine's loss "
    "reaches into this model, freeze it there (requires_grad_(False))"
)


def check_names(
    options: Iterable[str], known: Iterable[str], stage3: Iterable[str], stage: object
) -> None:
    """Refuse an option that no engine has: it would be a setting that changes nothing."""
    every = [*known, *stage3]
    for name in options:
        if name not in every:
            near = difflib.get_close_matches(name, every, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise TypeError(f"an engine has no option {name!r}{hint} It takes {', '.join(every)}")
    if options and stage in (0, 1, 2):
        raise ValueError(f"{', '.join(options)} is of stage 3, and this is stage {stage}")


def dp_of(mesh: DeviceMesh) -> Group:
    """The group of the axis 'dp', over which an engine cuts."""
    return axis(mesh, "dp")


def check_free(model: nn.Module) -> None:
    """Refuse a model of which another engine or DataParallel, still open, takes the gradients."""
    taken = _taken(model)
    if taken:  # an engine that nobody has any more may wait for the garbage collector
        gc.collect()
        taken = _taken(model)
    if taken:
        raise ValueError(
            f"{', '.join(taken[:4])}{' and others' if len(taken) > 4 else ''} are trained by "
            "another engine or DataParallel already, and each gradient would be taken by both. "
            "Close that engine first: engine.close(), at stage 3 engine.close(whole=True)"
        )


def _taken(model: nn.Module) -> list[str]:
    """The parameters that have an engine's hook, or are still sharded by one."""
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
            f"stage={stage!r}: 0 cuts nothing, 1 the optimizer's states, 2 the gradients too, 3 "
            "the parameters too"
        )
    if isinstance(accumulate, bool) or not isinstance(accumulate, int) or accumulate < 1:
        raise ValueError(
            f"accumulate={accumulate!r} micro-batches a step: it has to be a whole number above 0"
        )
    if clip is not None and not clip > 0:
        raise ValueError(f"clip={clip} has to be above 0; None leaves the gradients as they are")


def check_optimizer(model: nn.Module, optimizer: Optimizer) -> None:
    every = dict(model.named_parameters())
    known = {p for group in optimizer.param_groups for p in group["params"]}
    strange = len(known - set(every.values()))
    lost = [name for name, p in every.items() if p.requires_grad and p not in known]
    if strange or lost:
        raise ValueError(
            f"the optimizer and the model do not go together: {strange} of the optimizer's "
            f"parameters are not the model's, and of those to be trained it lacks {len(lost)}"
            f"{': ' + ', '.join(lost[:4]) if lost else ''}. Make it of model.parameters(), after "
            "the model was cut, and freeze (requires_grad_(False)) what is not to be trained"
        )


def check_model(model: nn.Module) -> None:
    """Refuse weights whose numbers cannot be exchanged."""
    with torch._C.DisableTorchFunctionSubclass():
        made = [name for name, p in model.named_parameters() if p.is_inference()]
    if made or torch.is_inference_mode_enabled():
        raise ValueError(
            f"{f'{made[0]} was made' if made else 'this is called'} under torch.inference_mode(), "
            "where a tensor can neither be trained nor given other memory: make the model and the "
            "engine outside of it, under torch.no_grad() if need be"
        )


def check_places(partition: Partition) -> None:
    """Refuse to go on after a `model.to(…)` that the buckets have not gone with."""
    with torch._C.DisableTorchFunctionSubclass():  # a placeholder's dtype, too
        for bucket in partition.buckets:
            for slot in bucket.slots:
                p = slot.parameter
                if p.dtype != bucket.dtype or p.device != bucket.device:
                    raise RuntimeError(
                        f"{slot.name} is {p.dtype} on {p.device}, and was {bucket.dtype} on "
                        f"{bucket.device} when the engine was made: call model.to(…), .half() or "
                        ".cuda() before the engine is made, or use its precision="
                    )


def step_guard(engine):
    """A hook for the optimizer's step, which nobody but the engine may call."""
    reference = weakref.ref(engine)

    def only_by_the_engine(optimizer: Optimizer, *args) -> None:
        if reference() is not None and not reference().updating:
            raise RuntimeError(
                f"{type(optimizer).__name__}.step() was called by hand: this rank's part of the "
                "weights would change, and no other rank would hear of it. Call engine.step()"
            )

    return only_by_the_engine


def check_parameters(model: nn.Module, trained: Container[nn.Parameter]) -> None:
    """`trained` are those that were to be trained when the engine was made."""
    new = [n for n, p in model.named_parameters() if p.requires_grad and p not in trained]
    if new:
        raise RuntimeError(
            f"{', '.join(new[:4])} came to the model, or began to be trained, after the engine was "
            "made, and no shard has a place for it: make the engine anew"
        )


def check_loss(loss: Tensor, tokens: float | None) -> None:
    if not isinstance(loss, Tensor):
        raise ValueError(f"backward takes a loss, a tensor, and got a {type(loss).__name__}")
    if loss.numel() != 1 or not loss.requires_grad:
        got = f"shape {tuple(loss.shape)}{'' if loss.requires_grad else ' without a graph'}"
        raise ValueError(
            f"backward takes a loss, one number with a graph, and got a tensor of {got}"
        )
    if tokens is not None and not tokens >= 0:
        raise ValueError(f"tokens={tokens} has to be 0 or more")


def who_has(own: list[str], groups: Sequence[Group]) -> str:
    """What each rank found, for every rank to read; all of them have to call this."""
    words = ", ".join(own[:3]) + (" and more" if len(own) > 3 else "")
    return by_rank(who_says(words or None, groups)) or IN_THEIR_SUM
