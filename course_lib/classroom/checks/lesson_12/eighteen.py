"""`eighteen` of lesson 12: DeepSpeed's estimate for one model, put together from its parts.

The right numbers come from one model of what is counted; a wrong idea is another count in the same
model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from course_lib.classroom.checks.lesson_12.eighteen_model import FIELDS, GPUS, NODES, RIGHT, P, Q
from course_lib.classroom.checks.thought import Mistake, Thought, compare

_IDEAS = (
    (
        "a part of the update",
        "An update touches four float32 values per parameter: the master copy, its gradient, and "
        "two moments. You have three of them.",
        {"update": 12},
    ),
    (
        "a gradient in 16 bits",
        "The gradient that the update reads is a float32 one, four bytes.",
        {"update": 14},
    ),
    (
        "both gradients",
        "At stage 3 the estimator does not count the 16-bit gradients of all layers: only one "
        "layer's are there at a time, and they are in the layer's 4 bytes.",
        {"half": 4},
    ),
    (
        "a layer without its gradient",
        "The layer that is gathered on the GPU has a gradient there as well, in 16 bits.",
        {"layer": 2},
    ),
    (
        "the layer forgotten",
        "One layer at a time is gathered on every GPU, whatever is offloaded.",
        {"layer": 0},
    ),
    (
        "not cut",
        "At stage 3 states are sharded: divide by the number of all GPUs on all nodes.",
        {"gpu_parts": 1},
    ),
    (
        "cut over one node",
        "The states are sharded over all GPUs of all nodes, and not over those of one node.",
        {"gpu_parts": GPUS},
    ),
    (
        "every node has all",
        "What is offloaded is sharded over the nodes: each host keeps the shards of its own GPUs.",
        {"node_parts": 1},
    ),
    (
        "a GPU's share",
        "The question is about a node. Its host keeps what all of its GPUs have offloaded.",
        {"node_parts": GPUS * NODES},
    ),
    (
        "no reserve",
        "The estimator takes half as much again for staging copies and pinned buffers.",
        {"room": 1.0},
    ),
    (
        "built once",
        "Every process of a node builds the model for itself, and there is one for each GPU.",
        {"builders": 1},
    ),
    (
        "built on all nodes",
        "A node's host holds the models of its own processes, not those of the other node.",
        {"builders": GPUS * NODES},
    ),
    (
        "built in 16 bits",
        "Half of it: a model is first built in float32, replicated in every process of each node.",
        {"built": 2},
    ),
    (
        "built with its states",
        "While a model is built there are its parameters alone, in float32. The states come later.",
        {"built": 18},
    ),
    (
        "moments alone",
        "An update touches the master copy and its gradient as well, beside the two moments.",
        {"update": 8},
    ),
    (
        "the parameters go too",
        "With the optimizer's states alone away, the 16-bit parameters stay on the GPUs.",
        {"away": 18},
    ),
    (
        "the gradient stays",
        "The update runs where its states are: the master copy's gradient goes with them.",
        {"away": 12},
    ),
    (
        "parameters forgotten",
        "The 16-bit parameters are away as well here, beside what an update touches.",
        {"away_too": 2},
    ),
    (
        "the layer is cut",
        "A layer at work is gathered on every GPU, and not sharded.",
        {"layer_parts": GPUS * NODES},
    ),
    ("GiB", "Those are GiB, of 2³⁰ bytes. 1 GB is 10⁹ bytes here.", {"gigabyte": 2**30}),
    (
        "both at once",
        "The model as it was built is gone when the states come: the larger of the two counts, and "
        "not their sum.",
        {"larger": False},
    ),
    (
        "building forgotten",
        "With four processes on a node the models that they build are larger than the states that "
        "come afterwards.",
        {"forgets_building": True},
    ),
)


_ALONE = (
    Mistake(
        "what goes away stays",
        "What an update touches has left the GPU here. Which bytes of a parameter are left?",
        {"GPU, states away": (4 * Q + 16 * P / (GPUS * NODES)) / 1e9},
    ),
    Mistake(
        "cut over the nodes alone",
        "The states are cut over all GPUs of all nodes, not over the nodes alone.",
        {"GPU, nothing away": (4 * Q + 18 * P / NODES) / 1e9},
    ),
    Mistake(
        "a reserve on the GPU",
        "The reserve of a half is for the host. On a GPU the estimator counts none.",
        {name: 1.5 * RIGHT.answers()[name] for name in FIELDS if name.startswith("GPU")},
    ),
    Mistake(
        "nothing has gone",
        "That is with nothing offloaded.",
        {
            "GPU, states away": RIGHT.answers()["GPU, nothing away"],
            "GPU, both away": RIGHT.answers()["GPU, nothing away"],
        },
    ),
    Mistake(
        "the parameters stay",
        "The parameters' shards are away too: only the layer at work is on the GPU.",
        {"GPU, both away": RIGHT.answers()["GPU, states away"]},
    ),
    Mistake(
        "masters and moments alone",
        "Beside the master copy and two moments there are the 16-bit parameter and a gradient.",
        {"bytes, all states": 12},
    ),
    Mistake(
        "all of it",
        "The 16-bit parameter is made of the master copy afterwards, and stays on the GPU.",
        {"bytes, an update": 18},
    ),
    Mistake(
        "a layer with its states",
        "The layer at work is there in 16 bits, with its gradient. Its states are not.",
        {"GPU, both away": 18 * Q / 1e9},
    ),
    Mistake(
        "nothing is built",
        "With nothing offloaded the host still holds what a process has just built, before it is "
        "sharded.",
        {
            "node, nothing away, sharded while built": 0.0,
            "node, nothing away, built whole": 0.0,
        },
    ),
    Mistake(
        "whole all the same",
        "If the model is sharded while it is built, a process holds the largest layer at most.",
        {
            "node, nothing away, sharded while built": RIGHT.answers()[
                "node, nothing away, built whole"
            ]
        },
    ),
    Mistake(
        "a share of the model",
        "If the model is sharded while it is built, the host holds the largest layer at one time, "
        "and not a share of the model.",
        {"node, nothing away, sharded while built": 4 * P / NODES * 1.5 / 1e9},
    ),
    Mistake(
        "built and kept",
        "The copies that were built are gone when the states come: the larger of the two counts, "
        "and not the sum.",
        {
            field: RIGHT.answers()[field]
            + RIGHT.answers()["node, nothing away, sharded while built"]
            for field in ("node, both away", "node, states away")
        },
    ),
    Mistake(
        "one process builds",
        "Every process of a node builds the model for itself, and there is one for each GPU. The "
        "larger of two counts is taken: that of what is built, or that of the states.",
        {"node, both away, built whole": RIGHT.answers()["node, states away"]},
    ),
    Mistake(
        "the states that are there",
        "Where nothing is offloaded, the states are on the GPUs, and not on the host.",
        {
            "node, nothing away, built whole": RIGHT.answers()["node, both away"],
            "node, nothing away, sharded while built": RIGHT.answers()["node, both away"],
        },
    ),
)


def judge_eighteen(given: Mapping) -> None:
    """Hold the numbers against the model, and against what each other count leads to."""
    compare(given, RIGHT.answers(), mistakes(), apart=True)


def mistakes() -> tuple[Mistake, ...]:
    """Each wrong idea with the numbers that follow from it, where they differ from the right."""
    right, made = RIGHT.answers(), []
    for name, text, counts in _IDEAS:
        theirs = replace(RIGHT, **counts).answers()
        made.append(Mistake(name, text, {k: v for k, v in theirs.items() if v != right[k]}))
    return (*made, *_ALONE)


EIGHTEEN = Thought(
    name="eighteen",
    title="Where 18 and 16 come from",
    points=3,
    fields=FIELDS,
    judge=judge_eighteen,
    when_right=(
        "Every entry of the estimator is a sum of bytes per parameter, divided by what it is "
        "sharded over, and on the host a half more. And a model that every process builds in full "
        "can need more host memory than all of its training."
    ),
    hints=(
        "Write down for one parameter: itself in 16 bits, and the four things in float32 that an "
        "update touches. Which of them go away with the optimizer?",
        "What is on a GPU is sharded over all GPUs there are; what is offloaded is divided by the "
        "nodes. Beside that every GPU has one gathered layer, in 16 bits, with its gradient.",
        "Built whole: each process of the node builds its own copy of the model, in float32. When "
        "the states come, those copies are gone: which of the two counts was larger?",
    ),
)
