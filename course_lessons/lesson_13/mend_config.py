"""`mend_config` of lesson 13: the eight configs that the exercise prints, then others with the same
faults and new values. What each author meant has to be so (a block switched off is as good as one
taken out), nothing else changed, and nothing left for `ds-check`."""

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

BYTES, OVERLAP = 2, 4.5  # of an element in a bucket; what `overlap_comm` multiplies the buckets by
DEFAULTS = dict(zip(SIZES, (500_000_000, 50_000_000, 100_000), strict=True))  # DeepSpeed's
OLD, STATES, INSIDE = "zero_optimisation", "offload_optimizer", f"{ZERO}.offload_optimizer"
AHEAD = f"{ZERO}.stage3_prefetch_bucket_size"
BUCKETS = tuple(f"{ZERO}.{name}" for name in broken.BUCKETS)


# ---- what runs on the judge's ranks
def run(function: Callable, group: Group, seed: int) -> list[dict]:
    """Of each case what `function(name, config, facts)` returned, and looks at its form."""
    reports = []
    for case in broken.drawn(seed):
        given = copy.deepcopy(case)
        out, _ = bench.watched(lambda given=given: function(*given[:3]))
        try:
            text = json.dumps(dict(out), allow_nan=False) if isinstance(out, Mapping) else ""
        except (TypeError, ValueError, RecursionError):  # JSON has no way to write it
            text = ""
        form = {"nothing returned": out is None, "not a config": not text}
        form["input changed"] = given != case
        about = {"name": case.name, "kind": type(out).__name__}
        reports.append({"form": form, "text": text, **about})
    return reports


# ---- what is said of it
def judge_mend(answer: Answer, judge: Judge) -> None:
    """The printed configs first, then three times fresh ones."""
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
    """A Finding for the first case that is not mended; it says how many others are."""
    found = {}
    for k, case in enumerate(cases):
        try:
            _look_at(case, mended[k])
        except Finding as finding:
            found[k] = finding
    for k, first in found.items():
        name, others = cases[k].name, len(cases) - len(found)
        rest = f" {others} of the eight are mended." if others else ""
        if printed and _typed_in(cases[k], mended[k], printed[k]):
            raise SAYS("typed in", name=name, when=when, text=first.text, rest=rest)
        raise Finding(first.name, f"`{name}`, {when}: {first.text}{rest}")


def _typed_in(case: Case, mended: dict, printed: dict) -> bool:
    """Whether what the mend is about came back as for the printed config, whose values differ."""
    was, now, then = (Resolved(config).get for config in (case.config, mended, printed))
    new = [path for path in ABOUT[case.name] if now(path) != was(path)]  # by the mend
    return any(now(path) is not None for path in new) and all(now(x) == then(x) for x in new)


def _look_at(case: Case, mended: dict) -> None:
    paths, parts = ABOUT[case.name], tuple(f"{path}." for path in ABOUT[case.name])
    values = {path: Resolved(mended).get(path) for path in paths}
    looks = dict(wrong_remedies(case, mended))
    wrong = next(filter(None, looks.values()), None)  # the keys that are, or whether any is
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
    about = {"told": f"You have {', '.join(shown)}.", "path": path, "what": what, "more": more}
    looks |= {"changed besides": beside, "another fault": left}
    SAYS.refuse(looks, **about, left="".join(left[:1]))


def wrong_remedies(case: Case, mended: Mapping) -> Iterator[tuple[str, object]]:
    """Entries of the page, and whether a config is mended so, not as its author meant: or which
    keys of it are."""
    now, was, facts = Resolved(mended).get, Resolved(case.config).get, case.facts

    def number(path: str) -> float:
        return bench.number(now(path)) or 0

    texts = (path for path in ABOUT[case.name] if isinstance(now(path), str))
    yield "a number as text", [x for x in texts if now(x).replace(".", "", 1).isdecimal()]
    if case.name == "stage":
        yield "still misspelt", now(ZERO) is None and OLD in mended
        yield "silenced, not mended #1", not now(f"{ZERO}.stage")
        yield "settings lost on the way #1", now(ZERO) != was(OLD)
        yield "both spellings", OLD in mended
    if case.name == "offload":
        inside, outside = now(INSIDE), now(STATES)
        yield "one level too high", inside is None and outside is not None
        anywhere = any(STATES in path for path, _ in leaves(mended))
        yield "in the wrong section", inside is None and anywhere
        yield "silenced, not mended #5", inside is None
        yield "settings lost on the way #2", inside != was(STATES)
        yield "on both levels", outside is not None
    if case.name == "precision":
        fp16, bf16 = (now(f"{half}.enabled") is True for half in ("fp16", "bf16"))
        yield "the other precision", fp16 and not bf16
        yield "both precisions", fp16 and bf16
        yield "silenced, not mended #6", not bf16
    if case.name == "parameters":
        yield "silenced, not mended #2", now(f"{ZERO}.offload_param") is None
        yield "not sharded, not offloaded", now(f"{ZERO}.stage") != 3
    if case.name == "batch":
        meant, sizes = (Sizes.of(config, facts["world"]) for config in (case.config, mended))
        comes_to = filled(sizes)
        yield "world size left out", not comes_to and sizes.times == meant.train // meant.micro
        yield "does not multiply", not comes_to
        yield "not a whole number #2", [x for x in TRIPLE if isinstance(now(x), float)]
        yield "another batch", comes_to and comes_to.train != meant.train
        yield "another micro-batch", comes_to and comes_to.micro != meant.micro
    if case.name == "auto":
        hidden = facts["hidden"]
        asked = {path: of(hidden) for path, (_, of) in SIZES.items() if was(path) == "auto"}
        yield "not auto", [path for path in SIZES if was(path) not in ("auto", now(path))]
        yield "auto left", [path for path in asked if now(path) == "auto"]
        yield "default instead #2", [x for x in asked if now(x) in (None, DEFAULTS[x])]
        yield "not a whole number #1", [path for path in asked if number(path) % 1]
        yield "bytes", [path for path, right in asked.items() if now(path) == BYTES * right]
        yield "rounded up", [AHEAD] if now(AHEAD) == asked[AHEAD] + 1 else []
        yield "another value", [path for path in asked if abs(number(path) - asked[path]) > 1]
    if case.name == "buckets":
        room, sizes = facts["room"], [number(path) for path in BUCKETS]
        takes = OVERLAP * BYTES * sum(sizes)
        over = takes > room + BYTES * OVERLAP * len(sizes)  # an element rounded up is none
        yield "silenced, not mended #3", now(f"{ZERO}.overlap_comm") is not True
        yield "default instead #1", not all(size > 0 for size in sizes)
        yield "a bucket left", over and [path for path in BUCKETS if now(path) == was(path)]
        yield "a factor of two", over and 0.98 * room <= takes / 2 <= room
        yield "overlap costs nothing", over and 0.98 * room <= BYTES * sum(sizes) <= room
        yield "the size alone", over and 0.98 * room <= sum(sizes) <= room
        yield "too large", over
        yield "smaller than needed", takes < room / 2
    if case.name == "schedule":
        steps, kind, here = facts["steps"], now("scheduler.type"), now(TOTAL)
        yield "silenced, not mended #4", kind is None
        yield "another schedule", kind != was("scheduler.type")
        yield "steps missing", here is None
        yield "micro-batches counted", here == steps * was(TIMES)
        yield "warm-up on top", here == steps + was(WARMUP)
        yield "another end", here != steps


ABOUT = {  # the keys that a mend is about, and no other
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
