"""`hides` of lesson 12: data that a bus and a disk carry while a GPU computes. Each misconception
changes one count; the model of bytes and speeds stays the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from course_classroom.judge.thought import Thought, compare, counted, named
from course_classroom.judge.words import Page

PSI, N, TOKENS = 6e9, 8, 4096  # parameters, ranks, tokens of a rank's micro-batch
BUS, DISK, FLOPS = 12e9, 2e9, 100e12  # bytes per second, each way, per rank; operations per second
BUCKET, PART = 50e6, 0.1  # parameters of a bucket; fraction of a step for the update


@dataclass(frozen=True)
class Model:
    """A counting model of bytes, operations and speeds."""

    half: float = 2  # bytes of a gradient or a parameter on the bus
    states: float = 12  # bytes of a parameter in the files: master, two moments
    share: float = 1 / N
    backward: float = 4  # operations per parameter and token
    all_of_it: float = 6  # including the forward
    both_ways: float = 1  # factor on reading while it writes as well
    of_the_whole: bool = True  # a tenth of the step, not of the computation
    sets: float = 3
    computing: float = 1  # fraction of all operations on a rank

    def answers(self) -> dict[str, float]:
        bus = self.half * PSI * self.share / BUS
        back = self.backward * PSI * TOKENS * self.computing / FLOPS
        read = self.states * PSI * self.share / DISK
        update = self.both_ways * read
        micro = self.all_of_it * PSI * TOKENS * self.computing / FLOPS
        rest = 1 / PART - 1 if self.of_the_whole else 1 / PART
        return {
            "down": bus,
            "backward": back,
            "tokens": ceil(bus / back * TOKENS),
            "up": bus,
            "read": read,
            "update": update,
            "micro-batches": ceil(update * rest / micro),
            "window": self.sets * self.states * BUCKET / 1e9,
        }


RIGHT = Model()
SAYS = Page(__file__, "hides")
IDEAS = {
    "not sharded": {"share": 1.0},
    "in float32": {"half": 4},
    "states on the bus": {"half": 12},
    "the forward's operations": {"backward": 2, "all_of_it": 2},
    "forward and backward": {"backward": 6},
    "only the backward": {"all_of_it": 4},
    "only the moments": {"states": 8},
    "with the gradient": {"states": 16},
    "one after the other": {"both_ways": 2},
    "a tenth of the computing": {"of_the_whole": False},
    "one set": {"sets": 1},
    "two sets": {"sets": 2},
    "computing sharded": {"computing": 1 / N},
    "one of three": {"states": 4},
    "16-bit parameters too": {"states": 14},
    "all eighteen": {"states": 18},
    "half as much": {"half": 1},
    "divided by N twice": {"share": 1 / N**2},
}
READ, MICRO, BUCKETS = 12 * PSI / N / DISK, 6 * PSI * TOKENS / FLOPS, 3 * 12 * BUCKET / 1e9
UP, ANSWERS = 2 * PSI / N / BUS, RIGHT.answers()
ALONE = (
    ("rounded down #1", {"micro-batches": ANSWERS["micro-batches"] - 1}),
    ("not rounded #1", {"micro-batches": READ * (1 / PART - 1) / MICRO}),
    ("as long as the update", {"micro-batches": ceil(READ / MICRO)}),
    ("bus time added", {"update": READ + UP}),
    ("bus time added", {"update": READ + 2 * UP}),
    ("with both ends", {"update": READ + 12 * BUCKET / DISK}),
    ("with both ends", {"update": READ + 2 * 12 * BUCKET / DISK}),
    ("reading and writing", {"read": 2 * READ}),
    ("the tokens of all ranks", {"backward": N * ANSWERS["backward"]}),
    ("copy up included", {"micro-batches": ceil((READ + UP) * (1 / PART - 1) / MICRO)}),
    ("all of a rank's states", {"window": 12 * PSI / N / 1e9}),
    ("three in a row", {"update": 3 * READ}),
    ("bucket sharded", {"window": BUCKETS / N}),
    ("all ranks", {"window": BUCKETS * N}),
    ("GiB", {"window": BUCKETS * 1e9 / 2**30}),
    ("disk bandwidth used", {"down": UP * BUS / DISK, "up": UP * BUS / DISK}),
    ("bus bandwidth used", {"read": READ * DISK / BUS, "update": READ * DISK / BUS}),
)
MISTAKES = (*counted(SAYS, RIGHT, IDEAS), *named(SAYS, ALONE))


def judge_hides(given: Mapping) -> None:
    compare(given, ANSWERS, MISTAKES, apart=True)
    for what in ("tokens", "micro-batches"):
        seen, right = given[what], ANSWERS[what]
        holds = {
            "not rounded #2": seen != int(seen),
            "rounded down #2": seen == right - 1,
            "wrong number": seen != right,
        }
        SAYS.refuse(holds, seen=seen, what=what)


HIDES = Thought(fields=tuple(ANSWERS), judge=judge_hides, **SAYS.about)
