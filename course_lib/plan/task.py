"""A task for the planner: a model, a machine, the number of ranks, and the tokens of a step.

Before anything is counted, an impossible task is refused with cause and remedy. Lesson 15.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from course_lib.estimate.fit import nodes_of
from course_lib.estimate.model import Model
from course_lib.estimate.over_tp import check_cut
from course_lib.estimate.time import Constants, Machine
from course_lib.zero.precision import DTYPES

ROWS = 8  # default sequences per step and GPU
SPARE = 0.1  # part of a GPU that stays free, for the error of a peak estimate
MOST_TOKENS = 10**12  # more than any step has


def divisors(n: int) -> list[int]:
    """List all divisors of a number, in order."""
    small = [k for k in range(1, math.isqrt(n) + 1) if n % k == 0]
    return sorted({*small, *(n // k for k in small)})


@dataclass(frozen=True)
class Task:
    """A request for `gpus` ranks and `tokens` tokens per step over all replicas, in sequences of
    `length` tokens, at `price` per GPU-hour. `tp` and `stage` can fix one value each."""

    model: Model
    machine: Machine
    constants: Constants
    gpus: int
    tokens: int
    length: int
    precision: str = "bfloat16"
    price: float | None = None
    spare: float = SPARE
    tp: int | None = None
    stage: int | None = None

    def __post_init__(self) -> None:
        per_node = self.machine.gpus
        for name, value in (("--gpus", self.gpus), ("--tokens", self.tokens)):
            if value < 1:
                raise ValueError(f"{name} {value} has to be 1 or more")
        nodes_of(self.gpus, per_node)
        if self.tokens > MOST_TOKENS:
            raise ValueError(f"--tokens {self.tokens:,}: no step has more than {MOST_TOKENS:,}")
        if self.tokens % self.length:
            below = self.tokens // self.length * self.length
            near = [str(n) for n in (below, below + self.length) if n]
            raise ValueError(
                f"--tokens {self.tokens} is not a multiple of --length "
                f"{self.length}: take {' or '.join(near)}"
            )
        if self.precision not in DTYPES:
            raise ValueError(f"--precision {self.precision} is none of {', '.join(DTYPES)}")
        if self.price is not None and not (self.price >= 0 and math.isfinite(self.price)):
            raise ValueError(f"--price {self.price} per GPU-hour has to be 0 or more")

    @classmethod
    def of(
        cls,
        model: Model,
        machine: Machine,
        constants: Constants,
        *,
        gpus: int = 0,
        tokens: int = 0,
        rows: int = 0,
        length: int = 0,
        precision: str | None = None,
        **more: object,
    ) -> Task:
        """Make a task. 0 or None selects a default: one node, eight `rows` per GPU (or enough for
        `tokens` per step), the model's longest sequence, or the machine's precision."""
        numbers = {"--gpus": gpus, "--tokens": tokens, "--rows": rows, "--length": length}
        for name, value in numbers.items():
            if value < 0:
                raise ValueError(f"{name} {value} has to be 0 or more")
        if rows and tokens:
            raise ValueError("--rows and --tokens both set the size of a step, so omit one of them")
        gpus = gpus or machine.gpus
        length, precision = model.length(length), precision or machine.precision
        tokens = tokens or (rows or ROWS) * gpus * length
        known = machine.in_precision(precision) if precision in DTYPES else machine
        return cls(model, known, constants, gpus, tokens, length, precision, **more)

    def cannot_cut(self, tp: int) -> str | None:
        """Return the reason why the model cannot be sharded over `tp` ranks, or None."""
        model, config = self.model, self.model.config
        if tp == 1:
            return None
        heads, kv = (config.heads, config.kv_heads) if config else model.theirs().heads
        if heads < tp:
            return f"the model has {heads} heads, but each of {tp} ranks needs one or more"
        try:
            model.params_of_rank(tp)
            if config is not None:
                check_cut(config, self.length, tp, 0)
        except ValueError as error:
            return str(error)
        if config is None and (heads % tp or kv % tp):
            return f"{heads} query heads and {kv} key/value heads do not divide over {tp} ranks"
        return None

    @property
    def rows(self) -> int:
        """The number of sequences per step."""
        return self.tokens // self.length

    @property
    def per_node(self) -> int:
        """The number of ranks per node."""
        return min(self.machine.gpus, self.gpus)

    @property
    def nodes(self) -> int:
        return self.gpus // self.per_node

    def cost(self, seconds: float) -> float | None:
        """Compute the cost of a billion tokens if a step takes `seconds`."""
        if self.price is None:
            return None
        return self.price * self.gpus * seconds / 3600 / self.tokens * 1e9
