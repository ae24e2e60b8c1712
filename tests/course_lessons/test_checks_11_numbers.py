"""The question of lesson 11 with numbers: right ones pass, each misreading goes by its name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from course_classroom.judge import frame
from course_classroom.judge.thought import close
from course_lessons.lesson_11 import choose_unit as count

RIGHT = count.RIGHT.answers()


def verdict(values: dict) -> frame.Verdict:
    return frame.judge(frame.find("choose_unit"), {}, {"choose_unit": values}, None)


def test_the_model_agrees_with_a_count_unit_by_unit():
    """Embedding, blocks, head, one after another through a forward and a backward."""
    for in_a_block, kind in ((1, "block"), (4, "layer")):
        parts = [3, 1, 4, 4] if in_a_block == 4 else [12]
        units = [count.TABLE, *[p * count.H**2 for _ in range(count.LAYERS) for p in parts]]
        units.append(count.TABLE)
        forward, backward = list(units), units[1:-1]
        assert RIGHT[f"gathers, {kind}"] == len(forward) + len(backward)
        assert RIGHT["shards"] == pytest.approx(sum(units) / count.N * count.ITEM / 1e9, rel=1e-12)
        most = sum(units) / count.N + max(units)
        assert RIGHT[f"most, {kind}"] == pytest.approx(most * count.ITEM / 1e9, rel=1e-12)
    moves = sum(forward) + sum(backward) + sum(units)
    sent = moves * count.ITEM * (count.N - 1) / count.N / 1e9
    assert RIGHT["sent, block"] == pytest.approx(sent, rel=1e-12)
    assert RIGHT["sent, fast, k = 4"] < RIGHT["sent, block, k = 4"] == 4 * RIGHT["sent, block"]


IDEAS = {entry: replace(count.RIGHT, **counts).answers() for entry, counts in count.IDEAS.items()}


@pytest.mark.parametrize("name", IDEAS)
def test_a_misreading_is_refused_by_its_name(name):
    found = verdict(IDEAS[name])
    assert (found.outcome, found.points) == ("wrong", 0)
    assert found.name == name.partition(" #")[0], str(found)


def test_every_idea_changes_a_number_and_none_is_right():
    for mistake in count.MISTAKES:
        assert mistake.values, mistake.name
        for field, value in mistake.values.items():
            whole = field.startswith("gathers") and value != RIGHT[field]
            assert whole or not close(value, RIGHT[field]), (mistake.name, field)


# What a learner is likely to write, in the question's own numbers: billions of numbers, and GB.
T, B, PSI = 50_304 * 4096 / 1e9, 12 * 4096**2 / 1e9, (2 * 50_304 * 4096 + 384 * 4096**2) / 1e9
PART = 15 / 16
LIKELY = {
    "shards": {2 * PSI, 4 * PSI / 16, 2 * (PSI - T) / 16, 2 * 32 * B / 16, PSI / 16},
    "most, model": {2 * PSI, 2 * (PSI / 16 + 2 * PSI)},
    "most, block": {2 * T, 2 * (PSI / 16 + B), 2 * (PSI / 16 + B + T), 2 * (PSI / 16 + 2 * T)},
    "most, layer": {
        *(2 * (PSI / 16 + n * B / 12) for n in (1, 3, 4)),
        2 * T,
        2 * (PSI / 16 + T + B / 3),
    },
    "most, block, 1 ahead": {
        2 * (PSI / 16 + n) for n in (T, 2 * B, 2 * T, T + 2 * B, 2 * T + 2 * B)
    } | {2 * (T + B)},
    "gathers, block": {34, 62, 64, 67, 68, 100, 102},
    "gathers, layer": {130, 254, 256, 260, 4 * 66, 4 * 68, 388, 390},
    "sent, block": {
        2 * n * PART
        for n in (3 * PSI, 3 * PSI - T, 2 * PSI - 2 * T, PSI - 2 * T, 4 * PSI - 2 * T)
    } | {2 * (3 * PSI - 2 * T), 4 * (3 * PSI - 2 * T) * PART, 2 * (3 * PSI - 2 * T) / 16},
    "sent, block, k = 4": {
        2 * n * PART
        for n in (3 * PSI - 2 * T, 12 * PSI, 9 * PSI - 8 * T, 6 * PSI - 2 * T, 12 * PSI - 4 * T)
    } | {8 * (3 * PSI - 2 * T)},
    "sent, fast, k = 4": {
        2 * n * PART
        for n in (2 * PSI, 12 * PSI, 4 * PSI, 5 * PSI, 8 * PSI - 8 * T, 8 * PSI - 4 * T)
    } | {16 * PSI},
}  # fmt: skip


@pytest.mark.parametrize("field", LIKELY)
def test_what_is_likely_in_one_field_is_named(field):
    for value in sorted(LIKELY[field]):
        found = verdict({**RIGHT, field: value})
        assert found.outcome == "wrong"
        assert found.name not in ("wrong number", "unit"), (value, str(found))
        vague = ("ot right", "Your value of", "wrong too")
        assert not any(text in found.text for text in vague), (value, str(found))
