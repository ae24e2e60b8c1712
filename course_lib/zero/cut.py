"""What a stage cuts, made in one place: shards, the gradients for them, the optimizer's new parts.

Lessons 09 to 11 derive the stages; an engine calls this once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

from torch import nn
from torch.optim import Optimizer

from course_lib.collectives.call import Group
from course_lib.memory import tier
from course_lib.zero.buckets import Gradients
from course_lib.zero.ddp import SummedGradients
from course_lib.zero.handover import hand_over
from course_lib.zero.offload import FileHome, HostHome
from course_lib.zero.partition import partition
from course_lib.zero.shards import Copies, Shards
from course_lib.zero.stage1 import ScatteredGradients
from course_lib.zero.stage2 import ShardGradients
from course_lib.zero.stage3 import UnitGradients, UnitShards

STAGES = {
    0: (Copies, SummedGradients),
    1: (Shards, ScatteredGradients),
    2: (Shards, ShardGradients),
    3: (UnitShards, UnitGradients),
}
STAGE_3 = ("units", "prefetch", "keep", "persist", "fill")  # what UnitShards can be told


def cut(
    model: nn.Module,
    optimizer: Optimizer,
    stage: int,
    group: Group,
    home: HostHome | FileHome | None,
    *,
    master: bool,
    bucket_bytes: int,
    stage3: Mapping[str, object],
) -> tuple[Copies, Gradients]:
    """Make the shards, collect their gradients, and hand the shards over to the optimizer."""
    make, collect = STAGES[stage]
    options = {"master": master, **({} if home is None else {"home": home})}
    if stage == 3:
        shards = make(model, group, **options, **stage3)
    else:
        n = group.size() if stage else 1
        parts = partition(model.named_parameters(), n, most_bytes=bucket_bytes)
        shards = make(parts, group, **options)
    gradients = collect(shards.partition, group, shards)
    with nullcontext() if home is None else tier("host"):
        hand_over(optimizer, shards)
    if home is not None:
        home.take_in(optimizer, shards)
    return shards, gradients
