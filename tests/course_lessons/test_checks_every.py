"""What holds of every exercise's check: a blank, a strange result, words that keep back.

Right and wrong answers stand in `tests/course_lessons/answers`; `test_exercises.py` holds what a
solution's notebook shows.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

import nbformat
import pytest
import torch

from course_classroom.judge import frame
from course_classroom.judge.desk import Desk
from course_classroom.judge.thought import close
from course_classroom.judge.words import Page
from course_lessons.lesson_06 import which_fits as fits
from course_lessons.lesson_07 import log_two
from course_lessons.lesson_08 import which_group as groups
from course_lessons.lesson_09 import sixteen_bytes as sixteen
from course_lessons.lesson_10 import where_to_divide as divide
from course_lessons.lesson_13 import read_config as clinic
from tests.course_lessons.answers import checked, lesson_01_numbers, lesson_02_numbers, lessons
from tests.course_lessons.answers.lesson_01_numbers import RING, TREE
from tests.course_lessons.answers.lesson_06_loss import loss

ROOT = Path(__file__).resolve().parents[2]
EVERY = frame.exercises()
NUMBERS = [name for name, one in EVERY.items() if isinstance(one, frame.Thought)]
FUNCTIONS = [name for name in EVERY if name not in NUMBERS]


def written(folder: str, name: str) -> str:
    """The answer cell of an exercise's notebook, without the magic's line."""
    (path,) = (ROOT / folder).glob(f"*/{name}.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    source = next(c.source for c in cells if c.metadata.get("nbgrader", {}).get("solution"))
    return source.split("\n", 1)[1] if source.startswith("%%ranks") else source


def numbers(folder: str, name: str) -> dict:
    """What the answer cell of a question leaves in its variable."""
    space: dict = {}
    exec(written(folder, name), space)
    return space[name]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_as_it_is_handed_out_is_blank(alone, name):
    for source in (written("exercises", name), f'def {name}(*given):\n    """Later."""\n'):
        verdict = alone.check(name, {name: source})
        assert (verdict.outcome, verdict.points) == ("not attempted", 0)
    assert not alone.judge.running


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_blank_as_they_are_handed_out_and_right_in_the_solution(alone, name):
    handed_out, right = numbers("exercises", name), numbers("solutions", name)
    assert set(handed_out.values()) == {...}
    assert tuple(handed_out) == EVERY[name].fields == tuple(right)
    first = next(iter(right))
    for given in (handed_out, {**right, first: ...}):
        verdict = checked(alone, name, given)
        assert (verdict.outcome, verdict.points) == ("not attempted", 0)
    assert f"Still blank for {first!r}" in verdict.text
    for given in (right, {k: torch.tensor(v, dtype=torch.float64) for k, v in right.items()}):
        verdict = checked(alone, name, given)
        assert (verdict.outcome, verdict.points) == ("right", EVERY[name].points), str(verdict)
    assert not alone.judge.running


@pytest.mark.parametrize("name", NUMBERS)
def test_nothing_at_all_is_wrong_and_breaks_nothing(alone, name):
    assert checked(alone, name, dict.fromkeys(EVERY[name].fields, 0)).outcome == "wrong"


IDEAS = {
    "which_fits": fits.MISTAKES,
    "log_two": log_two.MISTAKES,
    "which_group": groups.MISTAKES,
    "sixteen_bytes": sixteen.MISTAKES,
    "where_to_divide": divide.MISTAKES,
    "read_config": clinic.MISTAKES,
}


@pytest.mark.parametrize("name", IDEAS)
def test_every_idea_is_met_by_an_answer_and_none_is_right(name):
    called = {called for one in lessons() for _, called in one.WRONG.get(name, {}).values()}
    right = numbers("solutions", name)
    assert {idea.name for idea in IDEAS[name]} <= called
    for idea in IDEAS[name]:
        assert idea.values, idea.name
        for field, value in idea.values.items():
            assert math.isfinite(value) and not close(value, right[field]), (idea.name, field)


def test_two_that_the_frame_would_name_alike_are_named(alone):
    """The idea's words are said; without it the name would be the same."""
    for name, given, called in (
        ("seven_by_five", lesson_02_numbers.seven(item=8), "wrong number"),
        ("tree_or_ring", lesson_01_numbers.times(RING, TREE, 3_409_346), "unit"),
    ):
        assert checked(alone, name, given).name == called


