"""`streamed_speed` of lesson 14: what streamed weights make of a token step.

Cases are drawn anew for each check; a wrong idea is recognised, key by key, by what it makes of all
of them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor
from random import Random

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.by_cases import Case, Cases, Idea, judge_cases
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.words import Page

SAYS = Page("lesson_14/streamed_speed")

BYTES, STREAMED, RATE, DENSE, TP, EVEN, PREFILL = KEYS = (
    "bytes",
    "stage 3",
    "tokens/s",
    "dense",
    "tp",
    "break-even",
    "prefill",
)
COUNT = 10


def make(r: Random, k: int) -> Case:
    """Batches so small that a rank waits for its memory, larger ones for which it waits for the
    link, and such that the arithmetic takes longest; at last two that are unlike the others."""
    last = {COUNT - 2: _even, COUNT - 1: _slow}
    return last[k](r) if k in last else _case(r, k % 3)


def _case(r: Random, kind: int) -> Case:
    hidden = 128 * r.randint(24, 64)
    layers = r.randint(24, 64)
    ranks, item = r.choice((3, 4, 6, 8)), r.choice((2, 4))
    link, flops = r.randint(11, 60) * 1e9, r.randint(60, 400) * 1e12
    case = {
        "parameters": 12 * layers * hidden**2 + r.randint(30, 250) * 1000 * hidden,
        "item": item,
        "ranks": ranks,
        "layers": layers,
        "hidden": hidden,
        "link": link,
        "memory": r.randint(900, 3300) * 1e9,
        "flops": flops,
        "prompt": r.randint(150, 900),
        "batch": 1,
    }
    if not _rounds_alike(case):
        return _case(r, kind)
    even = break_even(case)
    sizes = ((2, 8), (even // 4, even // 2), (9 * even, 14 * even))
    return {**case, "batch": r.randint(*sizes[kind])}


def _even(r: Random) -> Case:
    """Powers of two, with which a batch breaks even exactly, whatever the order of the counting."""
    case = {"item": 2, "ranks": r.choice((4, 8)), "layers": 32, "hidden": 2 ** r.randint(12, 13)}
    case |= {"parameters": 2 ** r.randint(34, 36), "link": 2.0 ** r.randint(34, 36)}
    case |= {"memory": 2.0**41, "flops": 2.0 ** r.randint(46, 48), "prompt": 2 ** r.randint(8, 9)}
    return {**case, "batch": 2 ** r.randint(4, 7)}


def _slow(r: Random) -> Case:
    """A rank's own memory that is slower than the link: what it reads decides at stage 3 too."""
    case = _case(r, 0)
    return {**case, "memory": case["link"] / r.randint(2, 4)}


def _rounds_alike(case: Case) -> bool:
    """Whether no count of the break-even lies so near a whole number that digits decide."""
    exact = travels(case)
    others = (1, 2, 1 / 3, case["ranks"] / (case["ranks"] - 1))
    return exact > 40 and all(0.02 < factor * exact % 1 < 0.98 for factor in others)


# ---- the one count
def transfer(case: Case) -> float:
    """Seconds until a rank has received what it lacks of the weights."""
    return received(case) / case["link"]


def received(case: Case) -> float:
    weights = case["item"] * case["parameters"]
    return weights * (case["ranks"] - 1) / case["ranks"]


def computed(case: Case, tokens: float, share: float = 1.0) -> float:
    """Seconds for a forward of `tokens` tokens with a `share` of the weights: they are read from
    the rank's own memory while it computes."""
    read = share * case["item"] * case["parameters"] / case["memory"]
    return max(read, operations(case, tokens, share))


def operations(case: Case, tokens: float, share: float = 1.0) -> float:
    return 2 * share * case["parameters"] * tokens / case["flops"]


def sums(case: Case, tokens: float, each: float = 2.0) -> float:
    """Seconds of the all-reduces of a forward that is cut over tp."""
    n = case["ranks"]
    activations = case["item"] * tokens * case["hidden"]
    return each * case["layers"] * 2 * (n - 1) / n * activations / case["link"]


