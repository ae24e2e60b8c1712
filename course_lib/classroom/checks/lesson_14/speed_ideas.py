"""The wrong ideas of `streamed_speed`: for each key of the answer, what each makes of a case.

An idea is recognised by its value in every drawn case. Lesson 14.
"""

from __future__ import annotations

import math

from course_lib.classroom.checks.by_cases import Idea
from course_lib.classroom.checks.lesson_14.speed_cases import (
    BYTES,
    DENSE,
    EVEN,
    PREFILL,
    RATE,
    STREAMED,
    TP,
    Case,
    break_even,
    computed,
    operations,
    received,
    streamed,
    sums,
    transfer,
    travels,
)


def _all(case: Case) -> float:
    """The prompts of all ranks."""
    return case["ranks"] * case["batch"]


def _reads(case: Case) -> float:
    """Seconds in which a rank reads all weights from its own memory."""
    return case["item"] * case["parameters"] / case["memory"]


def _of_tp(case: Case) -> float:
    """Seconds of a tp rank without its messages."""
    return computed(case, _all(case), 1 / case["ranks"])


IDEAS: tuple[Idea, ...] = (
    Idea(BYTES, "its own piece too", "A rank has its own piece of the weights: it need not be "
         "sent to it.", lambda c: c["item"] * c["parameters"]),
    Idea(BYTES, "its own piece alone", "That is the piece which a rank holds. It receives what "
         "it does not hold.", lambda c: c["item"] * c["parameters"] / c["ranks"]),
    Idea(BYTES, "of all ranks", "That is what all ranks receive together. Asked is for one.",
         lambda c: c["ranks"] * received(c)),
    Idea(BYTES, "gigabytes", "Those are gigabytes.", lambda c: received(c) / 1e9),
    Idea(BYTES, "the batch counted", "A forward gathers a layer's weights once, for all prompts "
         "of the rank's batch.", lambda c: received(c) * c["batch"]),
    Idea(BYTES, "a backward counted", "Nothing is trained here: there is a forward, and no "
         "second gather.", lambda c: 2 * received(c)),
    Idea(BYTES, "a backward counted", "Three moves of the parameters are a step of training. "
         "Generation has the forward alone.", lambda c: 3 * received(c)),
    Idea(BYTES, "parameters, not bytes", "Those are parameters. Each has as many bytes as `item` "
         "says.", lambda c: received(c) / c["item"]),
    Idea(STREAMED, "one after the other", "The next layer's weights travel while this one "
         "computes: the longer of the two decides, not their sum.",
         lambda c: transfer(c) + computed(c, c["batch"])),
    Idea(STREAMED, "the link alone", "With a large batch it is the arithmetic that takes longer.",
         transfer),
    Idea(STREAMED, "weights for every prompt", "The weights come once for a token step, whatever "
         "the batch: so a larger batch means fewer bytes per token.",
         lambda c: max(c["batch"] * transfer(c), computed(c, c["batch"]))),
    Idea(STREAMED, "a backward counted", "Six operations for a parameter and token are forward "
         "and backward. A forward has two.",
         lambda c: max(transfer(c), 3 * operations(c, c["batch"]))),
    Idea(STREAMED, "one operation", "A multiplication and an addition are two operations.",
         lambda c: max(transfer(c), operations(c, c["batch"]) / 2)),
    Idea(STREAMED, "a backward counted", "Six operations for a parameter and token are forward "
         "and backward. A forward has two.",
         lambda c: max(transfer(c), _reads(c), 3 * operations(c, c["batch"]))),
    Idea(STREAMED, "one operation", "A multiplication and an addition are two operations.",
         lambda c: max(transfer(c), _reads(c), operations(c, c["batch"]) / 2)),
    Idea(STREAMED, "one after the other", "Weights are read while others are computed with: the "
         "longer of the two decides.",
         lambda c: max(transfer(c), _reads(c) + operations(c, c["batch"]))),
    Idea(STREAMED, "weights for every prompt", "A rank reads each weight once for a token step, "
         "for all its prompts.",
         lambda c: max(transfer(c), c["batch"] * _reads(c), operations(c, c["batch"]))),
    Idea(STREAMED, "milliseconds", "Those are milliseconds.",
         lambda c: 1e3 * streamed(c, c["batch"])),
    Idea(STREAMED, "its share of the arithmetic", "Stage 3 shards where weights are stored. "
         "Every rank computes with all of them.",
         lambda c: max(transfer(c), computed(c, c["batch"], 1 / c["ranks"]))),
    Idea(STREAMED, "prompts of all ranks", "Every rank has prompts of its own, and computes for "
         "them alone.", lambda c: streamed(c, c["ranks"] * c["batch"])),
    Idea(STREAMED, "operations alone", "While it computes, a rank reads all weights from its own "
         "memory: with few prompts and slow memory that decides, behind a quick link too.",
         lambda c: max(transfer(c), operations(c, c["batch"]))),
    Idea(RATE, "token steps", "Those are token steps. In each of them every prompt of every rank "
         "gets a token.", lambda c: 1 / streamed(c, c["batch"])),
    Idea(RATE, "one rank's prompts", "Every rank has prompts of its own: in a token step each of "
         "them makes a token for each of its prompts.",
         lambda c: c["batch"] / streamed(c, c["batch"])),
    Idea(RATE, "one prompt a rank", "Each rank makes a token for each prompt of its batch.",
         lambda c: c["ranks"] / streamed(c, c["batch"])),
    Idea(RATE, "seconds per token", "That is how long a token takes. Asked is how many there are "
         "in a second.", lambda c: streamed(c, c["batch"]) / (c["ranks"] * c["batch"])),
    Idea(RATE, "tokens of the prompt", "Tokens of the prompt are read and not made. A token step "
         "makes one for each prompt.",
         lambda c: c["ranks"] * c["batch"] * c["prompt"] / streamed(c, c["batch"])),
    Idea(DENSE, "operations alone", "With a small batch a rank waits for its own memory: every "
         "weight is read once for a token step.", lambda c: operations(c, c["batch"])),
    Idea(DENSE, "memory alone", "With a large batch the arithmetic takes longer than reading the "
         "weights.", lambda c: _reads(c)),
    Idea(DENSE, "one after the other", "Weights are read while others are computed with: the "
         "longer of the two decides.",
         lambda c: _reads(c) + operations(c, c["batch"])),
    Idea(DENSE, "the link in it", "A rank that has all the weights receives none.",
         lambda c: streamed(c, c["batch"])),
    Idea(TP, "its own prompts alone", "Ranks of one tp group work on the same prompts: to "
         "compare with stage 3, each has those of all N ranks.",
         lambda c: computed(c, c["batch"], 1 / c["ranks"]) + sums(c, c["batch"])),
    Idea(TP, "no all-reduce", "Nothing is gathered, and yet something is sent: two sums of "
         "activations in each layer, with nothing beside them.",
         lambda c: computed(c, c["ranks"] * c["batch"], 1 / c["ranks"])),
    Idea(TP, "half of the sums", "A layer has two all-reduces, after attention and after the "
         "MLP, and each of them is a reduce-scatter and an all-gather: 2(N−1)/N of its bytes. "
         "You have counted half of it.",
         lambda c: (computed(c, c["ranks"] * c["batch"], 1 / c["ranks"]) + sums(c, c["ranks"] *
             c["batch"], each=1))),
    Idea(TP, "the sums overlapped", "Nothing runs beside tp's all-reduces: they come on top.",
         lambda c: max(_of_tp(c), sums(c, _all(c)))),
    Idea(TP, "own prompts in the sums", "The ranks of a tp group sum the activations of all N · "
         "batch tokens.", lambda c: _of_tp(c) + sums(c, c["batch"])),
    Idea(TP, "own prompts computed", "A tp rank computes with its share of the weights for all N "
         "· batch tokens.", lambda c: computed(c, c["batch"], 1 / c["ranks"]) + sums(c, _all(c))),
    Idea(TP, "one layer", "Every layer has its two all-reduces.",
         lambda c: _of_tp(c) + sums(c, _all(c)) / c["layers"]),
    Idea(TP, "elements, not bytes", "Those are elements. Each has as many bytes as `item` says.",
         lambda c: _of_tp(c) + sums(c, _all(c)) / c["item"]),
    Idea(TP, "no ring", "A ring moves 2(N−1)/N of an all-reduce's bytes, not each of them once.",
         lambda c: _of_tp(c) + sums(c, _all(c)) * c["ranks"] / (2 * (c["ranks"] - 1))),
    Idea(TP, "memory not cut", "A tp rank reads its share of the weights from its memory, and "
         "not all of them.",
         lambda c: (max(operations(c, _all(c), 1 / c["ranks"]), c["item"] * c["parameters"] /
             c["memory"]) + sums(c, _all(c)))),
    Idea(TP, "operations alone", "A tp rank waits for its own memory as well, where the batch is "
         "small.", lambda c: operations(c, _all(c), 1 / c["ranks"]) + sums(c, _all(c))),
    Idea(TP, "four all-reduces", "Four are forward and backward. Generation has the forward's two.",
         lambda c: (computed(c, c["ranks"] * c["batch"], 1 / c["ranks"]) + sums(c, c["ranks"] *
             c["batch"], each=4))),
    Idea(TP, "weights not cut", "A tp rank reads, and computes with, its share of the weights "
         "alone.",
         lambda c: computed(c, c["ranks"] * c["batch"]) + sums(c, c["ranks"] * c["batch"])),
    Idea(EVEN, "all weights sent", "A rank's own piece is not sent: (N−1)/N of the weights are.",
         lambda c: math.ceil(c["item"] * c["flops"] / (2 * c["link"]))),
    Idea(EVEN, "prompts of all ranks", "Asked is the batch of one rank: each receives the "
         "weights and has prompts of its own.", lambda c: c["ranks"] * break_even(c)),
    Idea(EVEN, "rounded down", "At that batch the link still takes longer: the smallest that "
         "suffices is one above.", lambda c: math.floor(travels(c))),
    Idea(EVEN, "one more", "Where the operations take just as long as the gathers, that batch is "
         "the smallest.", lambda c: math.floor(travels(c)) + 1),
    Idea(EVEN, "rounded to the nearest", "A batch below the break-even does not suffice: the "
         "next whole number up.", lambda c: round(travels(c))),
    Idea(EVEN, "not a whole number", "A batch is a whole number of prompts: the smallest one "
         "that suffices.", travels),
    Idea(EVEN, "prompts of all ranks", "Asked is the batch of one rank, which computes for its "
         "own prompts alone.", lambda c: math.ceil(travels(c) / c["ranks"])),
    Idea(EVEN, "prompts of all ranks", "Asked is the batch of one rank: each receives the "
         "weights and has prompts of its own.", lambda c: math.ceil(c["ranks"] * travels(c))),
    Idea(EVEN, "the memory in it", "What a rank reads from its own memory takes no operations. "
         "Asked is when the operations take as long as the gathers.",
         lambda c: math.ceil(max(travels(c), c["item"] * c["flops"] / (2 * c["memory"])))),
    Idea(EVEN, "the memory in it", "That is the batch for which a rank's own memory is quick "
         "enough. Asked is the link.",
         lambda c: math.ceil(c["item"] * c["flops"] / (2 * c["memory"]))),
    Idea(EVEN, "one operation", "A multiplication and an addition are two operations.",
         lambda c: math.ceil(2 * travels(c))),
    Idea(EVEN, "a backward counted", "Six operations for a parameter and token are forward and "
         "backward. A forward has two.", lambda c: math.ceil(travels(c) / 3)),
    Idea(EVEN, "the batch of the case", "That is the batch of the case itself. Asked is which "
         "batch would do.", lambda c: c["batch"]),
    Idea(PREFILL, "weights for every token", "The prompt goes through in one forward, and the "
         "weights come once for all its tokens.", lambda c: c["prompt"] * streamed(c, c["batch"])),
    Idea(PREFILL, "weights for every token", "The prompt goes through in one forward, and the "
         "weights come once for all its tokens.",
         lambda c: max(c["prompt"] * transfer(c), computed(c, c["batch"] * c["prompt"]))),
    Idea(PREFILL, "one prompt", "All prompts of the rank's batch go through in this forward.",
         lambda c: streamed(c, c["prompt"])),
    Idea(PREFILL, "a token step", "A forward over prompts computes with all their tokens, and "
         "not with one of each.", lambda c: streamed(c, c["batch"])),
    Idea(PREFILL, "prompts of all ranks", "Every rank has prompts of its own, and computes for "
         "them alone.", lambda c: streamed(c, _all(c) * c["prompt"])),
    Idea(PREFILL, "no gather", "The weights are gathered in the first forward too.",
         lambda c: computed(c, c["batch"] * c["prompt"])),
    Idea(PREFILL, "one after the other", "The next layer's weights travel while this one "
         "computes, here too.", lambda c: transfer(c) + computed(c, c["batch"] * c["prompt"])),
)  # fmt: skip