# What is returned in the place of a result, and what that is called.
STRANGE = {
    "cut_gradients": {"3": "not these tensors", "('a', 'b')": "not these tensors"},
    "row_step": {"3": "not these tensors", "('a', 'b', 'c')": "not these tensors"},
    "sharded_init": {"3": "not these tensors", "('a', 'b', 'c')": "not these tensors"},
    "shard_qkv": {"'heads'": "not a pair", "[(float('nan'), 0)]": "not a pair"},
    "kv_heads_on_ranks": {"'heads'": "not a plan", "[(float('nan'), 0)]": "not a plan"},
    "dropout_streams": {"'heads'": "not a context"},
    "recompute_dropout": {"'heads'": "wrong shape"},
    "sequence_mlp": {"'tokens'": "wrong shape"},
    "pay_sums": {"'tokens'": "not a dictionary"},
    "uneven_loss": {"'tokens'": "not a loss", "torch.tensor(float('nan')).double()": "wrong loss"},
    **{
        name: {"'a loss'": "not a pair", "([], {})": "no single loss"}
        for name in ("cut_loss", "ignored_loss", "padded_loss", "smoothed_loss")
    },
    "two_collectives": {
        "[given[0]]": "wrong shape",
        "given[0].sum(-1) * float('nan')": "not finite",
        "torch.zeros_like(given[1], dtype=torch.float64)": "wrong loss",
    },
    "clip_as_one": {"'a norm'": "not a number", "float('nan')": "wrong norm"},
    "reshard": {"'weights'": "not a list", "given[0]": "wrong number of ranks"},
    "pieces_of": {"'seven'": "not pieces"},
    "master_step": {"'seven'": "no update"},
    "shard_groups": {"'seven'": "not groups"},
    "is_sharded": {"'seven'": "no verdict"},
    "reduce_early": {"'shards'": "no backward"},
    "shard_of_all": {"'shards'": "not a pair"},
    "agreed_step": {"'stepped', 1.0": "not a pair", "True, float('nan')": "no step"},
    "promise": {"'words'": "not a list of tensors", "[len]": "not a list of tensors"},
    "same_way": {"'words'": "wrong shape", "[len]": "wrong shape"},
    "tied_head": {"'words'": "not a module", "[len]": "not a module"},
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_result_is_called_what_it_is(desk, name):
    for result, called in STRANGE[name].items():
        verdict = checked(desk, name, f"def {name}(*given):\n    return {result}\n")
        assert (verdict.outcome, verdict.name) == ("wrong", called), str(verdict)


def test_a_disagreement_in_a_backward_is_placed_there_once(desk):
    # f of pieces of the table that differ in length: its backward's all-reduces disagree.
    torn = loss(("copy(table, group)", "copy(table[: len(table) - group.rank()], group)"))
    text = checked(desk, "uneven_loss", torn).text
    assert "disagree" in text and text.count("in the backward") == 1, text
    assert "line 1" not in text


@pytest.mark.parametrize("name", FUNCTIONS)
def test_four_mistakes_at_least_have_names_of_their_own(name):
    tables = [one.WRONG[name] for one in lessons() if name in one.WRONG]
    assert len({called for table in tables for _, called in table.values()}) >= 4


# Pieces of a solution that no word of the check may hold.
HELD_BACK = {
    "mean_over_ranks": ("/ group.size()",),
    "ring_all_reduce": ("isend(", "irecv(", "% n", "for step", "torch.cat"),
    **dict.fromkeys(
        ("cut_gradients", "row_step", "sharded_init"),
        ("dy @", "x.T", ".sum(0)", "nn.Linear(h", "+ bias)", "dy - "),
    ),
    **dict.fromkeys(
        ("conjugates", "gather_from"),
        ("all_reduce(t", "reduce_scatter(dy", "group.rank()]", ".apply(x, g"),
    ),
    **dict.fromkeys(
        ("shard_qkv", "kv_heads_on_ranks"),
        ("torch.cat", "chunk(3)", ".t()", "rank //", "shares", "n // "),
    ),
    **dict.fromkeys(
        ("dropout_streams", "recompute_dropout"),
        ("set_state(before", "nonlocal", "* 1001", "yield"),
    ),
    **dict.fromkeys(
        ("sequence_mlp", "pay_sums", "uneven_loss"),
        (
            'after="sharded"',
            "copy(weight",
            "reduce_scatter(",
            '"q_norm',
            "copy(table",
            "sum(sizes[",
        ),
    ),
    "two_collectives": ("amax", ".exp()", "own - most", "clamp", "where(", "save_for_backward"),
    **dict.fromkeys(("clip_as_one", "reshard"), ("def ", "square()", "return ", "torch.cat(")),
    **dict.fromkeys(
        ("pieces_of", "master_step", "shard_groups", "is_sharded"),
        ("def ", "return ", "reduce_scatter(", "// n", ".float()", "shard["),
    ),
    **dict.fromkeys(
        ("reduce_early", "shard_of_all", "agreed_step"),
        ("def ", "torch.cat", "return ", "all_reduce(", "/= scale", "optimizer.step()"),
    ),
    "promise": ("resize_(0)", "untyped_storage", "new_empty(0)", "scatter(", "all_gather("),
    "same_way": ('"max"', "all_reduce("),
    "tied_head": ("= tokens.weight", "head.weight =", "register_parameter"),
    "from_old_ranks": ("divmod", "old.read(", "old.world *", "torch.zeros("),
    "take_stock": (".clone()", "setdefault", "numel() == 0"),
    "streamed_speed": ("(n - 1) / n", "(N - 1) / N *", "max(", "ceil("),
    "generate_together": ('"max"', "all_reduce(", "if not done"),
    "place_ranks": ("case[", " % a", "range("),
    "mfu_of_log": ("median(", "findall", "24 *"),
    "cheapest_plan": ("86400", "12 / n", "min("),
    "atomic_save": ("disk.rename(", "disk.sync(", 'sync(".")', "dist.barrier("),
}

SAID = ("return ", "// n", "optimizer.step()", "all_reduce(t")  # of these a refusal may speak


@pytest.mark.parametrize("name", HELD_BACK)
def test_no_word_of_a_check_gives_the_answer_away(name):
    """Neither a hint nor what is said of a right answer or of any wrong one."""
    (path,) = (ROOT / "course_lessons").glob(f"lesson_*/{name}.md")
    page = Page(str(path), name)
    told = " ".join([*page.about["hints"], page.about["when_right"]])
    refusals = " ".join(page.entries.values())
    pieces = HELD_BACK[name]
    assert [x for x in pieces if x in told or (x in refusals and x not in SAID)] == []


def all_said(desk: Desk, name: str) -> str:
    """Title, hints, and what is said of the right numbers and of all wrong ones."""
    one = EVERY[name]
    wrong = [given for lesson in lessons() for given, _ in lesson.WRONG.get(name, {}).values()]
    told = [checked(desk, name, given).text for given in wrong]
    return " ".join([one.title, *one.hints, one.when_right, *told])


def spellings(value: float) -> set[str]:
    """How somebody might write the number, in several units, with two digits or more."""
    found = set()
    for unit in (1e-3, 1, 1e3):
        x = value / unit
        found |= {f"{x:g}", f"{x:.3g}", f"{x:.4g}", f"{x:,.0f}", f"{x:.0f}"}
    return {text for text in found if len(re.sub(r"\D", "", text)) > 1}


OF_THE_QUESTION = {"eighteen": {"16", "18"}, "read_config": {"10"}}  # bits, bytes, a factor


@pytest.mark.parametrize("name", NUMBERS)
def test_no_hint_and_no_verdict_holds_a_right_number(alone, name):
    words = set(re.findall(r"(?<![\w.])\d[\d.,]*\d", all_said(alone, name)))
    right = [value for value in numbers("solutions", name).values() if abs(value) > 2 or value % 1]
    assert not words & set().union(*map(spellings, right)) - OF_THE_QUESTION.get(name, set())


SECRET = {
    "mystery_cut": r"\b(48|16|[A-E] is (cut|by|1|2|3))\b",
    "read_config": r"\b(64|3\.6|4\.5|1,?048,?576|943,?718|10,?240|5e8|500 million)\b",
}


@pytest.mark.parametrize("name", SECRET)
def test_no_refusal_says_what_is_right_in_other_words(alone, name):
    assert not re.search(SECRET[name], all_said(alone, name))


@pytest.mark.parametrize(
    "name", ["who_knows", "mean_over_ranks", "which_group", "sixteen_bytes", "where_to_divide"]
)
def test_hints_to_these_questions_hold_no_number(name):
    said = " ".join([*EVERY[name].hints, EVERY[name].when_right])
    assert not re.search(r"\d", said.replace("stage 1", "").replace("float32", ""))
