"""What `eighteen` counts: bytes on each GPU and in each node's memory, in one model whose numbers a
wrong idea changes. Lesson 12.
"""

from __future__ import annotations

from dataclasses import dataclass

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
