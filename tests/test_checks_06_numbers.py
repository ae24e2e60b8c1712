"""Lesson 06's question with numbers: misreadings are named, and no answer is given away."""

from __future__ import annotations

import math
import re
from pathlib import Path

import nbformat
import pytest
import torch

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk
from course_lib.classroom.checks.lesson_06 import fits

ROOT = Path(__file__).resolve().parent.parent
SOLUTIONS = ROOT / "solutions" / "06_sequence"
EXERCISES = ROOT / "exercises" / "06_sequence"
PLANS = ("tokens replicated", "X kept", "X gathered again")


def numbers(
    moves=(8, 8, 10), a_move=7 / 8, tokens=(1, 1 / 8, 1 / 8), xs=(1, 1, 1 / 8), norms=2, x=2,
    masks=2, mask=1, inside=12 / 8, item=2, layers=48, room=40e9, unit=1e9,
) -> dict[str, float]:  # fmt: skip
    """The nine numbers by hand; each argument is something that may be misread."""
    phi = 4096 * 6144 * layers
    sent = {f"sent, {p}": m * a_move * phi * item / unit for p, m in zip(PLANS, moves, strict=True)}
    kept, fit = {}, {}
    for plan, part, wide in zip(PLANS, tokens, xs, strict=True):
        bytes_ = phi * (item * (norms * part + x * wide + inside) + mask * masks * part)
        kept[f"kept, {plan}"] = bytes_ / unit
        fit[f"sequences, {plan}"] = room // bytes_
    return {**sent, **kept, **fit}


RIGHT = numbers()
# How an answer is wrong, what is written, the name under which it is refused.
MISREAD = [
    ("half", numbers(moves=(8, 4, 5)), "half of the moves with X kept"),
    ("forward", numbers(moves=(4, 4, 4)), "forward only"),
    ("one pair", numbers(moves=(4, 4, 5)), "one pair of layers"),
    ("nine", numbers(moves=(8, 8, 9)), "gathered again in one of two"),
    ("twelve", numbers(moves=(8, 8, 12)), "again as an all-reduce"),
    ("eight", numbers(moves=(8, 8, 8)), "again costs nothing"),
    ("one move", numbers(moves=(4, 8, 10)), "all-reduces counted as one move"),
    ("the limit", numbers(a_move=1), "limit for large N"),
    ("wide masks", numbers(mask=2), "masks in bfloat16"),
    ("no masks", numbers(masks=0), "no masks"),
    ("half of the masks", numbers(masks=1), "one mask"),
    ("X cut", numbers(xs=(1, 1 / 8, 1 / 8)), "X cut though it is kept"),
    ("X whole", numbers(xs=(1, 1, 1)), "X whole though gathered again"),
    ("no X", numbers(x=0), "X not counted"),
    ("no norms", numbers(norms=0), "norms not counted"),
    ("heads and MLP whole", numbers(inside=12), "heads and MLP whole"),
    ("heads whole", numbers(inside=5), "heads whole"),
    ("MLP whole", numbers(inside=8.5), "MLP whole"),
    ("between alone", numbers(inside=0), "only what is between the layers"),
    ("narrow MLP", numbers(inside=6 / 8), "MLP as wide as x"),
    ("tokens replicated", numbers(tokens=(1, 1, 1)), "tokens not cut"),
    ("float32", numbers(item=4), "float32"),
    ("elements", numbers(item=1), "elements, not bytes"),
    ("one layer", numbers(layers=1), "one layer"),
    ("GiB", numbers(unit=2**30), "GiB"),
    ("sent by all ranks", numbers(moves=(64, 64, 80)), "all ranks"),
    ("bits", numbers(item=16, mask=8), "all ranks"),
    ("not divided by N", numbers(a_move=7), "all ranks"),
    ("an eighth for a move", numbers(a_move=1 / 8), "a piece for a move"),
    ("of its own tokens", numbers(a_move=7 / 64), "a move of a rank's own"),
    ("all of it an eighth", numbers(tokens=[1 / 8] * 3, xs=[1 / 8] * 3), "everything sharded"),
    ("an eighth of what is kept", numbers(item=1 / 4, mask=1 / 8, moves=(64, 64, 80)),
     "divided by N twice"),
    ("nothing cut", numbers(tokens=[1] * 3, xs=[1] * 3, inside=12), "nothing sharded"),
    ("once for the GELU", numbers(inside=1), "GELU counted once"),
    ("no result", numbers(inside=11 / 8), "result of the heads left out"),
    ("with gradients", numbers(item=4, mask=2, moves=(4, 4, 5)), "gradients counted"),
    ("norms whole", {**RIGHT, "kept, X kept": numbers(tokens=(1, 1, 1), masks=0)["kept, X kept"]
     + numbers(norms=0, x=0, inside=0)["kept, X kept"]}, "input of the norms whole"),
    ("room of eight", {**RIGHT, **{k: v for k, v in numbers(room=320e9).items() if "seq" in k}},
     "room of all ranks"),
    ("megabytes", {k: v * 1e3 if k[0] != "s" or "sent" in k else v for k, v in RIGHT.items()},
     "unit"),
    ("not rounded", {**RIGHT, **{k: 40 / RIGHT[f"kept, {k[11:]}"] for k in RIGHT if "seq" in k}},
     "not whole sequences"),
    ("rounded up", {k: v + 1 if "seq" in k else v for k, v in RIGHT.items()}, "one too many"),
    ("three sequences", {**RIGHT, "sequences, X kept": 3}, "wrong number"),
    ("unforeseen", {**RIGHT, "kept, X kept": 77}, "wrong number"),
]  # fmt: skip


