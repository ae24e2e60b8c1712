"""`tp_pays` of lesson 04: the hidden size from which eight ranks are faster than one, on two links.

The right numbers come from one model of time, solved by bisection; a wrong idea is another count
in the same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from course_lib.classroom.checks.lesson_04.pays_ideas import IDEAS, ITEM, N
from course_lib.classroom.checks.thought import Mistake, Thought, compare
from course_lib.ledger import forms

TOKENS, RATE = 2048, 200e12  # b·s; FLOP per second of one rank
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
    goal: float = 1  # times the speed-up that "four times as fast" is taken for
    rates: tuple[float, float] = (1, 1)  # times the bandwidth of each link
    α: float = 1  # times the latency
    alone: float = 1  # times the first answer alone
    asked: float = 1  # all-reduces in the answers that ask for one
    size: float = 1  # times the hidden size, in the answers that ask for it

    def compute(self, h: float) -> float:
        """Seconds that one rank computes for, alone."""
        return self.products * self.flops * TOKENS * h * self.inner * h / RATE

    def all_reduce(self, h: float, link: str) -> float:
        """Seconds of one all-reduce round the ring."""
        alpha, rate = LINKS[link]
        rate *= self.rates[list(LINKS).index(link)]
        bytes_ = TOKENS * h * self.item
        return self.alphas * self.α * alpha + self.sent * bytes_ / rate

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
        found = {ALONE: 1e3 * self.alone * self.compute(WIDE)}
        for link in LINKS:
            found[TALK.format(link)] = 1e3 * self.asked * self.all_reduce(WIDE, link)
            for goal, times in GOALS.items():
                times = times if times == 1 else times * self.goal
                found[FROM.format(goal, link)] = self.size * self.from_which(link, times)
        return found


RIGHT = Model()


def judge_tp_pays(given: Mapping) -> None:
    """Hold times and sizes against the model, and against what each other count leads to."""
    compare(given, RIGHT.answers(), mistakes())


def mistakes() -> tuple[Mistake, ...]:
    """Each wrong idea with the numbers that follow from it."""
    right, exchanged = RIGHT.answers(), dict(zip(LINKS, reversed(LINKS), strict=True))
    other = {name: right[name.replace(link, exchanged[link])]
             for name in right for link in LINKS if link in name}  # fmt: skip
    return (
        *(Mistake(name, text, replace(RIGHT, **counts).answers()) for name, text, counts in IDEAS),
        Mistake("links exchanged", "Those are the numbers of the other link.", other),
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
