"""`atomic_save` of lesson 14: a save that is ended at every point, by a kill and by a power cut.

What the ranks did with the disk is put together in the orders that their barriers allow; every
state that may be left is read as a job that starts again reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from course_lib.classroom.checks.answer import Answer
from course_lib.classroom.checks.finding import Finding
from course_lib.classroom.checks.frame import Exercise
from course_lib.classroom.checks.judge import Judge, on
from course_lib.classroom.checks.lesson_14 import disk
from course_lib.classroom.checks.lesson_14.atomic_names import LATEST, SAYS, Saved, refuse
from course_lib.classroom.checks.lesson_14.disk import (
    CREATE,
    RENAME,
    NotThere,
    Op,
    Tree,
    crashes,
    inside,
)
from course_lib.classroom.checks.looking import THREE, TWO, Looks, fresh_seed

NAME, OLDER = "step-000009", ["step-000003", "step-000006"]
KEEP, PLENTY = {3: 2, 2: 1}, 4  # by the number of ranks; one more than there are


class Trial(NamedTuple):
    reports: list[dict]
    before: dict[str, str]
    saved: Saved
    when: str

    @property
    def ranks(self) -> list[list[list[Op]]]:
        """[rank][border]: what a rank did between two collectives."""
        made = []
        for rank, report in enumerate(self.reports):
            rows: list[list[Op]] = [[] for _ in range(report["borders"] + 1)]
            for kind, path, other, border in report["notes"]:
                rows[border].append(Op(kind, path, other, rank, border))
            made.append(rows)
        return made

    @property
    def all(self) -> list[Op]:
        """Everything, as if the ranks came in their order between two collectives."""
        rows = self.ranks
        return [op for border in zip(*rows, strict=True) for done in border for op in done]

    def cuts(self) -> Iterator[list[Op]]:
        """What had been done when everything ended: at any point of one rank, where each of the
        others had come to the same collective and done nothing more, or all it could."""
        rows = self.ranks
        for border in range(len(rows[0])):
            past = [op for b in range(border) for row in rows for op in row[b]]
            for rank, row in enumerate(rows):
                others = [op for r, other in enumerate(rows) if r != rank for op in other[border]]
                for k in range(len(row[border]) + 1):
                    yield [*past, *row[border][:k]]
                    if others:
                        yield [*past, *others, *row[border][:k]]

    def orders(self) -> Iterator[list[Op]]:
        """Everything, as if one of the ranks came last between two collectives."""
        rows = self.ranks
        for slow in range(len(rows)):
            order = [*(row for r, row in enumerate(rows) if r != slow), rows[slow]]
            yield [op for border in zip(*order, strict=True) for done in border for op in done]

    def returned(self) -> Iterator[tuple[int, list[Op]]]:
        """For each rank: what is sure to have been done when its call returns."""
        rows = self.ranks
        last = len(rows[0]) - 1
        past = [op for b in range(last) for row in rows for op in row[b]]
        for rank, row in enumerate(rows):
            yield rank, [*past, *row[last]]


def judge_atomic(answer: Answer, judge: Judge) -> None:
    """Try atomic_save; raise the Finding that explains best what is wrong."""
    judge.take(answer, disk.__name__)
    seed = fresh_seed()
    LOOKS.at(answer, _trials(answer, judge, seed))


def _trials(answer: Answer, judge: Judge, seed: int) -> Iterator[Trial]:
    """Three ranks save; then the job starts again on two, after a save that was killed."""
    before = {f"{name}/rank-{r}": disk.data_of(name, r, seed) for name in OLDER for r in range(2)}
    before[LATEST] = OLDER[-1]
    first = _tried(answer, judge, THREE, seed, before, on(THREE))
    yield first
    left = _left_over(first)
    yield _tried(answer, judge, TWO, seed + 1, left, f"{on(TWO)}, after a save that was killed")
    yield _tried(answer, judge, TWO, seed, before, f"{on(TWO)}, with few older ones", PLENTY)


def _left_over(one: Trial) -> dict[str, str]:
    """The disk after a kill just before the rename, with all that the killed save had written."""
    ops = one.all
    last = next((i for i, op in enumerate(ops) if op.kind == RENAME and op.other == NAME), 0)
    tree = Tree(one.before)
    for op in ops[:last]:
        tree.apply(op)
    return tree.files


def _tried(
    answer: Answer, judge: Judge, members: list[int], seed: int, before: dict[str, str], when: str,
    keep: int = 0,
) -> Trial:  # fmt: skip
    keep = keep or KEEP[len(members)]
    arguments = (NAME, OLDER, keep, seed)
    try:
        reports = judge.trial(answer, disk.run, *arguments, members=members, when=when)
    except Finding as finding:
        if disk.ACROSS in finding.text:
            raise SAYS("across file systems", when=when) from None
        raise
    pieces = {f"rank-{r}": disk.data_of(NAME, r, seed) for r in range(len(members))}
    saved = Saved(NAME, pieces, OLDER, keep, before, when)
    return Trial(reports, before, saved, when)


def _look_at_inputs(one: Trial) -> None:
    borders = [report["borders"] for report in one.reports]
    looks = {
        "input changed": any(report["changed"] for report in one.reports),
        "not called by all": len(set(borders)) > 1,
    }
    SAYS.refuse(looks, borders=borders, when=one.when)


def _look_at_end(one: Trial) -> None:
    """Nothing goes wrong: the new one is there, and as many older ones as are to stay."""
    saved, ops = one.saved, one.all
    renamed = [op for op in ops if op.kind == RENAME and op.other == NAME]
    many = len({op.rank for op in renamed}) > 1
    about = {"name": NAME, "when": one.when}
    SAYS.refuse({"every rank renames": many}, renamed=len(renamed), **about)
    for op in ops:
        for move in renamed:
            late = op.kind == CREATE and inside(op.path, move.path) and op.border >= move.border
            looks = {"renamed before all have written": late and op.rank != move.rank}
            SAYS.refuse(looks, rank=move.rank, rank_2=op.rank, path=op.path, **about)
    saved.look_at_end(_done(one, ops))


def _done(one: Trial, ops: list[Op]) -> Tree:
    """The disk after all of these, or the Finding of a rank that comes too early."""
    tree = Tree(one.before)
    for op in ops:
        try:
            tree.apply(op)
        except NotThere as lost:
            _refuse_order(one, op, str(lost))
    return tree


def _look_at_order(one: Trial) -> None:
    """No rank comes too early, whichever is the quicker."""
    for done in one.cuts():
        _done(one, done)
    for every in one.orders():
        one.saved.look_at_end(_done(one, every))


def _refuse_order(one: Trial, op: Op, lost: str) -> None:
    maker = next((o for o in one.all if lost in o.touches and o.rank != op.rank), None)
    about = {"rank": op.rank, "kind": op.kind, "path": op.path, "lost": lost, "when": one.when}
    if maker:
        about |= {"rank_2": maker.rank, "kind_2": maker.kind, "path_2": maker.path}
    SAYS.refuse({"ranks not waited for": maker, "not there": True}, **about)


def _look_at_crashes(one: Trial) -> None:
    """Whenever it ends, there is a whole checkpoint to go on from; by a kill first."""
    cuts = list(one.cuts())
    for power in (False, True):
        for done in cuts:
            for crash in crashes(one.before, done):
                if crash.power == power:
                    refuse(one.saved, crash, done)


def _look_at_return(one: Trial) -> None:
    """A rank that has returned may say that the checkpoint is safe."""
    for rank, done in one.returned():
        for crash in crashes(one.before, done):
            if crash.tree.files.get(LATEST) != NAME:
                raise SAYS("returned too early", rank=rank, when=one.when)


def _look_at_pieces(one: Trial) -> None:
    """Each rank writes its own."""
    for rank, report in enumerate(one.reports):
        written = [n for n in report["notes"] if n[0] == CREATE and n[1].endswith(f"rank-{rank}")]
        SAYS.refuse({"own piece not written": not written}, rank=rank, when=one.when)


LOOKS = Looks(
    returned=_look_at_inputs,
    shape=_look_at_pieces,
    unchanged=_look_at_end,
    value=_look_at_order,
    traffic=_look_at_crashes,
    memory=_look_at_return,
)
ATOMIC_SAVE = Exercise(judge=judge_atomic, **SAYS.about)
