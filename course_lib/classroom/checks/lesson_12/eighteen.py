"""`eighteen` of lesson 12: DeepSpeed's estimate for one model, put together from its parts.

The right numbers come from one model of what is counted; a wrong idea is another count in the same
model.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.classroom.checks.thought import Mistake, Thought, counted, held_against
from course_lib.classroom.checks.words import Page

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
SAYS = Page("lesson_12/eighteen")
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


EIGHTEEN = Thought(fields=FIELDS, judge=held_against(RIGHT, mistakes(), apart=True), **SAYS.about)