@pytest.fixture
def desk() -> Desk:
    return Desk()  # numbers need no ranks: its judge is never started


def answered(desk: Desk, given: object) -> frame.Verdict:
    return desk.check("which_fits", {}, {"which_fits": given})


def cell(folder: Path, name: str, kind: str) -> str:
    cells = nbformat.read(folder / f"{name}.ipynb", as_version=4).cells
    return next(c.source for c in cells if c.id == f"{name}-{kind}")


def written(folder: Path) -> dict:
    """What the notebook's answer cell leaves in the variable."""
    space: dict = {}
    exec(cell(folder, "which_fits", "answer"), space)
    return space["which_fits"]


def test_the_numbers_of_the_solution_are_right(desk):
    verdict = answered(desk, written(SOLUTIONS))
    assert (verdict.outcome, verdict.points) == ("right", 3), str(verdict)
    assert answered(desk, RIGHT).outcome == "right"
    tensors = {k: torch.tensor(v, dtype=torch.float64) for k, v in RIGHT.items()}
    assert answered(desk, tensors).outcome == "right"


def test_the_numbers_of_the_exercise_are_blank(desk):
    handed_out = written(EXERCISES)
    assert set(handed_out.values()) == {...}
    assert tuple(handed_out) == frame.find("which_fits").fields == tuple(RIGHT)
    assert answered(desk, handed_out).outcome == "not attempted"


@pytest.mark.parametrize(
    ("given", "called"),
    [(given, called) for _, given, called in MISREAD],
    ids=[how for how, _, _ in MISREAD],
)
def test_a_misreading_is_refused_by_its_name(desk, given, called):
    verdict = answered(desk, given)
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", called, 0), str(verdict)


@pytest.mark.parametrize("value", ["0.5 GB", math.nan, torch.ones(3), True], ids=str)
def test_what_is_no_number_is_told_so(desk, value):
    assert answered(desk, {**RIGHT, "kept, X kept": value}).name == "not a number"


def test_nothing_kept_is_an_answer_that_is_wrong_and_breaks_nothing(desk):
    zeros = dict.fromkeys(RIGHT, 0)
    assert answered(desk, zeros).outcome == "wrong"


def test_every_idea_goes_by_its_own_name():
    assert len({mistake.name for mistake in fits.MISTAKES}) == len(fits.MISTAKES)
    assert {mistake.name for mistake in fits.MISTAKES} <= {called for _, _, called in MISREAD}


def spellings(value: float) -> set[str]:
    """How somebody might write the number, in several units, with two digits or more."""
    found = set()
    for unit in (1e-3, 1, 1e3):
        scaled = value / unit
        found |= {f"{scaled:.3g}", f"{scaled:.4g}", f"{scaled:,.0f}", f"{scaled:.0f}"}
    return {text for text in found if len(re.sub(r"\D", "", text)) > 1}


def test_no_hint_and_no_verdict_holds_a_right_number(desk):
    one = frame.find("which_fits")
    said = [*one.hints, one.when_right, one.title]
    said += [answered(desk, given).text for _, given, _ in MISREAD]
    words = set(re.findall(r"(?<![\w.])\d[\d.,]*\d", " ".join(said)))
    first = [v for k, v in RIGHT.items() if "seq" not in k]
    assert not words & set().union(*map(spellings, first))
