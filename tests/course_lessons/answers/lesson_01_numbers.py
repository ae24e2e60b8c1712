"""Answers to the questions of lesson 01: by hand, and misread in likely ways."""

from __future__ import annotations

from collections.abc import Callable

B = 600_000 * 4
ALPHA, RATE = 30e-6, 10e9


def per_n(sent: Callable[[int], float]) -> dict[int, float]:
    return {n: sent(n) for n in (2, 3, 4, 8)}


def times(ring: tuple[float, float], tree: tuple[float, float], meet: float | None = None) -> dict:
    """Each way as (how many α, how many tensors), the sizes in kB and the times in ms."""
    found = {}
    for size, name in ((1e3, "1 kB"), (1e8, "100 MB")):
        for way, (messages, tensors) in (("ring", ring), ("tree", tree)):
            found[f"{way} {name}"] = 1e3 * (messages * ALPHA + tensors * size / RATE)
    found["they meet at"] = 1e-3 * (ring[0] - tree[0]) * ALPHA * RATE / (tree[1] - ring[1] or 1)
    return found if meet is None else {**found, "they meet at": meet}


RING, TREE = (126, 126 / 64), (12, 12)
MEET, SECONDS = "they meet at", times((126e-3, 126e-3 / 64), (12e-3, 12e-3))
ANSWERS = {
    "ring_bytes": per_n(lambda n: 2 * (n - 1) * B / n),
    "tree_or_ring": times(RING, TREE),
    "who_hangs": {"A": 2, "B": 1, "C": 0},
}
# Exercise, how an answer is wrong, what is written, the name under which it is refused.
MISREAD = [
    ("ring_bytes", "one round", per_n(lambda n: (n - 1) * B / n), "only one round"),
    ("ring_bytes", "both ways", per_n(lambda n: 4 * (n - 1) * B / n), "sent and received"),
    ("ring_bytes", "of all ranks", per_n(lambda n: 2 * (n - 1) * B), "all ranks together"),
    ("ring_bytes", "to everybody", per_n(lambda n: (n - 1) * B), "full tensors"),
    ("ring_bytes", "n steps", per_n(lambda n: 2 * B), "one step too many"),
    ("ring_bytes", "the tensor", per_n(lambda n: B), "the tensor once"),
    ("ring_bytes", "a message", per_n(lambda n: B / n), "one message"),
    ("ring_bytes", "numbers", per_n(lambda n: 2 * (n - 1) * B / n / 4), "elements, not bytes"),
    ("ring_bytes", "MB", per_n(lambda n: 2 * (n - 1) * B / n / 1e6), "unit"),
    ("ring_bytes", "unforeseen", {**ANSWERS["ring_bytes"], 8: 5_000_000}, "wrong number"),
    ("tree_or_ring", "no chunks", times((126, 126), TREE), "full tensors around the ring"),
    ("tree_or_ring", "chunks", times(RING, (12, 12 / 64)), "chunks up the tree"),
    ("tree_or_ring", "one α", times((1, 126 / 64), (1, 12)), "one α for all"),
    ("tree_or_ring", "half", times((63, 63 / 64), (6, 6)), "only one round"),
    ("tree_or_ring", "half a ring", times((63, 63 / 64), TREE), "only one round"),
    ("tree_or_ring", "half a tree", times(RING, (6, 6)), "only one round"),
    ("tree_or_ring", "a queue", times(RING, (126, 126)), "a message to each"),
    ("tree_or_ring", "bits", times((126, 8 * 126 / 64), (12, 96)), "bits"),
    ("tree_or_ring", "α/β", times(RING, TREE, 300.0), "α over β"),
    ("tree_or_ring", "α's alone", times(RING, TREE, 3150.0), "half of the equation"),
    ("tree_or_ring", "no ring's bytes", times(RING, TREE, 2850.0), "half of the equation"),
    ("tree_or_ring", "s", {**SECONDS, MEET: 3409.346}, "seconds"),
    ("tree_or_ring", "SI", {**SECONDS, MEET: 3_409_346}, "unit"),
    ("tree_or_ring", "unforeseen", times(RING, TREE, 77), "wrong number"),
    ("tree_or_ring", "MiB", {**times(RING, TREE), "tree 100 MB": 126.19}, "powers of two"),
    ("who_hangs", "from one", {"A": 3, "B": 2, "C": 1}, "counted from one"),
    ("who_hangs", "first lines", {"A": 0, "B": 0, "C": 2}, "the first that is listed"),
    ("who_hangs", "all three", {"A": 0, "B": 2, "C": 1}, "several ideas"),
    ("who_hangs", "who waits", {"A": 1, "B": 1, "C": 0}, "a waiting rank"),
    ("who_hangs", "who waits to receive", {"A": 2, "B": 2, "C": 0}, "a waiting rank"),
    ("who_hangs", "ahead", {"A": 2, "B": 0, "C": 0}, "ahead, so it skipped one"),
    ("who_hangs", "time out", {"A": 2, "B": 1, "C": 1}, "the loudest error"),
    ("who_hangs", "the other time out", {"A": 2, "B": 1, "C": 2}, "the loudest error"),
    ("who_hangs", "a rank there is not", {"A": 2, "B": 7, "C": 0}, "no such rank"),
    ("who_hangs", "half a rank", {"A": 2, "B": 0.5, "C": 0}, "no such rank"),
]

RIGHT: dict = {name: {"by hand": given} for name, given in ANSWERS.items()}
WRONG: dict = {
    name: {how: (given, called) for whose, how, given, called in MISREAD if whose == name}
    for name in ANSWERS
}
