"""Numbers for lesson 07's question: the right ones, and misreadings with their names."""

from __future__ import annotations

import math

START, LATER = "at the start, logged", "later, logged"
EIGHT, PADDING = "eight ranks, too high by", "padding, too high by"
ADDS_UP = "softmax of a rank adds up to"
DENSE, RANK_0, RANK_1 = "target, one process", "target, rank 0", "target, rank 1"
NUMBERS = {
    START: math.log(100_514), LATER: 3 + math.log(2), EIGHT: math.log(8),
    PADDING: math.log(51_200 / 50_257), ADDS_UP: 0.5, DENSE: -0.7, RANK_0: -0.85, RANK_1: 0.15,
}  # fmt: skip
MISREAD = {
    "base 2": (
        {START: math.log2(2 * 50257), LATER: 4.0, EIGHT: 3.0, PADDING: math.log2(51200 / 50257)},
        "wrong logarithm",
    ),
    "base 10": ({START: math.log10(100514), EIGHT: math.log10(8)}, "wrong logarithm"),
    "doubled": ({START: 2 * math.log(50257), LATER: 6.0, EIGHT: 8.0}, "the loss times n"),
    "unchanged": ({START: math.log(50257), LATER: 3.0, EIGHT: 0}, "nothing changes"),
    "half of the words": ({START: math.log(25128.5), LATER: 3 - math.log(2)}, "one rank's entries"),
    "two of eight": ({EIGHT: math.log(2)}, "wrong number of ranks"),
    "seven more": ({EIGHT: math.log(7)}, "wrong number of ranks"),
    "a share of the loss": (
        {LATER: 3 * math.log(100514) / math.log(50257)},
        "shrinks with the loss",
    ),
    "eight times": ({EIGHT: 8, PADDING: 51200 / 50257}, "the ratio itself"),
    "the excess": ({PADDING: 943 / 50257}, "the ratio itself"),
    "padding alone": ({PADDING: math.log(943)}, "the padding's own logarithm"),
    "zeros": ({PADDING: 0.0}, "zero logits cost nothing"),
    "adds up to two": ({ADDS_UP: 2.0}, "twice as much"),
    "adds up to one": ({ADDS_UP: 1.0}, "nothing changes"),
    "both halves": ({RANK_0: -0.35}, "half of all"),
    "both ranks find it": ({RANK_1: -0.85}, "target on both ranks"),
    "rank 1 idle": ({RANK_1: 0}, "the other rank does nothing"),
    "softmax alone": ({DENSE: 0.3, RANK_0: 0.15}, "no one-hot"),
    "its own softmax": ({RANK_1: 0.3}, "each rank's own softmax"),
    "signs": ({DENSE: 0.7, RANK_0: 0.85, RANK_1: -0.15}, "sign"),
    "eight times log 2": ({EIGHT: 8 * math.log(2)}, "wrong number of ranks"),
    "all of the loss": ({PADDING: math.log(51200)}, "the loss itself"),
    "the padding's share": ({PADDING: 943 / 51200}, "a share of the rows"),
    "padding helps": ({PADDING: math.log(50257 / 51200)}, "too low"),
    "both as one process": ({RANK_1: -0.7}, "target on both ranks"),
    "a logarithm": ({DENSE: math.log(0.3)}, "the loss, not its gradient"),
    "a loss": ({DENSE: -math.log(0.3)}, "the loss, not its gradient"),
    "two more": ({LATER: 5.0}, "the ratio itself"),
    "by the probability": ({DENSE: -1 / 0.3}, "the loss, not its gradient"),
    "minus the softmax": ({DENSE: -0.3}, "sign"),
    "two ideas": ({EIGHT: 8.0, RANK_1: 0.0}, "several ideas"),
    "unforeseen": ({START: 77.0}, "wrong number"),
}
RIGHT: dict = {"log_two": {"by hand": NUMBERS}}
WRONG: dict = {
    "log_two": {how: ({**NUMBERS, **wrong}, name) for how, (wrong, name) in MISREAD.items()}
}
