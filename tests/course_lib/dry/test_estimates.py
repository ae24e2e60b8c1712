"""The closed form of a peak beside the counted one, over layouts that nobody chose by hand."""

from __future__ import annotations

import random

import pytest

from course_lib import dry
from course_lib.train.options import parse

SMALL = "--heads 4 --rows 8"
FOUND = [  # ways in which a closed form has once been off by more than a tenth
    (4, "--hidden 96 --layers 3 --inner 384 --tp 4 --sequence --recompute --length 64"
        " --vocabulary 600 --stage 2 --offload cpu"),
    (2, "--hidden 160 --layers 5 --inner 320 --tp 2 --sequence --recompute --length 32"
        " --vocabulary 600 --stage 1 --accumulate 2"),
    (4, "--family llama --kv-heads 1 --hidden 160 --layers 2 --inner 320 --tp 4 --length 32"
        " --vocabulary 320 --stage 0 --precision bfloat16"),
]  # fmt: skip


def drawn(seed: int) -> tuple[int, str]:
    """A layout, and the ranks it is for."""
    pick = random.Random(seed).choice
    family, hidden, tp = pick(["gpt2", "llama"]), pick([64, 96, 160]), pick([1, 2, 4])
    stage, kv = pick([0, 1, 2, 3]), pick([1, 2, 4]) if family == "llama" else 4
    words = [
        f"--family {family} --hidden {hidden} --kv-heads {kv} --inner {pick([2, 4]) * hidden}",
        f"--layers {pick([2, 3, 5])} --tp {tp} --length {pick([32, 64])} --stage {stage}",
        f"--accumulate {pick([1, 2])} --vocabulary {pick([320, 600, 2000])}",
        f"--precision {pick(['float32', 'bfloat16'])}",
        "--sequence" if tp > 1 and pick([True, True, False]) else "",
        "--recompute" if pick([True, False]) else "",
        "--offload cpu" if stage > 1 and pick([True, False]) else "",
    ]
    return tp * pick([1, 2, 4]), " ".join(words)


def compare(world: int, words: str, *, within: float) -> None:
    counted = dry.run(parse(f"{words} {SMALL}".split()), world)
    assert counted.differences() == [], words
    assert counted.estimate["peak"] == pytest.approx(counted.peak, rel=within), words


@pytest.mark.parametrize(("world", "words"), FOUND, ids=["sequence", "alone", "rms"])
def test_a_peak_that_was_off(world, words):
    compare(world, words, within=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_a_peak_of_any_layout(seed):
    compare(*drawn(seed), within=0.10)
