"""`mend_config` of lesson 13: the eight configs that the exercise prints, then the same faults with
new values. Each author's intention must hold (a disabled block counts as removed), nothing else may
change, and `ds-check` must find nothing."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping

from course_classroom.judge import bench, frame, looking, words
from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.judge import Judge
from course_lessons.lesson_13 import broken
from course_lessons.lesson_13.broken import Case
from course_lessons.lesson_13.triple import TIMES, TRIPLE, Sizes, filled
from course_lib.collectives.call import Group
from course_lib.peers.deepspeed_config.auto import SIZES, TOTAL, WARMUP, ZERO, Resolved, leaves

SAYS = words.Page(__file__, "mend_config")

BYTES, OVERLAP = 2, 4.5  # bytes per element in a bucket, and the memory factor of `overlap_comm`
DEFAULTS = dict(zip(SIZES, (500_000_000, 50_000_000, 100_000), strict=True))  # DeepSpeed's
OLD, STATES, INSIDE = "zero_optimisation", "offload_optimizer", f"{ZERO}.offload_optimizer"
AHEAD = f"{ZERO}.stage3_prefetch_bucket_size"
BUCKETS = tuple(f"{ZERO}.{name}" for name in broken.BUCKETS)


# ---- code on the judge's ranks
def run(function: Callable, group: Group, seed: int) -> list[dict]:
    """Call `function(name, config, facts)` for each case; return the results, checked in form."""
    reports = []
    for case in broken.drawn(seed):
        given = copy.deepcopy(case)
        out, _ = bench.watched(lambda given=given: function(*given[:3]))
        try:
            text = json.dumps(dict(out), allow_nan=False) if isinstance(out, Mapping) else ""
        except (TypeError, ValueError, RecursionError):  # JSON cannot express it
            text = ""
        form = {"nothing returned": out is None, "not a config": not text}
        form["input changed"] = given != case
        about = {"name": case.name, "kind": type(out).__name__}
        reports.append({"form": form, "text": text, **about})
    return reports


# ---- verdicts
def judge_mend(answer: Answer, judge: Judge) -> None:
    """Try the printed configs first, then three sets of new configs."""
    judge.take(answer, __name__)
    printed: list[dict] = []
    for seed in (broken.PRINTED, *(looking.fresh_seed() for _ in range(3))):
        when = "with other values" if printed else "as the exercise prints it"
        reports = judge.trial(answer, run, seed, members=looking.THREE, when=when)
        for rank, report in enumerate(reports):
            for one in report:
                SAYS.refuse(one["form"], when=when, rank=rank, **one)
            mended = [json.loads(one["text"]) for one in report]
            look_at(broken.drawn(seed), mended, printed, when)
        printed = printed or mended


def look_at(cases: list[Case], mended: list[dict], printed: list[dict], when: str) -> None:
    """Raise a Finding for the first unrepaired case; it states the number of repaired cases."""
    found = {}
    for k, case in enumerate(cases):
        try:
            _look_at(case, mended[k])
        except Finding as finding:
            found[k] = finding
    for k, first in found.items():
        name, others = cases[k].name, len(cases) - len(found)
        rest = f" {others} of the eight are repaired." if others else ""
        if printed and _typed_in(cases[k], mended[k], printed[k]):
            raise SAYS("typed in", name=name, when=when, text=first.text, rest=rest)
        raise Finding(first.name, f"`{name}`, {when}: {first.text}{rest}")


def _typed_in(case: Case, mended: dict, printed: dict) -> bool:
    """Return True if the repaired keys have the values of the repaired printed config."""
    was, now, then = (Resolved(config).get for config in (case.config, mended, printed))
    new = [path for path in ABOUT[case.name] if now(path) != was(path)]  # changed by the repair
    return any(now(path) is not None for path in new) and all(now(x) == then(x) for x in new)


def _look_at(case: Case, mended: dict) -> None:
    paths, parts = ABOUT[case.name], tuple(f"{path}." for path in ABOUT[case.name])
    values = {path: Resolved(mended).get(path) for path in paths}
    looks = dict(wrong_remedies(case, mended))
    wrong = next(filter(None, looks.values()), None)  # the wrong keys, or whether any is wrong
    shown = [f"`{path}` {values[path]!r}" for path in (wrong if isinstance(wrong, list) else paths)]
    shown += [f"{name} {x:,}" for name, x in case.facts.items() if name in case.meant]
    before, after = (
        {path: x for path, x in leaves(config) if not f"{path}.".startswith(parts)}
        for config in (case.config, mended)
    )
    beside = [path for path in before | after if before.get(path, ...) != after.get(path, ...)]
    path, left = next(iter(beside), ""), broken.still_wrong(mended, case.facts["world"])
    what = "lost" if path not in after else "changed" if path in before else "added"
    more = f", and {len(beside) - 1} more" if beside[1:] else ""
    told = f"Your config contains {', '.join(shown)}."
    about = {"told": told, "path": path, "what": what, "more": more}
    looks |= {"other keys changed": beside, "new fault": left}
    SAYS.refuse(looks, **about, left="".join(left[:1]))


def wrong_remedies(case: Case, mended: Mapping) -> Iterator[tuple[str, object]]:
    """Yield entries of the page, each with a truth value or the keys that are repaired in that
    wrong way."""
    now, was, facts = Resolved(mended).get, Resolved(case.config).get, case.facts

    def number(path: str) -> float:
        return bench.number(now(path)) or 0

    texts = (path for path in ABOUT[case.name] if isinstance(now(path), str))
    yield "a number as text", [x for x in texts if now(x).replace(".", "", 1).isdecimal()]
    if case.name == "stage":
        yield "still misspelt", now(ZERO) is None and OLD in mended
        yield "setting removed #1", not now(f"{ZERO}.stage")
        yield "settings lost on the way #1", now(ZERO) != was(OLD)
        yield "both spellings", OLD in mended
    if case.name == "offload":
        inside, outside = now(INSIDE), now(STATES)
        yield "one level too high", inside is None and outside is not None
        anywhere = any(STATES in path for path, _ in leaves(mended))
        yield "in the wrong section", inside is None and anywhere
        yield "setting removed #5", inside is None
        yield "settings lost on the way #2", inside != was(STATES)
        yield "on both levels", outside is not None
    if case.name == "precision":
        fp16, bf16 = (now(f"{half}.enabled") is True for half in ("fp16", "bf16"))
        yield "wrong precision chosen", fp16 and not bf16
        yield "both precisions", fp16 and bf16
        yield "setting removed #6", not bf16
    if case.name == "parameters":
        yield "setting removed #2", now(f"{ZERO}.offload_param") is None
        yield "not sharded, not offloaded", now(f"{ZERO}.stage") != 3
    if case.name == "batch":
        meant, sizes = (Sizes.of(config, facts["world"]) for config in (case.config, mended))
        comes_to = filled(sizes)
        yield "world size left out", not comes_to and sizes.times == meant.train // meant.micro
        yield "does not multiply", not comes_to
        yield "not a whole number #2", [x for x in TRIPLE if isinstance(now(x), float)]
        yield "wrong batch", comes_to and comes_to.train != meant.train
        yield "wrong micro-batch", comes_to and comes_to.micro != meant.micro
    if case.name == "auto":
        hidden = facts["hidden"]
        asked = {path: of(hidden) for path, (_, of) in SIZES.items() if was(path) == "auto"}
        yield "not auto", [path for path in SIZES if was(path) not in ("auto", now(path))]
        yield "auto left", [path for path in asked if now(path) == "auto"]
        yield "default instead #2", [x for x in asked if now(x) in (None, DEFAULTS[x])]
        yield "not a whole number #1", [path for path in asked if number(path) % 1]
        yield "bytes", [path for path, right in asked.items() if now(path) == BYTES * right]
        yield "rounded up", [AHEAD] if now(AHEAD) == asked[AHEAD] + 1 else []
        yield "wrong value", [path for path in asked if abs(number(path) - asked[path]) > 1]
    if case.name == "buckets":
        room, sizes = facts["room"], [number(path) for path in BUCKETS]
        takes = OVERLAP * BYTES * sum(sizes)
        over = takes > room + BYTES * OVERLAP * len(sizes)  # more than a rounded-up element
        yield "setting removed #3", now(f"{ZERO}.overlap_comm") is not True
        yield "default instead #1", not all(size > 0 for size in sizes)
        yield "bucket unchanged", over and [path for path in BUCKETS if now(path) == was(path)]
        yield "a factor of two", over and 0.98 * room <= takes / 2 <= room
        yield "overlap costs nothing", over and 0.98 * room <= BYTES * sum(sizes) <= room
        yield "bytes and overlap forgotten", over and 0.98 * room <= sum(sizes) <= room
        yield "too large", over
        yield "smaller than needed", takes < room / 2
    if case.name == "schedule":
        steps, kind, here = facts["steps"], now("scheduler.type"), now(TOTAL)
        yield "setting removed #4", kind is None
        yield "wrong schedule", kind != was("scheduler.type")
        yield "steps missing", here is None
        yield "micro-batches counted", here == steps * was(TIMES)
        yield "warm-up on top", here == steps + was(WARMUP)
        yield "wrong end", here != steps


ABOUT = {  # only the keys that a repair concerns
    "stage": (OLD, ZERO),
    "offload": (STATES, INSIDE),
    "precision": ("fp16", "bf16"),
    "parameters": (f"{ZERO}.stage",),
    "batch": TRIPLE,
    "auto": tuple(SIZES),
    "buckets": BUCKETS,
    "schedule": (TOTAL,),
}
MEND_CONFIG = frame.Exercise(judge=judge_mend, **SAYS.about)
