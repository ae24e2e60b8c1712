"""`eighteen` of lesson 12: DeepSpeed's estimate for one model, put together from its parts.

The right numbers come from one model of what is counted; a wrong idea is another count in the same
model.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.classroom.checks.thought import Mistake, Thought, counted, held_against
from course_lib.classroom.checks.words import Words

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
    "node, nothing away, sharded while built",
)


@dataclass(frozen=True)
class Model:
    """One way to count: bytes of a parameter, and what is divided by what."""

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
    layer_parts: float = 1
    away: float | None = None  # of a parameter, where states are away; None: what an update touches
    away_too: float = 0  # what goes with the parameters is less by this
    gigabyte: float = 1e9

    def answers(self) -> dict[str, float]:
        """The answers of a learner who counts like this."""
        states = self.half + self.update

        def gpu(stays: float) -> float:
            return (self.layer * Q / self.layer_parts + stays * P / self.gpu_parts) / self.gigabyte

        def node(away: float) -> float:
            return away * P / self.node_parts * self.room / self.gigabyte

        whole = self.built * P * self.builders * self.room / self.gigabyte
        both = node(states - self.away_too)
        away = self.update if self.away is None else self.away
        built = max(both, whole) if self.larger else both + whole
        values = (
            states,
            self.update,
            gpu(states),
            gpu(states - away),
            gpu(0.0),
            both,
            node(away),
            both if self.forgets_building else built,
            whole,
            self.built * Q * self.builders * self.room / self.gigabyte,
        )
        return dict(zip(FIELDS, values, strict=True))


RIGHT = Model()
SAYS = Words("""
a part of the update: An update touches four float32 values per parameter: the master copy, its
  gradient, and two moments. You have three of them.
a gradient in 16 bits: The gradient that the update reads is a float32 one, four bytes.
both gradients: At stage 3 the estimator does not count the 16-bit gradients of all layers: only one
  layer's are there at a time, and they are in the layer's 4 bytes.
a layer without its gradient: The layer that is gathered on the GPU has a gradient there as well, in
  16 bits.
the layer forgotten: One layer at a time is gathered on every GPU, whatever is offloaded.
not cut: At stage 3 states are sharded: divide by the number of all GPUs on all nodes.
cut over one node: The states are sharded over all GPUs of all nodes, and not over those of one
  node.
every node has all: What is offloaded is sharded over the nodes: each host keeps the shards of its
  own GPUs.
a GPU's share: The question is about a node. Its host keeps what all of its GPUs have offloaded.
no reserve: The estimator takes half as much again for staging copies and pinned buffers.
built once: Every process of a node builds the model for itself, and there is one for each GPU.
built on all nodes: A node's host holds the models of its own processes, not those of the other
  node.
built in 16 bits: Half of it: a model is first built in float32, replicated in every process of each
  node.
built with its states: While a model is built there are its parameters alone, in float32. The states
  come later.
moments alone: An update touches the master copy and its gradient as well, beside the two moments.
the parameters go too: With the optimizer's states alone away, the 16-bit parameters stay on the
  GPUs.
the gradient stays: The update runs where its states are: the master copy's gradient goes with them.
parameters forgotten: The 16-bit parameters are away as well here, beside what an update touches.
the layer is cut: A layer at work is gathered on every GPU, and not sharded.
GiB: Those are GiB, of 2³⁰ bytes. 1 GB is 10⁹ bytes here.
both at once: The model as it was built is gone when the states come: the larger of the two counts,
  and not their sum.
building forgotten: With four processes on a node the models that they build are larger than the
  states that come afterwards.
what goes away stays: What an update touches has left the GPU here. Which bytes of a parameter are
  left?
cut over the nodes alone: The states are cut over all GPUs of all nodes, not over the nodes alone.
a reserve on the GPU: The reserve of a half is for the host. On a GPU the estimator counts none.
nothing has gone: That is with nothing offloaded.
the parameters stay: The parameters' shards are away too: only the layer at work is on the GPU.
masters and moments alone: Beside the master copy and two moments there are the 16-bit parameter and
  a gradient.
