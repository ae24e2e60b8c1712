"""`choose_unit` of lesson 11: what a large model needs and sends, with units of three sizes.

The right numbers come from one model of what comes and goes; a wrong idea is another count in the
same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.thought import Mistake, Thought, compare, counted
from course_lib.classroom.checks.words import Page

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
    saved: int = 2  # gathers of the backward that need not be
    saved_bytes: int = 2 * TABLE
    moves: float = 3
    fast_moves: float = 2
    micro: float = 4  # times that a step's bytes are sent
    of_a_move: float = (N - 1) / N
    item: float = ITEM
    psi: int = PSI
    gigabyte: float = 1e9

    def answers(self) -> dict[str, float]:
        """What this way of counting leads to."""
        shards = self.psi * self.share
        base = shards if self.with_shards else 0
        lean = (self.moves * self.psi - self.saved_bytes) * self.of_a_move
        fast = self.fast_moves * self.psi * self.of_a_move
        most = (
            base + self.psi,
            base + self.largest_block,
            base + self.largest_layer,
            base + self.largest_block + self.next_block,
        )
        gathers = (2 * (units + self.ends) - self.saved for units in (LAYERS, 4 * LAYERS))
        to_gb = self.item / self.gigabyte
        sent = (lean, self.micro * lean, self.micro * fast)
        values = (*(n * to_gb for n in (shards, *most)), *gathers, *(n * to_gb for n in sent))
        return dict(zip(FIELDS, values, strict=True))


RIGHT = Model()
SAYS = Page("lesson_11/choose_unit")
IDEAS = {
    "shards not cut": {"share": 1.0},
    "shards forgotten": {"with_shards": False},
    "a block is the largest": {"largest_block": BLOCK, "next_block": BLOCK},
    "a layer is the largest": {"largest_layer": 4 * H * H},
    "two tables side by side #1": {"next_block": TABLE},
    "nothing ahead": {"next_block": 0},
    "blocks alone": {"ends": 0},
    "a gather in each direction for all": {"saved": 0, "saved_bytes": 0},
    "the last unit alone": {"saved": 1, "saved_bytes": TABLE},
    "two moves": {"moves": 2},
    "the second gather only": {"moves": 1},
    "fast is lean": {"fast_moves": 3},
    "an all-reduce for the gradients": {"moves": 4, "fast_moves": 3},
    "fast sends nothing twice": {"fast_moves": 1},
    "k forgotten": {"micro": 1},
    "limit for many ranks": {"of_a_move": 1.0},
    "its own piece once": {"of_a_move": 1 / N},
    "twice the bytes": {"item": 4},
    "numbers, not bytes": {"item": 1},
    "tied": {"psi": PSI - TABLE},
    "a model of blocks": {"psi": LAYERS * BLOCK},
    "GiB": {"gigabyte": 2**30},
}


def _alone(*pairs: tuple[str, str, float]) -> tuple[Mistake, ...]:
    """Wrong ideas about one field each, with what is counted there instead."""
    right, scale = RIGHT.answers(), ITEM / 1e9
    of = {"most": lambda n: (PSI / N + n) * scale, "sent": lambda n: n * scale * (N - 1) / N}
    found = [
        Mistake(*SAYS.of(entry), {field: of.get(field[:4], float)(n)}) for entry, field, n in pairs
    ]
    everyone = {k: N * right[k] for k in FIELDS if k.startswith(("gat", "sent"))}
    return (*found, Mistake(*SAYS.of("all ranks together"), everyone))


UNITS, PRODUCTS = LAYERS + 2, 4 * LAYERS + 2
ALONE = _alone(
    ("as at stage 2", "sent, block", 2 * PSI),
    ("as at stage 2", "sent, block, k = 4", 5 * PSI),
    ("gradients once", "sent, block, k = 4", 4 * (2 * PSI - 2 * TABLE) + PSI),
    ("one of the two once", "sent, fast, k = 4", 5 * PSI),
    ("gathered once", "sent, block, k = 4", 4 * PSI + 2 * PSI - 2 * TABLE),
    ("fast saves the same units", "sent, fast, k = 4", 4 * (2 * PSI - 2 * TABLE)),
    ("fast saves the same units", "sent, fast, k = 4", 4 * (2 * PSI - TABLE)),
    ("the forward alone", "gathers, block", UNITS),
    ("the forward alone", "gathers, layer", PRODUCTS),
    ("reduce-scatters too", "gathers, block", 3 * UNITS - 2),
    ("reduce-scatters too", "gathers, layer", 3 * PRODUCTS - 2),
    ("reduce-scatters too", "gathers, block", 3 * UNITS),
    ("reduce-scatters too", "gathers, layer", 3 * PRODUCTS),
    ("blocks alone", "gathers, block", 2 * LAYERS),
    ("blocks alone", "gathers, layer", 8 * LAYERS),
    ("the ends cut too", "gathers, layer", 4 * (2 * UNITS - 2)),
    ("the ends cut too", "gathers, layer", 4 * 2 * UNITS),
    ("a layer is the largest", "most, layer", 3 * H * H),
    ("a layer is the largest", "most, layer", H * H),
    ("ahead already", "most, block", TABLE + BLOCK),
    ("ahead already", "most, layer", TABLE + 4 * H * H),
    ("two tables side by side #2", "most, block", 2 * TABLE),
    ("two tables side by side #2", "most, layer", 2 * TABLE),
    ("three units", "most, block, 1 ahead", TABLE + 2 * BLOCK),
    ("gradients too", "most, model", 2 * PSI),
    ("gradients too", "most, block, 1 ahead", 2 * TABLE + 2 * BLOCK),
)


def mistakes() -> tuple[Mistake, ...]:
    """Each wrong idea with the numbers that follow from it."""
    return (*counted(SAYS, RIGHT, IDEAS), *ALONE)


def judge_unit(given: Mapping) -> None:
    """Hold the numbers against the model, and against what each other count leads to."""
    right = RIGHT.answers()
    compare(given, right, mistakes(), apart=True)
    for name in ("gathers, block", "gathers, layer"):  # whole, and not to three digits
        if given[name] != right[name]:
            theirs = [m[:2] for m in mistakes() if m.values.get(name) == given[name]]
            idea, text = (*theirs, SAYS.of("wrong number"))[0]
            raise Finding(idea, f"{text} That is in {name!r}. The rest is right.")


CHOOSE_UNIT = Thought(fields=FIELDS, judge=judge_unit, **SAYS.about)
