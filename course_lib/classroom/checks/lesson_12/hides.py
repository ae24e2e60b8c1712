"""`hides` of lesson 12: what a bus and a disk carry while a GPU computes.

The right numbers come from one model of bytes and speeds; a wrong idea is another count in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from course_lib.classroom.checks.thought import Mistake, Thought, compare, counted
from course_lib.classroom.checks.words import Words

PSI, N, TOKENS = 6e9, 8, 4096  # parameters; ranks; tokens of a rank's micro-batch
BUS, DISK, FLOPS = 12e9, 2e9, 100e12  # bytes a second, each way, of each rank; operations a second
BUCKET, PART = 50e6, 0.1  # parameters of a bucket; what the update may take of a step
FIELDS = ("down", "backward", "tokens", "up", "read", "update", "micro-batches", "window")


@dataclass(frozen=True)
class Model:
    """One way to count."""

    half: float = 2  # bytes of a gradient or a parameter on the bus
    states: float = 12  # bytes of a parameter in the files: master, two moments
    share: float = 1 / N
    backward: float = 4  # operations for a parameter and a token
    all_of_it: float = 6  # forward too
    both_ways: float = 1  # times that reading takes, while it writes as well
    of_the_whole: bool = True  # a tenth of the step, and not of the computing
    sets: float = 3
    tokens_share: float = 1 / N  # in the number of tokens
    computing: float = 1  # of all operations, those of a rank

    def answers(self) -> dict[str, float]:
        """The answers of a learner who counts like this."""
        bus = self.half * PSI * self.share / BUS
        back = self.backward * PSI * TOKENS * self.computing / FLOPS
        read = self.states * PSI * self.share / DISK
        update = self.both_ways * read
        micro = self.all_of_it * PSI * TOKENS * self.computing / FLOPS
        rest = 1 / PART - 1 if self.of_the_whole else 1 / PART
        tokens = ceil(self.half * self.tokens_share / BUS * FLOPS / self.backward / self.computing)
        window = self.sets * self.states * BUCKET / 1e9
        values = (bus, back, tokens, bus, read, update, ceil(update * rest / micro), window)
        return dict(zip(FIELDS, values, strict=True))


RIGHT = Model()
SAYS = Words("""
not cut: A rank carries its own shard, not all of the model: there are N links side by side.
in float32: The bus carries 16-bit values here, two bytes each.
states on the bus: No optimizer state crosses the bus: the update runs on the host. Gradients go
  down.
the forward's operations: Two operations for a parameter and a token are the forward's. A backward
  makes two products for each of the forward's.
forward and backward: You have counted the forward as well. The copies of gradients run beside the
  backward, in which the gradients come.
the backward alone: Between two updates there are complete micro-batches, forwards too.
moments alone: The file holds the master copy beside the two moments.
with the gradient: The gradient is on the host already, in memory. It is in no file.
one after the other: Reading, updating and writing go on at the same time, on different buckets; the
  disk does both ways at its speed. The slowest counts, not the sum.
a tenth of the computing: At most a tenth of the *step*, to which the update itself belongs.
one set: One bucket is read, one is worked on, one is written: how many sets of memory is that?
two sets: One bucket is read, one is worked on, one is written: that is more than two.
computing cut: Every rank computes with all parameters, on tokens of its own; only what is kept and
  carried is sharded.
one of three: The files hold three float32 values for each parameter: the master copy and two
  moments.
16-bit parameters too: Asked is for masters and moments. The 16-bit parameters are made of the
  masters.
all eighteen: The question asks for masters and moments, three float32 values.
half as much: The bus has its full bandwidth in each direction, and a 16-bit value has two bytes.
rounded down #1: With one micro-batch fewer the update is more than a tenth of the step: round up.
not rounded #1: A step has a whole number of micro-batches: round up.
as long as the update: With so many the update takes as long as all the rest. It may be a tenth of
  the step.
the bus beside it: What crosses the bus is not part of it: masters and moments go from the files to
  the host and back.
with both ends: The first bucket's read and the last one's write are left out here: count the time
  in which both go on.
reading and writing: The disk reads and writes at the same time, each at full speed. This is reading
  alone.
the tokens of all ranks: Each rank computes on its own tokens, and all ranks at the same time.
the copy up in it: The copy up comes afterwards, and is no part of the update that is asked for.
all of a rank's states: Those are all states of a rank. The update goes through them in buckets, and
  reuses the memory.
three in a row: Reading, updating and writing go on at the same time. The slowest counts, not the
  sum.
a bucket is cut: A bucket of 50 million parameters is what one rank works on: it is not sharded
  again.
