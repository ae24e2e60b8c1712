"""`tp_pays` of lesson 04: the hidden size from which eight ranks are faster than one, on two links.

The right numbers come from one model of time, solved by bisection; a wrong idea is another count
in the same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from course_lib.classroom.checks.thought import Mistake, Thought, compare
from course_lib.ledger import forms

N, TOKENS, RATE, ITEM = 8, 2048, 200e12, 2  # ranks; b·s; FLOP per second of one rank; bytes
LINKS = {"NVLink": (4e-6, 300e9), "InfiniBand": (30e-6, 25e9)}  # α in s, bytes per second
WIDE = 1024  # the hidden size for which the two times are asked
GOALS = {"faster": 1, "four times as fast": 4}  # than one rank
ALONE, TALK, FROM = "one rank", "one all-reduce, {}", "{} from, {}"
FIELDS = (
    ALONE,
    *(TALK.format(link) for link in LINKS),
    *(FROM.format(goal, link) for link in LINKS for goal in GOALS),
)


@dataclass(frozen=True)
class Model:
    """One way to count a step of the MLP, forward and backward."""

    products: float = 6  # of b·s × h × inner: two forward, four backward
    flops: float = 2  # for each pair of numbers: a multiplication and an addition
    inner: float = 4  # times h
    all_reduces: float = 2
    alphas: float = 2 * (N - 1)  # in an all-reduce
    item: float = ITEM
    sent: float = forms.all_reduce(N, 1)  # tensors that a rank sends in an all-reduce
    share: float = 1 / N  # of the products, on each rank

    def compute(self, h: float) -> float:
        """Seconds that one rank computes for, alone."""
        return self.products * self.flops * TOKENS * h * self.inner * h / RATE

    def all_reduce(self, h: float, link: str) -> float:
        """Seconds of one all-reduce round the ring."""
        alpha, rate = LINKS[link]
        bytes_ = TOKENS * h * self.item
        return self.alphas * alpha + self.sent * bytes_ / rate

    def speedup(self, h: float, link: str) -> float:
        alone = self.compute(h)
        talk = self.all_reduces * self.all_reduce(h, link)
        return alone / (self.share * alone + talk)

    def from_which(self, link: str, goal: float) -> float:
        """The hidden size at which the speed-up, which grows with it, reaches the goal."""
        low, high = 1e-6, 1e12
        for _ in range(200):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if self.speedup(middle, link) < goal else (low, middle)
        return high

    def answers(self) -> dict[str, float]:
        """The answers that this way of counting gives: milliseconds, and hidden sizes."""
        found = {ALONE: 1e3 * self.compute(WIDE)}
        for link in LINKS:
            found[TALK.format(link)] = 1e3 * self.all_reduce(WIDE, link)
            for goal, times in GOALS.items():
                found[FROM.format(goal, link)] = self.from_which(link, times)
        return found


RIGHT = Model()
# A wrong idea: its name, what to say to it, and the counts that it changes.
_IDEAS = (
    (
        "forward only",
        "That is the forward alone: two products and one all-reduce. A training step has a "
        "backward as well.",
        {"products": 2, "all_reduces": 1},
    ),
    (
        "the backward computes too",
        "Those are the products of the forward alone. In the backward each of them has two: one "
        "for the gradient of its input, one for that of its weight.",
        {"products": 2},
    ),
    (
        "two gradients for a product",
        "You have let the backward take as many products as the forward. A product has two "
        "inputs, and each wants a gradient: dX and dW.",
        {"products": 4},
    ),
    (
        "no dX",
        "One product is missing: the gradient of X. The layer before this one needs it; it is what "
        "f sums.",
        {"products": 5},
    ),
    (
        "one all-reduce",
        "You have counted one all-reduce in a step. There is one in each direction: g in the "
        "forward, f in the backward.",
        {"all_reduces": 1},
    ),
    (
        "four all-reduces",
        "Four all-reduces are those of a whole layer, attention and MLP. Here the MLP stands "
        "alone.",
        {"all_reduces": 4},
    ),
    (
        "half of the FLOP",
        "One rank has twice as much to compute. Is it both weights, A and B? And for each pair of "
        "numbers a multiplication and an addition?",
        {"flops": 1},
    ),
    (
        "limit for large N",
        "You have let a rank send 2Φ in an all-reduce. That is the limit for many ranks; among "
        "eight it is exactly 2Φ(n−1)/n.",
        {"sent": 2},
    ),
    (
        "no α",
        "The messages themselves are missing: each step of the ring costs an α, however little "
        "it carries.",
        {"alphas": 0},
    ),
    (
        "one α for all",
        "You have one α for an all-reduce. It is a ring: each of its steps costs one, and they "
        "come one after the other.",
        {"alphas": 1},
    ),
    (
        "α's of one round",
        "Your α's are those of one round, your bytes those of two. An all-reduce goes round the "
        "ring twice, in messages too.",
        {"alphas": N - 1},
    ),
    (
        "half of the way",
        "That ring goes round once. An all-reduce goes round twice, in α's and in bytes: once "
        "until the sums are finished, once until all ranks have them.",
        {"alphas": N - 1, "sent": (N - 1) / N},
    ),
    (
        "elements, not bytes",
        "Φ is a number of elements. The link is given in bytes per second, and an element has two.",
        {"item": 1},
    ),
    ("float32", "You have sent four bytes for each element; bfloat16 has two.", {"item": 4}),
    (
        "no wider inside",
        "Inside, the MLP is four times as wide: A is h × 4h and B is 4h × h.",
        {"inner": 1},
    ),
    (
        "nothing left to compute",
        "You have held the all-reduces alone against the time of one rank. Each of the eight still "
        "computes its share.",
        {"share": 0},
    ),
)


def judge_tp_pays(given: Mapping) -> None:
    """Hold times and sizes against the model, and against what each other count leads to."""
    compare(given, RIGHT.answers(), mistakes())


def mistakes() -> tuple[Mistake, ...]:
    """Each wrong idea with the numbers that follow from it."""
    return tuple(
        Mistake(name, text, replace(RIGHT, **counts).answers()) for name, text, counts in _IDEAS
    )


TP_PAYS = Thought(
    name="tp_pays",
    title="From which size does it pay?",
    points=3,
    fields=FIELDS,
    judge=judge_tp_pays,
    when_right=(
        "Products grow with h², messages with h: a link only says from where on it pays. At the "
        "sizes from which it is faster, the fast link's α's cost more than its bytes; on the slow "
        "link the bytes decide. That is why tensor parallelism stays inside a node, and why it is "
        "for wide models."
    ),
    hints=(
        "One rank alone: b·s rows are multiplied with A, which is h × 4h, and then with B. How "
        "many products of that size does the backward add to these two?",
        "Eight ranks: each has an eighth of that, and the all-reduces of the MLP on top, which "
        "nothing hides here. Lesson 01 has the time of a ring: so many α, and so many tensors over "
        "the link.",
        "Summed are Φ = b·s·h elements of two bytes, each time. So the time of the all-reduces is "
        "(a constant) + (a number) · h.",
        "“Faster” and “four times as fast” differ in what the time of eight has to stay below: "
        "the time of one, or a quarter of it. What remains is p·h² = q·h + r, with one positive "
        "root.",
    ),
)
