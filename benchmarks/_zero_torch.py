"""torch's own data parallelism as peers: DDP, ZeroRedundancyOptimizer, FSDP2 both ways.

Each with the settings that were best of those tried; `--set tune=1` tries them again. Beside some
stands the time it took then, in DDP's: two ranks on two cores, in runs of 2026-11-22.
"""

from __future__ import annotations

from collections.abc import Callable

from _zero_task import Task, backward, update
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.gpt import GPT

# For each method the settings tried, the one that is used first.
SETTINGS: dict[str, list[dict]] = {
    "ddp": [
        {"bucket_cap_mb": 25, "gradient_as_bucket_view": True},
        {"bucket_cap_mb": 10, "gradient_as_bucket_view": True},
        {"bucket_cap_mb": 50, "gradient_as_bucket_view": True},
        {"bucket_cap_mb": 25, "gradient_as_bucket_view": True, "static_graph": True},
        {"bucket_cap_mb": 25, "gradient_as_bucket_view": False},
    ],
    "zero-redundancy-optimizer": [
        {"bucket_cap_mb": 50, "parameters_as_bucket_view": True},  # 0.97
        {"bucket_cap_mb": 25, "parameters_as_bucket_view": True},  # 1.05
        {"bucket_cap_mb": 25, "parameters_as_bucket_view": False},  # 1.05
        {"bucket_cap_mb": 10, "parameters_as_bucket_view": True},  # 1.01
    ],
    "fsdp2": [
        {"units": "block, tables", "ahead": 2},  # 1.29
        {"units": "block, tables", "ahead": 1},  # 1.32
        {"units": "block, tables", "ahead": 0},  # 1.37
        {"units": "block", "ahead": 0},  # 1.43
        {"units": "block", "ahead": 1},  # 1.50
        {"units": "block", "ahead": 2},  # 1.43
        {"units": "two blocks", "ahead": 0},  # 1.51
        {"units": "layer", "ahead": 0},  # 1.36
    ],
    "fsdp2-reshard": [
        {"units": "block, tables", "ahead": 0},  # 1.39
        {"units": "block, tables", "ahead": 1},
        {"units": "block, tables", "ahead": 2},
        {"units": "block", "ahead": 0},  # 1.47
        {"units": "block", "ahead": 1},  # 1.46
        {"units": "block", "ahead": 2},  # 1.47
        {"units": "two blocks", "ahead": 0},  # 1.64
        {"units": "layer", "ahead": 0},  # 1.57
    ],
}


def there(name: str) -> bool:
    """Whether a method can run here."""
    return True


def build(task: Task, name: str, settings: dict) -> Callable[[], float]:
    make = {"ddp": ddp, "zero-redundancy-optimizer": redundancy}.get(name)
    if make is not None:
        return make(task, **settings)
    return fsdp2(task, reshard=name.endswith("reshard"), **settings)


def ddp(task: Task, **settings) -> Callable[[], float]:
    model = parallel(task, settings)
    optimizer = task.adamw(model.parameters())
    return ended_by(task, model, optimizer)


def redundancy(task: Task, *, parameters_as_bucket_view: bool, **settings) -> Callable[[], float]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = parallel(task, {"gradient_as_bucket_view": True, **settings})
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(),
        task.adamw,
        process_group=task.mesh.get_group("dp"),
        parameters_as_bucket_view=parameters_as_bucket_view,
    )
    return ended_by(task, model, optimizer)


def parallel(task: Task, settings: dict) -> DistributedDataParallel:
    ids = [task.me.device.index] if task.me.device.type == "cuda" else None
    group = task.mesh.get_group("dp")
    return DistributedDataParallel(task.model(), ids, process_group=group, **settings)


def ended_by(task: Task, model: nn.Module, optimizer) -> Callable[[], float]:
    """A step that leaves the gradients to the buckets that DDP keeps them in; we keep a view of
    each, since no other object tells that those buckets are there."""
    buckets: list = []
    task.ending.callback(buckets.clear)
    parameters = list(model.parameters())
    end = update(optimizer)

    def looked_at() -> None:
        buckets[:] = [p.grad for p in parameters]
        end()

    return task.training(model, backward, looked_at)


def fsdp2(task: Task, *, reshard: bool, units: str, ahead: int) -> Callable[[], float]:
    from torch.distributed.fsdp import fully_shard

    model = task.model()
    cut = cut_at(model, units)
    for one in (*cut, model):
        fully_shard(one, mesh=task.mesh["dp"], reshard_after_forward=reshard)
    every = [one[0] if isinstance(one, list) else one for one in cut]
    for i, one in enumerate(every if ahead else ()):
        one.set_modules_to_forward_prefetch(every[i + 1 : i + 1 + ahead])
        one.set_modules_to_backward_prefetch(every[max(0, i - ahead) : i][::-1])
    optimizer = task.adamw(model.parameters())
    return task.training(model, backward, update(optimizer))


def cut_at(model: GPT, units: str) -> list:
    """What FSDP2 gathers at once; the rest of the model is a unit too."""
    blocks = list(model.blocks)
    if units == "two blocks":
        return [blocks[i : i + 2] for i in range(0, len(blocks), 2)]
    if units == "block, tables":
        return [model.tokens, *blocks, model.head]
    if units == "layer":
        return [model.tokens, *(part for b in blocks for part in (b.attention, b.mlp)), model.head]
    return blocks
