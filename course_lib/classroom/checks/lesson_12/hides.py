"""`hides` of lesson 12: what a bus and a disk carry while a GPU computes.

The right numbers come from one model of bytes and speeds; a wrong idea is another count in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.thought import Mistake, Thought, compare

PSI, N, TOKENS = 6e9, 8, 4096  # parameters; ranks; tokens of a rank's micro-batch
BUS, DISK, FLOPS = 12e9, 2e9, 100e12  # bytes a second, each way, of each rank; operations a second
BUCKET, PART = 50e6, 0.1  # parameters of a bucket; what the update may take of a step
FIELDS = (
    "down",
    "backward",
    "tokens",
    "up",
    "read",
    "update",
    "micro-batches",
    "window",
)


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
        values = (
            bus,
            back,
            ceil(self.half * self.tokens_share / BUS * FLOPS / self.backward / self.computing),
            bus,
            read,
            update,
            ceil(update * rest / micro),
            self.sets * self.states * BUCKET / 1e9,
        )
        return dict(zip(FIELDS, values, strict=True))


RIGHT = Model()
_IDEAS = (
    (
        "not cut",
        "A rank carries its own shard, not all of the model: there are N links side by side.",
        {"share": 1.0, "tokens_share": 1.0},
    ),
    (
        "in float32",
        "The bus carries 16-bit values here, two bytes each.",
        {"half": 4},
    ),
    (
        "states on the bus",
        "No optimizer state crosses the bus: the update runs on the host. Gradients go down.",
        {"half": 12},
    ),
    (
        "the forward's operations",
        "Two operations for a parameter and a token are the forward's. A backward makes two "
        "products for each of the forward's.",
        {"backward": 2, "all_of_it": 2},
    ),
    (
        "forward and backward",
        "You have counted the forward as well. The copies of gradients run beside the backward, "
        "in which the gradients come.",
        {"backward": 6},
    ),
    (
        "the backward alone",
        "Between two updates there are complete micro-batches, forwards too.",
        {"all_of_it": 4},
    ),
    (
        "moments alone",
        "The file holds the master copy beside the two moments.",
        {"states": 8},
    ),
    (
        "with the gradient",
        "The gradient is on the host already, in memory. It is in no file.",
        {"states": 16},
    ),
    (
        "one after the other",
        "Reading, updating and writing go on at the same time, on different buckets; the disk does "
        "both ways at its speed. The slowest counts, not the sum.",
        {"both_ways": 2},
    ),
    (
        "a tenth of the computing",
        "At most a tenth of the *step*, to which the update itself belongs.",
        {"of_the_whole": False},
    ),
    (
        "one set",
        "One bucket is read, one is worked on, one is written: how many sets of memory is that?",
        {"sets": 1},
    ),
    (
        "two sets",
        "One bucket is read, one is worked on, one is written: that is more than two.",
        {"sets": 2},
    ),
    (
        "computing cut",
        "Every rank computes with all parameters, on tokens of its own; only what is kept and "
        "carried is sharded.",
        {"computing": 1 / N},
    ),
    (
        "one of three",
        "The files hold three float32 values for each parameter: the master copy and two moments.",
        {"states": 4},
    ),
    (
        "16-bit parameters too",
        "Asked is for masters and moments. The 16-bit parameters are made of the masters.",
        {"states": 14},
    ),
    (
        "all eighteen",
        "The question asks for masters and moments, three float32 values.",
        {"states": 18},
    ),
    (
        "half as much",
        "The bus has its full bandwidth in each direction, and a 16-bit value has two bytes.",
        {"half": 1},
    ),
)
_READ, _MICRO, _BUS = 12 * PSI / N / DISK, 6 * PSI * TOKENS / FLOPS, 2 * PSI / N / BUS
_ALONE = (
    Mistake(
        "rounded down",
        "With one micro-batch fewer the update is more than a tenth of the step: round up.",
        {"micro-batches": RIGHT.answers()["micro-batches"] - 1},
    ),
    Mistake(
        "not rounded",
        "A step has a whole number of micro-batches: round up.",
        {"micro-batches": _READ * (1 / PART - 1) / _MICRO},
    ),
    Mistake(
        "as long as the update",
        "With so many the update takes as long as all the rest. It may be a tenth of the step.",
        {"micro-batches": ceil(_READ / _MICRO)},
    ),
    Mistake(
        "the bus beside it",
        "What crosses the bus is not part of it: masters and moments go from the files to the host "
        "and back.",
        {"update": _READ + _BUS},
    ),
    Mistake(
        "the bus beside it",
        "What crosses the bus is not part of it: masters and moments go from the files to the host "
        "and back again.",
        {"update": _READ + 2 * _BUS},
    ),
    Mistake(
        "with both ends",
        "The first bucket's read and the last one's write are left out here: count the time in "
        "which both go on.",
        {"update": _READ + 12 * BUCKET / DISK},
    ),
    Mistake(
        "with both ends",
        "The first bucket's read and the last one's write, which nothing overlaps, are left out.",
        {"update": _READ + 2 * 12 * BUCKET / DISK},
    ),
    Mistake(
        "reading and writing",
        "The disk reads and writes at the same time, each at full speed. This is reading alone.",
        {"read": 2 * _READ},
    ),
    Mistake(
        "the tokens of all ranks",
        "Each rank computes on its own tokens, and all ranks at the same time.",
        {"backward": N * RIGHT.answers()["backward"]},
    ),
    Mistake(
        "the copy up in it",
        "The copy up comes afterwards, and is no part of the update that is asked for.",
        {"micro-batches": ceil((_READ + _BUS) * (1 / PART - 1) / _MICRO)},
    ),
    Mistake(
        "all of a rank's states",
        "Those are all states of a rank. The update goes through them in buckets, and reuses the "
        "memory.",
        {"window": 12 * PSI / N / 1e9},
    ),
    Mistake(
        "three in a row",
        "Reading, updating and writing go on at the same time. The slowest counts, not the sum.",
        {"update": 3 * _READ},
    ),
    Mistake(
        "a bucket is cut",
        "A bucket of 50 million parameters is what one rank works on: it is not sharded again.",
        {"window": 3 * 12 * BUCKET / N / 1e9},
    ),
    Mistake(
        "all ranks",
        "That is for all ranks together; the question is about one.",
        {"window": 3 * 12 * BUCKET * N / 1e9},
    ),
    Mistake(
        "GiB",
        "Those are GiB, of 2³⁰ bytes. 1 GB is 10⁹ bytes here.",
        {"window": 3 * 12 * BUCKET / 2**30},
    ),
    Mistake(
        "by the disk",
        "Gradients and parameters cross the bus, and no disk.",
        {"down": 2 * PSI / N / DISK, "up": 2 * PSI / N / DISK},
    ),
    Mistake(
        "by the bus",
        "The files are on a disk, and that is slower than the bus.",
        {"read": 12 * PSI / N / BUS, "update": 12 * PSI / N / BUS},
    ),
)


def judge_hides(given: Mapping) -> None:
    """Hold the numbers against the model, and against what each other count leads to."""
    compare(given, RIGHT.answers(), mistakes(), apart=True)
    for name, what in (("tokens", "tokens"), ("micro-batches", "micro-batches")):
        seen, right = given[name], RIGHT.answers()[name]
        if seen == right:
            continue
        if seen != int(seen):
            raise Finding("not rounded", f"{seen:g} is no whole number of {what}: round up.")
        if seen == right - 1:
            raise Finding("rounded down", f"With {seen:g} {what} it is not yet enough: round up.")
        raise Finding("wrong number", f"Not right: {seen:g} {what}. The rest is right.")


def mistakes() -> tuple[Mistake, ...]:
    """Each wrong idea with the numbers that follow from it, where they differ from the right."""
    right, made = RIGHT.answers(), []
    for name, text, counts in _IDEAS:
        theirs = replace(RIGHT, **counts).answers()
        made.append(Mistake(name, text, {k: v for k, v in theirs.items() if v != right[k]}))
    return (*made, *_ALONE)


HIDES = Thought(
    name="hides",
    title="When does it hide?",
    points=3,
    fields=FIELDS,
    judge=judge_hides,
    when_right=(
        "The number of tokens does not depend on the model's size: bytes and operations both grow "
        "with Ψ, and what remains is the ratio of a GPU's speed to a bus's bandwidth. A few "
        "hundred "
        "tokens hide what the bus carries. For a disk that is not enough: there only many "
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
