"""`eighteen` of lesson 12: DeepSpeed's estimate for one model, put together from its parts.

The right numbers come from one model of what is counted; a wrong idea is another count in the same
model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from course_lib.classroom.checks.thought import Mistake, Thought, compare

P, Q, GPUS, NODES = 6e9, 0.3e9, 4, 2  # parameters, of the largest layer; on each node; nodes
FIELDS = (
    "bytes, all states",
    "bytes, an update",
    "GPU, nothing away",
    "GPU, states away",
    "GPU, both away",
    "node, both away",
    "node, states away",
    "node, both away, built whole",
    "node, nothing away, built whole",
    "node, nothing away, cut while built",
)


@dataclass(frozen=True)
class Model:
    """What somebody counts: bytes of a parameter, and what is divided by what."""

    half: float = 2
    update: float = 16
    layer: float = 4
    built: float = 4
    room: float = 1.5
    gpu_parts: float = GPUS * NODES
    node_parts: float = NODES
    builders: float = GPUS
    larger: bool = True  # of two counts that are not there at once; else their sum
    forgets_building: bool = False

    def answers(self) -> dict[str, float]:
        """What somebody who counts like this would write."""
        states = self.half + self.update

        def gpu(stays: float) -> float:
            return (self.layer * Q + stays * P / self.gpu_parts) / 1e9

        def node(away: float) -> float:
            return away * P / self.node_parts * self.room / 1e9

        whole = self.built * P * self.builders * self.room / 1e9
        both = node(states)
        built = max(both, whole) if self.larger else both + whole
        values = (
            states,
            self.update,
            gpu(states),
            gpu(self.half),
            gpu(0.0),
            both,
            node(self.update),
            both if self.forgets_building else built,
            whole,
            self.built * Q * self.builders * self.room / 1e9,
        )
        return dict(zip(FIELDS, values, strict=True))


RIGHT = Model()
_IDEAS = (
    (
        "a part of the update",
        "Four float32 numbers are touched by an update: the master copy, its gradient, and two "
        "moments. You have three of them.",
        {"update": 12},
    ),
    (
        "a gradient in 16 bits",
        "The gradient that the update reads is a float32 one, four bytes.",
        {"update": 14},
    ),
    (
        "both gradients",
        "At stage 3 the estimator does not count the 16-bit gradients of the whole model: only one "
        "layer's are there at a time, and they are in the layer's 4.",
        {"half": 4},
    ),
    (
        "a layer without its gradient",
        "The layer that is whole on the GPU has a gradient there as well.",
        {"layer": 2},
    ),
    (
        "the layer forgotten",
        "One layer at a time is whole on every GPU, whatever is away.",
        {"layer": 0},
    ),
    (
        "not cut",
        "At stage 3 a GPU has its share: of all GPUs on all nodes.",
        {"gpu_parts": 1},
    ),
    (
        "cut over one node",
        "The states are cut over all GPUs of all nodes, and not over those of one node.",
        {"gpu_parts": GPUS},
    ),
    (
        "every node has all",
        "What is offloaded is cut over the nodes as well: each keeps the part of its own GPUs.",
        {"node_parts": 1},
    ),
    (
        "a GPU's share",
        "Asked is for a node, which keeps what all of its GPUs have sent away.",
        {"node_parts": GPUS * NODES},
    ),
    (
        "no reserve",
        "The estimator takes half as much again for what it does not know: staging, pinned memory.",
        {"room": 1.0},
    ),
    (
        "built once",
        "Every process of a node builds the model for itself, and there is one for each GPU.",
        {"builders": 1},
    ),
    (
        "built on all nodes",
        "A node has its own processes to feed, not those of the other node.",
        {"builders": GPUS * NODES},
    ),
    (
        "built in 16 bits",
        "A model is first made in float32.",
        {"built": 2},
    ),
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


def judge_eighteen(given: Mapping) -> None:
    """Hold the numbers against the model, and against what each other count leads to."""
    compare(given, RIGHT.answers(), mistakes(), apart=True)


def mistakes() -> tuple[Mistake, ...]:
    """Each wrong idea with the numbers that follow from it, where they differ from the right."""
    right, made = RIGHT.answers(), []
    for name, text, counts in _IDEAS:
        theirs = replace(RIGHT, **counts).answers()
        made.append(Mistake(name, text, {k: v for k, v in theirs.items() if v != right[k]}))
    return tuple(made)


EIGHTEEN = Thought(
    name="eighteen",
    title="Where 18 and 16 come from",
    points=3,
    fields=FIELDS,
    judge=judge_eighteen,
    when_right=(
        "Every number of the estimator is a sum of what a parameter costs, divided by what it is "
        "cut over, and on the host a half more. And a model that every process builds whole can "
        "need more than all of its training."
    ),
    hints=(
        "Write down for one parameter: itself in 16 bits, and the four things in float32 that an "
        "update touches. Which of them go away with the optimizer?",
        "What is on a GPU is cut over all GPUs there are; what lies on a node, over the nodes. "
        "Beside that every GPU has one whole layer, in 16 bits, with its gradient.",
        "Built whole: each process of the node makes the model in float32, for itself. When the "
        "states come, that is gone: which of the two was larger?",
    ),
)
