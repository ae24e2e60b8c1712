"""What an engine refuses, in words: a mesh, an optimizer, a model, a loss that do not fit.

Silence would train something else, or each rank for itself. Lesson 09.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer

from course_lib.collectives.call import Group

PAST = (
    "a backward went past the engine: call engine.backward(loss), not loss.backward(), which knows "
    "neither of the other ranks' share nor of the micro-batches. Where another engine's loss "
    "reaches into this model, freeze it there (requires_grad_(False))"
)


def dp_of(mesh: DeviceMesh) -> Group:
    names = mesh.mesh_dim_names or ()
    if "dp" not in names:
        raise ValueError(
            f"the mesh has the axes {', '.join(names) or '(without names)'} and no axis 'dp' to "
            "cut over; make it with ranks.mesh(me, dp=…, tp=…)"
        )
    return mesh.get_group("dp")


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


def check_parameters(model: nn.Module, trained: Container[nn.Parameter]) -> None:
    """`trained` are those that were to be trained when the engine was made."""
    new = [n for n, p in model.named_parameters() if p.requires_grad and p not in trained]
    if new:
        raise RuntimeError(
            f"{', '.join(new[:4])} came to the model, or began to be trained, after the engine was "
            "made: no shard has a place for it, and each rank would train or leave it for itself. "
            "Make the engine anew"
        )


def check_loss(loss: Tensor, tokens: float | None) -> None:
    if not isinstance(loss, Tensor):
        raise ValueError(f"backward takes a loss, a tensor, and got a {type(loss).__name__}")
    if loss.numel() != 1 or not loss.requires_grad:
        graph = "" if loss.requires_grad else " without a graph"
        raise ValueError(
            f"backward takes a loss, one number with a graph behind it, and got a tensor of shape "
            f"{tuple(loss.shape)}{graph}"
        )
    if tokens is not None and not tokens >= 0:
        raise ValueError(f"tokens={tokens} has to be 0 or more")


def of_every_rank(own: object, groups: Sequence[Group]) -> list[tuple[int, object]]:
    """(rank, what it has) of all ranks; all of them have to call this."""
    every: list = [(dist.get_rank(), own)]
    for group in groups:
        gathered: list = [None] * group.size()
        dist.all_gather_object(gathered, every, group=group)
        every = [one for some in gathered for one in some]
    return every


def who_has(own: list[str], groups: Sequence[Group]) -> str:
    """What each rank found, for every rank to read; all of them have to call this."""
    every = of_every_rank(own, groups)
    words = [
        f"on rank {rank} {', '.join(names[:3])}{' and more' if len(names) > 3 else ''}"
        for rank, names in sorted(every)
        if names
    ]
    more = f"; and on {len(words) - 4} ranks more" if len(words) > 4 else ""
    return "; ".join(words[:4]) + more or "on no rank alone, but in their sum"
