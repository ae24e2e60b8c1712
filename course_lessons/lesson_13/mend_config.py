"""`mend_config` of lesson 13: eight configs that DeepSpeed takes, or refuses far from the fault.

The answer mends the eight that the exercise prints, then others with the same faults and new
values. What each author meant has to be so (a block switched off is as good as one taken out),
nothing else changed, and nothing left for `ds-check`.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence

from course_classroom.judge import bench
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge
from course_classroom.judge.looking import THREE, fresh_seed
from course_classroom.judge.words import Page
from course_lessons.lesson_13 import broken
from course_lessons.lesson_13.broken import Case
from course_lessons.lesson_13.triple import TIMES, TRIPLE, Sizes, filled
from course_lib.collectives.call import Group
from course_lib.peers.deepspeed_config.auto import SIZES, TOTAL, WARMUP, ZERO, leaves

SAYS = Page(__file__, "mend_config")

FRESH = 3  # draws beside the printed one
MOST = 20_000  # characters; the longest config here has a few hundred
BYTES, OVERLAP = 2, 4.5  # of an element in a bucket; what `overlap_comm` multiplies the buckets by
DEFAULTS = dict(zip(SIZES, (500_000_000, 50_000_000, 100_000), strict=True))  # DeepSpeed's
OLD, STATES, INSIDE = "zero_optimisation", "offload_optimizer", f"{ZERO}.offload_optimizer"
_NUMBER = re.compile(r"\d+(\.\d*)?")
AHEAD = f"{ZERO}.stage3_prefetch_bucket_size"
BUCKETS = tuple(f"{ZERO}.{name}" for name in broken.BUCKETS)


# ---- what runs on the judge's ranks
def run(function: Callable, group: Group, seed: int) -> list[dict]:
    """Of each case what `function(name, config, facts)` returned, and if it changed its inputs."""
    return [_tried(function, case) for case in broken.drawn(seed)]


def _tried(function: Callable, case: Case) -> dict:
    given = copy.deepcopy(case)
    out, _ = bench.watched(lambda: function(given.name, given.config, given.facts))
    try:
        text = json.dumps(dict(out), allow_nan=False) if isinstance(out, Mapping) else ""
    except (TypeError, ValueError, RecursionError):  # JSON has no way to write it
        text = ""
    report = {"name": case.name, "kind": type(out).__name__, "changed": given != case}
    return {**report, "text": text if len(text) <= MOST else ""}


# ---- what is said of it
FORM = {
    "nothing returned": lambda one: one["kind"] == "NoneType",
    "not a config": lambda one: not one["text"],
    "input changed": lambda one: one["changed"],
}


def judge_mend(answer: Answer, judge: Judge) -> None:
    """The printed configs first, then fresh ones."""
    judge.take(answer, __name__)
    printed: list[dict] = []
    for seed in (broken.PRINTED, *(fresh_seed() for _ in range(FRESH))):
        when = "with other values" if printed else "as the exercise prints it"
        reports = judge.trial(answer, run, seed, members=THREE, when=when)
        for rank, report in enumerate(reports):
            SAYS.refuse_each(report, FORM, when=when, rank=rank)
            look_at(broken.drawn(seed), report, printed, when)
        printed = printed or [json.loads(one["text"]) for one in reports[0]]


def look_at(cases: list[Case], report: list[dict], printed: list[dict], when: str) -> None:
    """A Finding for the first case that is not mended; it says how many others are."""
    found = {}
    for k, case in enumerate(cases):
        try:
            _look_at(case, json.loads(report[k]["text"]))
        except Finding as finding:
            found[k] = finding
    for k, first in found.items():
        name, others = cases[k].name, len(cases) - len(found)
        rest = f" {others} of the eight are mended." if others else ""
        if printed and _typed_in(cases[k], json.loads(report[k]["text"]), printed[k]):
            raise SAYS("typed in", name=name, when=when, text=first.text, rest=rest)
        raise Finding(first.name, f"`{name}`, {when}: {first.text}{rest}")


def _typed_in(case: Case, mended: Mapping, printed: Mapping) -> bool:
    """Whether what the mend is about came back as for the printed config, whose values differ."""
    about, _ = REMEDIES[case.name]
    paths = [path for path in about if at(mended, path) != at(case.config, path)]
    mine = [at(mended, path) for path in paths]  # what its author has named is not there
    alike = mine == [at(printed, path) for path in paths]
    return alike and any(value is not None for value in mine)


def _look_at(case: Case, mended: dict) -> None:
    about, look = REMEDIES[case.name]
    values = {path: at(mended, path) for path in about}
    texts = [path for path, x in values.items() if isinstance(x, str) and _NUMBER.fullmatch(x)]
    looks = {"a number as text": texts, **look(case, mended)}
    wrong = next(filter(None, looks.values()), None)  # the keys that are, or whether any is
    shown = [f"`{path}` {values[path]!r}" for path in (wrong if isinstance(wrong, list) else about)]
    shown += [f"{name} {x:,}" for name, x in case.facts.items() if name in case.meant]
    SAYS.refuse(looks, told=f"You have {', '.join(shown)}.")
    beside = changes(case, mended, about)
    if beside:
        path, what = beside[0]
        more = f", and {len(beside) - 1} more" if beside[1:] else ""
        raise SAYS("changed besides", path=path, what=what, more=more)
    left = broken.still_wrong(mended, case.facts["world"])
    SAYS.refuse({"another fault": left}, left="".join(left[:1]))


def at(config: object, path: str) -> object:
    """What stands at a dotted path, or None."""
    for key in path.split("."):
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def changes(case: Case, mended: Mapping, about: Sequence[str]) -> list[tuple[str, str]]:
    """What was "lost", "added" or "changed" beside the keys that the mend is about."""
    before, after = dict(leaves(case.config)), dict(leaves(mended))
    return [
        (path, "lost" if path not in after else "changed" if path in before else "added")
        for path in before | after
        if before.get(path, ...) != after.get(path, ...)
        and not any(f"{path}.".startswith(f"{part}.") for part in about)
    ]


# ---- what each author meant, looked for in a mended config: a wrong remedy by its name
def _stage(case: Case, mended: Mapping) -> dict[str, object]:
    section = at(mended, ZERO)
    return {
        "still misspelt": section is None and OLD in mended,
        "silenced, not mended #1": not at(section, "stage"),
        "settings lost on the way #1": section != case.config[OLD],
        "both spellings": OLD in mended,
    }


def _offload(case: Case, mended: Mapping) -> dict[str, object]:
    inside, outside = at(mended, INSIDE), at(mended, STATES)
    anywhere = any(STATES in path for path, _ in leaves(mended))
    return {
        "one level too high": inside is None and outside is not None,
        "in the wrong section": inside is None and anywhere,
        "silenced, not mended #5": inside is None,
        "settings lost on the way #2": inside != case.config[STATES],
        "on both levels": outside is not None,
    }


def _precision(case: Case, mended: Mapping) -> dict[str, object]:
    fp16, bf16 = (at(mended, f"{name}.enabled") is True for name in ("fp16", "bf16"))
    return {
        "the other precision": fp16 and not bf16,
        "both precisions": fp16 and bf16,
        "silenced, not mended #6": not bf16,
    }


def _parameters(case: Case, mended: Mapping) -> dict[str, object]:
    return {
        "silenced, not mended #2": at(mended, f"{ZERO}.offload_param") is None,
        "not sharded, not offloaded": at(mended, f"{ZERO}.stage") != 3,
    }


def _batch(case: Case, mended: Mapping) -> dict[str, object]:
    meant, sizes = (Sizes.of(config, case.facts["world"]) for config in (case.config, mended))
    comes_to = filled(sizes)
    return {
        "world size left out": not comes_to and sizes.times == meant.train // meant.micro,
        "does not multiply": not comes_to,
        "not a whole number #2": [x for x in TRIPLE if isinstance(mended.get(x), float)],
        "another batch": comes_to and comes_to.train != meant.train,
        "another micro-batch": comes_to and comes_to.micro != meant.micro,
    }


def _auto(case: Case, mended: Mapping) -> dict[str, object]:
    asked = [path for path in SIZES if at(case.config, path) == "auto"]
    right = {path: SIZES[path][1](case.facts["hidden"]) for path in asked}
    mine = {path: at(mended, path) for path in asked}
    numbers = {path: x for path, x in mine.items() if isinstance(x, (int, float))}
    named = {path: at(case.config, path) for path in SIZES if path not in asked}
    return {
        "not auto": [path for path, x in named.items() if at(mended, path) != x],
        "auto left": [path for path in asked if mine[path] == "auto"],
        "default instead #2": [path for path in asked if mine[path] in (None, DEFAULTS[path])],
        "not a whole number #1": [path for path, x in numbers.items() if x % 1],
        "bytes": [path for path in asked if mine[path] == BYTES * right[path]],
        "rounded up": [AHEAD] if mine[AHEAD] == right[AHEAD] + 1 else [],
        "another value": [path for path in asked if not _close(mine[path], right[path])],
    }


def _close(value: object, right: int) -> bool:
    return isinstance(value, (int, float)) and abs(value - right) <= 1


def _buckets(case: Case, mended: Mapping) -> dict[str, object]:
    room, sizes = case.facts["room"], [at(mended, path) for path in BUCKETS]
    given = all(isinstance(size, (int, float)) and size > 0 for size in sizes)
    elements = sum(sizes) if given else math.nan
    takes = OVERLAP * BYTES * elements
    too_large = takes > room + BYTES * OVERLAP * len(sizes)  # an element rounded up is none
    left = [path for path in BUCKETS if at(mended, path) == at(case.config, path)]

    def fits(count: float) -> bool:
        return too_large and 0.98 * room <= count <= room

    return {
        "silenced, not mended #3": at(mended, f"{ZERO}.overlap_comm") is not True,
        "default instead #1": not given,
        "a bucket left": too_large and left,
        "a factor of two": fits(takes / 2),
        "overlap costs nothing": fits(BYTES * elements),
        "the size alone": fits(elements),
        "too large": too_large,
        "smaller than needed": takes < room / 2,
    }


def _schedule(case: Case, mended: Mapping) -> dict[str, object]:
    steps, kind, here = case.facts["steps"], at(mended, "scheduler.type"), at(mended, TOTAL)
    return {
        "silenced, not mended #4": kind is None,
        "another schedule": kind != at(case.config, "scheduler.type"),
        "steps missing": here is None,
        "micro-batches counted": here == steps * case.config[TIMES],
        "warm-up on top": here == steps + at(case.config, WARMUP),
        "another end": here != steps,
    }


REMEDIES = {  # the keys that a mend is about, and no other; and the look at it
    "stage": ((OLD, ZERO), _stage),
    "offload": ((STATES, INSIDE), _offload),
    "precision": (("fp16", "bf16"), _precision),
    "parameters": ((f"{ZERO}.stage",), _parameters),
    "batch": (TRIPLE, _batch),
    "auto": (tuple(SIZES), _auto),
    "buckets": (BUCKETS, _buckets),
    "schedule": ((TOTAL,), _schedule),
}
MEND_CONFIG = Exercise(judge=judge_mend, **SAYS.about)
