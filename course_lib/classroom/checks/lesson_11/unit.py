"""`choose_unit` of lesson 11: what a large model needs and sends, with units of three sizes.

The right numbers come from one model of what comes and goes; a wrong idea is another count in the
same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from course_lib.classroom.checks.thought import Mistake, Thought, compare

N, H, LAYERS, WORDS, ITEM = 16, 4096, 32, 50_304, 2  # ranks, hidden, blocks, words, bytes
TABLE, BLOCK = WORDS * H, 12 * H * H  # numbers: the head, or the embedding; a block
PSI = 2 * TABLE + LAYERS * BLOCK
FIELDS = (
    "shards",
    "most, model",
    "most, block",
    "most, layer",
    "most, block, 1 ahead",
    "gathers, block",
    "gathers, layer",
    "sent, block",
    "sent, block, k = 4",
    "sent, fast, k = 4",
)


@dataclass(frozen=True)
class Model:
    """What somebody counts."""

    share: float = 1 / N  # of the parameters, between uses
    with_shards: bool = True  # in what is there at most
    largest_block: int = TABLE  # numbers of the largest unit, where blocks are units
    largest_layer: int = TABLE
    next_block: int = BLOCK  # the unit beside it
    ends: int = 2  # units beside the blocks: embedding and head
    in_a_block: int = 4
    saved: int = 2  # gathers of the backward that need not be
    saved_bytes: int = 2 * TABLE
    moves: float = 3
    fast_moves: float = 2
    micro: float = 1  # how a step's bytes grow with k: with all of k, or only in part
    of_a_move: float = (N - 1) / N
    item: float = ITEM

    def answers(self) -> dict[str, float]:
        """What somebody who counts like this would write."""
        shards = PSI * self.share
        base = shards if self.with_shards else 0

        def gb(numbers: float) -> float:
            return numbers * self.item / 1e9

        def sent(numbers: float) -> float:
            return gb(numbers * self.of_a_move)

        def gathers(units: int) -> float:
            return 2 * units - self.saved

        lean = self.moves * PSI - self.saved_bytes
        k = 1 + 3 * self.micro  # micro-batches as counted, of 4
        values = (
            gb(shards),
            gb(base + PSI),
            gb(base + self.largest_block),
            gb(base + self.largest_layer),
            gb(base + self.largest_block + self.next_block),
            gathers(LAYERS + self.ends),
            gathers(self.in_a_block * LAYERS + self.ends),
            sent(lean),
            sent(k * lean),
            sent(k * self.fast_moves * PSI),
        )
        return dict(zip(FIELDS, values, strict=True))


RIGHT = Model()
# A wrong idea: its name, what to say to it, and the counts that it changes.
_IDEAS = (
    (
        "shards not cut",
        "That is the whole model. Between uses a rank keeps a sixteenth.",
        {"share": 1.0},
    ),
    (
        "shards forgotten",
        "What comes and goes lies *beside* the shards, which are there all the time.",
        {"with_shards": False},
    ),
    (
        "a block is the largest",
        "You have taken a block for the largest unit. Embedding and head are units as well: how "
        "many numbers has each of them?",
        {"largest_block": BLOCK, "next_block": BLOCK},
    ),
    (
        "a layer is the largest",
        "You have taken a product inside a block for the largest unit. Smaller units inside the "
        "blocks do not make the head smaller.",
        {"largest_layer": 4 * H * H},
    ),
    (
        "two tables side by side",
        "One unit ahead of the head, or of the embedding, there is a block and not another table.",
        {"next_block": TABLE},
    ),
    (
        "nothing ahead",
        "One unit ahead means that a second one is in memory while the first is at work.",
        {"next_block": 0},
    ),
    (
        "blocks alone",
        "Embedding and head are units as well, and are gathered.",
        {"ends": 0},
    ),
    (
        "a gather in each direction for all",
        "Not every unit is gathered again: one stays from the forward's end, and one is not read "
        "in its backward.",
        {"saved": 0, "saved_bytes": 0},
    ),
    (
        "the last unit alone",
        "The unit that ends the forward stays, yes. And which unit's backward reads no weight?",
        {"saved": 1, "saved_bytes": TABLE},
    ),
    (
        "two moves",
        "Stage 3 makes three moves of the parameters in a step: two gathers and a reduce-scatter.",
        {"moves": 2},
    ),
    (
        "the second gather only",
        "There are two gathers *and* a reduce-scatter; you have counted one move.",
        {"moves": 1},
    ),
    (
        "fast is lean",
        "Where units stay from forward to backward, the second gather goes.",
        {"fast_moves": 3},
    ),
    (
        "an all-reduce for the gradients",
        "A gradient is reduce-scattered, one move; an all-reduce would be two.",
        {"moves": 4, "fast_moves": 3},
    ),
    (
        "fast sends nothing twice",
        "Kept from forward to backward, units are still gathered for each forward.",
        {"fast_moves": 1},
    ),
    (
        "k forgotten",
        "With four micro-batches a unit comes and goes four times as often.",
        {"micro": 0.0},
    ),
    (
        "gradients once",
        "Stage 3 keeps no whole gradient until the last micro-batch: each of the four sends its "
        "own.",
        {"micro": 2 / 3},
    ),
    (
        "limit for many ranks",
        "You have let a move send all of Ψ. A rank's own piece stays where it is: (N−1)/N.",
        {"of_a_move": 1.0},
    ),
    ("float32", "You have given each number four bytes; bfloat16 has two.", {"item": 4}),
    ("numbers, not bytes", "Those are numbers. One of bfloat16 has two bytes.", {"item": 1}),
)


def judge_unit(given: Mapping) -> None:
    """Hold the numbers against the model, and against what each other count leads to."""
    compare(given, RIGHT.answers(), mistakes(), apart=True)


def mistakes() -> tuple[Mistake, ...]:
    """Each wrong idea with the numbers that follow from it, where they differ from the right."""
    right, made = RIGHT.answers(), []
    for name, text, counts in _IDEAS:
        theirs = replace(RIGHT, **counts).answers()
        made.append(Mistake(name, text, {k: v for k, v in theirs.items() if v != right[k]}))
    return tuple(made)


CHOOSE_UNIT = Thought(
    name="choose_unit",
    title="Choose a unit",
    points=3,
    fields=FIELDS,
    judge=judge_unit,
    when_right=(
        "Blocks as units take the peak down to the shards and a table; layers as units take it no "
        "further, for four times as many messages: the head is the largest unit in both. Cutting "
        "the blocks finer would pay only after the head was cut, over tp, say. And the fast "
        "setting saves a third of the bytes for all of the memory."
    ),
    hints=(
        "Units in the order of the forward: embedding, blocks, head. How many numbers has each? "
        "Which is the largest, where a unit is a block, and where it is a layer?",
        "At most there are: the shards, and the largest unit; with one unit ahead, also the one "
        "beside it.",
        "Forward, every unit is gathered. Backward, which two are not? The same two are missing "
        "in the bytes.",
        "A move of m numbers costs a rank m(N−1)/N. Lean: gather, gather, reduce-scatter. Fast: "
        "one of the gathers goes. All of it once for each micro-batch.",
    ),
)
