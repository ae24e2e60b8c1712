"""`which_fits` of lesson 06: bytes sent and activations kept by eight ranks, in three plans.

The right numbers come from one model of what is kept and sent; a wrong idea is another count in the
same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

from course_lib.classroom.checks.thought import Mistake, Thought, compare, counted
from course_lib.classroom.checks.words import Page

N, S, H, LAYERS, ITEM, ROOM = 8, 4096, 6144, 48, 2, 40e9  # ranks, tokens, hidden; bytes
WHOLE, KEPT, AGAIN = PLANS = ("tokens replicated", "X kept", "X gathered again")
SENT, HELD, FITS = ([f"{what}, {plan}" for plan in PLANS] for what in ("sent", "kept", "sequences"))
SAYS = Page("lesson_06/which_fits")


@dataclass(frozen=True)
class Model:
    """What is counted for one sequence, in tensors of Φ = s·h elements, for one layer."""

    moves: tuple[float, ...] = (8, 8, 10)  # of each plan
    of_a_move: float = (N - 1) / N
    norms: float = 2  # inputs of norms
    xs: float = 2  # inputs of qkv and up
    masks: float = 2
    inside: float = 12  # q, k, v, result; before and after the GELU four each
    # Which part of it a rank keeps: of what is inside, of tokens in each plan, of X, of the norms'.
    inside_part: float = 1 / N
    tokens: tuple[float, ...] = (1, 1 / N, 1 / N)
    x_part: tuple[float, ...] = (1, 1, 1 / N)
    norms_part: tuple[float, ...] | None = None  # as of tokens
    item: float = ITEM
    mask_item: float = 1  # bytes
    layers: float = LAYERS
    times: float = 1  # ... all that is counted
    copies: float = 1  # of what is kept
    unit: float = 1e9  # bytes
    room: float = ROOM

    def held(self, plan: int) -> float:
        """Gigabytes that a rank keeps between forward and backward."""
        tokens = self.tokens[plan]
        norms = self.norms * (tokens if self.norms_part is None else self.norms_part[plan])
        wide = norms + self.xs * self.x_part[plan] + self.inside * self.inside_part
        kept = self.item * wide + self.mask_item * self.masks * tokens
        return S * H * self.layers * kept * self.copies * self.times / self.unit

    def answers(self) -> dict[str, float]:
        """What this way of counting leads to."""
        move = self.of_a_move * S * H * self.item * self.layers * self.times / self.unit
        sent = [moves * move for moves in self.moves]
        held = [self.held(plan) for plan in range(len(PLANS))]
        fits = [floor(self.room / 1e9 / each) for each in held]
        return dict(zip((*SENT, *HELD, *FITS), (*sent, *held, *fits), strict=True))


RIGHT = Model()
MISTAKES = counted(
    SAYS,
    RIGHT,
    {
        "half of the moves with X kept": {"moves": (8, 4, 5)},
        "all-reduces counted as one move": {"moves": (4, 8, 10)},
        "forward only": {"moves": (4, 4, 4)},
        "one pair of layers": {"moves": (4, 4, 5)},
        "gathered again in one of two": {"moves": (8, 8, 9)},
        "again as an all-reduce": {"moves": (8, 8, 12)},
        "again costs nothing": {"moves": (8, 8, 8)},
        "limit for large N": {"of_a_move": 1},
        "masks in bfloat16": {"mask_item": ITEM},
        "no masks": {"masks": 0},
        "one mask": {"masks": 1},
        "X cut though it is kept": {"x_part": (1, 1 / N, 1 / N)},
        "X whole though gathered again": {"x_part": (1, 1, 1)},
        "X not counted": {"xs": 0},
        "norms not counted": {"norms": 0},
        "heads and MLP whole": {"inside_part": 1},
        "heads whole": {"inside_part": (4 + 8 / N) / 12},
        "MLP whole": {"inside_part": (4 / N + 8) / 12},
        "only what is between the layers": {"inside": 0},
        "MLP as wide as x": {"inside": 6},
        "tokens not cut": {"tokens": (1, 1, 1)},
        "float32": {"item": 4},
        "elements, not bytes": {"item": 1},
        "one layer": {"layers": 1},
        "all ranks": {"times": N},
        "a piece for a move": {"of_a_move": 1 / N},
        "a move of a rank's own": {"of_a_move": (N - 1) / N**2},
        "everything sharded": {"tokens": [1 / N] * 3, "x_part": [1 / N] * 3},
        "divided by N twice": {"copies": 1 / N},
        "nothing sharded": {"inside_part": 1, "tokens": (1, 1, 1), "x_part": (1, 1, 1)},
        "input of the norms whole": {"norms_part": (1, 1, 1)},
        "GELU counted once": {"inside": 8},
        "result of the heads left out": {"inside": 11},
        "gradients counted": {"copies": 2},
        "GiB #1": {"unit": 2**30},
    },
)
# ... and two about the room, that show in the number of sequences alone.
ROOMS = counted(SAYS, RIGHT, {"room of all ranks": {"room": N * ROOM}, "GiB #2": {"unit": 2**30}})


def judge_fits(given: Mapping) -> None:
    """Hold the numbers against the model, and against what each other count leads to."""
    right = RIGHT.answers()
    compare(given, {field: right[field] for field in (*SENT, *HELD)}, MISTAKES, apart=True)
    whole = all(float(given[field]).is_integer() for field in FITS)
    own = {"not whole sequences": dict.fromkeys(FITS, -1) if whole else given}
    own["one too many"] = {field: right[field] + 1 for field in FITS}
    ideas = [Mistake(*SAYS.of(entry), values) for entry, values in own.items()]
    compare(given, {field: right[field] for field in FITS}, (*ideas, *ROOMS))


WHICH_FITS = Thought(fields=(*SENT, *HELD, *FITS), judge=judge_fits, **SAYS.about)
