"""`fill_batch` of lesson 13: the batch triple, filled in as DeepSpeed does it, or refused.

Configs are drawn with one, two or all three sizes, right and wrong; a wrong idea is recognised by
what it gives on all of them.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from random import Random

from course_classroom.judge import bench, by_cases
from course_classroom.judge.answer import Answer
from course_classroom.judge.by_cases import Idea
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge
from course_classroom.judge.looking import THREE, fresh_seed
from course_classroom.judge.words import Page
from course_lessons.lesson_13 import triple
from course_lessons.lesson_13.triple import MICRO, TIMES, TRAIN, TRIPLE, Sizes
from course_lib.collectives.call import Group

SAYS = Page(__file__, "fill_batch")

EACH = 8  # cases of a kind
NAMED = [names for count in (1, 2, 3) for names in combinations(TRIPLE, count)]
FALSE = (  # values that count as false in Python, and that DeepSpeed takes
    ("wall_clock_breakdown", False),
    ("steps_per_print", 0),
    ("fp16", {}),
    ("communication_data_type", None),
)
Case = tuple[dict, int]


def drawn(seed: int) -> list[Case]:
    """Configs and world sizes: every choice of the three, right ones and ones that are refused."""
    r = Random(seed)
    cases: list[Case] = []
    for world in (1, *r.choices((2, 3, 4, 6, 8), k=EACH - 1)):
        micro, times = r.randint(2, 9), r.randint(2, 9)
        train = micro * times * world
        sizes = dict(zip(TRIPLE, (train, micro, times), strict=True))
        some = [{}, {**sizes, MICRO: -micro, TIMES: -times}, {TRAIN: micro, MICRO: micro}]
        some += [{**sizes, TRAIN: train * r.randint(2, 4)}]
        for names in NAMED:
            right, odd = {name: sizes[name] for name in names}, r.choice(names)
            more, wrong = sizes[odd] + r.randint(1, max(1, world - 1)), r.choice((0, -sizes[odd]))
            some += [right, {**right, odd: more}, {**right, odd: wrong}]
        if world > 1:
            few = r.randint(1, world - 1)  # fewer samples than ranks: a share is below 1
            some += [{TRAIN: few}, {TRAIN: few, TIMES: times}]
            for name in (TIMES, MICRO):  # divides by this and by the world, not by the product
                size = world * r.randint(1, 3)
                some += [{TRAIN: size * (world * r.randint(0, 2) + 1), name: size}]
        cases += [(_dressed(r, one), world) for one in some]
    r.shuffle(cases)
    return cases


def _dressed(r: Random, sizes: dict) -> dict:
    """The sizes among other keys, in any order."""
    config = [*sizes.items(), ("gradient_clipping", r.choice((0.0, 0.5, 1.0))), r.choice(FALSE)]
    if r.random() < 0.7:  # what was there in one config is not there in the next one
        config.append(("zero_optimization", {"stage": r.randint(0, 3)}))
    r.shuffle(config)
    return dict(config)


# ---- what runs on the judge's ranks
def run(function: Callable, group: Group, seed: int) -> list[dict]:
    """`function(config, world)` on each case: three sizes, a refusal, or something else."""
    kept: list[object] = []  # what came back, all of it alive at once
    return [_tried(function, kept, *case) for case in drawn(seed)]


def _tried(function: Callable, kept: list[object], config: dict, world: int) -> dict:
    given = copy.deepcopy(config)
    report: dict = {"kind": "dict", "text": "", "sizes": None}
    try:
        out, _ = bench.watched(lambda: function(given, world))
    except Exception as error:  # whatever it is, the finding says it
        kind = "ValueError" if isinstance(error, ValueError) else type(error).__name__
        report |= {"kind": kind, "text": str(error)[:200]}
    else:
        if isinstance(out, Mapping):
            report |= _described(out, config) | {"old": any(out is x for x in (given, *kept))}
            kept.append(out)
        else:
            report["kind"] = f"A {type(out).__name__}"
    return {**report, "changed": given != config, "case": _said(config, world)}


def _described(out: Mapping, config: Mapping) -> dict:
    others = {name: value for name, value in config.items() if name not in TRIPLE}
    lost = [name for name in others if repr(out.get(name, "")) != repr(others[name])]
    more = sorted(str(name) for name in out if name not in {*others, *TRIPLE})
    sizes = {name: _plain(out.get(name)) for name in TRIPLE}
    odd = [{"name": name, "size": size} for name, size in sizes.items() if type(size) is not int]
    about = {"lost": ", ".join(lost), "more": ", ".join(more), "sizes": [*sizes.values()]}
    return {**about, **(odd[0] if odd else {})}


def _plain(size: object) -> int | float | str | None:
    """A size as data, a whole number of any type as int; of anything else its type's name."""
    if size is None or isinstance(size, float):
        return size
    try:
        return "bool" if isinstance(size, bool) else int(operator.index(size))
    except (TypeError, RuntimeError):
        return type(size).__name__


