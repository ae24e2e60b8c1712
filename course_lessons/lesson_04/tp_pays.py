"""`tp_pays` of lesson 04: from which hidden size eight ranks are faster than one, on two links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations

from course_classroom.judge.thought import Thought, held_against, named
from course_classroom.judge.words import Page
from course_lib.ledger import forms

SAYS = Page(__file__, "tp_pays")
N, ITEM = 8, 2  # ranks; bytes of an element
TOKENS, RATE = 2048, 200e12  # b·s; FLOP per second of one rank
LINKS = {"NVLink": (4e-6, 300e9), "InfiniBand": (30e-6, 25e9)}  # α in s, bytes per second
WIDE = 1024  # the hidden size for which the two times are asked
GOALS = {"faster": 1, "four times as fast": 4}  # than one rank


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

    def from_which(self, link: str, goal: float) -> float:
        """The hidden size from which eight ranks are `goal` times as fast: p·h² = q·h + r."""
        p = self.compute(1) * (1 / goal - self.share)
        r, q_and_r = (self.all_reduces * self.all_reduce(h, link) for h in (0, 1))
        q = q_and_r - r
        return (q + (q * q + 4 * p * r) ** 0.5) / (2 * p)

    def answers(self) -> dict[str, float]:
        """The answers that this way of counting gives: milliseconds, and hidden sizes."""
        found = {"one rank": 1e3 * self.alone * self.compute(WIDE)}
        for link in LINKS:
            found[f"one all-reduce, {link}"] = 1e3 * self.asked * self.all_reduce(WIDE, link)
        for link in LINKS:
            for goal, times in GOALS.items():
                times *= self.goal if times > 1 else 1
                found[f"{goal} from, {link}"] = self.size * self.from_which(link, times)
        return found


RIGHT = Model()
# A wrong idea's entry, and the counts that it changes; the first that explains all that is wrong is
# said.
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
    "half of the way": [{"alphas": N - 1, "sent": (N - 1) / N}],
    "elements, not bytes": [{"item": 1}],
    "float32": [{"item": 4}],
    "no wider inside": [{"inner": 1}],
    "nothing left to compute": [{"share": 0}],
    "whole messages": [{"sent": 2 * (N - 1)}],
    "a step for each rank": [{"alphas": 2 * N, "sent": 2}, {"alphas": N, "sent": 1}],
    "one α a round": [{"alphas": 2}, {"alphas": 2, "sent": 2}],
    "the share of one": [{"alone": 1 / N}, {"products": 6 / N}],
    "the work of all": [{"alone": N}],
    "all of a step's": [{"asked": 2}],
    "ranks counted again": [{"asked": N}, {"asked": 1 / N}],
    "the size of a part": [{"size": 1 / N}, {"size": N}],
    "the inner size": [{"size": 4}],
    "half as fast as one could be": [{"goal": 1 / 2}],
    "bits for bytes": [{"rates": (1, 8)}],
    "GiB for GB": [{"rates": (2**30 / 1e9,) * 2}],
    "the unit of α": [{"α": 1e3}, {"α": 1e-3}],
    "all of the inner size on the wire": [{"item": 4 * ITEM}],
}
KNOWN = RIGHT.answers()
ASKED = ["one all-reduce", *(f"{goal} from" for goal in GOALS)]  # of each link
PAIRS = {  # an answer, and the one that stands in its place
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
