"""`changes_sides` of lesson 15: tokens from which the axis tp sends more than the axis dp.

The right numbers come from one count of a block; a wrong idea is another count in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from course_classroom.judge.finding import Finding
from course_classroom.judge.thought import Mistake, Thought, close, compare
from course_classroom.judge.words import Page

SAYS = Page(__file__, "changes_sides")

H, TP, DP, TOKENS, ITEM = 4096, 8, 16, 8192, 2  # width; ranks; tokens of a micro-batch; bytes
FIELDS = (
    "over tp",
    "over dp",
    "tokens",
    "tokens, recomputed",
    "tokens, stage 3",
    "tokens, 4 micro-batches",
    "tokens, tp 2",
    "tokens, half the width",
)


@dataclass(frozen=True)
class Model:
    """Count the bytes of a block over each axis; a wrong idea is another count."""

    sums: float = 4  # all-reduces over tp
    recomputed: float = 6  # with the forward run again
    rounds: float = 2  # of an all-reduce
    weights: float = 12  # times h²
    item: float = ITEM
    cut: bool = True  # a rank holds a tp-th part of the weights
    exact: bool = True  # (N - 1) / N, and not its limit
    replicas: bool = True  # that of dp
    gathers: float = 1.5  # of stage 3, beside stages 0 to 2
    once: bool = True  # gradients go once a step, whatever the micro-batches

    def over_tp(self, tokens: float, h: float = H, tp: int = TP, sums: float = 0) -> float:
        part = (tp - 1) / tp if self.exact else 1
        return (sums or self.sums) * self.rounds * part * tokens * h * self.item

    def over_dp(self, h: float = H, tp: int = TP) -> float:
        part = (DP - 1) / DP if self.exact and self.replicas else 1
        held = self.weights * h * h / (tp if self.cut else 1)
        return self.rounds * part * held * self.item

    def border(self, h: float = H, tp: int = TP, sums: float = 0, times: float = 1) -> float:
        """Tokens of a micro-batch with which both send as much, where dp sends `times`."""
        return times * self.over_dp(h, tp) / self.over_tp(1, h, tp, sums)

    def answers(self) -> dict[str, float]:
        values = (
            self.over_tp(TOKENS) / 1e6,
            self.over_dp() / 1e6,
            self.border(),
            self.border(sums=self.recomputed),
            self.border(times=self.gathers),
            self.border(times=1 / 4 if self.once else 1),
            self.border(tp=2),
            self.border(h=H / 2),
        )
        return dict(zip(FIELDS, values, strict=True))


RIGHT = Model()
_IDEAS = (
    (
        "weights not cut",
        "Over dp a rank sends its own shard's gradients: a tp-th part of the block.",
        {"cut": False},
    ),
    (
        "a replica keeps its part",
        "dp's factor (d − 1)/d is missing. A replica need not send what "
        "it keeps of the sum: with 16 replicas 15/16 of the gradients travel, each way round.",
        {"replicas": False},
    ),
    (
        "limit for many ranks",
        "You have taken (N − 1)/N as 1. With 8 and 16 ranks it is less, and with 2 it is a half.",
        {"exact": False},
    ),
    (
        "a factor of two",
        "Half of it is there where the forward's sums alone are counted, and the backward has as "
        "many; where elements are counted, of 2 bytes each; or one way round the ring, which an "
        "all-reduce goes round twice.",
        {"sums": 2, "recomputed": 4},
    ),
    (
        "attention's weights alone",
        "A block has 12h² weights: 4h² in attention, 8h² in the MLP.",
        {"weights": 4},
    ),
    ("the MLP alone", "A block has 12h² weights: attention's 4h² too.", {"weights": 8}),
    ("float32", "An element has 2 bytes here.", {"item": 4}),
    (
        "a factor of two",
        "Half of it is there where elements are counted, of 2 bytes each, or one way round the "
        "ring: an all-reduce goes round it twice, in a reduce-scatter and an all-gather.",
        {"item": 1},
    ),
    (
        "everything again",
        "Only the forward is run again, and with it the forward's sums.",
        {"recomputed": 8},
    ),
    (
        "recomputation sends nothing",
        "The forward that is run again sums over tp again.",
        {"recomputed": 4},
    ),
    (
        "stage 3 as the others",
        "At stage 3 parameters are gathered twice, and gradients reduce-scattered: three, not two.",
        {"gathers": 1.0},
    ),
    (
        "three times",
        "Stage 3 moves 3Ψ elements, the others 2Ψ: half as much again, not three times.",
        {"gathers": 3.0},
    ),
    (
        "all-reduced at stage 3",
        "Two gathers of the parameters and an all-reduce of the gradients are twice as much. At "
        "stage 3 gradients are reduce-scattered: a rank needs no more than its shard of the sum, "
        "and that is half of an all-reduce.",
        {"gathers": 2.0},
    ),
    (
        "summed each time",
        "Gradient accumulation: gradients add up on each rank and are "
        "all-reduced once in a step, however many micro-batches it has.",
        {"once": False},
    ),
)
_ALONE = (
    Mistake(*SAYS.of("of the whole step"), {"tokens, 4 micro-batches": RIGHT.border()}),
    Mistake(*SAYS.of("the other way round #1"), {"tokens, 4 micro-batches": 4 * RIGHT.border()}),
    Mistake(
        *SAYS.of("of all ranks"),
        {"over tp": TP * RIGHT.over_tp(TOKENS) / 1e6, "over dp": DP * RIGHT.over_dp() / 1e6},
    ),
    Mistake(
        *SAYS.of("MiB"),
        {"over tp": RIGHT.over_tp(TOKENS) / 2**20, "over dp": RIGHT.over_dp() / 2**20},
    ),
    Mistake(*SAYS.of("one all-reduce"), {"over tp": RIGHT.over_tp(TOKENS, sums=1) / 1e6}),
    Mistake(
        *SAYS.of("a later question's"),
        {"over tp": 1.5 * RIGHT.over_tp(TOKENS) / 1e6, "over dp": 1.5 * RIGHT.over_dp() / 1e6},
    ),
    Mistake(
        *SAYS.of("the other way round #2"),
        {
            "tokens, recomputed": 1.5 * RIGHT.border(),
            "tokens, stage 3": RIGHT.border() / 1.5,
            "tokens, tp 2": RIGHT.border() / 7,
        },
    ),
    Mistake(*SAYS.of("tp in one of the two #1"), {"tokens, tp 2": RIGHT.border()}),
    Mistake(*SAYS.of("tp in one of the two #2"), {"tokens, tp 2": 4 * RIGHT.border()}),
    Mistake(
        *SAYS.of("3h"),
        {"tokens": 3 * H, "tokens, tp 2": 3 * H, "tokens, half the width": 3 * H / 2},
    ),
    Mistake(*SAYS.of("as h²"), {"tokens, half the width": RIGHT.border() / 4}),
    Mistake(*SAYS.of("the width cancels"), {"tokens, half the width": RIGHT.border()}),
    Mistake(*SAYS.of("larger, not smaller"), {"tokens, half the width": 2 * RIGHT.border()}),
)


def judge_sides(given: Mapping) -> None:
    """Hold the numbers against the count, and against what each other count leads to."""
    right, known = RIGHT.answers(), mistakes()
    follow = _following(given, right)
    wrong = [name for name in right if not close(given[name], right[name])]
    if not set(wrong) & set(FIELDS[: FIELDS.index("tokens") + 1]):
        # What is wrong in variants alone is no idea that "tokens" would have as well.
        known = tuple(sorted(known, key=lambda mistake: "tokens" in mistake.values))
    if not follow or any(_is_of(mistake, given, wrong) for mistake in known):
        compare(given, right, known, apart=True)
        return
    asked = {name: value for name, value in right.items() if name not in follow}
    try:
        compare(given, asked, known, apart=True)
    except Finding as found:
        told = ", ".join(map(repr, follow))
        raise Finding(
            found.name, f"{found.text} Your {told} would follow from your 'tokens': mend that one."
        ) from None


def _following(given: Mapping, right: Mapping) -> list[str]:
    """Variants that are wrong as far as `tokens` is, by the same factor."""
    off = given["tokens"] / right["tokens"]
    if close(off, 1.0):
        return []
    variants = FIELDS[FIELDS.index("tokens") + 1 :]
    return [name for name in variants if close(given[name], off * right[name])]


def _is_of(mistake: Mistake, given: Mapping, wrong: list[str]) -> bool:
    """Whether one idea leads to all that is wrong."""
    values = mistake.values
    return all(name in values and close(given[name], values[name]) for name in wrong)


def mistakes() -> tuple[Mistake, ...]:
    """Each wrong idea with the numbers that follow from it, where they differ from the right."""
    right, made = RIGHT.answers(), []
    for name, text, counts in _IDEAS:
        theirs = replace(RIGHT, **counts).answers()
        made.append(Mistake(name, text, {k: v for k, v in theirs.items() if v != right[k]}))
    return (*made, *_ALONE)


CHANGES_SIDES = Thought(fields=FIELDS, judge=judge_sides, **SAYS.about)
