"""`which_fits` of lesson 06: bytes sent and activations kept by eight ranks, in three plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

from course_classroom.judge.thought import Thought, close, compare, counted, named
from course_classroom.judge.words import Page

N, S, H, LAYERS, ITEM, ROOM = 8, 4096, 6144, 48, 2, 40e9  # ranks, tokens, hidden; bytes
PLANS = ("tokens replicated", "X kept", "X gathered again")
SENT, HELD, FITS = ([f"{what}, {plan}" for plan in PLANS] for what in ("sent", "kept", "sequences"))
SAYS = Page(__file__, "which_fits")


@dataclass(frozen=True)
class Model:
    """A counting model for one sequence and one layer, in tensors of Φ = s·h elements."""

    moves: tuple[float, ...] = (8, 8, 10)  # for each plan
    of_a_move: float = (N - 1) / N
    norms: float = 2  # inputs of norms
    xs: float = 2  # inputs of qkv and up
    masks: float = 2
    inside: float = 12  # q, k, v, result, and four each before and after the GELU
    # The fraction that a rank keeps of inner tensors, of tokens in each plan, of X, of norm inputs.
    inside_part: float = 1 / N
    tokens: tuple[float, ...] = (1, 1 / N, 1 / N)
    x_part: tuple[float, ...] = (1, 1, 1 / N)
    norms_part: tuple[float, ...] | None = None  # as for tokens
    item: float = ITEM
    mask_item: float = 1  # bytes
    layers: float = LAYERS
    times: float = 1  # factor on all counts
    copies: float = 1  # of the kept activations
    unit: float = 1e9  # bytes
    room: float = ROOM

    def answers(self) -> dict[str, float]:
        """Return the answers: gigabytes that a rank sends and keeps, and sequences that fit."""
        phi = S * H * self.layers * self.times / self.unit
        sent = [moves * self.of_a_move * phi * self.item for moves in self.moves]
        parts = zip(self.tokens, self.x_part, self.norms_part or self.tokens, strict=True)
        inside, masks = self.inside * self.inside_part, self.mask_item * self.masks
        kept = phi * self.copies
        held = [
            (self.item * (self.norms * norms + self.xs * x + inside) + masks * tokens) * kept
            for tokens, x, norms in parts
        ]
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
        "X sharded although kept": {"x_part": (1, 1 / N, 1 / N)},
        "full X although gathered again": {"x_part": (1, 1, 1)},
        "X not counted": {"xs": 0},
        "norms not counted": {"norms": 0},
        "heads and MLP not sharded": {"inside_part": 1},
        "heads not sharded": {"inside_part": (4 + 8 / N) / 12},
        "MLP not sharded": {"inside_part": (4 / N + 8) / 12},
        "only what is between the layers": {"inside": 0},
        "MLP as wide as x": {"inside": 6},
        "tokens not sharded": {"tokens": (1, 1, 1)},
        "float32": {"item": 4},
        "elements, not bytes": {"item": 1},
        "one layer": {"layers": 1},
        "all ranks": {"times": N},
        "a piece for a move": {"of_a_move": 1 / N},
        "a move of one shard": {"of_a_move": (N - 1) / N**2},
        "everything sharded": {"tokens": [1 / N] * 3, "x_part": [1 / N] * 3},
        "divided by N twice": {"copies": 1 / N},
        "nothing sharded": {"inside_part": 1, "tokens": (1, 1, 1), "x_part": (1, 1, 1)},
        "input of the norms not sharded": {"norms_part": (1, 1, 1)},
        "GELU counted once": {"inside": 8},
        "result of the heads left out": {"inside": 11},
        "gradients counted": {"copies": 2},
        "GiB": {"unit": 2**30},
    },
)
# ... and two about the room, which only change the number of sequences.
ROOMS = counted(SAYS, RIGHT, {"room of all ranks": {"room": N * ROOM}, "GiB": {"unit": 2**30}})


def judge_fits(given: Mapping) -> None:
    """Compare the bytes, then the sequences, with the model and with wrong counts."""
    right = RIGHT.answers()
    fits = {field: right.pop(field) for field in FITS}
    compare(given, right, MISTAKES, apart=True)
    parts = [field for field in FITS if not close(given[field], round(given[field]))]
    SAYS.refuse({"not an integer": parts})
    over = {"one too many": {field: count + 1 for field, count in fits.items()}}
    compare(given, fits, (*named(SAYS, over), *ROOMS))


WHICH_FITS = Thought(fields=(*SENT, *HELD, *FITS), judge=judge_fits, **SAYS.about)
