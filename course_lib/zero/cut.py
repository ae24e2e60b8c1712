"""What a stage cuts, made in one place: the shards, and what collects the gradients for them.

Lessons 09 to 11 derive the stages; an engine calls this once.
"""

from __future__ import annotations

from torch import nn

from course_lib.collectives.call import Group
from course_lib.zero.buckets import Gradients
from course_lib.zero.ddp import SummedGradients
from course_lib.zero.home import Home
from course_lib.zero.partition import partition
from course_lib.zero.shards import Copies, Shards
from course_lib.zero.stage1 import ScatteredGradients
from course_lib.zero.stage2 import ShardGradients
from course_lib.zero.stage3 import Stage3, UnitGradients, UnitShards

STAGES = {
    0: (Copies, SummedGradients),
    1: (Shards, ScatteredGradients),
    2: (Shards, ShardGradients),
    3: (UnitShards, UnitGradients),
}


def cut(
    model: nn.Module, stage: int, group: Group, home: Home, *, bucket_bytes: int, options: Stage3
) -> tuple[Copies, Gradients]:
    """Make a stage's shards of a model, in their home, and collect the gradients for them."""
    make, collect = STAGES[stage]
    if stage == 3:
        shards = make(model, group, home, options)
    else:
        parts = partition(
            model.named_parameters(), group.size() if stage else 1, most_bytes=bucket_bytes
        )
        shards = make(parts, group, home)
    return shards, collect(shards.partition, group, shards)
