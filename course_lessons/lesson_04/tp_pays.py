"""`tp_pays` of lesson 04: the hidden size from which eight ranks beat one, on two links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations

from course_classroom.judge.thought import Thought, held_against, named
from course_classroom.judge.words import Page
from course_lib.ledger import forms

SAYS = Page(__file__, "tp_pays")
N, ITEM = 8, 2  # ranks; bytes per element
TOKENS, RATE = 2048, 200e12  # b·s; FLOP per second of one rank
LINKS = {"NVLink": (4e-6, 300e9), "InfiniBand": (30e-6, 25e9)}  # α in s, bytes per second
WIDE = 1024  # the hidden size for the two times
GOALS = {"faster": 1, "four times as fast": 4}  # than one rank


@dataclass(frozen=True)
class Model:
    """A counting model of a training step of the MLP, forward and backward."""

    products: float = 6  # of b·s × h × inner: two forward, four backward
    flops: float = 2  # for each pair of numbers: a multiplication and an addition
    inner: float = 4  # times h
    all_reduces: float = 2
    alphas: float = 2 * (N - 1)  # in an all-reduce
    item: float = ITEM
    sent: float = forms.all_reduce(N, 1)  # tensors that a rank sends in an all-reduce
    share: float = 1 / N  # of the products, on each rank
    goal: float = 1  # factor on the speed-up assumed for "four times as fast"
    rates: tuple[float, float] = (1, 1)  # factors on the bandwidth of each link
    α: float = 1  # factor on the latency
    alone: float = 1  # factor on only the first answer
    asked: float = 1  # all-reduces in the answers about one all-reduce
    size: float = 1  # factor on the hidden size in the answers about it

    def compute(self, h: float) -> float:
        """Return the seconds of computation on one rank."""
        return self.products * self.flops * TOKENS * h * self.inner * h / RATE

    def all_reduce(self, h: float, link: str) -> float:
        """Return the seconds of one all-reduce around the ring."""
        alpha, rate = LINKS[link]
        rate *= self.rates[list(LINKS).index(link)]
        bytes_ = TOKENS * h * self.item
        return self.alphas * self.α * alpha + self.sent * bytes_ / rate

    def from_which(self, link: str, goal: float) -> float:
        """Return the hidden size at which eight ranks are `goal` times as fast: p·h² = q·h + r."""
        p = self.compute(1) * (1 / goal - self.share)
        r, q_and_r = (self.all_reduces * self.all_reduce(h, link) for h in (0, 1))
        q = q_and_r - r
        return (q + (q * q + 4 * p * r) ** 0.5) / (2 * p)

    def answers(self) -> dict[str, float]:
        """Return the answers that follow from this model: milliseconds, and hidden sizes."""
        found = {"one rank": 1e3 * self.alone * self.compute(WIDE)}
        for link in LINKS:
            found[f"one all-reduce, {link}"] = 1e3 * self.asked * self.all_reduce(WIDE, link)
        for link in LINKS:
            for goal, times in GOALS.items():
                times *= self.goal if times > 1 else 1
                found[f"{goal} from, {link}"] = self.size * self.from_which(link, times)
        return found


RIGHT = Model()
# A wrong idea's entry, and the counts that it changes; the first that explains all errors wins.
IDEAS = {
    "forward only": [{"products": 2, "all_reduces": 1}],
    "the backward computes too": [{"products": 2}],
    "two gradients for a product": [{"products": 4}],
    "no dX": [{"products": 5}],
    "one all-reduce": [{"all_reduces": 1}],
    "four all-reduces": [{"all_reduces": 4}],
    "SwiGLU's products": [{"products": 9}],
    "half of the FLOP": [{"flops": 1}],
    "limit for large N": [{"sent": 2}],
    "no α": [{"alphas": 0}],
    "one α for all": [{"alphas": 1}],
    "α's of one round": [{"alphas": N - 1}],
    "only one round": [{"alphas": N - 1, "sent": (N - 1) / N}],
    "elements, not bytes": [{"item": 1}],
    "float32": [{"item": 4}],
    "inner size left out": [{"inner": 1}],
    "nothing left to compute": [{"share": 0}],
    "full tensor per message": [{"sent": 2 * (N - 1)}],
    "a step for each rank": [{"alphas": 2 * N, "sent": 2}, {"alphas": N, "sent": 1}],
    "one α a round": [{"alphas": 2}, {"alphas": 2, "sent": 2}],
    "divided by the ranks": [{"alone": 1 / N}, {"products": 6 / N}],
    "the work of all": [{"alone": N}],
    "both all-reduces": [{"asked": 2}],
    "ranks counted again": [{"asked": N}, {"asked": 1 / N}],
    "the size of a part": [{"size": 1 / N}, {"size": N}],
    "the inner size": [{"size": 4}],
    "twice instead of four times": [{"goal": 1 / 2}],
    "bits for bytes": [{"rates": (1, 8)}],
    "GiB for GB": [{"rates": (2**30 / 1e9,) * 2}],
    "the unit of α": [{"α": 1e3}, {"α": 1e-3}],
    "inner activations sent": [{"item": 4 * ITEM}],
}
KNOWN = RIGHT.answers()
ASKED = ["one all-reduce", *(f"{goal} from" for goal in GOALS)]  # for each link
PAIRS = {  # an answer, and the one given in its place
    "links exchanged": [
        (f"{what}, {a}", f"{what}, {b}") for what in ASKED for a, b in permutations(LINKS)
    ],
    "goals exchanged": [
        (f"{a} from, {link}", f"{b} from, {link}") for link in LINKS for a, b in permutations(GOALS)
    ],
}
FOUND = [(idea, replace(RIGHT, **how).answers()) for idea, ways in IDEAS.items() for how in ways]
FOUND += [(idea, {mine: KNOWN[other] for mine, other in pairs}) for idea, pairs in PAIRS.items()]
TP_PAYS = Thought(fields=tuple(KNOWN), judge=held_against(KNOWN, named(SAYS, FOUND)), **SAYS.about)
