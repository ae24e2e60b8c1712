"""`which_fits` of lesson 06: bytes sent and activations kept by eight ranks, in three plans.

The right numbers come from one model of what is kept and sent; a wrong idea is another count in the
same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

from course_lib.classroom.checks.thought import Mistake, Thought, compare, counted
from course_lib.classroom.checks.words import Words

N, S, H, LAYERS, ITEM, ROOM = 8, 4096, 6144, 48, 2, 40e9  # ranks, tokens, hidden; bytes
WHOLE, KEPT, AGAIN = PLANS = ("tokens replicated", "X kept", "X gathered again")
SENT, HELD, FITS = ([f"{what}, {plan}" for plan in PLANS] for what in ("sent", "kept", "sequences"))
SAYS = Words("""
half of the moves with X kept: You have sent half as much with the tokens sharded and X kept. An
  all-reduce is two moves, and neither of its halves has gone away: one has only moved.
all-reduces counted as one move: An all-reduce sends its tensor nearly twice: a reduce-scatter and
  an all-gather.
forward only: Those are the messages of the forward alone; a step has a backward as well.
one pair of layers: That is half. A layer of the model has two pairs of layers, attention and MLP:
  have you counted one? Or elements, where bytes are asked for?
gathered again in one of two: X is gathered again before qkv *and* before up: two moves more in a
  layer.
again as an all-reduce: To gather X again is an all-gather: one move, half of an all-reduce.
again costs nothing: Gathering X again is a message too, in the backward.
limit for large N: You have let a move send all of Φ. That is the limit for many ranks; among eight
  a piece stays where it is.
masks in bfloat16: Your masks have two bytes for each element. A mask says yes or no: one byte.
no masks: The masks of dropout are missing.
one mask: Dropout comes after attention and after the MLP: two masks, each with x's elements.
X cut though it is kept: Where X is kept, it is the gathered one: all tokens, on every rank.
X whole though gathered again: To gather X again a rank needs its own tokens alone: that is all it
  keeps of X.
X not counted: The inputs of qkv and up are missing: their weights' gradients need them.
norms not counted: The inputs of the norms are missing: a norm keeps its input for its backward.
heads and MLP whole: What is kept inside heads and MLP was sharded before: each rank keeps its heads
  and its columns.
heads whole: q, k, v and the heads' result were sharded before: each rank has its own heads alone.
MLP whole: What the MLP keeps inside was sharded before: each rank has its own columns alone.
only what is between the layers: You have counted what is kept between the layers. Inside heads and
  MLP something is kept too, an eighth of it on each rank.
MLP as wide as x: Inside, the MLP is four times as wide as x: that holds for what stands before and
  after the GELU.
tokens not cut: With sharded tokens, a norm's input and a mask are an eighth on each rank.
float32: You have given each element four bytes; bfloat16 has two.
elements, not bytes: Those are elements. An element of bfloat16 has two bytes.
one layer: That is one layer. The model has more.
all ranks: That is eight times too much: of all eight ranks together, where one is asked for; or
  times N−1, and not divided by N. (Bits for bytes are eight times too much as well.)
a piece for a move: You have let a move send Φ/N. Of the N pieces of a tensor a rank sends all but
  one.
a move of a rank's own: You have let a move send (N−1)/N of Φ/N. A rank sends all pieces of Φ but
  one.
everything sharded: You have divided all that is kept by the number of ranks. What is replicated is
  not divided: which parts are, in this plan?
divided by N twice: You have divided all that is kept by the number of ranks once more: what is
  sharded was divided already, and what is replicated is not divided.
nothing sharded: Nothing is divided by the number of ranks. Heads and columns are sharded in all
  three plans, tokens in two of them.
input of the norms whole: With sharded tokens a norm works on its rank's own: its input is an
  eighth.
GELU counted once: The MLP keeps what stands before the GELU and what stands after it: two tensors,
  each four times as wide as x.
result of the heads left out: The heads keep q, k, v and their result: four tensors as wide as x.
gradients counted: That is twice what is kept for the backward. Gradients are not asked for.
GiB #1: Those are GiB, of 2³⁰ bytes. Asked for are GB, of 10⁹.
GiB #2: The room is 40 GB, of 10⁹ bytes each, as is what is kept, and not of 2³⁰.
room of all ranks: You have used the room of all eight ranks for one rank's part. Each rank holds
  its part of every sequence in its own room.
not whole sequences: Half a sequence is no sequence: round down to a whole number.
one too many: One sequence more than there is room for: round down, not up.
""")


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


WHICH_FITS = Thought(
    name="which_fits",
    title="Which variant fits?",
    points=3,
    fields=(*SENT, *HELD, *FITS),
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
