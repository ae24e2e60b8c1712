"""Lesson 15's question with numbers: misreadings are named, and no answer is given away."""

from __future__ import annotations

import pytest

from course_lib.estimate.over_tp import tensor_parallel_bytes
from course_lib.gpt import Config
from course_lib.ledger import forms


def block(tokens: int, *, h: int = 4096, tp: int = 8, recompute: bool = False) -> float:
    """Bytes of a block over tp, by the closed forms that the ledger is held to."""
    sizes = {"vocabulary": 1024, "length": tokens, "hidden": h, "heads": 32, "layers": 1}
    one, two = (
        tensor_parallel_bytes(
            Config.gpt2(**{**sizes, "layers": layers}, recompute=recompute), 1, tokens, tp, width=2
        )
        for layers in (1, 2)
    )
    return two - one


def gradients(h: int = 4096, tp: int = 8) -> float:
    return forms.all_reduce(16, 2 * 12 * h * h // tp)


RIGHT = {
    "over tp": block(8192) / 1e6,
    "over dp": gradients() / 1e6,
    "tokens": gradients() / block(1),
    "tokens, recomputed": gradients() / block(1, recompute=True),
    "tokens, stage 3": 1.5 * gradients() / block(1),
    "tokens, 4 micro-batches": gradients() / (4 * block(1)),
    "tokens, tp 2": gradients(tp=2) / block(1, tp=2),
    "tokens, half the width": gradients(2048) / block(1, h=2048),
}
MISREAD = {
    "weights not sharded": {"over dp": 754.975},
    "a replica keeps its part": {"over dp": 100.663},
    "limit for many ranks": {"over tp": 536.871, "over dp": 100.663},
    "attention's weights alone": {"over dp": 31.457},
    "the MLP alone": {"over dp": 62.915},
    "float32": {"over tp": 939.524, "over dp": 188.744},
    "a factor of two": {"over tp": 234.881, "over dp": 47.186},
    "everything again": {"tokens, recomputed": 822.857},
    "recomputation sends nothing": {"tokens, recomputed": 1645.714},
    "stage 3 as the others": {"tokens, stage 3": 1645.714},
    "three times": {"tokens, stage 3": 4937.143},
    "all-reduced at stage 3": {"tokens, stage 3": 3291.429},
    "of the whole step": {"tokens, 4 micro-batches": 1645.714},
    "the other way round": {"tokens, 4 micro-batches": 6582.857},
    "3h": {"tokens": 12288.0},
    "as h²": {"tokens, half the width": 411.429},
    "the width cancels": {"tokens, half the width": 1645.714},
    "of all ranks": {"over tp": 3758.096, "over dp": 1509.949},
    "MiB": {"over tp": 448.0, "over dp": 90.0},
    "one all-reduce": {"over tp": 117.441},
    "condition of a later question": {"over tp": 704.643},
    "tp on one side only": {"tokens, tp 2": 6582.857},
    "larger, not smaller": {"tokens, half the width": 3291.429},
}


@pytest.mark.parametrize(("fields", "may"), [
    (["over tp"], ["only the forward's sums", "elements", "one of the two rounds"]),
    (["over dp"], ["elements", "one of an all-reduce's two rounds"]),
    (["over tp", "over dp"], ["elements", "one of an all-reduce's two rounds"]),
])  # fmt: skip
def test_half_of_it_may_have_come_about_in_several_ways(alone, fields, may):
    given = {**RIGHT, **{field: RIGHT[field] / 2 for field in fields}}
    verdict = alone.check("changes_sides", {}, {"changes_sides": given})
    assert verdict.name == "a factor of two" and all(way in verdict.text for way in may)


def test_twice_as_much_at_stage_3_is_an_all_reduce_too_many(alone):
    given = {**RIGHT, "tokens, stage 3": 2 * RIGHT["tokens"]}
    verdict = alone.check("changes_sides", {}, {"changes_sides": given})
    assert verdict.name == "all-reduced at stage 3" and "reduce-scatters" in verdict.text
    assert "gathered for the forward" not in verdict.text  # both gathers were counted


@pytest.mark.parametrize(("field", "called"), [
    ("tokens, recomputed", "recomputation sends nothing"),
    ("tokens, stage 3", "stage 3 as the others"),
    ("tokens, tp 2", "tp on one side only"),
    ("tokens, half the width", "the width cancels"),
])  # fmt: skip
def test_a_variant_that_is_as_tokens_is_named_by_what_the_variant_changes(alone, field, called):
    given = {**RIGHT, field: RIGHT["tokens"]}
    assert alone.check("changes_sides", {}, {"changes_sides": given}).name == called


def test_the_missing_factor_of_dp_is_named_in_all_that_it_spoils(alone):
    """As a learner makes it: in the bytes over dp, and in every border."""
    kept = ("over tp",)
    given = {k: v if k in kept else v * 16 / 15 for k, v in RIGHT.items()}
    verdict = alone.check("changes_sides", {}, {"changes_sides": given})
    assert verdict.name == "a replica keeps its part", str(verdict)
    assert "tp 2" in str(verdict) and "would follow" not in str(verdict)


def test_what_follows_from_a_wrong_border_is_not_held_against_it_again(alone):
    off = {k: 1.37 * v if k.startswith("tokens") else v for k, v in RIGHT.items()}
    verdict = alone.check("changes_sides", {}, {"changes_sides": off})
    said = str(verdict)
    assert verdict.outcome == "wrong" and "Your value of 'tokens' is wrong." in said
    assert "'tokens, tp 2', 'tokens, half the width' would follow from your 'tokens'" in said
    two = {**off, "tokens, half the width": 411.429}  # and a wrong idea of its own
    said = str(alone.check("changes_sides", {}, {"changes_sides": two}))
    assert "'tokens, half the width': The bytes over dp grow with h²" in said, said
    assert "'tokens': wrong." in said
