"""Answers to `where_to_divide` of lesson 10: by hand, and misread in likely ways."""

from __future__ import annotations

import torch

from course_lib.zero import LossScale

POWERS = [2.0**k for k in range(-12, 30)]


def half(x: float) -> float:
    """As a rank would hold it."""
    return torch.tensor(x, dtype=torch.float64).half().item()


def summed_first(gradient: float, n: float) -> float:
    """One place after another, each sum rounded; then divided."""
    return half(half(half(gradient) * n) / n)


def divided_first(gradient: float, n: float) -> float:
    return half(half(half(gradient) / n) * n)


def played() -> dict[str, float]:
    """The answers, by asking torch's own fp16."""
    scale = LossScale(2.0**16, patience=2)
    for _ in range(5):
        scale.after(overflow=True)
    small = 2.0**-20
    return {
        "a": min(n for n in POWERS if n >= 1 and summed_first(2048, n) == float("inf")),
        "b": divided_first(2048, 1024),
        "c": max(n for n in POWERS if n >= 1 and divided_first(small, n) == small),
        "d": divided_first(small, 64) / small,
        "e": min(s for s in POWERS if divided_first(small * s, 64) == small * s),
        "f": max(s for s in POWERS if summed_first(0.5 * s, 64) == 0.5 * s),
        "g": max(s for s in POWERS if divided_first(0.5 * s, 64) == 0.5 * s),
        "h": 1 / (8 * 4),
        "i": scale.value,
    }


NUMBERS = played()
MISREAD = [
    ("the last that fits", {"a": 16}, "the last that fits"),
    ("one too many ranks", {"a": 64}, "just above the end"),
    ("a rank's part", {"b": 2}, "a rank's part"),
    ("not divided", {"b": 2048 * 1024}, "not divided"),
    ("a tie upwards", {"c": 32, "e": 2}, "tie rounds to even"),
    ("normal numbers", {"c": 2.0**-6, "e": 4096}, "the smallest normal number"),
    ("nothing lost", {"d": 1}, "lost before it is summed"),
    ("a part of the smallest", {"d": 0.25}, "lost before it is summed"),
    ("as many as ranks", {"e": 64}, "more than is needed"),
    ("a scale too large", {"f": 2048}, "just above the end"),
    ("a scale too large, divided", {"g": 2**17}, "just above the end"),
    ("half the scale", {"f": 512}, "less than fits"),
    ("half the scale, divided", {"g": 2**15}, "less than fits"),
    ("half the ranks", {"c": 8}, "one step further would do"),
    ("twice the scale", {"e": 8}, "more than is needed"),
    ("one rank's gradient", {"f": 2**16}, "a rank's part"),
    ("as if summed", {"g": 1024}, "the divided sum"),
    ("only the ranks", {"h": 1 / 8}, "k forgotten"),
    ("only the micro-batches", {"h": 1 / 4}, "N forgotten"),
    ("how many there are", {"h": 32}, "inverted factor"),
    ("every overflow", {"i": 2048}, "only the first is forgiven"),
    ("forgiven for ever", {"i": 65536}, "only the first is forgiven"),
    ("every second", {"i": 16384}, "only the first is forgiven"),
    ("so large each part", {"g": 2**22}, "a rank's part"),
    ("the exponent, a", {"a": 5}, "an exponent"),
    ("the exponent, c", {"c": 4}, "an exponent"),
    ("the exponent, f", {"f": 10}, "an exponent"),
    ("the exponent, g", {"g": 16}, "an exponent"),
    ("a value", {"d": 2**-26}, "value instead of fraction"),
    ("a sum of both", {"h": 1 / 12}, "added"),
    ("k over N", {"h": 0.5}, "k upside down"),
    ("two forgiven", {"i": 8192}, "only the first is forgiven"),
    ("halved once", {"i": 32768}, "only the first is forgiven"),
    ("the largest value", {"g": 65504}, "no power of two"),
    ("one less", {"f": 1023}, "no power of two"),
    ("several calls at once", {"h": 1 / 8, "i": 2048}, "several ideas"),
    ("unforeseen", {"f": 3}, "wrong number"),
]

RIGHT: dict = {"where_to_divide": {"by torch's own fp16": NUMBERS}}
WRONG: dict = {
    "where_to_divide": {how: ({**NUMBERS, **values}, called) for how, values, called in MISREAD}
}
