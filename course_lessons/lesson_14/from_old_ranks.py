"""`from_old_ranks` of lesson 14: shards of m ranks, read by n ranks, and the same next loss.

An answer's shards are held against the logical tensors, its reads against what a rank needs, and
the losses of three more steps against those of a run that was never saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_classroom.judge import bench, looking
from course_classroom.judge.answer import Answer
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on, refuse_none
from course_classroom.judge.looking import ITEM, THREE, TWO, alike, ideas, near, refuse_idea
from course_classroom.judge.words import Page
from course_lessons.lesson_14 import old_ranks
from course_lessons.lesson_14.old_ranks import BATCH, KINDS, MASTER, PADDING, Run
from course_lib.collectives.call import Group

SAYS = Page(__file__, "from_old_ranks")
STEP, NEXT = "step", "next"
KEYS = (*KINDS, STEP, NEXT)
# The old world, the new ranks, and whether the last of them holds no bias.
CASES = ((4, THREE, False), (3, TWO, False), (2, THREE, False), (2, THREE, True))
BEFORE = 2.0  # the run that is read first has each state so many times as large


# ---- what runs on the judge's ranks
class Old:
    """What the answer is given: the facts of the old run, and `read`."""

    def __init__(self, run: Run, times: float = 1.0):
        self.world, self.step, self.batch = run.m, run.step, BATCH
        self.layout = [list(group) for group in run.old]
        self.samples = run.step * BATCH // run.m
        self._files = {kind: times * held for kind, held in old_ranks.files(run).items()}
        self.ranges: list[tuple[int, str, int, int]] = []

    def read(self, rank: int, kind: str, start: int, stop: int) -> Tensor:
        """Elements start to stop of an old rank's file."""
        if kind not in KINDS or rank not in range(self.world):
            raise ValueError(f"there is no file {kind} of rank {rank}")
        held = self._files[kind][rank]
        if not 0 <= start <= stop <= len(held):
            raise ValueError(f"{start} to {stop} of a file with {len(held)} elements")
        self.ranges.append((rank, kind, start, stop))
        return held[start:stop].clone()


def run(function: Callable, group: Group, m: int, few: bool, seed: int) -> dict:
    """Two runs of the same sizes are read, one after the other; both results stay alive."""
    saved = old_ranks.drawn(m, group.size(), seed, few)
    earlier, old, given = Old(saved, BEFORE), Old(saved), saved.new
    first, _ = bench.watched(lambda: function(earlier, saved.new, group))
    before = {key: x for key, x in _values(first).items() if _is_shard(x)}
    out, facts = bench.watched(lambda: function(old, given, group))
    values, now, ranges = _values(out), _values(first), old.ranges
    return {
        "kind": "dict" if isinstance(out, Mapping) else type(out).__name__,
        "lost": ", ".join(key for key in KEYS if key not in values),
        "values": values,
        "changed": (given, old.layout) != (saved.new, saved.old),
        "shared": _overlap([out[kind] for kind in KINDS if _is_shard(values.get(kind))]),
        "kept": all(_is_shard(now.get(kind)) and alike(x, now[kind]) for kind, x in before.items()),
        "read": sum(stop - start for *_, start, stop in ranges),
        "distinct": len({(*file, k) for *file, start, stop in ranges for k in range(start, stop)}),
        "sent": facts["bytes"],
    }


def _values(out: object) -> dict[str, Tensor | int | float | str]:
    """What stands under the keys, as data: words where it is neither a shard nor a number."""
    if not isinstance(out, Mapping):
        return {}
    return {key: _plain(out[key], key in KINDS) for key in KEYS if key in out}


def _plain(value: object, of_a_kind: bool) -> Tensor | int | float | str:
    if of_a_kind and _is_shard(value):
        return value.detach().clone()
    plain = None if of_a_kind else bench.number(value)
    if plain is not None:  # a whole number of any type as an int
        return int(plain) if hasattr(value, "__index__") and plain.is_integer() else plain
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and {value.dtype}"
    return f"a {type(value).__name__}"


