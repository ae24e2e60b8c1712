"""The check of lesson 08 about a cut model's weights: the reference, and answers that break.

Right answers and likely wrong ones stand in `tests/answers`.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
import torch

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_08 import model
from course_lib.classroom.checks.lesson_08 import reshard as check
from course_lib.gpt import GPT
from tests.answers.lesson_08_reshard import TWO_STEPS

NOTEBOOK = (
    Path(__file__).resolve().parent.parent / "solutions" / "08_gpt_that_trains" / "reshard.ipynb"
)


def judged(desk: Desk, source: str) -> frame.Verdict:
    helpers = ("sizes", "merged", "piece_of", "held", "lengths", "reshard")
    return desk.check("reshard", dict.fromkeys(helpers, source) | {"reshard": source})


def reference() -> str:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    source = next(c.source for c in cells if "def reshard" in c.source)
    return source.split("\n", 1)[1]  # without the magic's line


@pytest.mark.slow  # its notebook, which each run executes, says the same
def test_the_reference_is_right(desk):
    assert judged(desk, reference()).outcome == "right"


def test_what_breaks_costs_one_check(desk):
    for body, found in (
        ("return 1 / 0", "raised"),
        ("...", ""),
        ("raise SystemExit", "raised"),
        ("return 'weights'", "not a list"),
        ("shards.clear()\n    return []", "another number of ranks"),
        ("return shards", "another number of ranks"),
    ):
        verdict = judged(desk, f"def reshard(shards, config, n):\n    {body}\n")
        assert verdict.name == found, str(verdict)
    assert judged(desk, TWO_STEPS).outcome == "right"


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


def test_neither_a_hint_nor_a_verdict_gives_the_answer_away():
    said = " ".join(frame.find("reshard").hints) + frame.find("reshard").when_right
    for piece in ("def ", "torch.cat(", "return ", "zip(", "movedim"):
        assert piece not in said
