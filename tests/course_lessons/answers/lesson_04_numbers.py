"""Answers to lesson 04's questions with numbers, and the name under which each is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal

import torch
import torch.nn.functional as F

from course_lessons.lesson_04 import tp_pays as pays


def bent(a: float, b: float, bend=F.gelu, other=F.relu) -> dict[str, float]:
    """A pair with its four values, from torch's own functions."""
    x, y = torch.tensor([a, b], dtype=torch.float64)
    return {
        "a": a,
        "b": b,
        "GELU(a) + GELU(b)": float(bend(x) + bend(y)),
        "GELU(a + b)": float(bend(x + y)),
        "ReLU(a) + ReLU(b)": float(other(x) + other(y)),
        "ReLU(a + b)": float(other(x + y)),
    }


def sizes(
    work: float = 48, reduces: float = 2, alphas: float = 14, sent: float = 1.75, item: float = 2
) -> dict[str, float]:
    """The seven numbers by the formula, solved by hand: `work` FLOP for each token and h²."""
    found = {"one rank": 1e3 * work * 2048 * 1024**2 / 200e12}
    links = {"NVLink": (4e-6, 300e9), "InfiniBand": (30e-6, 25e9)}
    for link, (alpha, rate) in links.items():
        wide = sent * 2048 * item / rate
        found[f"one all-reduce, {link}"] = 1e3 * (alphas * alpha + wide * 1024)
        for name, times in (("faster", 1), ("four times as fast", 4)):
            p, q = work * 2048 / 200e12 * (1 / times - 1 / 8), reduces * wide
            r = reduces * alphas * alpha
            found[f"{name} from, {link}"] = (q + math.sqrt(q * q + 4 * p * r)) / (2 * p)
    times_first = sorted(found, key=lambda name: " from, " in name)  # else in the order above
    return {name: found[name] for name in times_first}


def swapped(*names: str) -> dict[str, float]:
    """The right times and sizes, of which two words have changed places."""
    first, second = names
    there = {k: k.replace(first, "?").replace(second, first).replace("?", second) for k in T}
    return {k: T.get(other, T[k]) for k, other in there.items()}


NUMBERS = {"gelu_counterexample": bent(1, -1), "tp_pays": sizes()}
G, T = NUMBERS.values()
FIRST = "GELU(a) + GELU(b)"
DECIMALS = {name: Decimal(str(round(value, 4))) for name, value in G.items()}
RIGHT: dict = {"gelu_counterexample": {"other order": bent(-1, 1), "decimals": DECIMALS}}
WRONG: dict = {
    "gelu_counterexample": {
        "zero": (bent(0, 1), "zero"),
        "both zero": (bent(0, 0), "zero"),
        "far right": (bent(6, 7), "straight part"),
        "far left": (bent(-6, -7), "straight part"),
        "very far": (bent(1e6, 1e6), "too far from zero"),
        "both positive": (bent(1, 1), "same sign"),
        "both negative": (bent(-1, -1), "same sign"),
        "larger": (bent(2, -1), "not the smallest"),
        "halves": (bent(0.5, -0.5), "not integers"),
        "exchanged": (
            {**G, **dict(zip(list(G)[2:], (0, 0.683, 0, 1), strict=True))},
            "sides exchanged",
        ),
        "odd": ({**G, FIRST: 0.0}, "GELU taken as odd"),
        "ReLU": ({**G, FIRST: 1}, "ReLU's values"),
        "cut off": ({**G, FIRST: 0.841}, "cut off below zero"),
        "SiLU": (bent(-1, 1, F.silu), "SiLU's values"),
        "the distribution": ({**G, FIRST: 1, "GELU(a + b)": 0.5}, "only the distribution"),
        "equal sides": ({**G, FIRST: 0.0, "ReLU(a) + ReLU(b)": 0.0}, "equal sides"),
        "unforeseen": ({**G, "GELU(a + b)": 3}, "wrong number"),
        "√2 left out": (G | {FIRST: 0.8427}, "√2 left out"),
        "sigmoid(1.702 x)": (G | {FIRST: 0.6916}, "an approximation"),
        "|x| for ReLU": (G | {"ReLU(a) + ReLU(b)": 2}, "absolute values"),
    },
    "tp_pays": {
        "forward only": (sizes(work=16, reduces=1), "forward only"),
        "no backward products": (sizes(work=16), "the backward computes too"),
        "one gradient": (sizes(work=32), "two gradients for a product"),
        "one weight": (sizes(work=24), "half of the FLOP"),
        "one all-reduce": (sizes(reduces=1), "one all-reduce"),
        "a layer's": (sizes(reduces=4), "four all-reduces"),
        "the article's count": (sizes(sent=2), "limit for large N"),
        "without alpha": (sizes(alphas=0), "no α"),
        "one alpha": (sizes(alphas=1), "one α for all"),
        "one round": (sizes(alphas=7, sent=0.875), "only one round"),
        "α's of one round": (sizes(alphas=7), "α's of one round"),
        "five products": (sizes(work=40), "no dX"),
        "three weights": (sizes(work=72), "SwiGLU's products"),
        "elements": (sizes(item=1), "elements, not bytes"),
        "four bytes": (sizes(item=4), "float32"),
        "h wide inside": (sizes(work=12), "inner size left out"),
        "no compute on the eight": (
            {
                **T,
                **{k: v for k, v in replace(pays.RIGHT, share=0).answers().items() if "from" in k},
            },
            "nothing left to compute",
        ),
        "seconds": ({**T, "one rank": T["one rank"] / 1e3}, "unit"),
        "unforeseen": ({**T, "faster from, NVLink": 77}, "wrong number"),
        "the two sizes exchanged": (
            swapped("faster from", "four times as fast from"),
            "goals exchanged",
        ),
        "of the other link": (swapped("NVLink", "InfiniBand"), "links exchanged"),
    },
}
