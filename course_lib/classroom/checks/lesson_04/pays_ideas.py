"""Wrong ideas about the time of a sharded MLP, each another count in the model of `pays.py`.

For `tp_pays` of lesson 04. The first that explains every wrong answer is said.
"""

from __future__ import annotations

N, ITEM = 8, 2  # ranks; bytes of an element
# A wrong idea: its name, what to say to it, and the counts that it changes.
IDEAS = (
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
    (
        "whole messages",
        "You have let each message of the ring carry the whole tensor. It is cut into as many "
        "pieces as there are ranks, and a message carries one of them: the number of ranks is "
        "missing there. (Or a bandwidth was divided by eight: GB are bytes already.)",
        {"sent": 2 * (N - 1)},
    ),
    (
        "a step for each rank",
        "A round of the ring has a step fewer than ranks: what a rank starts with need not come to "
        "it.",
        {"alphas": 2 * N, "sent": 2},
    ),
    (
        "a step for each rank",
        "A round of the ring has a step fewer than ranks, and an all-reduce goes round twice.",
        {"alphas": N, "sent": 1},
    ),
    (
        "one α a round",
        "You have one α for each of the two rounds. Each *step* costs one, and a round has many.",
        {"alphas": 2},
    ),
    (
        "one α a round",
        "You have the whole tensor twice, with an α each. The ring cuts it into pieces, and each "
        "of its steps costs an α.",
        {"alphas": 2, "sent": 2},
    ),
    (
        "the share of one",
        "You have divided by the number of ranks. Asked is how long one rank computes *alone*, "
        "when it has all of the products.",
        {"alone": 1 / N},
    ),
    (
        "the share of one",
        "You have counted the products of one rank of eight. One rank alone has all of them, and "
        "an eighth of that each of the eight has.",
        {"products": 6 / N},
    ),
    (
        "the work of all",
        "You have multiplied by the number of ranks. One rank alone has the products once.",
        {"alone": N},
    ),
    (
        "all of a step's",
        "Asked is the time of *one* all-reduce; that is the time of two.",
        {"asked": 2},
    ),
    (
        "ranks counted again",
        "The time of an all-reduce is multiplied by the number of ranks. All of them send at the "
        "same time: it is the time of one rank's messages.",
        {"asked": N},
    ),
    (
        "ranks counted again",
        "The time of an all-reduce is divided by the number of ranks once too often: each message "
        "carries its piece already.",
        {"asked": 1 / N},
    ),
    (
        "the size of a part",
        "The sizes are divided by the number of ranks. h is the hidden size of the whole MLP.",
        {"size": 1 / N},
    ),
    (
        "the size of a part",
        "The sizes are multiplied by the number of ranks. h is that of the MLP, not of all ranks.",
        {"size": N},
    ),
    (
        "the inner size",
        "That is 4h, how wide the MLP is inside. Asked is h.",
        {"size": 4},
    ),
    (
        "half as fast as one could be",
        "You have asked for twice the speed of one rank. Half of what eight ranks could be is four "
        "times as fast.",
        {"goal": 1 / 2},
    ),
    (
        "bits for bytes",
        "You have taken 200 Gb/s for bytes. Eight bits are a byte.",
        {"rates": (1, 8)},
    ),
    (
        "GiB for GB",
        "A GB is 10⁹ bytes here; you have counted in powers of two.",
        {"rates": (2**30 / 1e9, 2**30 / 1e9)},
    ),
    (
        "the unit of α",
        "Your α is a thousand times too large. 1 µs is 10⁻⁶ s, a thousandth of a millisecond.",
        {"α": 1e3},
    ),
    (
        "the unit of α",
        "Your α is a thousand times too small. 1 µs is 10⁻⁶ s, a thousandth of a millisecond.",
        {"α": 1e-3},
    ),
    (
        "all of the inner size on the wire",
        "You have sent b·s·4h elements. What is summed is the MLP's output, and in the backward "
        "the gradient of its input: b·s·h elements each.",
        {"item": 4 * ITEM},
    ),
)
