"""`fill_batch` of lesson 13: the batch triple, filled in as by DeepSpeed, or refused, in random
configs with one, two or all three sizes. Wrong ideas are recognised by their results."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, combinations, product
from random import Random

from course_classroom.judge import bench, by_cases, frame, looking, words
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.judge import Judge
from course_lessons.lesson_13.triple import MICRO, TIMES, TRAIN, TRIPLE, Sizes, filled
from course_lib.collectives.call import Group

SAYS = words.Page(__file__, "fill_batch")

# Other keys, some with values that are false in Python.
OTHERS = {"gradient_clipping": 0.5, "zero_optimization": {"stage": 2}, "dump_state": False}
OTHERS |= {"steps_per_print": 0, "fp16": {}, "communication_data_type": None}
Case = tuple[dict, int]  # a config, and the number of ranks


def drawn(seed: int) -> list[Case]:
    """Draw configs and world sizes: every subset of the three sizes, both valid and refused."""
    r = Random(seed)
    cases: list[Case] = []
    for world in (1, *r.choices((2, 3, 4, 6, 8), k=7)):
        micro, times = r.randint(2, 9), r.randint(2, 9)
        train = micro * times * world
        sizes = dict(zip(TRIPLE, (train, micro, times), strict=True))
        some = [{}, {**sizes, MICRO: -micro, TIMES: -times}, {TRAIN: micro, MICRO: micro}]
        some += [{**sizes, TRAIN: train * r.randint(2, 4)}]
        for names in chain.from_iterable(combinations(TRIPLE, count) for count in (1, 2, 3)):
            right, odd = {name: sizes[name] for name in names}, r.choice(names)
            more, wrong = sizes[odd] + r.randint(1, max(1, world - 1)), r.choice((0, -sizes[odd]))
            some += [right, {**right, odd: more}, {**right, odd: wrong}]
        few = r.randint(1, max(1, world - 1))  # fewer samples than ranks, so a share is below 1
        some += [{TRAIN: few}, {TRAIN: few, TIMES: times}]
        for name in (TIMES, MICRO):  # divides by this and by the world, but not by the product
            size = world * r.randint(1, 3)
            some += [{TRAIN: size * (world * r.randint(0, 2) + 1), name: size}]
        cases += [(_dressed(r, one), world) for one in some]
    r.shuffle(cases)
    return cases


def _dressed(r: Random, sizes: dict) -> dict:
    """Return a config with the sizes and some other keys, in random order."""
    config = [*sizes.items(), *r.sample([*OTHERS.items()], 3)]
    r.shuffle(config)
    return dict(config)


# ---- code on the judge's ranks
def run(function: Callable, group: Group, seed: int) -> list[dict]:
    """Run `function(config, world)` in each case; return three sizes or None, the looks at the
    result's form, and the values for their words."""
    reports, kept = [], []  # kept: all results, alive at once
    for config, world in drawn(seed):
        out, error, given = bench.called(function, config, world)
        named = {name: size for name, size in config.items() if name in TRIPLE}
        kind = type(error).__name__ if error else f"A {type(out).__name__}"
        about = {"case": f"{named} on {world} ranks", "kind": kind, "text": str(error)[:200]}
        there, refused = isinstance(out, Mapping), isinstance(error, ValueError)
        form = {"not a dictionary": not (there or error), "input changed": given != (config, world)}
        reports.append({"sizes": None, "refused": refused, "form": form, "about": about})
        if not there:
            continue
        lost = [x for x in config if x not in named and repr(out.get(x, "")) != repr(config[x])]
        more = sorted(str(name) for name in out if name not in {*config, *TRIPLE})
        sizes = {name: _plain(out.get(name)) for name in TRIPLE}
        odd = next((name for name in TRIPLE if type(sizes[name]) is not int), TRAIN)
        form |= {
            "other keys lost": lost,
            "keys of a different config": more,
            "not a new dictionary": any(out is one for one in (given[0], *kept)),
            "a size missing": sizes[odd] is None,
            "not a number": isinstance(sizes[odd], str),
            "not a whole number": isinstance(sizes[odd], float),
        }
        about |= {"lost": ", ".join(lost), "more": ", ".join(more), "name": odd, "size": sizes[odd]}
        reports[-1]["sizes"] = [*sizes.values()]
        kept.append(out)
    return reports


def _plain(size: object) -> int | float | str | None:
    """Return a size as data: any integer as an int, and other types by name."""
    try:
        return "bool" if isinstance(size, bool) else int(operator.index(size))
    except (TypeError, RuntimeError):
        return size if size is None or isinstance(size, float) else type(size).__name__


# ---- wrong ideas
Fill = Callable[[Sizes], Sizes | None]  # None: refused
guessed = partial(filled, product=False, signs=False)
multiplied, positive = partial(filled, signs=False), partial(filled, product=False)


def _read_as(**other: int | None) -> Fill:
    """Return a rule that fills in correctly as if a config had different values."""
    return lambda sizes: filled(sizes._replace(**other))


def _divided(sizes: Sizes) -> bool:
    """Return True if the batch is given and one or both divisors are not."""
    return sizes.above_zero() and sizes.train is not None and None in sizes


