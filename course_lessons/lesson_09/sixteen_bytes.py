"""`sixteen_bytes` of lesson 09: bytes held and sent by 32 ranks, at stages 0 and 1.

The right numbers come from one model of memory and traffic; a wrong idea changes a count.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_classroom.judge.thought import Thought, counted, held_against
from course_classroom.judge.words import Page

PSI, N, HALF, FLOAT = 12, 32, 2, 4  # billions of parameters, ranks, bytes
SMALL, FEW = 101, 4  # elements of a bucket, and the ranks that share it
EACH, STAGE_0, STAGE_1 = "bytes a parameter", "stage 0", "stage 1"
SINGLE, BEFORE, MOMENTUM = "stage 1, float32", "before the update", "momentum"
SENT_0, SENT_1, LAST = "sent at stage 0", "sent at stage 1", "the last rank's moments"
FIELDS = (EACH, STAGE_0, STAGE_1, SINGLE, BEFORE, MOMENTUM, SENT_0, SENT_1, LAST)
SAYS = Page(__file__, "sixteen_bytes")


@dataclass(frozen=True)
class Model:
    """A counting model, in bytes per parameter."""

    parameter: float = HALF
    gradient: float = HALF
    master: float = FLOAT
    moments: float = 2 * FLOAT
    of_gradient: float = 1.0  # fraction that a rank holds at stage 1
    of_parameter: float = 1.0
    of_states: float = 1 / N
    of_master: float | None = None  # as for the other states
    times: float = 1.0  # factor on memory and traffic
    as_moments: float = 0.0  # bytes wrongly counted as moments
    master_of_float: float = 0.0
    float_gradient: float = FLOAT / N  # before the update
    of_momentum: float = 0.5  # as a fraction of Adam's moments
    moves: tuple[float, float] = (2, 2)
    of_a_move: float = (N - 1) / N
    sent: float = HALF
    last: float = SMALL - (FEW - 1) * -(-SMALL // FEW)  # elements that the last rank updates

    def answers(self) -> dict[str, float]:
        """Return the answers that follow from this model."""
        psi, states = PSI * self.times, self.master + self.moments
        kept = self.parameter * self.of_parameter + self.gradient * self.of_gradient
        if self.of_master is not None:
            kept += self.master * (self.of_master - self.of_states)
        wide = FLOAT * (self.of_parameter + self.of_gradient)
        move = psi * self.sent * self.of_a_move
        momentum = self.master + self.of_momentum * self.moments
        return {
            EACH: self.parameter + self.gradient + states,
            STAGE_0: psi * (self.parameter + self.gradient + states),
            STAGE_1: psi * (kept + states * self.of_states),
            SINGLE: psi * (wide + (self.master_of_float + self.moments) * self.of_states),
            BEFORE: psi * (kept + states * self.of_states + self.float_gradient),
            MOMENTUM: psi * (kept + momentum * self.of_states),
            SENT_0: self.moves[0] * move,
            SENT_1: self.moves[1] * move,
            LAST: (self.moments + self.as_moments) * self.last,
        }


RIGHT = Model()
IDEAS = {
    "no master copy": {"master": 0},
    "moments in 16 bits": {"moments": FLOAT},
    "gradients forgotten": {"gradient": 0},
    "everything sharded": {"of_parameter": 1 / N, "of_gradient": 1 / N},
    "gradients sharded": {"of_gradient": 1 / N},
    "nothing sharded": {"of_states": 1.0},
    "a master copy of float32": {"master_of_float": FLOAT},
    "float32 gradients not sharded": {"float_gradient": FLOAT},
    "float32 gradients forgotten": {"float_gradient": 0},
    "momentum counted as Adam": {"of_momentum": 1.0},
    "no momentum at all": {"of_momentum": 0.0},
    "all-reduce counted as one move": {"moves": (1, 1)},
    "the half that carries parameters": {"moves": (2, 1)},
    "three moves": {"moves": (2, 3)},
    "limit for large N": {"of_a_move": 1.0},
    "sent in float32": {"sent": FLOAT},
    "padding has moments": {"last": -(-SMALL // FEW)},
    "equal shares": {"last": SMALL / FEW},
    "rounded down": {"last": SMALL // FEW},
    "gradients in float32": {"gradient": FLOAT},
    "gradients in both types": {"gradient": HALF + FLOAT},
    "float32 gradients of 2 bytes": {"float_gradient": HALF / N},
    "master weights not sharded": {"of_master": 1.0},
    "states forgotten": {"master": 0, "moments": 0},
    "all ranks together": {"times": N},
    "total divided by ranks": {"times": 1 / N},
    "GiB for GB": {"times": 1e9 / 2**30},
    "one move, and all of it": {"moves": (1, 1), "of_a_move": 1.0},
    "the master copy is no moment": {"as_moments": FLOAT},
    "moments of the full bucket": {"last": SMALL},
}
MISTAKES = counted(SAYS, RIGHT, IDEAS)
SIXTEEN = Thought(fields=FIELDS, judge=held_against(RIGHT, MISTAKES, apart=True), **SAYS.about)
