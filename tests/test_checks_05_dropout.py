"""The checks of lesson 05 about random numbers: right answers pass, mistakes go by their names.

Every answer here runs on the judge's real ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
import torch

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_05 import streams
from tests.answers.lesson_05_recompute import RECOMPUTE
from tests.answers.lesson_05_streams import STREAMS, one

FOLDER = Path(__file__).resolve().parent.parent / "solutions" / "05_attention"
RIGHT = {"dropout_streams": STREAMS, "recompute_dropout": RECOMPUTE}


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


@pytest.mark.parametrize("name", RIGHT)
def test_what_breaks_costs_one_check(desk, name):
    for body, found in (
        ("return 1 / 0", "raised"),
        ("...", ""),
        ("return 'masks'", {"recompute_dropout": "wrong shape"}.get(name, "not a context")),
    ):
        verdict = judged(desk, name, f"def {name}(a, b, c):\n    {body}\n")
        assert verdict.name == found, str(verdict)
    assert judged(desk, name, RIGHT[name]).outcome == "right"


def test_the_statistical_test_tells_equal_from_independent():
    made = torch.Generator().manual_seed(2)
    masks = torch.rand(200, streams.ELEMENTS, generator=made) > 0.5
    assert streams._related(masks) is None  # 19,900 pairs, and none of them an accident
    masks[7] = masks[3]
    assert streams._related(masks) == (3, 7)
    masks[7] = ~masks[3]  # nor is the opposite of a mask independent
    assert streams._related(masks) == (3, 7)


@pytest.mark.parametrize("name", RIGHT)
def test_neither_a_hint_nor_a_verdict_gives_the_answer_away(name):
    said = " ".join(frame.find(name).hints) + frame.find(name).when_right
    for piece in ("manual_seed(", "set_state(before", "nonlocal", "* 1001", "yield"):
        assert piece not in said


HASHED = "(seed * 1009 + dp_rank) * 1013"


@pytest.mark.skipif(not sys.flags.hash_randomization, reason="PYTHONHASHSEED fixes every hash")
@pytest.mark.parametrize("text", ['"x"', 'f"replica {dp_rank}"', "str(seed)"])
def test_a_seed_from_the_hash_of_a_name_is_refused_by_its_name(desk, text):
    """Forked ranks share what makes a hash; the last rank of a check does not."""
    source = one((HASHED, f"hash({text}) % 1000 + {HASHED}"))
    verdict = desk.check("dropout_streams", {"dropout_streams": source})
    assert (verdict.outcome, verdict.name) == ("wrong", "hash of a text"), str(verdict)
    assert "zlib.crc32" in verdict.text