all of it: The 16-bit parameter is made of the master copy afterwards, and stays on the GPU.
a layer with its states: The layer at work is there in 16 bits, with its gradient. Its states are
  not.
nothing is built: With nothing offloaded the host still holds what a process has just built, before
  it is sharded.
whole all the same: If the model is sharded while it is built, a process holds the largest layer at
  most.
a share of the model: If the model is sharded while it is built, the host holds the largest layer at
  one time, and not a share of the model.
built and kept: The copies that were built are gone when the states come: the larger of the two
  counts, and not the sum.
one process builds: Every process of a node builds the model for itself, and there is one for each
  GPU. The larger of two counts is taken: that of what is built, or that of the states.
the states that are there: Where nothing is offloaded, the states are on the GPUs, and not on the
  host.
""")
IDEAS = {
    "a part of the update": {"update": 12},
    "a gradient in 16 bits": {"update": 14},
    "both gradients": {"half": 4},
    "a layer without its gradient": {"layer": 2},
    "the layer forgotten": {"layer": 0},
    "not cut": {"gpu_parts": 1},
    "cut over one node": {"gpu_parts": GPUS},
    "every node has all": {"node_parts": 1},
    "a GPU's share": {"node_parts": GPUS * NODES},
    "no reserve": {"room": 1.0},
    "built once": {"builders": 1},
    "built on all nodes": {"builders": GPUS * NODES},
    "built in 16 bits": {"built": 2},
    "built with its states": {"built": 18},
    "moments alone": {"update": 8},
    "the parameters go too": {"away": 18},
    "the gradient stays": {"away": 12},
    "parameters forgotten": {"away_too": 2},
    "the layer is cut": {"layer_parts": GPUS * NODES},
    "GiB": {"gigabyte": 2**30},
    "both at once": {"larger": False},
    "building forgotten": {"forgets_building": True},
}
HOST = FIELDS[5:]
BOTH, STATES, _, BUILT, SHARDED = (RIGHT.answers()[field] for field in HOST)
NOTHING, AWAY, LAYER = (RIGHT.answers()[field] for field in FIELDS[2:5])  # on a GPU
# Wrong ideas about a few fields: their numbers, in the order of those fields.
ALONE = (
    ("what goes away stays", FIELDS[3:4], [(4 * Q + 16 * P / (GPUS * NODES)) / 1e9]),
    ("cut over the nodes alone", FIELDS[2:3], [(4 * Q + 18 * P / NODES) / 1e9]),
    ("a reserve on the GPU", FIELDS[2:5], [1.5 * NOTHING, 1.5 * AWAY, 1.5 * LAYER]),
    ("nothing has gone", FIELDS[3:5], [NOTHING, NOTHING]),
    ("the parameters stay", FIELDS[4:5], [AWAY]),
    ("masters and moments alone", FIELDS[:1], [12]),
    ("all of it", FIELDS[1:2], [18]),
    ("a layer with its states", FIELDS[4:5], [18 * Q / 1e9]),
    ("nothing is built", HOST[3:], [0.0, 0.0]),
    ("whole all the same", HOST[4:], [BUILT]),
    ("a share of the model", HOST[4:], [4 * P / NODES * 1.5 / 1e9]),
    ("built and kept", HOST[:2], [BOTH + SHARDED, STATES + SHARDED]),
    ("one process builds", HOST[2:3], [STATES]),
    ("built once", HOST[2:3], [BUILT / GPUS]),
    ("the states that are there", HOST[3:], [BOTH, BOTH]),
)


def mistakes() -> tuple[Mistake, ...]:
    """Each wrong idea with the numbers that follow from it."""
    alone = (Mistake(*SAYS.of(e), dict(zip(f, values, strict=True))) for e, f, values in ALONE)
    return (*counted(SAYS, RIGHT, IDEAS), *alone)


EIGHTEEN = Thought(
    name="eighteen",
    title="Where 18 and 16 come from",
    points=3,
    fields=FIELDS,
    judge=held_against(RIGHT.answers, mistakes, apart=True),
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