def break_even(case: Case) -> int:
    return ceil(travels(case))


def travels(case: Case) -> float:
    """Tokens whose operations take as long as the weights travel."""
    moved = case["item"] * (case["ranks"] - 1) / case["ranks"]
    return moved * case["flops"] / (2 * case["link"])


def streamed(case: Case, tokens: float) -> float:
    return max(transfer(case), computed(case, tokens))


def right(case: Case) -> dict[str, float]:
    """What each key comes to."""
    n, b = case["ranks"], case["batch"]
    step = streamed(case, b)
    return {
        BYTES: received(case),
        STREAMED: step,
        RATE: n * b / step,
        DENSE: computed(case, b),
        TP: computed(case, n * b, 1 / n) + sums(case, n * b),
        EVEN: break_even(case),
        PREFILL: streamed(case, b * case["prompt"]),
    }


class Counts:
    """A case's counts by short names, of which the ideas are made."""

    def __init__(self, case: Case):
        self.case, self.n, self.b = case, case["ranks"], case["batch"]
        self.item, self.prompt, self.layers = case["item"], case["prompt"], case["layers"]
        self.weights = case["item"] * case["parameters"]  # bytes of all of them
        self.received, self.transfer = received(case), transfer(case)
        self.reads = self.weights / case["memory"]  # seconds for a rank to read all weights
        self.works = operations(case, self.b)
        self.tp_works = operations(case, self.n * self.b, 1 / self.n)
        self.even = travels(case)
        self.even_at_memory = case["item"] * case["flops"] / (2 * case["memory"])
        self.sums, self.sums_of_own = self.summed(self.n * self.b), self.summed(self.b)

    def computed(self, tokens: float, share: float = 1.0) -> float:
        return computed(self.case, tokens, share)

    def streamed(self, tokens: float) -> float:
        return streamed(self.case, tokens)

    def summed(self, tokens: float, each: float = 2.0) -> float:
        return sums(self.case, tokens, each)

    @property
    def step(self) -> float:
        return self.streamed(self.b)

    @property
    def cut(self) -> float:
        """Seconds of a tp rank without its messages."""
        return self.computed(self.n * self.b, 1 / self.n)


