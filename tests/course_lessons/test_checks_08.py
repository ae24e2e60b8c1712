"""The checks of lesson 08: what is said of a norm that is off, and whose pieces are wanted.

Right answers and likely wrong ones stand in `tests/course_lessons/answers`.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_classroom.judge.finding import Finding
from course_lessons.lesson_08 import clip_as_one as clip
from course_lessons.lesson_08 import model
from course_lessons.lesson_08 import reshard as check
from course_lib.gpt import GPT
from tests.course_lessons.answers.lesson_08 import WRONG_CLIP


@pytest.mark.parametrize(("norm", "said"), [(2.0002, "1.0001"), (3.0, "1.5")])
def test_a_norm_that_is_a_little_off_is_not_called_one_times_right(norm, said):
    told = {"norm": norm, "want": 2.0, "most": 9.0, "readings": [("averaged", 7.0)]}
    told |= {"cut": 1, "factors": {"a shard": 1.0, "a copy": 1.0}}
    with pytest.raises(Finding, match=f"is {said} times the correct value here") as found:
        clip._look_at_norms([told], "here")
    assert found.value.name == "wrong norm"


def first_steps(me, source: str, seeds: range) -> list[dict]:
    """What the check is told of an answer's first step, on inputs of several seeds."""
    space: dict = {"torch": torch}
    exec(source, space)
    trained = [clip.train(space["clip_as_one"], dist.group.WORLD, seed) for seed in seeds]
    return [steps[0] for steps in trained]


@pytest.mark.parametrize(
    "mistake", ["by names", "by names, everything summed", "everything summed"]
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_is_counted_twice_is_recognised_whatever_was_drawn(pool, mistake, dtype):
    """In float32 too, the dtype of `torch.tensor(1.5)`: rounding is no other idea."""
    source, name = WRONG_CLIP[mistake]
    source = source.replace("dtype=torch.float64", f"dtype=torch.{dtype}")
    for told in zip(*pool.run(2, first_steps, source, range(1, 13)), strict=True):
        with pytest.raises(Finding) as found:
            clip._look_at_norms(list(told), "here")
        assert found.value.name == name, found.value.text


def cut_by_the_plan(me, family):
    """What `parallelize`'s own functions leave on each rank."""
    config = check.CONFIGS[family]
    group = dist.group.WORLD
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
