"""`eighteen` of lesson 12: DeepSpeed's estimate for one model, built from its parts. A wrong idea
changes a count in the same model."""

from __future__ import annotations

from dataclasses import dataclass

from course_classroom.judge.thought import Thought, counted, held_against, named
from course_classroom.judge.words import Page

P, Q, GPUS, NODES = 6e9, 0.3e9, 4, 2  # parameters, those of the largest layer; GPUs per node, nodes


@dataclass(frozen=True)
class Model:
    """A counting model: bytes per parameter, and the divisors."""

    half: float = 2
    update: float = 16
    layer: float = 4
    built: float = 4
    room: float = 1.5
    gpu_parts: float = GPUS * NODES
    node_parts: float = NODES
    builders: float = GPUS
    away: float | None = None  # of a parameter with offloaded states (None: as in an update)
    away_too: float = 0  # subtracted for data offloaded with the parameters
    gigabyte: float = 1e9

    def answers(self) -> dict[str, float]:
        states = self.half + self.update

        def gpu(stays: float) -> float:
            return (self.layer * Q + stays * P / self.gpu_parts) / self.gigabyte

        def node(away: float) -> float:
            return away * P / self.node_parts * self.room / self.gigabyte

        whole = self.built * P * self.builders * self.room / self.gigabyte
        both = node(states - self.away_too)
        away = self.update if self.away is None else self.away
        return {
            "bytes, all states": states,
            "bytes, an update": self.update,
            "GPU, nothing away": gpu(states),
            "GPU, states away": gpu(states - away),
            "GPU, both away": gpu(0.0),
            "node, both away": both,
            "node, states away": node(away),
            "node, both away, built whole": max(both, whole),
            "node, nothing away, built whole": whole,
            "node, nothing away, sharded while built": whole * Q / P,
        }


RIGHT = Model()
SAYS = Page(__file__, "eighteen")
IDEAS = {
    "a part of the update": {"update": 12},
    "a gradient in 16 bits": {"update": 14},
    "both gradients": {"half": 4},
    "a layer without its gradient": {"layer": 2},
    "the layer forgotten": {"layer": 0},
    "not sharded": {"gpu_parts": 1},
    "sharded over one node": {"gpu_parts": GPUS},
    "not divided by nodes": {"node_parts": 1},
    "a GPU's share": {"node_parts": GPUS * NODES},
    "no reserve": {"room": 1.0},
    "built once": {"builders": 1},
    "built on all nodes": {"builders": GPUS * NODES},
    "built in 16 bits": {"built": 2},
    "built with its states": {"built": 18},
    "only the moments": {"update": 8},
    "the parameters go too": {"away": 18},
    "the gradient stays": {"away": 12},
    "parameters forgotten": {"away_too": 2},
    "the layer is sharded": {"layer": 4 / (GPUS * NODES)},
    "GiB": {"gigabyte": 2**30},
}
ANSWERS = RIGHT.answers()
_, _, *GPU, BOTH, STATES, WHOLE, BUILT, SHARDED = ANSWERS  # the fields' names
# Wrong ideas about a few fields.
ALONE = {
    "offloaded bytes counted": {GPU[1]: (4 * Q + 16 * P / (GPUS * NODES)) / 1e9},
    "sharded only over nodes": {GPU[0]: (4 * Q + 18 * P / NODES) / 1e9},
    "a reserve on the GPU": {field: 1.5 * ANSWERS[field] for field in GPU},
    "nothing offloaded": dict.fromkeys(GPU[1:], ANSWERS[GPU[0]]),
    "the parameters stay": {GPU[2]: ANSWERS[GPU[1]]},
    "only masters and moments": {"bytes, all states": 12},
    "parameter counted too": {"bytes, an update": 18},
    "a layer with its states": {GPU[2]: 18 * Q / 1e9},
    "nothing is built": {BUILT: 0.0, SHARDED: 0.0},
    "full model built": {SHARDED: ANSWERS[BUILT]},
    "a share of the model": {SHARDED: 4 * P / NODES * 1.5 / 1e9},
    "counts added": {WHOLE: ANSWERS[BOTH] + ANSWERS[BUILT]},
    "building forgotten": {WHOLE: ANSWERS[BOTH]},
    "built and kept": {field: ANSWERS[field] + ANSWERS[SHARDED] for field in (BOTH, STATES)},
    "one process builds": {WHOLE: ANSWERS[STATES]},
    "built once": {WHOLE: ANSWERS[BUILT] / GPUS},
    "states on the host": dict.fromkeys((BUILT, SHARDED), ANSWERS[BOTH]),
}
MISTAKES = (*counted(SAYS, RIGHT, IDEAS), *named(SAYS, ALONE))
JUDGE = held_against(RIGHT, MISTAKES, apart=True)
EIGHTEEN = Thought(fields=tuple(ANSWERS), judge=JUDGE, **SAYS.about)