_IDEAS: dict[str, tuple[tuple[str, Callable[[Counts], float]], ...]] = {
    BYTES: (
        ("its own piece too", lambda c: c.weights),
        ("its own piece alone", lambda c: c.weights / c.n),
        ("of all ranks", lambda c: c.n * c.received),
        ("gigabytes", lambda c: c.received / 1e9),
        ("the batch counted", lambda c: c.received * c.b),
        ("a backward counted #1", lambda c: 2 * c.received),
        ("a backward counted #2", lambda c: 3 * c.received),
        ("parameters, not bytes", lambda c: c.received / c.item),
    ),
    STREAMED: (
        ("one after the other #1", lambda c: c.transfer + c.computed(c.b)),
        ("the link alone", lambda c: c.transfer),
        ("weights for every prompt #1", lambda c: max(c.b * c.transfer, c.computed(c.b))),
        ("a backward counted #3", lambda c: max(c.transfer, 3 * c.works)),
        ("one operation", lambda c: max(c.transfer, c.works / 2)),
        ("a backward counted #3", lambda c: max(c.transfer, c.reads, 3 * c.works)),
        ("one operation", lambda c: max(c.transfer, c.reads, c.works / 2)),
        ("one after the other #2", lambda c: max(c.transfer, c.reads + c.works)),
        ("weights for every prompt #2", lambda c: max(c.transfer, c.b * c.reads, c.works)),
        ("milliseconds", lambda c: 1e3 * c.step),
        ("its share of the arithmetic", lambda c: max(c.transfer, c.computed(c.b, 1 / c.n))),
        ("prompts of all ranks #1", lambda c: c.streamed(c.n * c.b)),
        ("operations alone #1", lambda c: max(c.transfer, c.works)),
    ),
    RATE: (
        ("token steps", lambda c: 1 / c.step),
        ("one rank's prompts", lambda c: c.b / c.step),
        ("one prompt a rank", lambda c: c.n / c.step),
        ("seconds per token", lambda c: c.step / (c.n * c.b)),
        ("tokens of the prompt", lambda c: c.n * c.b * c.prompt / c.step),
    ),
    DENSE: (
        ("operations alone #2", lambda c: c.works),
        ("memory alone", lambda c: c.reads),
        ("one after the other #2", lambda c: c.reads + c.works),
        ("the link in it", lambda c: c.step),
    ),
    TP: (
        ("its own prompts alone", lambda c: c.computed(c.b, 1 / c.n) + c.sums_of_own),
        ("no all-reduce", lambda c: c.cut),
        ("half of the sums", lambda c: c.cut + c.summed(c.n * c.b, each=1)),
        ("the sums overlapped", lambda c: max(c.cut, c.sums)),
        ("own prompts in the sums", lambda c: c.cut + c.sums_of_own),
        ("own prompts computed", lambda c: c.computed(c.b, 1 / c.n) + c.sums),
        ("one layer", lambda c: c.cut + c.sums / c.layers),
        ("elements, not bytes", lambda c: c.cut + c.sums / c.item),
        ("no ring", lambda c: c.cut + c.sums * c.n / (2 * (c.n - 1))),
        ("memory not cut", lambda c: max(c.tp_works, c.reads) + c.sums),
        ("operations alone #3", lambda c: c.tp_works + c.sums),
        ("four all-reduces", lambda c: c.cut + c.summed(c.n * c.b, each=4)),
        ("weights not cut", lambda c: c.computed(c.n * c.b) + c.sums),
    ),
    EVEN: (
        ("all weights sent", lambda c: ceil(c.item * c.case["flops"] / (2 * c.case["link"]))),
        ("prompts of all ranks #2", lambda c: c.n * ceil(c.even)),
        ("rounded down", lambda c: floor(c.even)),
        ("one more", lambda c: floor(c.even) + 1),
        ("rounded to the nearest", lambda c: round(c.even)),
        ("not a whole number", lambda c: c.even),
        ("prompts of all ranks #3", lambda c: ceil(c.even / c.n)),
        ("prompts of all ranks #2", lambda c: ceil(c.n * c.even)),
        ("the memory in it #1", lambda c: ceil(max(c.even, c.even_at_memory))),
        ("the memory in it #2", lambda c: ceil(c.even_at_memory)),
        ("one operation", lambda c: ceil(2 * c.even)),
        ("a backward counted #3", lambda c: ceil(c.even / 3)),
        ("the batch of the case", lambda c: c.b),
    ),
    PREFILL: (
        ("weights for every token", lambda c: c.prompt * c.step),
        (
            "weights for every token",
            lambda c: max(c.prompt * c.transfer, c.computed(c.b * c.prompt)),
        ),
        ("one prompt", lambda c: c.streamed(c.prompt)),
        ("a token step", lambda c: c.step),
        ("prompts of all ranks #1", lambda c: c.streamed(c.n * c.b * c.prompt)),
        ("no gather", lambda c: c.computed(c.b * c.prompt)),
        ("one after the other #3", lambda c: c.transfer + c.computed(c.b * c.prompt)),
    ),
}
IDEAS = tuple(
    Idea(key, *SAYS.of(entry), lambda case, gives=gives: gives(Counts(case)))
    for key, entries in _IDEAS.items()
    for entry, gives in entries
)
CASES = Cases(KEYS, COUNT, make, right, IDEAS)


def judge_speed(answer: Answer, judge: Judge) -> None:
    judge_cases(answer, judge, CASES, __name__)


STREAMED_SPEED = Exercise(judge=judge_speed, **SAYS.about)
