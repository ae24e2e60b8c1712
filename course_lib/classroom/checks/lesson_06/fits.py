"""`which_fits` of lesson 06: bytes sent and activations kept by eight ranks, in three plans.

The right numbers come from one model of what is kept and sent; a wrong idea is another count in the
same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import floor

from course_lib.classroom.checks.thought import Mistake, Thought, compare

N, S, H, LAYERS, ITEM, ROOM = 8, 4096, 6144, 48, 2, 40e9  # ranks, tokens, hidden; bytes
WHOLE, KEPT, AGAIN = "tokens replicated", "X kept", "X gathered again"
PLANS = (WHOLE, KEPT, AGAIN)
SENT, HELD, FITS = "sent, {}", "kept, {}", "sequences, {}"
FIELDS = tuple(field.format(plan) for field in (SENT, HELD, FITS) for plan in PLANS)


@dataclass(frozen=True)
class Model:
    """What is counted for one sequence, in tensors of Φ = s·h elements, for one layer."""

    norms: float = 2  # inputs of norms
    xs: float = 2  # inputs of qkv and up
    masks: float = 2
    mask_item: float = 1  # bytes
    inside: float = 12  # q, k, v, result; before and after the GELU four each
    inside_cut: float = 1 / N
    tokens_cut: float = 1 / N  # of what is kept by tokens, where they are cut
    kept_x: float = 1  # part of X that is kept where X is kept
    again_x: float = 1 / N
    moves: Mapping[str, float] | None = None  # of Φ(N-1)/N; None: the right ones
    of_a_move: float = (N - 1) / N
    item: float = ITEM
    layers: float = LAYERS

    def sent(self, plan: str) -> float:
        """Gigabytes that a rank sends in a step."""
        moves = {WHOLE: 8, KEPT: 8, AGAIN: 10} if self.moves is None else self.moves
        return moves[plan] * self.of_a_move * S * H * self.item * self.layers / 1e9

    def held(self, plan: str) -> float:
        """Gigabytes that a rank keeps between forward and backward."""
        part = 1 if plan == WHOLE else self.tokens_cut
        x = {WHOLE: 1, KEPT: self.kept_x, AGAIN: self.again_x}[plan]
        wide = self.norms * part + self.xs * x + self.inside * self.inside_cut
        return S * H * self.layers * (self.item * wide + self.mask_item * self.masks * part) / 1e9

    def answers(self) -> dict[str, float]:
        """What this way of counting leads to."""
        found = {SENT.format(plan): self.sent(plan) for plan in PLANS}
        found |= {HELD.format(plan): self.held(plan) for plan in PLANS}
        for plan in PLANS:
            found[FITS.format(plan)] = floor(ROOM / 1e9 / self.held(plan))
        return found


RIGHT = Model()
# A wrong idea: its name, what to say to it, and the counts that it changes.
_IDEAS = (
    (
        "half of the moves with X kept",
        "You have sent half as much with the tokens sharded and X kept. An all-reduce is two "
        "moves, and neither of its halves has gone away: one has only moved.",
        {"moves": {WHOLE: 8, KEPT: 4, AGAIN: 5}},
    ),
    (
        "all-reduces counted as one move",
        "An all-reduce sends its tensor nearly twice: a reduce-scatter and an all-gather.",
        {"moves": {WHOLE: 4, KEPT: 8, AGAIN: 10}},
    ),
    (
        "forward only",
        "Those are the messages of the forward alone; a step has a backward as well.",
        {"moves": {WHOLE: 4, KEPT: 4, AGAIN: 4}},
    ),
    (
        "one pair of layers",
        "You have counted one pair of layers. A layer of the model has two, attention and MLP.",
        {"moves": {WHOLE: 4, KEPT: 4, AGAIN: 5}},
    ),
    (
        "gathered again in one of two",
        "X is gathered again before qkv *and* before up: two moves more in a layer.",
        {"moves": {WHOLE: 8, KEPT: 8, AGAIN: 9}},
    ),
    (
        "again as an all-reduce",
        "To gather X again is an all-gather: one move, half of an all-reduce.",
        {"moves": {WHOLE: 8, KEPT: 8, AGAIN: 12}},
    ),
    (
        "again costs nothing",
        "Gathering X again is a message too, in the backward.",
        {"moves": {WHOLE: 8, KEPT: 8, AGAIN: 8}},
    ),
    (
        "limit for large N",
        "You have let a move send all of Φ. That is the limit for many ranks; among eight a piece "
        "stays where it is.",
        {"of_a_move": 1},
    ),
    (
        "masks in bfloat16",
        "Your masks have two bytes for each element. A mask says yes or no: one byte.",
        {"mask_item": ITEM},
    ),
    (
        "no masks",
        "The masks of dropout are missing.",
        {"masks": 0},
    ),
    (
        "X cut though it is kept",
        "Where X is kept, it is the gathered one: all tokens, on every rank.",
        {"kept_x": 1 / N},
    ),
    (
        "X whole though gathered again",
        "To gather X again a rank needs its own tokens alone: that is all it keeps of X.",
        {"again_x": 1},
    ),
    (
        "X not counted",
        "The inputs of qkv and up are missing: their weights' gradients need them.",
        {"xs": 0},
    ),
    (
        "norms not counted",
        "The inputs of the norms are missing: a norm keeps its input for its backward.",
        {"norms": 0},
    ),
    (
        "heads and MLP whole",
        "What is kept inside heads and MLP was sharded before: each rank keeps its heads and "
        "its columns.",
        {"inside_cut": 1},
    ),
    (
        "only what is between the layers",
        "You have counted what is kept between the layers. Inside heads and MLP something is kept "
        "too, an eighth of it on each rank.",
        {"inside": 0},
    ),
    (
        "MLP as wide as x",
        "Inside, the MLP is four times as wide as x: that holds for what stands before and after "
        "the GELU.",
        {"inside": 6},
    ),
    (
        "tokens not cut",
        "With sharded tokens, a norm's input and a mask are an eighth on each rank.",
        {"tokens_cut": 1},
    ),
    (
        "float32",
        "You have given each element four bytes; bfloat16 has two.",
        {"item": 4},
    ),
    (
        "elements, not bytes",
        "Those are elements. An element of bfloat16 has two bytes.",
        {"item": 1},
    ),
    (
        "one layer",
        "That is one layer. The model has more.",
        {"layers": 1},
    ),
)


def judge_fits(given: Mapping) -> None:
    """Hold the numbers against the model, and against what each other count leads to."""
    right = RIGHT.answers()
    fits = [FITS.format(plan) for plan in PLANS]
    own = {
        name: floor(ROOM / 1e9 / given[HELD.format(plan)]) if given[HELD.format(plan)] > 0 else 0
        for name, plan in zip(fits, PLANS, strict=True)
    }
    whole = all(float(given[name]).is_integer() for name in fits)
    first = [name for name in FIELDS if name not in fits]
    compare({k: given[k] for k in first}, {k: right[k] for k in first}, mistakes(), apart=True)
    more = (
        Mistake(
            "not whole sequences",
            "Half a sequence is no sequence: round down to a whole number.",
            {name: given[name] if not whole else -1 for name in fits},
        ),
        Mistake(
            "one too many",
            "One sequence more than there is room for: round down, not up.",
            {name: value + 1 for name, value in own.items()},
        ),
    )
    compare({k: given[k] for k in fits}, {k: right[k] for k in fits}, more)


def mistakes() -> tuple[Mistake, ...]:
    """Each wrong idea with the numbers that follow from it, where they differ from the right."""
    right, made = RIGHT.answers(), []
    for name, text, counts in _IDEAS:
        theirs = replace(RIGHT, **counts).answers()
        fields = {k: v for k, v in theirs.items() if not k.startswith("sequences")}
        made.append(Mistake(name, text, {k: v for k, v in fields.items() if v != right[k]}))
    return tuple(made)


WHICH_FITS = Thought(
    name="which_fits",
    title="Which variant fits?",
    points=3,
    fields=FIELDS,
    judge=judge_fits,
    when_right=(
        "2, 4 and 7 sequences. With replicated tokens most of the room holds copies of the same "
        "elements. With X kept, the bytes on the links are the same and two more fit; gathering "
        "again adds three more for a quarter more bytes. Megatron-LM gathers again, over the fast "
        "links inside a node."
    ),
    hints=(
        "One move of Φ = s·h elements costs a rank Φ(N−1)/N. How many moves has a layer of the "
        "model in each plan, forward and backward? An all-reduce is two.",
        "Kept, between the layers: two inputs of norms, two inputs of products (X), two masks. "
        "Which of them are replicated, and which an eighth, in each plan?",
        "Kept inside, the same in all plans: q, k, v and the heads' result are as wide as x, "
        "before and after the GELU it is four times as wide; each rank has an eighth.",
        "Add up in bytes: two for an element, one for an element of a mask. Times the layers.",
    ),
)