def _a_multiple(sizes: Sizes) -> bool:
    """Return True if all sizes are given and the batch is a multiple of the others' product."""
    train, micro, times, world = sizes
    return None not in sizes and sizes.above_zero() and train % (micro * times * world) == 0


def _by_each(sizes: Sizes) -> Sizes | None:
    """Divide the batch by the given size and by the world, testing each separately."""
    train, *divisors = sizes
    return None if any(size and train % size for size in divisors) else guessed(sizes)


def _rounded_up(sizes: Sizes) -> Sizes:
    train, micro, times, world = sizes
    times = times or (1 if micro is None else -(-train // (micro * world)))
    return Sizes(train, micro or -(-train // (times * world)), times, world)


def gives(fill: Fill, case: Case, so: Callable = bool) -> list[int] | None:
    """Return a rule's sizes for a case where `so` holds, or None if the rule refuses them."""
    sizes = Sizes.of(*case)
    known = fill(sizes) if so(sizes) else filled(sizes)
    return known and [*known[:3]]


IDEAS = [
    by_cases.Idea("sizes", *SAYS.of(entry), partial(gives, fill, so=so))
    for entry, so, fill in (  # the cases where an idea is wrong, and its sizes there
        ("world size left out", lambda s: True, _read_as(world=1)),
        ("not checked #1", lambda s: True, guessed),
        ("contradiction accepted #1", lambda s: None not in s, guessed),
        ("contradiction accepted #2", _a_multiple, guessed),
        ("contradiction accepted #3", lambda s: s.world == 1 and None not in s, guessed),
        ("not checked #2", lambda s: s.world == 1, positive),
        ("the batch changed in silence", lambda s: None not in s, _read_as(train=None)),
        ("accumulates by itself", lambda s: s.train and s.count(None) == 2, _read_as(micro=1)),
        ("only accumulation named", lambda s: s.train is s.micro is None, _read_as(micro=1)),
        ("wants two of three", lambda s: s.count(None) > 1, lambda s: None),
        (
            "zero treated as missing",
            lambda s: True,
            lambda s: filled(Sizes(*(x or None for x in s))),
        ),
        ("sign not looked at #1", lambda s: True, multiplied),
        ("sign not looked at #2", lambda s: 0 not in s, multiplied),
        ("rounded down", _divided, guessed),
        ("rounded down", _divided, positive),
        ("each divides by itself", lambda s: _divided(s) and s.micro is None, _by_each),
        ("each divides by itself", _divided, _by_each),
        ("a share of 0", lambda s: s.above_zero() and 0 in (guessed(s) or ()), guessed),
        ("accumulation changed in silence", lambda s: None not in s[:2], _read_as(times=None)),
        ("accumulation always 1", lambda s: s.times is None, _read_as(times=1)),
        ("rounded up", _divided, _rounded_up),
    )
]


# ---- verdicts
def judge_batch(answer: Answer, judge: Judge) -> None:
    judge.take(answer, __name__)
    seed = looking.fresh_seed()
    cases = drawn(seed)
    when = f"in {len(cases)} randomly chosen cases"
    for reports in judge.trial(answer, run, seed, members=looking.THREE, when=when):
        kinds = {one["about"]["kind"] for one in reports if not one["refused"]}
        SAYS.refuse({"nothing returned": kinds == {"A NoneType"}})
        for one in reports:
            SAYS.refuse(one["form"], **one["about"])
        look_at_sizes(cases, reports)
        for one in reports:
            other = {"wrong error": one["sizes"] is None and not one["refused"]}
            SAYS.refuse(other, **one["about"])


def look_at_sizes(cases: Sequence[Case], reports: Sequence[Mapping]) -> None:
    """Raise a Finding for sizes that differ from DeepSpeed's, by the idea that gives all results,
    or all with positive sizes, or all with the same sizes given."""
    seen, right = [one["sizes"] for one in reports], [gives(filled, case) for case in cases]
    every, sizes = range(len(cases)), [Sizes.of(*case) for case in cases]
    wrong = [k for k in every if seen[k] != right[k]]
    if not wrong:
        return
    first = reports[wrong[0]]["about"]
    mine = seen[wrong[0]] or f"{first['kind']} ({first['text']})"
    its = "fills in different sizes" if right[wrong[0]] else "raises an error"
    told = f"Your result differs from DeepSpeed's in {len(wrong)} of {len(cases)} randomly chosen "
    told += f"cases. For {first['case']}, your result is {mine}, but DeepSpeed {its}."
    named = [[size is None for size in one] for one in sizes]
    parts = [[*every], [k for k in every if sizes[k].above_zero()]]
    parts += [[j for j in every if named[j] == named[k]] for k in wrong]
    parts = [part for part in parts if set(part) & set(wrong) and any(seen[k] for k in part)]
    for part, idea in product(parts, IDEAS):
        if by_cases.explains(idea, [seen[k] for k in part], [cases[k] for k in part]):
            raise Finding(idea.name, f"{idea.text} {told}")
    raise Finding("refuses or fills wrongly", told)


FILL_BATCH = frame.Exercise(judge=judge_batch, **SAYS.about)
