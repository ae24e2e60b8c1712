"""`sixteen_bytes` of lesson 09: bytes held and sent by 32 ranks, at stages 0 and 1.

The right numbers come from one model of what is held and sent; a wrong idea is another count in the
same model.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.classroom.checks.thought import Mistake, Thought, counted, held_against
from course_lib.classroom.checks.words import Words

PSI, N, HALF, FLOAT = 12, 32, 2, 4  # billions of parameters; ranks; bytes
SMALL, FEW = 101, 4  # elements of a bucket, on so many ranks
EACH, STAGE_0, STAGE_1 = "bytes a parameter", "stage 0", "stage 1"
SINGLE, BEFORE, MOMENTUM = "stage 1, float32", "before the update", "momentum"
SENT_0, SENT_1, LAST = "sent at stage 0", "sent at stage 1", "the last rank's moments"
FIELDS = (EACH, STAGE_0, STAGE_1, SINGLE, BEFORE, MOMENTUM, SENT_0, SENT_1, LAST)
SAYS = Words("""
no master copy: The master copy is missing, without which an update that is small beside its weight
  is lost.
moments in 16 bits: AdamW's two moments are float32 here, like the master copy.
gradients forgotten: Gradients are missing: they take as much as the parameters.
everything cut: Stage 1 shards the optimizer's states alone; parameters and gradients are
  replicated.
gradients cut: Sharded gradients are stage 2. At stage 1 they are replicated.
nothing cut: At stage 1 nothing has become smaller in your count.
a master copy of float32: A model in float32 needs no master copy: it is one.
float32 gradients whole: A rank needs float32 gradients of the parameters that it updates alone.
float32 gradients forgotten: Before the update there are float32 gradients beside the bf16 ones.
momentum counted as Adam: SGD with momentum keeps one value where Adam keeps two moments.
no momentum at all: SGD with momentum does keep one float32 value for each parameter.
all-reduce counted as one move: Half of what is sent: have you counted elements, of 2 bytes each, or
  one of the two moves? An all-reduce is a reduce-scatter and an all-gather, and stage 1 has both.
the half that carries parameters: Stage 1 reduce-scatters gradients *and* all-gathers parameters.
three moves: That is an all-reduce and an all-gather, or a gather of the float32 copy. A rank needs
  the sum of its own piece alone, which is half of an all-reduce, and gathers bf16.
limit for large N: A move that sends all of Ψ is the limit for many ranks; here each keeps its own
  piece.
sent in float32: The messages are bfloat16, like the model: 2 bytes an element.
padding has moments: Each shard is as long as the first. The last ends in padding, which has no
  moments.
equal shares: A shard has a whole number of elements: the division is rounded up, and the last rank
  gets what is left.
rounded down: Rounded down, four shards do not hold 101 elements. Round up; the last rank gets the
  rest.
gradients in float32: Between two steps the gradients are bfloat16: 2 bytes an element.
gradients in both types: Between two steps there are bfloat16 gradients alone: 2 bytes an element.
float32 gradients of 2 bytes: What the rank has copied is float32: 4 bytes for each of its
  parameters.
master copy whole: The master copy is sharded with the moments: a rank has that of its shard.
states forgotten: Nothing is counted for the optimizer: neither master copy nor moments.
all ranks together: Asked is what *one* rank holds or sends, and not all ranks together.
a part of the whole: That is the whole over the number of ranks. What is replicated is not divided.
GiB for GB: A GB is 10⁹ bytes here, and you have divided by 2³⁰.
one move, and all of it: All of Ψ is counted, and once. An all-reduce is two moves, and so are the
  reduce-scatter and the all-gather of stage 1; in each a rank sends (N - 1) / N of it.
the master copy is no moment: The master copy is counted too. Asked for are AdamW's two moments.
moments of all: These are the moments of the whole bucket. A rank has those of its shard.
""")


@dataclass(frozen=True)
class Model:
    """One way of counting, in bytes for each parameter."""

    parameter: float = HALF
    gradient: float = HALF
    master: float = FLOAT
    moments: float = 2 * FLOAT
    of_gradient: float = 1.0  # what of it a rank holds at stage 1
    of_parameter: float = 1.0
    of_states: float = 1 / N
    of_master: float | None = None  # as the other states
    times: float = 1.0  # what is held and sent
    as_moments: float = 0.0  # bytes that are said to be moments and are none
    master_of_float: float = 0.0
    float_gradient: float = FLOAT / N  # before the update
    of_momentum: float = 0.5  # of Adam's moments
    moves: tuple[float, float] = (2, 2)
    of_a_move: float = (N - 1) / N
    sent: float = HALF
    last: float = SMALL - (FEW - 1) * -(-SMALL // FEW)  # elements that the last rank updates

    def answers(self) -> dict[str, float]:
        """What this way of counting leads to."""
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
    "everything cut": {"of_parameter": 1 / N, "of_gradient": 1 / N},
    "gradients cut": {"of_gradient": 1 / N},
    "nothing cut": {"of_states": 1.0},
    "a master copy of float32": {"master_of_float": FLOAT},
    "float32 gradients whole": {"float_gradient": FLOAT},
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
    "master copy whole": {"of_master": 1.0},
    "states forgotten": {"master": 0, "moments": 0},
    "all ranks together": {"times": N},
    "a part of the whole": {"times": 1 / N},
    "GiB for GB": {"times": 1e9 / 2**30},
    "one move, and all of it": {"moves": (1, 1), "of_a_move": 1.0},
    "the master copy is no moment": {"as_moments": FLOAT},
    "moments of all": {"last": SMALL},
}


def mistakes() -> tuple[Mistake, ...]:
    """Each wrong idea with the numbers that it leads to."""
    return counted(SAYS, RIGHT, IDEAS)


SIXTEEN = Thought(
    name="sixteen_bytes",
    title="Predict, then measure",
    points=3,
    fields=FIELDS,
    judge=held_against(RIGHT.answers, mistakes, apart=True),
    when_right=(
        "What is replicated costs the same however many ranks there are; what is sharded shrinks "
        "with their number. Beyond a few ranks, stage 1 holds parameters and gradients and little "
        "else, and it has cost no byte on the wire."
    ),
    hints=(
        "Make a table: for each kind, how many bytes an element has, and whether it is replicated "
        "or sharded.",
        "Master copy and moments are float32 and are held by the rank that updates the parameter. "
        "Everything else has the model's dtype and is replicated.",
        "A move is a reduce-scatter or an all-gather, and a rank sends all of the tensor but one "
        "piece in it.",
        "A flat bucket is cut by division rounded up. What do the first three ranks take?",
    ),
)