def _said(config: Mapping, world: int) -> str:
    sizes = {name: size for name, size in config.items() if name in TRIPLE}
    return f"{sizes} on {world} ranks"


# ---- what is said of it
FORM = {
    "not a dictionary": lambda one: one["kind"].startswith("A "),
    "input changed": lambda one: one["changed"],
    "other keys lost": lambda one: one.get("lost"),
    "keys of another config": lambda one: one.get("more"),
    "not a new dictionary": lambda one: one.get("old"),
    "a size missing": lambda one: one.get("size", 0) is None,
    "not a number": lambda one: isinstance(one.get("size"), str),
    "not a whole number": lambda one: isinstance(one.get("size"), float),
}
OTHERWISE = {"another error": lambda one: one["kind"] not in ("dict", "ValueError")}


def judge_batch(answer: Answer, judge: Judge) -> None:
    judge.take(answer, __name__)
    seed = fresh_seed()
    cases = drawn(seed)
    when = f"in {len(cases)} drawn cases"
    for reports in judge.trial(answer, run, seed, members=THREE, when=when):
        kinds = {one["kind"] for one in reports}
        SAYS.refuse({"nothing returned": kinds - {"ValueError"} == {"A NoneType"}})
        SAYS.refuse_each(reports, FORM)
        look_at_sizes(cases, reports)
        SAYS.refuse_each(reports, OTHERWISE)


def gives(fill: triple.Fill, case: Case) -> list[int] | None:
    """What a rule makes of a case: the sizes, or None where it refuses."""
    sizes = fill(Sizes.of(*case))
    return sizes and [sizes.train, sizes.micro, sizes.times]


IDEAS = [
    Idea("sizes", *SAYS.of(entry), lambda case, fill=fill: gives(fill, case))
    for entry, fill in triple.IDEAS
]


def look_at_sizes(cases: Sequence[Case], reports: Sequence[Mapping]) -> None:
    """Raise a Finding where sizes are not DeepSpeed's, by the name of the idea that gives them."""
    seen, right = [one["sizes"] for one in reports], [gives(triple.filled, case) for case in cases]
    wrong = [k for k in range(len(cases)) if seen[k] != right[k]]
    if not wrong:
        return
    first, wanted = reports[wrong[0]], right[wrong[0]]
    mine = first["sizes"] or f"{first['kind']} ({first['text']})"
    its = "fills in other sizes" if wanted else "refuses it"
    told = f"{len(wrong)} of {len(cases)} drawn cases are not DeepSpeed's. "
    told += f"{first['case']}: you have {mine}, and DeepSpeed {its}."
    idea = _recognised(cases, seen, wrong)
    if idea:
        raise Finding(idea.name, f"{idea.text} {told}")
    raise Finding("refuses or fills wrongly", told)


def _recognised(cases: Sequence[Case], seen: Sequence, wrong: Sequence[int]) -> Idea | None:
    """The idea behind all that was seen, or behind all of it where every size is above zero, or
    where the same sizes are named."""
    parts = [list(range(len(cases)))]
    plain = [k for k, case in enumerate(cases) if Sizes.of(*case).above_zero()]
    if set(plain) & set(wrong):
        named = [set(config) & set(TRIPLE) for config, _ in cases]
        alike = ([j for j, names in enumerate(named) if names == named[k]] for k in wrong)
        parts += [plain, *(part for part in alike if any(seen[j] for j in part))]
    for part in parts:
        gave, some = [seen[k] for k in part], [cases[k] for k in part]
        idea = next((idea for idea in IDEAS if by_cases.explains(idea, gave, some)), None)
        if idea:
            return idea
    return None


FILL_BATCH = Exercise(judge=judge_batch, **SAYS.about)
