"""`tp_pays` of lesson 04: the hidden size from which eight ranks are faster than one, on two links.

The right numbers come from one model of time; a wrong idea is another count in the same model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import permutations

from course_lib.classroom.checks.thought import Mistake, Thought, held_against
from course_lib.classroom.checks.words import Words
from course_lib.ledger import forms

SAYS = Words("""
forward only: That is the forward alone, two products and one all-reduce. A step has a backward.
the backward computes too: Those are the products of the forward alone. In the backward each of them
  has two: one for the gradient of its input, one for that of its weight.
two gradients for a product: You have let the backward take as many products as the forward. A
  product has two inputs, and each wants a gradient: dX and dW.
no dX: One product is missing: the gradient of X. The layer before needs it; it is what f sums.
one all-reduce: A step has two all-reduces, one in each direction: g's forward and f's backward.
four all-reduces: Four all-reduces are those of a layer, attention and MLP. Here the MLP is alone.
SwiGLU's products: You have counted three weights. That is a SwiGLU; a GELU MLP has two, A and B.
half of the FLOP: One rank has twice as much to compute. Is it both weights, A and B? And for each
  pair of numbers a multiplication and an addition?
limit for large N: A rank sends 2Φ at the limit of many ranks; among eight exactly 2Φ(n−1)/n.
no α: Each step of the ring costs an α, however little it carries.
one α for all: You have one α for an all-reduce. Each *step* of the ring costs one, in a row.
α's of one round: Your α's are those of one round, your bytes those of two, as it should be.
half of the way: That ring goes round once. An all-reduce goes round twice, in α's and in bytes:
  once until the sums are finished, once until all ranks have them.
elements, not bytes: Φ is a number of elements, the link's is of bytes, and an element has two.
float32: You have sent four bytes for each element; bfloat16 has two.
no wider inside: Inside, the MLP is four times as wide: A is h × 4h and B is 4h × h.
nothing left to compute: Each of the eight still computes its share, beside the all-reduces.
whole messages: You have let each message carry the whole tensor. The ring cuts it into as many
  pieces as there are ranks: the number of ranks is missing there. (Or a bandwidth was divided by
  eight: GB are bytes already.)
a step for each rank: A round of the ring has a step fewer than ranks, as what a rank starts with
  need not come to it; and an all-reduce goes round twice.
one α a round: You have one α for each of the two rounds. The ring cuts the tensor into pieces: a
  round has many steps, and each *step* costs an α.
the share of one: You have divided by the number of ranks. Asked is how long one rank computes
  *alone*, when it has all of the products; each of the eight has an eighth of that.
the work of all: You have multiplied by the number of ranks. One rank alone has the products once.
all of a step's: Asked is the time of *one* all-reduce; that is the time of two.
ranks counted again: The number of ranks is in the time of an all-reduce once too often. All ranks
  send at the same time, and each message carries its piece already.
the size of a part: The number of ranks is in the sizes. h is that of the whole MLP.
the inner size: That is 4h, how wide the MLP is inside. Asked is h.
half as fast as one could be: That is for twice the speed of one rank; asked is four times.
bits for bytes: You have taken 200 Gb/s for bytes. Eight bits are a byte.
GiB for GB: A GB is 10⁹ bytes here; you have counted in powers of two.
the unit of α: Your α is off by a thousand. 1 µs is 10⁻⁶ s, a thousandth of a millisecond.
all of the inner size on the wire: You have sent b·s·4h elements. What is summed is the MLP's
  output, and in the backward the gradient of its input: b·s·h elements each.
links exchanged: Those are the numbers of the other link.
goals exchanged: The two sizes of a link have changed places: four times as fast is from a larger h.
""")
N, ITEM = 8, 2  # ranks; bytes of an element
TOKENS, RATE = 2048, 200e12  # b·s; FLOP per second of one rank
LINKS = {"NVLink": (4e-6, 300e9), "InfiniBand": (30e-6, 25e9)}  # α in s, bytes per second
WIDE = 1024  # the hidden size for which the two times are asked
GOALS = {"faster": 1, "four times as fast": 4}  # than one rank
ALONE, TALK, FROM = "one rank", "one all-reduce, {}", "{} from, {}"
ASKED = ["one all-reduce", *(f"{goal} from" for goal in GOALS)]  # of each link
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

    def from_which(self, link: str, goal: float) -> float:
        """The hidden size from which eight ranks are `goal` times as fast: p·h² = q·h + r."""
        p = self.compute(1) * (1 / goal - self.share)
        r, q_and_r = (self.all_reduces * self.all_reduce(h, link) for h in (0, 1))
        q = q_and_r - r
        return (q + (q * q + 4 * p * r) ** 0.5) / (2 * p)

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


def mistakes() -> tuple[Mistake, ...]:
    """Each wrong idea with the numbers that follow from it."""
    right = RIGHT.answers()
    pairs = [(f"{what}, {a}", f"{what}, {b}") for what in ASKED for a, b in permutations(LINKS)]
    exchanged = {"links exchanged": {mine: right[other] for mine, other in pairs}}
    pairs = [[FROM.format(goal, link) for goal in GOALS] for link in LINKS]
    exchanged["goals exchanged"] = {
        mine: right[other] for pair in pairs for mine, other in zip(pair, pair[::-1], strict=True)
    }
    found = [
        Mistake(*SAYS.of(entry), replace(RIGHT, **counts).answers())
        for entry, ways in IDEAS.items()
        for counts in ways
    ]
    return (*found, *(Mistake(*SAYS.of(entry), values) for entry, values in exchanged.items()))


TP_PAYS = Thought(
    name="tp_pays",
    title="From which size does it pay?",
    points=3,
    fields=FIELDS,
    judge=held_against(RIGHT.answers, mistakes),
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