def _is_shard(x: object) -> bool:
    return bench.plain(x) and x.dim() == 1 and x.dtype == torch.float64


def _overlap(shards: list[Tensor]) -> bool:
    """Whether two shards have an element of memory in common."""
    cells = [{x.data_ptr() + ITEM * x.stride(0) * k for k in range(len(x))} for x in shards]
    return any(mine & other for k, mine in enumerate(cells) for other in cells[:k])


# ---- what is said of it
class Trial(NamedTuple):
    reports: list[dict]
    run: Run
    seed: int
    when: str

    @property
    def n(self) -> int:
        return len(self.reports)

    @property
    def sizes(self) -> list[int]:
        """Elements of each group."""
        return [sum(size for _, size in group) for group in self.run.new]

    @property
    def held(self) -> list[int]:
        """How many elements of a new rank's shard are parameters."""
        ranks = [rank for rank, _ in old_ranks.places(self.run.new, self.n).values()]
        return [ranks.count(rank) for rank in range(self.n)]

    def seen(self, key: str) -> list:
        return [report["values"][key] for report in self.reports]

    def wanted(self, key: str) -> Sequence:
        if key in KINDS:
            return old_ranks.shards(self.run.states[key], self.run.new, self.n)
        begin, part = self.run.step * BATCH, BATCH // self.n
        return [self.run.step if key == STEP else begin + r * part for r in range(self.n)]


def judge_go_on(answer: Answer, judge: Judge) -> None:
    """Try from_old_ranks; raise the Finding that explains best what is wrong."""
    judge.take(answer, __name__)
    seed = looking.fresh_seed()
    LOOKS.at(answer, (_tried(answer, judge, *case, seed + k) for k, case in enumerate(CASES)))


def _tried(answer: Answer, judge: Judge, m: int, members: list[int], few: bool, seed: int) -> Trial:
    n = len(members)
    when = f"from {m} ranks to {n}, {on(members)}{', with few biases' if few else ''}"
    reports = judge.trial(answer, run, m, few, seed, members=members, when=when)
    refuse_none(reports, when, "a dictionary with its shards")
    return Trial(reports, old_ranks.drawn(m, n, seed, few), seed, when)


