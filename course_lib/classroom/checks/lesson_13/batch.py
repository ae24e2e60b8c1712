"""`fill_batch` of lesson 13: the batch triple, filled in as DeepSpeed does it, or refused.

Configs are drawn with one, two or all three sizes, right and wrong; a wrong idea is recognised by
what it gives on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge
from course_lib.classroom.checks.lesson_13 import batch_trial as trial
from course_lib.classroom.checks.lesson_13.triple import (
    MICRO,
    TIMES,
    TRAIN,
    TRIPLE,
    Refused,
    filled,
)
from course_lib.classroom.checks.lesson_13.triple_ideas import IDEAS, Fill
from course_lib.classroom.checks.looking import THREE, Idea, Looks, fresh_seed, near, recognise
from course_lib.classroom.checks.words import Page

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


class Trial(NamedTuple):
    reports: list[dict]
    cases: list[Case]
    when: str


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


def judge_batch(answer: Answer, judge: Judge) -> None:
    judge.take(answer, trial.__name__)
    cases = drawn(fresh_seed())
    when = f"in {len(cases)} drawn cases"
    reports = judge.trial(answer, trial.run, cases, members=THREE, when=when)
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
    """None came back wherever it did not refuse."""
    for report in one.reports:
        kinds = {seen["kind"] for seen in report["cases"]} - {trial.REFUSED}
        if kinds == {"a NoneType"}:
            raise SAYS("nothing returned")


def _look_at_shape(one: Trial) -> None:
    """Where something came back it is a dictionary; what is raised is looked at later."""
    for report in one.reports:
        for case, seen in zip(one.cases, report["cases"], strict=True):
            if seen["kind"].startswith("a "):
                kind = "None" if seen["kind"] == "a NoneType" else f"A{seen['kind'][1:]}"
                raise SAYS("not a dictionary", kind=kind, case=_said(case))


def _look_at_inputs(one: Trial) -> None:
    for report in one.reports:
        for case, seen in zip(one.cases, report["cases"], strict=True):
            if seen["changed"]:
                raise SAYS("input changed", case=_said(case))
    for report in one.reports:
        for case, seen in zip(one.cases, report["cases"], strict=True):
            if seen["lost"]:
                raise SAYS("other keys lost", lost=", ".join(seen["lost"]), case=_said(case))
            if seen["more"]:
                raise SAYS("keys of another config", more=", ".join(seen["more"]), case=_said(case))
            if not seen["new"]:
                raise SAYS("not a new dictionary", case=_said(case))


def _look_at_sizes(one: Trial) -> None:
    right = comes_to(filled, one.cases)
    for report in one.reports:
        for case, seen in zip(one.cases, report["cases"], strict=True):
            _refuse_odd(case, seen["sizes"])
        rows = [seen["sizes"] or REFUSED for seen in report["cases"]]
        seen = torch.tensor(rows, dtype=torch.float64)
        wrong = [k for k in range(len(rows)) if not near(seen[k], right[k])]
        if not wrong:
            continue
        idea = _recognised(one.cases, seen, wrong)
        case = one.cases[wrong[0]]
        told = f"{len(wrong)} of {len(rows)} drawn cases are not DeepSpeed's. {_said(case)}: "
        told += _difference(case, report["cases"][wrong[0]], right[wrong[0]])
        if idea:
            raise Finding(idea.name, f"{idea.text} {told}")
        raise Finding("refuses or fills wrongly", told)


def _look_at_errors(one: Trial) -> None:
    """What is refused is refused with the error that was asked for."""
    for report in one.reports:
        for case, seen in zip(one.cases, report["cases"], strict=True):
            if seen["kind"] not in ("dict", trial.REFUSED):
                raise SAYS("another error", case=_said(case), kind=seen["kind"], text=seen["text"])


def _ideas(cases: Sequence[Case]) -> list[Idea]:
    return [Idea(name, text, [comes_to(fill, cases)]) for name, text, fill in IDEAS]


def _recognised(cases: Sequence[Case], seen: Tensor, wrong: Sequence[int]) -> Idea | None:
    """The idea behind all that was seen, or behind all of it where every size is above zero."""
    idea = recognise([seen], _ideas(cases))
    plain = [k for k, (config, _) in enumerate(cases) if _above_zero(config)]
    if idea or not set(plain) & set(wrong):
        return idea
    idea = recognise([seen[plain]], _ideas([cases[k] for k in plain]))
    choices = (
        [j for j, case in enumerate(cases) if _named(case) == _named(cases[k])] for k in wrong
    )
    some = (
        recognise([seen[alike]], _ideas([cases[j] for j in alike]))
        for alike in choices
        if not seen[alike].isnan().all()
    )
    return idea or next(filter(None, some), None)


def _named(case: Case) -> set[str]:
    return set(case[0]) & set(TRIPLE)


def _above_zero(config: Mapping) -> bool:
    return all(config[name] > 0 for name in TRIPLE if name in config)


def _refuse_odd(case: Case, sizes: list | None) -> None:
    for name, size in zip(TRIPLE, sizes or (), strict=False):
        if size is None:
            raise SAYS("a size missing", name=name, case=_said(case))
        if isinstance(size, str):
            raise SAYS("not a number", name=name, size=size, case=_said(case))
        if isinstance(size, float):
            raise SAYS("not a whole number", name=name, size=size, case=_said(case))


def _difference(case: Case, seen: Mapping, wanted: Tensor) -> str:
    """What the answer did with one case, in words that do not say what is right."""
    if seen["sizes"] is None:
        if seen["kind"] == trial.REFUSED:
            return "you refuse it, and DeepSpeed fills it in."
        return f"it ended with {seen['kind']} ({seen['text']}), and DeepSpeed fills it in."
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
    shape=_look_at_shape,
    unchanged=_look_at_inputs,
    value=_look_at_sizes,
    later_steps=_look_at_errors,
)
FILL_BATCH = Exercise(judge=judge_batch, **SAYS.about)
