"""Machines and models of `streamed_speed`, drawn anew for every check, and what is right of each.

One count serves for the right answer and for the wrong ideas. Lesson 14.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

BYTES, STREAMED, RATE, DENSE, TP, EVEN, PREFILL = KEYS = (
    "bytes",
    "stage 3",
    "tokens/s",
    "dense",
    "tp",
    "break-even",
    "prefill",
)
COUNT = 10

Case = Mapping[str, int | float]


def make(r: Random, k: int) -> Case:
    """Batches so small that a rank waits for its memory, larger ones for which it waits for the
    link, and such that the arithmetic takes longest; at last two that are unlike the others."""
    last = {COUNT - 2: _even, COUNT - 1: _slow}
    return last[k](r) if k in last else _case(r, k % 3)


def _case(r: Random, kind: int) -> Case:
    hidden = 128 * r.randint(24, 64)
    layers = r.randint(24, 64)
    ranks, item = r.choice((3, 4, 6, 8)), r.choice((2, 4))
    link, flops = r.randint(11, 60) * 1e9, r.randint(60, 400) * 1e12
    case = {
        "parameters": 12 * layers * hidden**2 + r.randint(30, 250) * 1000 * hidden,
        "item": item,
        "ranks": ranks,
        "layers": layers,
        "hidden": hidden,
        "link": link,
        "memory": r.randint(900, 3300) * 1e9,
        "flops": flops,
        "prompt": r.randint(150, 900),
        "batch": 1,
    }
    if not _rounds_alike(case):
        return _case(r, kind)
    even = break_even(case)
    sizes = ((2, 8), (even // 4, even // 2), (9 * even, 14 * even))
    return {**case, "batch": r.randint(*sizes[kind])}


def _even(r: Random) -> Case:
    """Powers of two, with which a batch breaks even exactly, whatever the order of the counting."""
    case = {"item": 2, "ranks": r.choice((4, 8)), "layers": 32, "hidden": 2 ** r.randint(12, 13)}
    case |= {"parameters": 2 ** r.randint(34, 36), "link": 2.0 ** r.randint(34, 36)}
    case |= {"memory": 2.0**41, "flops": 2.0 ** r.randint(46, 48), "prompt": 2 ** r.randint(8, 9)}
    return {**case, "batch": 2 ** r.randint(4, 7)}


def _slow(r: Random) -> Case:
    """A rank's own memory that is slower than the link: what it reads decides at stage 3 too."""
    case = _case(r, 0)
    return {**case, "memory": case["link"] / r.randint(2, 4)}


def _rounds_alike(case: Case) -> bool:
    """Whether no count of the break-even lies so near a whole number that digits decide."""
    exact = travels(case)
    others = (1, 2, 1 / 3, case["ranks"] / (case["ranks"] - 1))
    return exact > 40 and all(0.02 < factor * exact % 1 < 0.98 for factor in others)


# ---- the one count
def transfer(case: Case) -> float:
    """Seconds until a rank has received what it lacks of the weights."""
    return received(case) / case["link"]


def received(case: Case) -> float:
    weights = case["item"] * case["parameters"]
    return weights * (case["ranks"] - 1) / case["ranks"]


def computed(case: Case, tokens: float, share: float = 1.0) -> float:
    """Seconds for a forward of `tokens` tokens with a `share` of the weights: they are read from
    the rank's own memory while it computes."""
    read = share * case["item"] * case["parameters"] / case["memory"]
    return max(read, operations(case, tokens, share))


def operations(case: Case, tokens: float, share: float = 1.0) -> float:
    return 2 * share * case["parameters"] * tokens / case["flops"]


def sums(case: Case, tokens: float, each: float = 2.0) -> float:
    """Seconds of the all-reduces of a forward that is cut over tp."""
    n = case["ranks"]
    activations = case["item"] * tokens * case["hidden"]
    return each * case["layers"] * 2 * (n - 1) / n * activations / case["link"]


def break_even(case: Case) -> int:
    return math.ceil(travels(case))


def travels(case: Case) -> float:
    """Tokens whose operations take as long as the weights travel."""
    moved = case["item"] * (case["ranks"] - 1) / case["ranks"]
    return moved * case["flops"] / (2 * case["link"])


def streamed(case: Case, tokens: float) -> float:
    return max(transfer(case), computed(case, tokens))


def right(case: Case) -> dict[str, float]:
    """What each key comes to."""
    n, b = case["ranks"], case["batch"]
    step = streamed(case, b)
    return {
        BYTES: received(case),
        STREAMED: step,
        RATE: n * b / step,
        DENSE: computed(case, b),
        TP: computed(case, n * b, 1 / n) + sums(case, n * b),
        EVEN: break_even(case),
        PREFILL: streamed(case, b * case["prompt"]),
    }
