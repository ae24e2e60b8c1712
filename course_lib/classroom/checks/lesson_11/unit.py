"""`choose_unit` of lesson 11: what a large model needs and sends, with units of three sizes.

The right numbers come from one model of what comes and goes; a wrong idea is another count in the
same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.lesson_11.unit_count import (
    BLOCK,
    FIELDS,
    ITEM,
    LAYERS,
    PSI,
    RIGHT,
    TABLE,
    H,
    N,
)
from course_lib.classroom.checks.thought import Mistake, Thought, close, compare

# A wrong idea: its name, what to say to it, and the counts that it changes.
_IDEAS = (
    (
        "shards not cut",
        "That is the whole model. Between uses a rank keeps a sixteenth.",
        {"share": 1.0},
    ),
    (
        "shards forgotten",
        "What is gathered comes *beside* the shards, which are there all the time.",
        {"with_shards": False},
    ),
    (
        "a block is the largest",
        "You have taken a block for the largest unit. Embedding and head are units as well: how "
        "many parameters has each of them?",
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
        "limit for many ranks",
        "You have let a move send all of Ψ. A rank's own piece stays where it is: (N−1)/N.",
        {"of_a_move": 1.0},
    ),
    (
        "its own piece once",
        "In a gather a rank passes on every piece but one, and not its own piece alone: (N−1)/N of "
        "Ψ are sent.",
        {"of_a_move": 1 / N},
    ),
    (
        "twice the bytes",
        "You have given each parameter four bytes, or counted its gradient beside it. bfloat16 has "
        "two, and parameters are asked for.",
        {"item": 4},
    ),
    ("numbers, not bytes", "Those are elements. One of bfloat16 has two bytes.", {"item": 1}),
    ("tied", "The head is not tied: v·h parameters are in Ψ twice.", {"psi": PSI - TABLE}),
    (
        "a model of blocks",
        "Ψ is more than the blocks: embedding and head have parameters too.",
        {"psi": LAYERS * BLOCK},
    ),
    ("GiB", "Those are GiB, of 2³⁰ bytes. 1 GB is 10⁹ bytes here.", {"gigabyte": 2**30}),
)
_SHARD, _MOVED = PSI / N, (N - 1) / N


def _gb(numbers: float) -> float:
    return numbers * ITEM / 1e9


# Wrong ideas about some of the fields, which change no count elsewhere.
_ALONE = (
    Mistake(
        "as at stage 2",
        "That is stage 2's: a reduce-scatter for each micro-batch, and one gather after the step. "
        "At stage 3 the parameters are gathered in the forward, and again in the backward.",
        {
            "sent, block": _gb(2 * PSI * _MOVED),
            "sent, block, k = 4": _gb(5 * PSI * _MOVED),
        },
    ),
    Mistake(
        "all ranks together",
        "That is for all ranks together; the question is about one.",
        {name: N * RIGHT.answers()[name] for name in FIELDS if name.startswith(("gat", "sent"))},
    ),
    Mistake(
        "gradients once",
        "Stage 3 keeps no whole gradient until the last micro-batch: each of the four sends its "
        "own.",
        {
            "sent, block, k = 4": _gb((4 * (2 * PSI - 2 * TABLE) + PSI) * _MOVED),
        },
    ),
    Mistake(
        "one of the two once",
        "Of the two moves you have counted one for a single micro-batch. Gradients are sent in "
        "each, and units are let go after each backward, also where they stay until then.",
        {"sent, fast, k = 4": _gb(5 * PSI * _MOVED)},
    ),
    Mistake(
        "gathered once",
        "Units are let go at the end of each micro-batch: all of them are gathered for each.",
        {"sent, block, k = 4": _gb((4 * PSI + 2 * PSI - 2 * TABLE) * _MOVED)},
    ),
    Mistake(
        "fast saves the same units",
        "With the fast setting there are no gathers in the backward, and so none of them to be "
        "saved: two moves of all units.",
        {"sent, fast, k = 4": _gb(4 * (2 * PSI - 2 * TABLE) * _MOVED)},
    ),
    Mistake(
        "fast saves the same units",
        "With the fast setting there are no gathers in the backward, and so none to be saved: two "
        "moves of all units.",
        {"sent, fast, k = 4": _gb(4 * (2 * PSI - TABLE) * _MOVED)},
    ),
    Mistake(
        "the forward alone",
        "That is the forward. Most units are gathered a second time for the backward.",
        {"gathers, block": LAYERS + 2, "gathers, layer": 4 * LAYERS + 2},
    ),
    Mistake(
        "reduce-scatters too",
        "Asked is for all-gathers; a unit's gradient goes in a reduce-scatter.",
        {"gathers, block": 3 * (LAYERS + 2) - 2, "gathers, layer": 3 * (4 * LAYERS + 2) - 2},
    ),
    Mistake(
        "reduce-scatters too",
        "Asked is for all-gathers; a unit's gradient goes in a reduce-scatter. And not every unit "
        "is gathered again for its backward.",
        {"gathers, block": 3 * (LAYERS + 2), "gathers, layer": 3 * (4 * LAYERS + 2)},
    ),
    Mistake(
        "blocks alone",
        "Embedding and head are units as well: each is gathered once.",
        {"gathers, block": 2 * LAYERS, "gathers, layer": 8 * LAYERS},
    ),
    Mistake(
        "the ends cut too",
        "Only a block is cut into four. Embedding and head stay a unit each.",
        {"gathers, layer": 4 * (2 * LAYERS + 2)},
    ),
    Mistake(
        "the ends cut too",
        "Only a block is cut into four. Embedding and head stay a unit each, and not every unit is "
        "gathered again for its backward.",
        {"gathers, layer": 4 * (2 * LAYERS + 4)},
    ),
    *(
        Mistake(
            "a layer is the largest",
            "You have taken a product inside a block for the largest unit. Smaller units inside "
            "the blocks do not make the head smaller.",
            {"most, layer": _gb(_SHARD + numbers)},
        )
        for numbers in (3 * H * H, H * H)
    ),
    Mistake(
        "ahead already",
        "Nothing is fetched ahead here: one unit at a time is whole.",
        {
            "most, block": _gb(_SHARD + TABLE + BLOCK),
            "most, layer": _gb(_SHARD + TABLE + 4 * H * H),
        },
    ),
    Mistake(
        "two tables side by side",
        "Embedding and head are never whole at the same time: between them are all the blocks.",
        {"most, block": _gb(_SHARD + 2 * TABLE), "most, layer": _gb(_SHARD + 2 * TABLE)},
    ),
    Mistake(
        "three units",
        "One unit ahead makes two that are whole: the one at work and the next.",
        {"most, block, 1 ahead": _gb(_SHARD + TABLE + 2 * BLOCK)},
    ),
    Mistake(
        "gradients too",
        "Asked is for parameters in memory; gradients are not counted.",
        {
            "most, model": _gb(_SHARD + 2 * PSI),
            "most, block, 1 ahead": _gb(_SHARD + 2 * TABLE + 2 * BLOCK),
        },
    ),
)


def judge_unit(given: Mapping) -> None:
    """Hold the numbers against the model, and against what each other count leads to."""
    compare(given, RIGHT.answers(), mistakes(), apart=True)
    for name in ("gathers, block", "gathers, layer"):  # whole, and not to three digits
        if given[name] != RIGHT.answers()[name]:
            theirs = ((*idea[:2], replace(RIGHT, **idea[2]).answers()) for idea in _IDEAS)
            of_it = [(idea, text) for idea, text, all_ in theirs if all_[name] == given[name]]
            idea, text = (*of_it, ("wrong number", "Count the units one by one."))[0]
            raise Finding(idea, f"{text} That is in {name!r}. The rest is right.")


def mistakes() -> tuple[Mistake, ...]:
    """Each wrong idea with the numbers that follow from it, where they differ from the right."""
    right, made = RIGHT.answers(), []
    for name, text, counts in _IDEAS:
        theirs = replace(RIGHT, **counts).answers()
        off = {k: v for k, v in theirs.items() if not close(v, right[k])}
        made.append(Mistake(name, text, off))
    return (*made, *_ALONE)


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
