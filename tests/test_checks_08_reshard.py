"""The check of lesson 08 about a cut model's weights: its pieces are those of the library.

Right answers and likely wrong ones stand in `tests/answers`.
"""

from __future__ import annotations

import pytest
import torch

from course_lib.classroom.checks.lesson_08 import model
from course_lib.classroom.checks.lesson_08 import reshard as check
from course_lib.gpt import GPT


def cut_by_the_plan(me, family):
    """What `parallelize`'s own functions leave on each rank."""
    config = check.CONFIGS[family]
    group = torch.distributed.group.WORLD
    cut = model.cut_over(model.dense(config, 5), group)
    return {k: p.detach() for k, p in cut.named_parameters(remove_duplicate=False)}


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("family", ["GPT-2", "Llama"])
def test_the_pieces_wanted_are_those_of_the_library(pool, world, family):
    config = check.CONFIGS[family]
    state = check.state_of(config, 5)
    wanted = check.shards(state, config, world)
    for own, mine in zip(pool.run(world, cut_by_the_plan, family), wanted, strict=True):
        assert own.keys() == mine.keys() == dict(GPT(config).named_parameters(
            remove_duplicate=False)).keys()  # fmt: skip
        for name, piece in mine.items():
            assert torch.equal(own[name], piece), name
    assert check.shards(state, config, 1)[0].keys() == state.keys()
