"""The model of `which_fits`, and wrong ideas about it: each by the counts that it changes.

Lesson 06. `fits.py` has what is counted.
"""

from __future__ import annotations

N, S, H, LAYERS, ITEM, ROOM = 8, 4096, 6144, 48, 2, 40e9  # ranks, tokens, hidden; bytes
WHOLE, KEPT, AGAIN = "tokens replicated", "X kept", "X gathered again"

# A wrong idea: its name, what to say to it, and the counts that it changes.
IDEAS = (
    (
        "half of the moves with X kept",
        "You have sent half as much with the tokens sharded and X kept. An all-reduce is two "
        "moves, and neither of its halves has gone away: one has only moved.",
        {"moves": {WHOLE: 8, KEPT: 4, AGAIN: 5}},
    ),
    (
        "all-reduces counted as one move",
        "An all-reduce sends its tensor nearly twice: a reduce-scatter and an all-gather.",
        {"moves": {WHOLE: 4, KEPT: 8, AGAIN: 10}},
    ),
    (
        "forward only",
        "Those are the messages of the forward alone; a step has a backward as well.",
        {"moves": {WHOLE: 4, KEPT: 4, AGAIN: 4}},
    ),
    (
        "one pair of layers",
        "That is half. A layer of the model has two pairs of layers, attention and MLP: have you "
        "counted one? Or elements, where bytes are asked for?",
        {"moves": {WHOLE: 4, KEPT: 4, AGAIN: 5}},
    ),
    (
        "gathered again in one of two",
        "X is gathered again before qkv *and* before up: two moves more in a layer.",
        {"moves": {WHOLE: 8, KEPT: 8, AGAIN: 9}},
    ),
    (
        "again as an all-reduce",
        "To gather X again is an all-gather: one move, half of an all-reduce.",
        {"moves": {WHOLE: 8, KEPT: 8, AGAIN: 12}},
    ),
    (
        "again costs nothing",
        "Gathering X again is a message too, in the backward.",
        {"moves": {WHOLE: 8, KEPT: 8, AGAIN: 8}},
    ),
    (
        "limit for large N",
        "You have let a move send all of Φ. That is the limit for many ranks; among eight a piece "
        "stays where it is.",
        {"of_a_move": 1},
    ),
    (
        "masks in bfloat16",
        "Your masks have two bytes for each element. A mask says yes or no: one byte.",
        {"mask_item": ITEM},
    ),
    (
        "no masks",
        "The masks of dropout are missing.",
        {"masks": 0},
    ),
    (
        "X cut though it is kept",
        "Where X is kept, it is the gathered one: all tokens, on every rank.",
        {"kept_x": 1 / N},
    ),
    (
        "X whole though gathered again",
        "To gather X again a rank needs its own tokens alone: that is all it keeps of X.",
        {"again_x": 1},
    ),
    (
        "X not counted",
        "The inputs of qkv and up are missing: their weights' gradients need them.",
        {"xs": 0},
    ),
    (
        "norms not counted",
        "The inputs of the norms are missing: a norm keeps its input for its backward.",
        {"norms": 0},
    ),
    (
        "heads and MLP whole",
        "What is kept inside heads and MLP was sharded before: each rank keeps its heads and "
        "its columns.",
        {"inside_cut": 1},
    ),
    (
        "only what is between the layers",
        "You have counted what is kept between the layers. Inside heads and MLP something is kept "
        "too, an eighth of it on each rank.",
        {"inside": 0},
    ),
    (
        "MLP as wide as x",
        "Inside, the MLP is four times as wide as x: that holds for what stands before and after "
        "the GELU.",
        {"inside": 6},
    ),
    (
        "tokens not cut",
        "With sharded tokens, a norm's input and a mask are an eighth on each rank.",
        {"tokens_cut": 1},
    ),
    (
        "float32",
        "You have given each element four bytes; bfloat16 has two.",
        {"item": 4},
    ),
    (
        "elements, not bytes",
        "Those are elements. An element of bfloat16 has two bytes.",
        {"item": 1},
    ),
    (
        "one layer",
        "That is one layer. The model has more.",
        {"layers": 1},
    ),
    (
        "all ranks",
        "That is eight times too much: of all eight ranks together, where one is asked for; or "
        "times N−1, and not divided by N. (Bits for bytes are eight times too much as well.)",
        {"of_all": N},
    ),
    (
        "a piece for a move",
        "You have let a move send Φ/N. Of the N pieces of a tensor a rank sends all but one.",
        {"of_a_move": 1 / N},
    ),
    (
        "a move of a rank's own",
        "You have let a move send (N−1)/N of Φ/N. A rank sends all pieces of Φ but one.",
        {"of_a_move": (N - 1) / N**2},
    ),
    (
        "everything sharded",
        "You have divided all that is kept by the number of ranks. What is replicated is not "
        "divided: which parts are, in this plan?",
        {"whole": 1 / N, "kept_x": 1 / N},
    ),
    (
        "divided by N twice",
        "You have divided all that is kept by the number of ranks once more: what is sharded was "
        "divided already, and what is replicated is not divided.",
        {"copies": 1 / N},
    ),
    (
        "nothing sharded",
        "Nothing is divided by the number of ranks. Heads and columns are sharded in all three "
        "plans, tokens in two of them.",
        {"inside_cut": 1, "tokens_cut": 1, "again_x": 1},
    ),
    (
        "input of the norms whole",
        "With sharded tokens a norm works on its rank's own: its input is an eighth.",
        {"norms_cut": 1},
    ),
    (
        "GELU counted once",
        "The MLP keeps what stands before the GELU and what stands after it: two tensors, each "
        "four times as wide as x.",
        {"inside": 8},
    ),
    (
        "result of the heads left out",
        "The heads keep q, k, v and their result: four tensors as wide as x.",
        {"inside": 11},
    ),
    (
        "gradients counted",
        "That is twice what is kept for the backward. Gradients are not asked for.",
        {"copies": 2},
    ),
    (
        "GiB",
        "Those are GiB, of 2³⁰ bytes. Asked for are GB, of 10⁹.",
        {"unit": 2**30},
    ),
)
# ... and one about the room, that shows in the number of sequences alone.
ROOMS = (
    (
        "room of all ranks",
        "You have used the room of all eight ranks for one rank's part. Each rank holds its part "
        "of every sequence in its own room.",
        {"room": N * ROOM},
    ),
    (
        "GiB",
        "The room is 40 GB, of 10⁹ bytes each, as is what is kept.",
        {"unit": 2**30},
    ),
    (
        "GiB",
        "The room is 40 GB, of 10⁹ bytes each, and not of 2³⁰.",
        {"room": ROOM * 2**30 / 1e9},
    ),
)
