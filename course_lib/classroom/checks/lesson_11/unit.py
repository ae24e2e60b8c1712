"""`choose_unit` of lesson 11: what a large model needs and sends, with units of three sizes.

The right numbers come from one model of what comes and goes; a wrong idea is another count in the
same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.thought import Mistake, Thought, compare, counted
from course_lib.classroom.checks.words import Words

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
SAYS = Words("""
shards not cut: That is the whole model. Between uses a rank keeps a sixteenth.
shards forgotten: What is gathered comes *beside* the shards, which are there all the time.
a block is the largest: You have taken a block for the largest unit. Embedding and head are units as
  well: how many parameters has each of them?
a layer is the largest: You have taken a product inside a block for the largest unit. Smaller units
  inside the blocks do not make the head smaller.
two tables side by side #1: One unit ahead of the head, or of the embedding, there is a block and
  not another table.
two tables side by side #2: Embedding and head are never whole at the same time: between them are
  all the blocks.
nothing ahead: One unit ahead means that a second one is in memory while the first is at work.
ahead already: Nothing is fetched ahead here: one unit at a time is whole.
three units: One unit ahead makes two that are whole: the one at work and the next.
gradients too: Asked is for parameters in memory; gradients are not counted.
blocks alone: Embedding and head are units as well, and are gathered.
a gather in each direction for all: Not every unit is gathered again: one stays from the forward's
  end, and one is not read in its backward.
the last unit alone: The unit that ends the forward stays, yes. And which unit's backward reads no
  weight?
the forward alone: That is the forward. Most units are gathered a second time for the backward.
reduce-scatters too: Asked is for all-gathers; a unit's gradient goes in a reduce-scatter.
the ends cut too: Only a block is cut into four. Embedding and head stay a unit each, and not every
  unit is gathered again for its backward.
two moves: Stage 3 makes three moves of the parameters in a step: two gathers and a reduce-scatter.
the second gather only: There are two gathers *and* a reduce-scatter; you have counted one move.
an all-reduce for the gradients: A gradient is reduce-scattered, one move; an all-reduce would be
  two.
as at stage 2: That is stage 2's: a reduce-scatter for each micro-batch, and one gather after the
  step. At stage 3 the parameters are gathered in the forward, and again in the backward.
fast is lean: Where units stay from forward to backward, the second gather goes.
fast sends nothing twice: Kept from forward to backward, units are still gathered for each forward.
fast saves the same units: With the fast setting there are no gathers in the backward, and so none
  of them to be saved: two moves of all units.
k forgotten: With four micro-batches a unit comes and goes four times as often.
gradients once: Stage 3 keeps no whole gradient until the last micro-batch: each of the four sends
  its own.
gathered once: Units are let go at the end of each micro-batch: all of them are gathered for each.
one of the two once: Of the two moves you have counted one for a single micro-batch. Gradients are
  sent in each, and units are let go after each backward, also where they stay until then.
limit for many ranks: You have let a move send all of Ψ. A rank's own piece stays where it is:
  (N−1)/N.
its own piece once: In a gather a rank passes on every piece but one, and not its own piece alone:
  (N−1)/N of Ψ are sent.
all ranks together: That is for all ranks together; the question is about one.
twice the bytes: You have given each parameter four bytes, or counted its gradient beside it.
  bfloat16 has two, and parameters are asked for.
numbers, not bytes: Those are elements. One of bfloat16 has two bytes.
tied: The head is not tied: v·h parameters are in Ψ twice.
a model of blocks: Ψ is more than the blocks: embedding and head have parameters too.
GiB: Those are GiB, of 2³⁰ bytes. 1 GB is 10⁹ bytes here.
wrong number: Count the units one by one.
""")
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


CHOOSE_UNIT = Thought(
    name="choose_unit",
    title="Choose a unit",
    points=3,
    fields=FIELDS,
    judge=judge_unit,
    when_right=(
        "Blocks as units take the peak down to the shards and an embedding; layers as units take "
        "it no further, for four times as many messages: the head is the largest unit in both. "
        "Smaller units inside the blocks would help only after the head was sharded, over tp, "
        "say. And the fast setting saves a third of the bytes for all of the memory."
    ),
    hints=(
        "Units in the order of the forward: embedding, blocks, head. How many parameters has each? "
        "Which is the largest, where a unit is a block, and where it is a layer?",
        "At most there are: the shards, and the largest unit; with one unit ahead, also the one "
        "beside it.",
        "Forward, every unit is gathered. Backward, which two are not? The same two are missing "
        "in the bytes.",
        "A move of m elements costs a rank m(N−1)/N. Lean: gather, gather, reduce-scatter. Fast: "
        "one of the gathers goes. All of it once for each micro-batch.",
    ),
)
