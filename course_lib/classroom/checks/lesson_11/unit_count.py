"""What `choose_unit` of lesson 11 counts: one model of what comes and goes by units.

A wrong idea is another count in the same model.
"""

from __future__ import annotations

from dataclasses import dataclass

N, H, LAYERS, WORDS, ITEM = 16, 4096, 32, 50_304, 2  # ranks, hidden, blocks, vocabulary, bytes
TABLE, BLOCK = WORDS * H, 12 * H * H  # parameters: the head, or the embedding; a block
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
    """One way of counting."""

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
    psi: int = PSI
    gigabyte: float = 1e9

    def answers(self) -> dict[str, float]:
        """What this way of counting leads to."""
        shards = self.psi * self.share
        base = shards if self.with_shards else 0

        def gb(numbers: float) -> float:
            return numbers * self.item / self.gigabyte

        def sent(numbers: float) -> float:
            return gb(numbers * self.of_a_move)

        def gathers(units: int) -> float:
            return 2 * units - self.saved

        lean = self.moves * self.psi - self.saved_bytes
        k = 1 + 3 * self.micro  # micro-batches as counted, of 4
        values = (
            gb(shards),
            gb(base + self.psi),
            gb(base + self.largest_block),
            gb(base + self.largest_layer),
            gb(base + self.largest_block + self.next_block),
            gathers(LAYERS + self.ends),
            gathers(self.in_a_block * LAYERS + self.ends),
            sent(lean),
            sent(k * lean),
            sent(k * self.fast_moves * self.psi),
        )
        return dict(zip(FIELDS, values, strict=True))


RIGHT = Model()