def _look_at_shape(one: Trial) -> None:
    forms = {
        "not a dictionary": lambda r: r["kind"] != "dict",
        "a key missing": lambda r: r["lost"],
    }
    SAYS.refuse_each(one.reports, forms, keys=", ".join(KEYS), when=one.when)
    for kind in KINDS:
        wanted, seen = len(one.wanted(kind)[0]), one.seen(kind)
        for rank, x in enumerate(seen):
            form = {"not a shard": not isinstance(x, Tensor)}
            SAYS.refuse(form, kind=kind, rank=rank, seen=x, when=one.when)
            floor = sum(size // one.n for size in one.sizes)
            looks = {
                "not cut": len(x) >= sum(one.sizes),
                "own padding forgotten": len(x) == one.held[rank],
                "rounded down": all(len(other) == floor for other in seen),
                "wrong length": True,
            }
            text = f"`{kind}` on rank {rank} has {len(x)} elements, {one.when}, and not {wanted}. "
            if len(x) != wanted:
                SAYS.refuse(looks, text=text)


def _look_at_memory(one: Trial) -> None:
    looking.refuse_changed(one, "a layout")
    looks = {"one buffer #1": lambda r: r["shared"], "one buffer #2": lambda r: not r["kept"]}
    SAYS.refuse_each(one.reports, looks, when=one.when)


def _look_at_values(one: Trial) -> None:
    for kind in KINDS:
        if not looking.all_near(one.seen(kind), one.wanted(kind)):
            _refuse_shards(one, kind, one.seen(kind), list(one.wanted(kind)))
    for key in (STEP, NEXT):
        for rank, value in enumerate(one.seen(key)):
            other = {"not a whole number": type(value) is not int}
            SAYS.refuse(other, key=key, rank=rank, value=value, when=one.when)
    steps, seen = one.seen(STEP), one.seen(NEXT)
    looks = {"step forgotten": not any(steps), "another step": steps != one.wanted(STEP)}
    SAYS.refuse(looks, step=steps, when=one.when)
    n, m, every = one.n, one.run.m, one.run.step * BATCH  # samples that all old ranks have read
    begins = {  # where the new ranks' samples begin, and how far apart they are
        "data from the start": (0, BATCH // n),
        "one old rank's count": (every // m, BATCH // n),
        "counted with the new ranks": (every // m * n, BATCH // n),
        "the same for all ranks": (every, 0),
        "the old ranks' part": (every, BATCH // m),
        "a batch for each rank": (every, BATCH),
        "parts of one sample": (every, 1),
    }
    given = {entry: [at + r * apart for r in range(n)] for entry, (at, apart) in begins.items()}
    met = {entry: seen == starts for entry, starts in given.items()}
    if seen != one.wanted(NEXT):
        SAYS.refuse({**met, "another sample": True}, next=seen, when=one.when)


def _refuse_shards(one: Trial, kind: str, seen: list[Tensor], wanted: list[Tensor]) -> None:
    run, n, about = one.run, one.n, {"kind": kind, "when": one.when}
    gives = {
        "nothing read" if kind == MASTER else "moments forgotten": [0 * x for x in wanted],
        "the call before": [BEFORE * x for x in wanted],
        "every rank has the first one's": [wanted[0]] * n,
        "the old order": old_ranks.shards(run.states[kind], run.old, n),
        "old pieces rounded down": old_ranks.misread(run, n, kind, floor=True),
        "padding between the groups": old_ranks.misread(run, n, kind, base=True),
    }
    for other in (other for other in KINDS if other != kind):
        mixed = {"kinds mixed up": one.wanted(other)}
        refuse_idea(seen, ideas(SAYS, mixed, other=other, **about), one.when)
    refuse_idea(seen, ideas(SAYS, gives, **about), one.when)
    pairs = list(zip(seen, wanted, strict=True))
    looks = {
        "padding leaks in": any(bool((x == PADDING).any()) for x in seen),
        "padding not zero": all(near(x[w != 0], w[w != 0]) for x, w in pairs),
        "some left zero": all(near(x, torch.where(x == 0, 0.0, w)) for x, w in pairs),
        "another order": all(bool(torch.isin(x, w).all()) for x, w in pairs),
        "another's elements": True,
    }
    SAYS.refuse(looks, **about)


def _look_at_reads(one: Trial) -> None:
    whole = sum(held.numel() for held in old_ranks.files(one.run).values())
    for rank, (report, held) in enumerate(zip(one.reports, one.held, strict=True)):
        need = len(KINDS) * held
        looks = {
            "everything is read": report["distinct"] == whole,
            "too much is read": report["distinct"] > need,
            "read twice": report["read"] > need,
            "sent round": report["sent"],
        }
        head = f"The shards are right. Rank {rank} reads {report['read'] * ITEM} bytes, "
        head += f"{one.when}, and needs {need * ITEM}. "
        SAYS.refuse(looks, head=head, sent=report["sent"])


def _look_at_losses(one: Trial) -> None:
    """The tensors out of the shards, trained on, beside the run as it was before the save."""
    run, there = one.run, old_ranks.places(one.run.new, one.n)
    states = {kind: old_ranks.whole(one.seen(kind), there) for kind in KINDS}
    seen = old_ranks.losses(run, states, one.seen(STEP)[0], one.seen(NEXT), one.seed)
    wanted = old_ranks.losses(run, run.states, run.step, [run.step * BATCH], one.seed)
    for k, (loss, right) in enumerate(zip(seen, wanted, strict=True), 1):
        other = {"another loss": not near(loss, right)}
        SAYS.refuse(other, k=k, seen=loss, when=one.when, loss=right)


LOOKS = looking.Looks(
    shape=_look_at_shape,
    unchanged=_look_at_memory,
    value=_look_at_values,
    traffic=_look_at_reads,
    later_steps=_look_at_losses,
)
FROM_OLD_RANKS = Exercise(judge=judge_go_on, **SAYS.about)
