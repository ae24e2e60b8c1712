"""`which_fits` of lesson 06: bytes sent and activations kept by eight ranks, in three plans.

The right numbers come from one model of what is kept and sent; a wrong idea is another count in the
same model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import floor

from course_lib.classroom.checks.lesson_06.fits_ideas import (
    AGAIN,
    IDEAS,
    ITEM,
    KEPT,
    LAYERS,
    ROOM,
    ROOMS,
    WHOLE,
    H,
    N,
    S,
)
from course_lib.classroom.checks.thought import Mistake, Thought, compare

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
    whole: float = 1  # part of the tokens that is kept where they are replicated
    norms_cut: float | None = None  # part of the norms' inputs, where tokens are cut
    tokens_cut: float = 1 / N  # of what is kept by tokens, where they are cut
    of_all: float = 1  # ranks that are counted
    copies: float = 1  # of what is kept
    unit: float = 1e9  # bytes
    room: float = ROOM
    kept_x: float = 1  # part of X that is kept where X is kept
    again_x: float = 1 / N
    moves: Mapping[str, float] | None = None  # of Φ(N-1)/N; None: the right ones
    of_a_move: float = (N - 1) / N
    item: float = ITEM
    layers: float = LAYERS

    def sent(self, plan: str) -> float:
        """Gigabytes that a rank sends in a step."""
        moves = {WHOLE: 8, KEPT: 8, AGAIN: 10} if self.moves is None else self.moves
        sent = moves[plan] * self.of_a_move * self.of_all * S * H * self.item
        return sent * self.layers / self.unit

    def held(self, plan: str) -> float:
        """Gigabytes that a rank keeps between forward and backward."""
        part = self.whole if plan == WHOLE else self.tokens_cut
        x = {WHOLE: self.whole, KEPT: self.kept_x, AGAIN: self.again_x}[plan]
        norms = part if plan == WHOLE or self.norms_cut is None else self.norms_cut
        wide = self.norms * norms + self.xs * x + self.inside * self.inside_cut
        kept = self.item * wide + self.mask_item * self.masks * part
        return S * H * self.layers * kept * self.copies * self.of_all / self.unit

    def answers(self) -> dict[str, float]:
        """What this way of counting leads to."""
        found = {SENT.format(plan): self.sent(plan) for plan in PLANS}
        found |= {HELD.format(plan): self.held(plan) for plan in PLANS}
        for plan in PLANS:
            found[FITS.format(plan)] = floor(self.room / 1e9 / self.held(plan))
        return found


RIGHT = Model()


def judge_fits(given: Mapping) -> None:
    """Hold the numbers against the model, and against what each other count leads to."""
    right = RIGHT.answers()
    fits = [FITS.format(plan) for plan in PLANS]
    own = {
        name: floor(ROOM / 1e9 / given[HELD.format(plan)]) if given[HELD.format(plan)] > 0 else 0
        for name, plan in zip(fits, PLANS, strict=True)
    }
    whole = all(float(given[name]).is_integer() for name in fits)
    first = FIELDS[:6]
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
        *mistakes(ROOMS, fits),
    )
    compare({k: given[k] for k in fits}, {k: right[k] for k in fits}, more)


def mistakes(ideas: Sequence = IDEAS, fields: Sequence[str] = FIELDS[:6]) -> tuple[Mistake, ...]:
    """Each wrong idea with the numbers that follow from it, where they differ from the right."""
    right, made = RIGHT.answers(), []
    for name, text, counts in ideas:
        theirs = replace(RIGHT, **counts).answers()
        made.append(Mistake(name, text, {k: theirs[k] for k in fields if theirs[k] != right[k]}))
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
