"""The checks of lesson 00: each answer's reference is accepted, each plausible mistake is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from course_lib.classroom.checks import frame
from course_lib.classroom.checks.desk import Desk

SOLUTIONS = Path(__file__).resolve().parent.parent / "solutions" / "00_start_here"
MEAN = """
def mean_over_ranks(x, group):
    total = x.clone()
    dist.all_reduce(total, group=group)
    return total / group.size()
"""
SUM, MEANS = "dist.all_reduce(total, group=group)", "return total / group.size()"


def changed(old: str, new: str) -> str:
    assert MEAN.count(old) == 1, old
    return MEAN.replace(old, new)


WRONG = {
    "the sum": (changed(" / group.size()", ""), "sum"),
    "in place": (changed("x.clone()", "x"), "input changed"),
    "half of it": (changed("group.size()", "2"), "a fixed number of ranks"),
    "a third of it": (changed("group.size()", "3"), "a fixed number of ranks"),
    "the notebook's world": (changed("group.size()", "world"), "not of the group"),
    "no collective": (changed(f"    {SUM}\n", ""), "divided, not added"),
    "own x": (MEAN[: MEAN.index("    total")] + "    return x.clone()\n", "nobody asked"),
    "mean of own x": (
        MEAN[: MEAN.index("    total")] + "    return x.mean()\n",
        "wrong shape",
    ),
    "a reduce": (
        changed(SUM, "dist.reduce(total, group=group, group_dst=0)"),
        "not on every rank",
    ),
    "nothing returned": (changed(MEANS, "total /= group.size()"), "nothing returned"),
    "twice": (changed("/ group.size()", "/ group.size() ** 2"), "divided twice"),
    "everybody's x": (
        """
def mean_over_ranks(x, group):
    all_of_them = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(all_of_them, x, group=group)
    return torch.stack(all_of_them).mean(0)
""",
        "too much sent",
    ),
    "divided by the elements": (changed("group.size()", "x.numel()"),
        "divided by the elements"),
    "torch's world": (changed("group.size()", "dist.get_world_size()"), "not of the group"),
    "no group": (changed(", group=group)", ")"), "group left out"),
    "returned on rank 0": (
        changed(MEANS, "if group.rank() == 0:\n        " + MEANS), "not returned everywhere",
    ),
    "the largest": (
        changed("dist.all_reduce(total,", "dist.all_reduce(total, dist.ReduceOp.MAX,"),
        "wrong values",
    ),
}  # fmt: skip

RIGHT = {"a": 3, "b": 1, "c": 0, "d": 3, "e": 2}
GUESSES = {
    "rank 0 stands for all": ({"b": 3}, "one rank is not all"),
    "a range without its end": ({"e": 1}, "a range counts both ends"),
    "ranks see the notebook's variables": ({"c": 3}, "the notebook is no rank"),
    "the notebook counted in": (
        {name: number + 1 for name, number in RIGHT.items()},
        "the notebook is no rank",
    ),
    "push goes nowhere": ({"d": 0}, "push reaches all"),
    "push goes to one": ({"d": 1}, "push reaches all"),
    "several at once": ({"c": 3, "d": 4, "e": 1}, "several ideas"),
    "one idea and one slip": ({"a": 2, "e": 1}, "a range counts both ends"),
    "everything everywhere": (dict.fromkeys(RIGHT, 3), "variables are not shared"),
    "two ranks in the world": ({"a": 2, "d": 2}, "wrong number"),
    "in words": ({"b": "one"}, "not a number"),
    "yes and no": ({"b": True}, "not a number"),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Iterator[Desk]:
    patch = pytest.MonkeyPatch()
    patch.setenv("COURSE_RUNTIME_DIR", str(tmp_path_factory.mktemp("r")))
    made = Desk()
    yield made
    made.judge.stop()
    patch.undo()


def test_the_reference_is_accepted(desk):
    for path in SOLUTIONS.glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        answer = next(c for c in cells if c.metadata.get("nbgrader", {}).get("solution")).source
        name = path.stem
        values: dict = {}
        if not answer.startswith("%%ranks"):
            exec(answer, values)
        verdict = desk.check(name, {name: answer.removeprefix("%%ranks\n")}, values)
        assert verdict.outcome == "right", str(verdict)
        points = [
            c.metadata.nbgrader.points for c in cells if c.metadata.get("nbgrader", {}).get("grade")
        ]
        assert points == [verdict.points]


@pytest.mark.parametrize("mistake", WRONG)
def test_a_plausible_mean_is_refused_by_its_name(desk, mistake):
    source, name = WRONG[mistake]
    verdict = desk.check("mean_over_ranks", {"mean_over_ranks": source})
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


@pytest.mark.parametrize("guess", GUESSES)
def test_a_plausible_count_is_refused_by_its_name(desk, guess):
    change, name = GUESSES[guess]
    verdict = desk.check("who_knows", {}, {"who_knows": {**RIGHT, **change}})
    assert (verdict.outcome, verdict.name, verdict.points) == ("wrong", name, 0), str(verdict)


def test_several_ideas_are_told_one_by_one(desk):
    text = desk.check("who_knows", {}, {"who_knows": {**RIGHT, "c": 3, "e": 1}}).text
    assert "'c': A cell without `%%ranks`" in text
    assert "'e': `%%ranks 1-2` names both ends" in text


def test_a_group_of_two_is_not_called_two_ranks(desk):
    text = desk.check("mean_over_ranks", {"mean_over_ranks": WRONG["the notebook's world"][0]}).text
    assert "It fails on a group of 2 out of 3 ranks. It reads `world`, which counts" in text
    assert "it is the wrong number." in text


@pytest.mark.parametrize("given", [None, ..., {}, dict.fromkeys(RIGHT, ...), {**RIGHT, "c": ...}])
def test_a_blank_is_not_attempted(desk, given):
    values = {} if given is None else {"who_knows": given}
    verdict = desk.check("who_knows", {}, values)
    assert verdict.outcome == "not attempted"
    assert ("'c'" in verdict.text) is (given == {**RIGHT, "c": ...})


def test_no_hint_and_no_verdict_gives_the_answer_away():
    for exercise in frame.lessons()["00"]:
        said = " ".join([*exercise.hints, exercise.when_right])
        assert "/ group.size()" not in said
        assert not any(f"{number}" in said for number in "01235")
