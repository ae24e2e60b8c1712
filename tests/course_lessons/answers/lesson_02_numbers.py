"""Answers to the questions of lesson 02: by hand, and misread in likely ways."""

from __future__ import annotations

HELD = ("columns: W on rank 0", "columns: W on rank 2", "rows: W on rank 0", "rows: W on rank 2")
COSTS = ("columns: all-reduced", "rows: all-reduced", "columns: bytes", "rows: bytes")
SENT = 4 / 3  # of an all-reduce over three, the part that each rank sends


def seven(held=(14, 7, 15, 5), summed=(28, 20), times=SENT, item=4) -> dict:
    sent = [times * item * elements for elements in summed]
    return dict(zip(HELD + COSTS, (*held, *summed, *sent), strict=True))


def cuts(codes: str = "23121", weights: tuple = (48, 16, 48, 48, 48)) -> dict:
    found = {}
    for name, code, weight in zip("ABCDE", codes, weights, strict=True):
        found[f"{name}: cut"], found[f"{name}: weight"] = int(code), weight
    return found


ANSWERS = {"seven_by_five": seven(), "mystery_cut": cuts()}
# Exercise, how an answer is wrong, what is written, the name under which it is refused.
MISREAD = [
    ("seven_by_five", "swapped", seven((15, 5, 14, 7), (20, 28)), "rows and columns swapped"),
    ("seven_by_five", "evenly", seven((14, 7, 15, 10)), "as even as possible"),
    ("seven_by_five", "evenly, once", seven((14, 7, 15, 10), times=1), "several ideas"),
    ("seven_by_five", "rounded down", seven((7, 21, 10, 15)), "the rest on the last rank"),
    ("seven_by_five", "padded", seven((14, 14, 15, 15)), "padded"),
    ("seven_by_five", "thirds", seven((35 / 3,) * 4), "a third of everything"),
    ("seven_by_five", "whole", seven((35,) * 4), "the full weight"),
    ("seven_by_five", "lengths", seven((2, 1, 3, 1)), "only the length"),
    ("seven_by_five", "dW", seven(summed=(35, 35)), "weight's gradient counted"),
    ("seven_by_five", "directions", seven(summed=(20, 28)), "the other direction"),
    ("seven_by_five", "both", seven(summed=(48, 48)), "both directions"),
    ("seven_by_five", "forward alone", seven(summed=(0, 20)), "no partial sum in the backward"),
    ("seven_by_five", "half", seven(times=SENT / 2), "only one round"),
    ("seven_by_five", "once", seven(times=1), "the tensor once"),
    ("seven_by_five", "all", seven(times=SENT * 3), "all ranks together"),
    ("seven_by_five", "thrice", seven(summed=(84, 60), times=SENT / 3), "all ranks together"),
    ("seven_by_five", "numbers", seven(item=1), "elements, not bytes"),
    ("mystery_cut", "a part", cuts(weights=(16,) * 5), "one rank's part"),
    ("mystery_cut", "thrice", cuts(weights=(48,) * 5), "three times the weight"),
    ("mystery_cut", "nine", cuts(weights=(144, 16, 144, 48, 48)), "cut both ways"),
    ("mystery_cut", "directions", cuts("13221"), "forward and backward swapped"),
    ("mystery_cut", "one direction", cuts("13121"), "forward and backward swapped"),
    ("mystery_cut", "ends", cuts("23112"), "misled by the all-gather"),
    ("mystery_cut", "one end", cuts("23122"), "misled by the all-gather"),
    ("mystery_cut", "X or W", cuts("21121"), "wrong size of the sum"),
    ("mystery_cut", "rows backward", cuts("22121"), "nothing sent forward"),
    ("mystery_cut", "no such cut", cuts("73121"), "wrong number"),
    ("mystery_cut", "two of them", cuts("11121"), "several ideas"),
]

RIGHT: dict = {name: {"by hand": given} for name, given in ANSWERS.items()}
WRONG: dict = {
    name: {how: (given, called) for whose, how, given, called in MISREAD if whose == name}
    for name in ANSWERS
}
