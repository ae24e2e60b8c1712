"""`fill_batch` of lesson 13: the batch triple, filled in as DeepSpeed does it, or refused.

Configs are drawn with one, two or all three sizes, right and wrong; a wrong idea is recognised by
what it gives on all of them.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks import bench
from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.lesson_13 import triple
from course_lib.classroom.checks.lesson_13.triple import (
    MICRO,
    TIMES,
    TRAIN,
    TRIPLE,
    Fill,
    Refused,
    filled,
)
from course_lib.classroom.checks.looking import THREE, Idea, Looks, fresh_seed, near, recognise
from course_lib.classroom.checks.words import Page
from course_lib.collectives.call import Group

SAYS = Page("lesson_13/fill_batch")

EACH = 8  # cases of a kind
FALSE = (  # values that count as false in Python, and that DeepSpeed takes
    ("wall_clock_breakdown", False),
    ("steps_per_print", 0),
    ("fp16", {}),
    ("communication_data_type", None),
)
REFUSED = [torch.nan] * len(TRIPLE)
Case = tuple[dict, int]


def drawn(seed: int) -> list[Case]:
    """Configs and world sizes: every choice of the three, right ones and ones that are refused."""
    r = Random(seed)
    cases: list[Case] = []
    for number in range(EACH):
        # One rank is a world as well, and the others are drawn.
        world, micro, times = r.choice((2, 3, 4, 6, 8)), r.randint(2, 9), r.randint(2, 9)
        world = world if number else 1
        sizes = {TRAIN: micro * times * world, MICRO: micro, TIMES: times}
        some = [{}, {**sizes, MICRO: -micro, TIMES: -times}]
        for bits in range(1, 2 ** len(TRIPLE)):
            right = {name: sizes[name] for k, name in enumerate(TRIPLE) if bits >> k & 1}
            odd = r.choice(list(right))
            more, wrong = sizes[odd] + r.randint(1, max(1, world - 1)), r.choice((0, -sizes[odd]))
            some += [right, {**right, odd: more}, {**right, odd: wrong}]
        some += [{**sizes, TRAIN: sizes[TRAIN] * r.randint(2, 4)}, {TRAIN: micro, MICRO: micro}]
        if world > 1:
            few = {TRAIN: r.randint(1, world - 1)}  # fewer samples than ranks: a share is below 1
            some += [few, {**few, TIMES: times}]
            some += [_by_each(r, world, name) for name in (TIMES, MICRO)]
        cases += [(_dressed(r, one), world) for one in some]
    r.shuffle(cases)
    return cases


def _by_each(r: Random, world: int, name: str) -> dict:
    """A batch that divides by the other size and by the world, and not by their product."""
    prime = next(p for p in (2, 3) if world % p == 0)
    other = prime * r.randint(1, 4)
    least, shared = math.lcm(other, world), math.gcd(other, world)
    return {TRAIN: least * (shared * r.randint(0, 2) + 1), name: other}


def _dressed(r: Random, sizes: dict) -> dict:
    """The sizes among other keys, in any order."""
    config = [*sizes.items(), ("gradient_clipping", r.choice((0.0, 0.5, 1.0)))]
    config.append(r.choice(FALSE))
    if r.random() < 0.7:  # what was there in one config is not there in the next one
        config.append(("zero_optimization", {"stage": r.randint(0, 3)}))
    r.shuffle(config)
    return dict(config)


# ---- what runs on the judge's ranks
def run(function: Callable, group: Group, cases: list[Case]) -> dict:
    """`function(config, world)` on each case: three sizes, a refusal, or something else."""
    kept: list[object] = []  # what came back, all of it alive at once
    return {"cases": [_tried(function, kept, *case) for case in cases]}


def _tried(function: Callable, kept: list[object], config: dict, world: int) -> dict:
    given = copy.deepcopy(config)
    report: dict = {"sizes": None, "lost": [], "more": [], "new": True, "text": ""}
    try:
        out, _ = bench.watched(lambda: function(given, world))
    except Exception as error:  # whatever it is, the finding says it
        name = "ValueError" if isinstance(error, ValueError) else type(error).__name__
        report |= {"kind": name, "text": str(error)[:200]}
    else:
        report["kind"] = "dict" if isinstance(out, Mapping) else f"a {type(out).__name__}"
        if isinstance(out, Mapping):
            report["sizes"] = [_plain(out.get(name)) for name in TRIPLE]
            beside = {name: value for name, value in config.items() if name not in TRIPLE}
            back = {name: out.get(name) for name in beside}
            kinds = {name: (type(value), type(back[name])) for name, value in beside.items()}
            report["lost"] = [
                name for name, (a, b) in kinds.items() if a is not b or beside[name] != back[name]
            ]
            report["more"] = sorted(str(name) for name in out if name not in {*beside, *TRIPLE})
            report["new"] = not any(out is each for each in (given, *kept))
            kept.append(out)
    return {**report, "changed": given != config}


def _plain(size: object) -> int | float | str | None:
    """A size as data, a whole number of any type as int; of anything else its type's name."""
    if size is None or (isinstance(size, (int, float)) and not isinstance(size, bool)):
        return size
    try:
        return type(size).__name__ if isinstance(size, bool) else operator.index(size)
    except (TypeError, RuntimeError):
        return type(size).__name__


# ---- what is said of it
class Trial(NamedTuple):
    reports: list[dict]
    cases: list[Case]
    when: str

    def each(self) -> list[tuple[str, dict]]:
        """A case in words and what came of it, of each rank."""
        pairs = (zip(self.cases, report["cases"], strict=True) for report in self.reports)
        return [(_said(case), seen) for rank in pairs for case, seen in rank]


