"""Answers to lesson 03's questions: what stands in the place of right numbers, and the idea."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction


def filled(names: str, *values: object) -> dict:
    """The numbers of a question, of two ranks each."""
    fields = [f"{name}, rank {rank}" for name in names.split(",") for rank in (0, 1)]
    return dict(zip(fields, values, strict=True))


IN_PLACE = filled("exp,relu,square,beside", 5, 5, 1, 1, 6, 10, 25, 25)
PLAIN = filled("A plain,A right,B plain", 1.5, 1, -1.5, 0.5, 16, 24)
PIECES = filled("A,B,C,D", 25, 30, 4, 1, 68, 17, 4, 1)
SHOULD_BE = {**filled("exp", 2, 3), **filled("relu", 0, 1), **filled("beside", 10, 15)}
MISREAD = {
    "in_place_gradients": [
        (SHOULD_BE, "out of place"),
        (filled("exp", 2, 3), "out of place"),
        (filled("exp", 4, 6), "doubled"),
        ({**filled("exp", 6, 6), **filled("square", 16, 16)}, "the input overwritten"),
        (filled("square", 68, 68), "the result kept"),
        (filled("square", 2 * math.sqrt(34), 2 * math.sqrt(34)), "the result kept"),
        (filled("beside", 5, 5), "the branch without its factor"),
        (filled("beside", 35, 40), "both branches added"),
        (filled("relu", 2, 2), "relu's result used as gradient"),
        ({**filled("exp", 2, 3), **filled("beside", 5, 5)}, "several ideas"),
        (filled("exp", 7, 7), "wrong number"),
        (filled("exp", 10, 10), "summed on the way back as well"),
        (filled("exp", 2.5, 2.5), "mean"),
        (filled("square", 10, 6), "ranks exchanged"),
        (filled("beside", 50, 75), "c counted twice"),
        (filled("square", 34, 34), "the result kept"),
        (filled("relu,square", 2, 2, 34, 34), "several ideas"),
    ],
    "right_gather": [
        ({**filled("B", 1, -1), **filled("C", 17, -17)}, "a sum left out"),
        (filled("C", 17, -17), "a sum left out"),
        ({**filled("A", 50, 60), **filled("D", 8, 2)}, "copies summed"),
        (filled("D", 8, 2), "copies summed"),
        (filled("D", 1, -1), "f forgotten"),
        (filled("C", 4, 1), "y forgotten"),
        (filled("C", 25, 22), "y of one rank"),
        (filled("C", 136, 34), "summed on the way back through g"),
        (filled("A", 30, 25), "the other piece"),
        ({name: value / 2 for name, value in PIECES.items()}, "mean"),
        (filled("A", 8, 8), "wrong number"),
        (filled("B", 3, 2), "weights of one rank"),
        (filled("C", 13, -4), "y of one rank"),
        (filled("A", 5, 3), "the square forgotten"),
        (filled("A", 25, 15), "the square forgotten"),
        (filled("B", 12, 5), "the term, not its derivative"),
        (filled("C", 52, 4), "y of one rank"),
    ],
    "plain_all_reduce": [
        ({**filled("A plain", 2, 4), **filled("A right", 2, 4)}, "nothing through S"),
        (filled("A plain", -1.5, 0.5), "as it should be"),
        (filled("A right", 1.5, 1), "the other rank's loss left out"),
        (filled("A right", -1, 3.5), "only the other rank's loss"),
        (filled("A right", 0.25, 2.25), "mean"),
        (filled("A right", 2.5, 2.5), "plain gradients summed"),
        (filled("A plain", 0, 0), "S of one rank"),
        (filled("B plain", 32, 48), "summed on the way back as well"),
        (filled("B plain", 4, 18), "y of one rank"),
        (filled("B plain", 8, 12), "half of it"),
        ({"B plain, rank 1": 8}, "y's own gradient"),
        (filled("B plain", 0, 0), "no gradient at all"),
        (filled("A right", 9, 9), "wrong number"),
        (filled("B plain", 2, 3), "y forgotten"),
        (filled("B plain", 128, 192), "loss not differentiated"),
        (filled("B plain", 64, 96), "loss not differentiated"),
        (filled("A right", 0.5, -1.5), "ranks exchanged"),
        (filled("A right", -0.75, 0.25), "mean of the losses"),
        (filled("A right", 5.5, 7.5), "sign of the path through S"),
        (filled("A right", -12, -10), "S not squared"),
        (filled("A right", -3.5, -3.5), "only the path through S"),
        (filled("A right", -3, -0.5), "only the other loss's term"),
        (filled("B plain", 8, 16), "w for x"),
        (filled("B plain", 40, 40), "plain gradients summed"),
    ],
}
NUMBERS = {"in_place_gradients": IN_PLACE, "right_gather": PIECES, "plain_all_reduce": PLAIN}
RIGHT: dict = {
    "in_place_gradients": {
        "fractions": {name: Fraction(value) for name, value in IN_PLACE.items()},
        "decimals": {name: Decimal(value) for name, value in IN_PLACE.items()},
    },
    "plain_all_reduce": {"decimals": {name: Decimal(str(v)) for name, v in PLAIN.items()}},
    "right_gather": {"floats": {name: float(value) for name, value in PIECES.items()}},
}
WRONG: dict = {
    exercise: {
        f"{name}, {i}": (NUMBERS[exercise] | given, name) for i, (given, name) in enumerate(rows)
    }
    for exercise, rows in MISREAD.items()
}
