"""The check of lesson 08 about a norm: what is said of one that is off.

Right answers and likely wrong ones stand in `tests/answers`.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.lesson_08 import clip
from tests.answers.lesson_08 import WRONG_CLIP


@pytest.mark.parametrize(("norm", "said"), [(2.0002, "1.0001"), (3.0, "1.5")])
def test_a_norm_that_is_a_little_off_is_not_called_one_times_right(norm, said):
    told = {"norm": norm, "want": 2.0, "most": 9.0, "readings": [("averaged", 7.0)]}
    told |= {"cut": 1, "factors": {"a shard": 1.0, "a copy": 1.0}}
    with pytest.raises(Finding, match=f"is {said} times what it should be here") as found:
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
