"""`choose_unit` of lesson 11: memory and traffic of a large model, with units of three sizes, from
one model of gathers and frees. A wrong idea changes a count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from course_classroom.judge.finding import Finding
from course_classroom.judge.thought import Thought, compare, counted, named
from course_classroom.judge.words import Page

N, H, LAYERS, WORDS, ITEM = 16, 4096, 32, 50_304, 2  # ranks, hidden, blocks, vocabulary, bytes
TABLE, BLOCK = WORDS * H, 12 * H * H  # parameters of the head, or the embedding, and of a block
PSI = 2 * TABLE + LAYERS * BLOCK


@dataclass(frozen=True)
class Model:
    """A counting model of the memory and traffic of a rank at stage 3."""

    share: float = 1 / N  # of the parameters, between uses
    with_shards: bool = True  # in the maximum
    largest_block: int = TABLE  # elements of the largest unit, if blocks are units
    largest_layer: int = TABLE
    next_block: int = BLOCK  # the unit next to it
    ends: int = 2  # units besides the blocks: embedding and head
    saved: int = 2  # unnecessary gathers of the backward
    saved_bytes: int = 2 * TABLE
    moves: float = 3
    fast_moves: float = 2
    micro: float = 4  # times that a step's bytes are sent
    of_a_move: float = (N - 1) / N
    item: float = ITEM
    psi: int = PSI
    gigabyte: float = 1e9

    def answers(self) -> dict[str, float]:
        gb, shards = self.item / self.gigabyte, self.psi * self.share
        base = shards if self.with_shards else 0
        lean = (self.moves * self.psi - self.saved_bytes) * self.of_a_move
        fast = self.fast_moves * self.psi * self.of_a_move
        return {
            "shards": gb * shards,
            "most, model": gb * (base + self.psi),
            "most, block": gb * (base + self.largest_block),
            "most, layer": gb * (base + self.largest_layer),
            "most, block, 1 ahead": gb * (base + self.largest_block + self.next_block),
            "gathers, block": 2 * (LAYERS + self.ends) - self.saved,
            "gathers, layer": 2 * (4 * LAYERS + self.ends) - self.saved,
            "sent, block": gb * lean,
            "sent, block, k = 4": gb * lean * self.micro,
            "sent, fast, k = 4": gb * fast * self.micro,
        }


RIGHT = Model()
SAYS = Page(__file__, "choose_unit")
IDEAS = {
    "full model between uses": {"share": 1.0},
    "shards forgotten": {"with_shards": False},
    "a block is the largest": {"largest_block": BLOCK, "next_block": BLOCK},
    "a layer is the largest": {"largest_layer": 4 * H * H},
    "two tables side by side": {"next_block": TABLE},
    "nothing ahead": {"next_block": 0},
    "only blocks": {"ends": 0},
    "a gather in each direction for all": {"saved": 0, "saved_bytes": 0},
    "only the last unit": {"saved": 1, "saved_bytes": TABLE},
    "two moves": {"moves": 2},
    "the second gather only": {"moves": 1},
    "fast is lean": {"fast_moves": 3},
    "an all-reduce for the gradients": {"moves": 4, "fast_moves": 3},
    "fast sends nothing twice": {"fast_moves": 1},
    "k forgotten": {"micro": 1},
    "limit for many ranks": {"of_a_move": 1.0},
    "its own piece once": {"of_a_move": 1 / N},
    "twice the bytes": {"item": 4},
    "elements, not bytes": {"item": 1},
    "tied": {"psi": PSI - TABLE},
    "a model of blocks": {"psi": LAYERS * BLOCK},
    "GiB": {"gigabyte": 2**30},
}


UNITS, PRODUCTS = LAYERS + 2, 4 * LAYERS + 2
FAST, LEAN, PRODUCT = "sent, fast, k = 4", "sent, block, k = 4", H * H
# Wrong ideas about one field: its count, in addition to the shards, or of all moves.
ALONE = {
    "as at stage 2": {"sent, block": [2 * PSI], LEAN: [5 * PSI]},
    "gradients once": {LEAN: [9 * PSI - 8 * TABLE]},
    "one of the two once": {FAST: [5 * PSI]},
    "gathered once": {LEAN: [6 * PSI - 2 * TABLE]},
    "fast saves the same units": {FAST: [8 * PSI - 8 * TABLE, 8 * PSI - 4 * TABLE]},
    "only the forward pass": {"gathers, block": [UNITS], "gathers, layer": [PRODUCTS]},
    "reduce-scatters too": {
        "gathers, block": [3 * UNITS - 2, 3 * UNITS],
        "gathers, layer": [3 * PRODUCTS - 2, 3 * PRODUCTS],
    },
    "only blocks": {"gathers, block": [2 * LAYERS], "gathers, layer": [8 * LAYERS]},
    "ends split too": {"gathers, layer": [4 * (2 * UNITS - 2), 4 * 2 * UNITS]},
    "a layer is the largest": {"most, layer": [3 * PRODUCT, PRODUCT]},
    "ahead already": {"most, block": [TABLE + BLOCK], "most, layer": [TABLE + 4 * PRODUCT]},
    "two tables side by side": {"most, block": [2 * TABLE], "most, layer": [2 * TABLE]},
    "three units": {"most, block, 1 ahead": [TABLE + 2 * BLOCK]},
    "gradients too": {"most, model": [2 * PSI], "most, block, 1 ahead": [2 * TABLE + 2 * BLOCK]},
}
ANSWERS = RIGHT.answers()
OF_ALL = ("gath", "sent")


def _instead(field: str, count: int) -> float:
    """Convert a count of elements (or gathers) to the unit of a field."""
    if field.startswith("gathers"):
        return count
    return (PSI / N + count if field.startswith("most") else count * (N - 1) / N) * ITEM / 1e9


FEW = [
    (entry, {field: _instead(field, count)})
    for entry, about in ALONE.items()
    for field, counts in about.items()
    for count in counts
]
FEW.append(("all ranks together", {k: N * v for k, v in ANSWERS.items() if k[:4] in OF_ALL}))
MISTAKES = (*counted(SAYS, RIGHT, IDEAS), *named(SAYS, FEW))


def judge_unit(given: Mapping) -> None:
    compare(given, ANSWERS, MISTAKES, apart=True)
    for name in ("gathers, block", "gathers, layer"):  # exact, not to three digits
        if given[name] != ANSWERS[name]:
            theirs = [m[:2] for m in MISTAKES if m.values.get(name) == given[name]]
            idea, text = (*theirs, SAYS.of("wrong number"))[0]
            raise Finding(idea, f"{text} This concerns {name!r}. The other values are correct.")


CHOOSE_UNIT = Thought(fields=tuple(ANSWERS), judge=judge_unit, **SAYS.about)