def judge_batch(answer: Answer, judge: Judge) -> None:
    judge.take(answer, __name__)
    cases = drawn(fresh_seed())
    when = f"in {len(cases)} drawn cases"
    reports = judge.trial(answer, run, cases, members=THREE, when=when)
    LOOKS.at(answer, [Trial(reports, cases, when)])


def comes_to(fill: Fill, cases: Sequence[Case]) -> Tensor:
    """What a rule makes of each case, (cases, 3): the sizes, or NaNs where it refuses."""
    return torch.tensor([_sizes(fill, *case) for case in cases], dtype=torch.float64)


def _sizes(fill: Fill, config: Mapping, world: int) -> list[float]:
    try:
        sizes = fill(config, world)
    except Refused:
        return REFUSED
    return [float(sizes[name]) for name in TRIPLE]


def _said(case: Case) -> str:
    config, world = case
    sizes = {name: value for name, value in config.items() if name in TRIPLE}
    return f"{sizes} on {world} ranks"


def _look_at_returned(one: Trial) -> None:
    kinds = {seen["kind"] for _, seen in one.each()} - {"ValueError"}
    SAYS.refuse({"nothing returned": kinds == {"a NoneType"}})
    for case, seen in one.each():
        if seen["kind"].startswith("a "):
            raise SAYS("not a dictionary", kind=f"A{seen['kind'][1:]}", case=case)


def _look_at_inputs(one: Trial) -> None:
    """The config that was given stays, and all of it but the sizes comes back in a new one."""
    for case, seen in one.each():
        SAYS.refuse({"input changed": seen["changed"]}, case=case)
    for case, seen in one.each():
        looks = {
            "other keys lost": seen["lost"],
            "keys of another config": seen["more"],
            "not a new dictionary": not seen["new"],
        }
        lost, more = ", ".join(seen["lost"]), ", ".join(seen["more"])
        SAYS.refuse(looks, lost=lost, more=more, case=case)


def _look_at_sizes(one: Trial) -> None:
    right = comes_to(filled, one.cases)
    for case, seen in one.each():
        for name, size in zip(TRIPLE, seen["sizes"] or (), strict=False):
            looks = {
                "a size missing": size is None,
                "not a number": isinstance(size, str),
                "not a whole number": isinstance(size, float),
            }
            SAYS.refuse(looks, name=name, size=size, case=case)
    for report in one.reports:
        rows = [seen["sizes"] or REFUSED for seen in report["cases"]]
        seen = torch.tensor(rows, dtype=torch.float64)
        wrong = [k for k in range(len(rows)) if not near(seen[k], right[k])]
        if not wrong:
            continue
        first = wrong[0]
        told = f"{len(wrong)} of {len(rows)} drawn cases are not DeepSpeed's. "
        told += f"{_said(one.cases[first])}: "
        told += _difference(one.cases[first], report["cases"][first], right[first])
        idea = _recognised(one.cases, seen, wrong)
        if idea:
            raise Finding(idea.name, f"{idea.text} {told}")
        raise Finding("refuses or fills wrongly", told)


def _look_at_errors(one: Trial) -> None:
    """What is refused is refused with the error that was asked for."""
    for case, seen in one.each():
        other = seen["kind"] not in ("dict", "ValueError")
        SAYS.refuse({"another error": other}, case=case, kind=seen["kind"], text=seen["text"])


def _recognised(cases: Sequence[Case], seen: Tensor, wrong: Sequence[int]) -> Idea | None:
    """The idea behind all that was seen, or behind all of it where every size is above zero, or
    where the same sizes are named."""
    idea = _explained(cases, seen, range(len(cases)))
    plain = [k for k, (config, _) in enumerate(cases) if triple.above_zero(config)]
    if idea or not set(plain) & set(wrong):
        return idea
    named = [set(config) & set(TRIPLE) for config, _ in cases]
    alike = ([j for j, names in enumerate(named) if names == named[k]] for k in wrong)
    some = (_explained(cases, seen, rows) for rows in alike if not seen[rows].isnan().all())
    return _explained(cases, seen, plain) or next(filter(None, some), None)


def _explained(cases: Sequence[Case], seen: Tensor, rows: Sequence[int]) -> Idea | None:
    some = [cases[k] for k in rows]
    ideas = [Idea(*SAYS.of(entry), [comes_to(fill, some)]) for entry, fill in triple.IDEAS]
    return recognise([seen[list(rows)]], ideas)


def _difference(case: Case, seen: Mapping, wanted: Tensor) -> str:
    """What the answer did with one case, in words that do not say what is right."""
    if seen["sizes"] is None:
        ended = f"it ended with {seen['kind']} ({seen['text']})"
        ended = "you refuse it" if seen["kind"] == "ValueError" else ended
        return f"{ended}, and DeepSpeed fills it in."
    train, micro, times = seen["sizes"]
    product = micro * times * case[1]
    told = f"you have {train} for {micro} · {times} · {case[1]} = {product}"
    if bool(wanted.isnan().all()):
        return f"{told}, and DeepSpeed refuses it."
    if train != product:
        return f"{told}, which is not the same."
    return f"{told}. That multiplies, and DeepSpeed fills in something else."


LOOKS = Looks(
    returned=_look_at_returned,
    unchanged=_look_at_inputs,
    value=_look_at_sizes,
    later_steps=_look_at_errors,
)
FILL_BATCH = Exercise(judge=judge_batch, **SAYS.about)
