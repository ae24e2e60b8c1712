"""`changes_sides` of lesson 15: the tokens from which tp sends more than dp.

The right numbers come from one count of a block; a wrong idea changes a count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from course_classroom.judge.finding import Finding
from course_classroom.judge.thought import Mistake, Thought, close, compare
from course_classroom.judge.words import Page

SAYS = Page(__file__, "changes_sides")

H, TP, DP, TOKENS, ITEM = 4096, 8, 16, 8192, 2  # width, ranks, tokens of a micro-batch, bytes
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
    """A counting model of a block's bytes over each axis; a wrong idea changes a count."""

    sums: float = 4  # all-reduces over tp
    recomputed: float = 6  # with the forward run again
    rounds: float = 2  # of an all-reduce
    weights: float = 12  # times h²
    item: float = ITEM
    cut: bool = True  # a rank holds 1/tp of the weights
    exact: bool = True  # (N - 1) / N instead of its limit
    replicas: bool = True  # the factor of dp
    gathers: float = 1.5  # of stage 3, compared with stages 0 to 2
    once: bool = True  # gradients are sent once per step, whatever the micro-batches

    def over_tp(self, tokens: float, h: float = H, tp: int = TP, sums: float = 0) -> float:
        part = (tp - 1) / tp if self.exact else 1
        return (sums or self.sums) * self.rounds * part * tokens * h * self.item

    def over_dp(self, h: float = H, tp: int = TP) -> float:
        part = (DP - 1) / DP if self.exact and self.replicas else 1
        held = self.weights * h * h / (tp if self.cut else 1)
        return self.rounds * part * held * self.item

    def border(self, h: float = H, tp: int = TP, sums: float = 0, times: float = 1) -> float:
        """Return the tokens per micro-batch at which tp sends `times` times the bytes of dp."""
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
        "weights not sharded",
        "Over dp a rank sends only its own shard's gradients, which are 1/tp of the block.",
        {"cut": False},
    ),
    (
        "a replica keeps its part",
        "dp's factor (d − 1)/d is missing. A replica need not send the part of the sum that it "
        "keeps. With 16 replicas, 15/16 of the gradients are sent in each direction.",
        {"replicas": False},
    ),
    (
        "limit for many ranks",
        "You used 1 for (N − 1)/N. With 8 and 16 ranks it is less, and with 2 it is a half.",
        {"exact": False},
    ),
    (
        "a factor of two",
        "This is half of the correct value. Perhaps you counted only the forward's sums, although "
        "the backward has as many. Perhaps you counted elements, but each has 2 bytes. Or you "
        "counted only one of the two rounds of an all-reduce.",
        {"sums": 2, "recomputed": 4},
    ),
    (
        "attention's weights alone",
        "A block has 12h² weights: 4h² in attention, 8h² in the MLP.",
        {"weights": 4},
    ),
    ("the MLP alone", "A block has 12h² weights, including attention's 4h².", {"weights": 8}),
    ("float32", "An element has 2 bytes here.", {"item": 4}),
    (
        "a factor of two",
        "This is half of the correct value. You counted elements, but each has 2 bytes, or only "
        "one of an all-reduce's two rounds, which are a reduce-scatter and an all-gather.",
        {"item": 1},
    ),
    (
        "everything again",
        "Only the forward is run again, together with the forward's sums.",
        {"recomputed": 8},
    ),
    (
        "recomputation sends nothing",
        "The repeated forward also repeats its sums over tp.",
        {"recomputed": 4},
    ),
    (
        "stage 3 as the others",
        "At stage 3 parameters are gathered twice and gradients reduce-scattered: 3 moves, not 2.",
        {"gathers": 1.0},
    ),
    (
        "three times",
        "Stage 3 moves 3Ψ elements and the others 2Ψ, which is 1.5 times as much, not three times.",
        {"gathers": 3.0},
    ),
    (
        "all-reduced at stage 3",
        "Two gathers of the parameters and an all-reduce of the gradients are twice as much. "
        "However, stage 3 reduce-scatters gradients, because a rank needs only its shard of the "
        "sum. That is half of an all-reduce.",
        {"gathers": 2.0},
    ),
    (
        "summed each time",
        "With gradient accumulation, gradients add up on each rank and are all-reduced once per "
        "step, however many micro-batches it has.",
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
        *SAYS.of("condition of a later question"),
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
    Mistake(*SAYS.of("tp on one side only #1"), {"tokens, tp 2": RIGHT.border()}),
    Mistake(*SAYS.of("tp on one side only #2"), {"tokens, tp 2": 4 * RIGHT.border()}),
    Mistake(
        *SAYS.of("3h"),
        {"tokens": 3 * H, "tokens, tp 2": 3 * H, "tokens, half the width": 3 * H / 2},
    ),
    Mistake(*SAYS.of("as h²"), {"tokens, half the width": RIGHT.border() / 4}),
    Mistake(*SAYS.of("the width cancels"), {"tokens, half the width": RIGHT.border()}),
    Mistake(*SAYS.of("larger, not smaller"), {"tokens, half the width": 2 * RIGHT.border()}),
)


def judge_sides(given: Mapping) -> None:
    """Compare the numbers with the right count and with the counts of wrong ideas."""
    right, known = RIGHT.answers(), mistakes()
    follow = _following(given, right)
    wrong = [name for name in right if not close(given[name], right[name])]
    if not set(wrong) & set(FIELDS[: FIELDS.index("tokens") + 1]):
        # Errors only in variants cannot come from an idea that also changes "tokens".
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
            found.name, f"{found.text} Your {told} would follow from your 'tokens': fix that one."
        ) from None


def _following(given: Mapping, right: Mapping) -> list[str]:
    """Return the variants that are wrong by the same factor as `tokens`."""
    off = given["tokens"] / right["tokens"]
    if close(off, 1.0):
        return []
    variants = FIELDS[FIELDS.index("tokens") + 1 :]
    return [name for name in variants if close(given[name], off * right[name])]


def _is_of(mistake: Mistake, given: Mapping, wrong: list[str]) -> bool:
    """Return True if this one mistake explains all errors."""
    values = mistake.values
    return all(name in values and close(given[name], values[name]) for name in wrong)


def mistakes() -> tuple[Mistake, ...]:
    """Return each wrong idea with the numbers in which it differs from the right answers."""
    right, made = RIGHT.answers(), []
    for name, text, counts in _IDEAS:
        theirs = replace(RIGHT, **counts).answers()
        made.append(Mistake(name, text, {k: v for k, v in theirs.items() if v != right[k]}))
    return (*made, *_ALONE)


CHANGES_SIDES = Thought(fields=FIELDS, judge=judge_sides, **SAYS.about)