all ranks: That is for all ranks together; the question is about one.
GiB: Those are GiB, of 2³⁰ bytes. 1 GB is 10⁹ bytes here.
by the disk: Gradients and parameters cross the bus, and no disk.
by the bus: The files are on a disk, and that is slower than the bus.
cut twice: Each rank has a shard of Ψ/N: divide by N once.
not rounded #2: {seen:g} is no whole number of {what}: round up.
rounded down #2: With {seen:g} {what} it is not yet enough: round up.
wrong number: Not right: {seen:g} {what}. The rest is right.
""")
IDEAS = {
    "not cut": {"share": 1.0, "tokens_share": 1.0},
    "in float32": {"half": 4},
    "states on the bus": {"half": 12},
    "the forward's operations": {"backward": 2, "all_of_it": 2},
    "forward and backward": {"backward": 6},
    "the backward alone": {"all_of_it": 4},
    "moments alone": {"states": 8},
    "with the gradient": {"states": 16},
    "one after the other": {"both_ways": 2},
    "a tenth of the computing": {"of_the_whole": False},
    "one set": {"sets": 1},
    "two sets": {"sets": 2},
    "computing cut": {"computing": 1 / N},
    "one of three": {"states": 4},
    "16-bit parameters too": {"states": 14},
    "all eighteen": {"states": 18},
    "half as much": {"half": 1},
    "cut twice": {"share": 1 / N**2, "tokens_share": 1 / N**2},
}
READ, MICRO, BUCKETS = 12 * PSI / N / DISK, 6 * PSI * TOKENS / FLOPS, 3 * 12 * BUCKET / 1e9
UP, FEWEST = 2 * PSI / N / BUS, RIGHT.answers()["micro-batches"]
ALONE = (
    ("rounded down #1", {"micro-batches": FEWEST - 1}),
    ("not rounded #1", {"micro-batches": READ * (1 / PART - 1) / MICRO}),
    ("as long as the update", {"micro-batches": ceil(READ / MICRO)}),
    ("the bus beside it", {"update": READ + UP}),
    ("the bus beside it", {"update": READ + 2 * UP}),
    ("with both ends", {"update": READ + 12 * BUCKET / DISK}),
    ("with both ends", {"update": READ + 2 * 12 * BUCKET / DISK}),
    ("reading and writing", {"read": 2 * READ}),
    ("the tokens of all ranks", {"backward": N * RIGHT.answers()["backward"]}),
    ("the copy up in it", {"micro-batches": ceil((READ + UP) * (1 / PART - 1) / MICRO)}),
    ("all of a rank's states", {"window": 12 * PSI / N / 1e9}),
    ("three in a row", {"update": 3 * READ}),
    ("a bucket is cut", {"window": BUCKETS / N}),
    ("all ranks", {"window": BUCKETS * N}),
    ("GiB", {"window": BUCKETS * 1e9 / 2**30}),
    ("by the disk", {"down": UP * BUS / DISK, "up": UP * BUS / DISK}),
    ("by the bus", {"read": READ * DISK / BUS, "update": READ * DISK / BUS}),
)


def mistakes() -> tuple[Mistake, ...]:
    """Each wrong idea with the numbers that follow from it."""
    alone = (Mistake(*SAYS.of(entry), values) for entry, values in ALONE)
    return (*counted(SAYS, RIGHT, IDEAS), *alone)


def judge_hides(given: Mapping) -> None:
    """Hold the numbers against the model, and against what each other count leads to."""
    right = RIGHT.answers()
    compare(given, right, mistakes(), apart=True)
    for what in ("tokens", "micro-batches"):
        seen = given[what]
        if seen != int(seen):
            raise SAYS("not rounded #2", seen=seen, what=what)
        if seen == right[what] - 1:
            raise SAYS("rounded down #2", seen=seen, what=what)
        if seen != right[what]:
            raise SAYS("wrong number", seen=seen, what=what)


HIDES = Thought(
    name="hides",
    title="When does it hide?",
    points=3,
    fields=FIELDS,
    judge=judge_hides,
    when_right=(
        "The number of tokens does not depend on the model's size: bytes and operations both grow "
        "with Ψ, and what remains is the ratio of a GPU's speed to a bus's bandwidth. A few "
        "hundred tokens hide what the bus carries. For a disk that is not enough: there only many "
        "micro-batches to one update help."
    ),
    hints=(
        "A time is bytes over bytes a second, or operations over operations a second. Which bytes "
        "does *one* rank carry?",
        "For the tokens set the time of the gradients equal to that of a backward of T tokens, and "
        "solve for T. Ψ cancels.",
        "The update: three things go on at once, and the disk reads and writes at the same time. "
        "Then k micro-batches and one update make a step; the update may be a tenth of that.",
    ),
)
