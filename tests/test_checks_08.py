"""The checks of lesson 08 about a norm and a mean: the references, and answers that break.

Right answers and likely wrong ones stand in `tests/answers`.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.lesson_08 import clip
from tests.answers.lesson_08 import RIGHT, WRONG_CLIP

FOLDER = Path(__file__).resolve().parent.parent / "solutions" / "08_gpt_that_trains"


def judged(desk: Desk, name: str, source: str) -> frame.Verdict:
    return desk.check(name, {name: source})


def reference(name: str) -> str:
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    source = next(c.source for c in cells if f"def {name}" in c.source)
    return source.split("\n", 1)[1]  # without the magic's line


@pytest.mark.slow  # its notebook, which each run executes, says the same
@pytest.mark.parametrize("name", RIGHT)
def test_the_reference_is_right(desk, name):
    assert judged(desk, name, reference(name)).outcome == "right"


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


@pytest.mark.parametrize("name", RIGHT)
def test_what_breaks_costs_one_check(desk, name):
    arguments = {"clip_as_one": "a, b, c, d"}.get(name, "a, b, c")
    for body, found in (
        ("return 1 / 0", "raised"),
        ("...", ""),
        ("raise SystemExit", "raised"),
        ("return 'a norm'", {"clip_as_one": "not a number"}.get(name, "no gradients")),
        ("return float('nan')", {"clip_as_one": "wrong norm"}.get(name, "no gradients")),
    ):
        verdict = judged(desk, name, f"def {name}({arguments}):\n    {body}\n")
        assert verdict.name == found, str(verdict)
    assert judged(desk, name, next(iter(RIGHT[name].values()))).outcome == "right"


@pytest.mark.parametrize("name", RIGHT)
def test_neither_a_hint_nor_a_verdict_gives_the_answer_away(name):
    said = " ".join(frame.find(name).hints) + frame.find(name).when_right
    for piece in ("def ", "square()", "return ", "all_reduce(", "backward()"):
        assert piece not in said
