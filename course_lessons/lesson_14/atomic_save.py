"""`atomic_save` of lesson 14: a save that is ended at every point, by a kill and by a power cut.

What the ranks did with the disk is put together in the orders that their barriers allow; every
state that may be left is read as a job that starts again reads it: `latest`, and the files of the
folder that it names. No folder with the name of a checkpoint may be there and not whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from course_classroom.judge.answer import Answer
from course_classroom.judge.finding import Finding
from course_classroom.judge.frame import Exercise
from course_classroom.judge.judge import Judge, on
from course_classroom.judge.looking import THREE, TWO, Looks, fresh_seed
from course_classroom.judge.words import Page
from course_classroom.ranks import agreement
from course_lessons.lesson_14 import disk
from course_lessons.lesson_14.disk import Crash, Op, Tree, inside, parent

SAYS = Page(__file__, "atomic_save")
NAME, OLDER, LATEST = "step-000009", ["step-000003", "step-000006"], "latest"


class Trial(NamedTuple):
    reports: list[dict]
    ops: list[Op]  # of all ranks, as if they came in their order between two collectives
    pieces: dict[str, str]  # file of the new folder → what it is to hold
    before: dict[str, str]  # what was on the disk
    keep: int
    when: str

    @property
    def borders(self) -> int:
        """How many collectives each rank has made."""
        return self.reports[0]["borders"]

    def cuts(self) -> Iterator[list[Op]]:
        """What had been done when everything ended: at any point of one rank, where each of the
        others had come to the same collective and done nothing more, or all it could."""
        for border, rank in product(range(self.borders + 1), range(len(self.reports))):
            past = [op for op in self.ops if op.border < border]
            here = [op for op in self.ops if op.border == border]
            own = [op for op in here if op.rank == rank]
            others = [op for op in here if op.rank != rank]
            for k in range(len(own) + 1):
                yield [*past, *own[:k]]
                if others:
                    yield [*past, *others, *own[:k]]

    def is_whole(self, tree: Tree, folder: str) -> bool:
        wanted = self.pieces if folder == NAME else Tree(self.before).there(folder)
        return bool(wanted) and tree.there(folder) == wanted

    def torn(self, tree: Tree) -> str:
        """A folder with a checkpoint's name that is there, and not whole."""
        there = (folder for folder in (NAME, *OLDER) if folder in tree.held)
        return next((folder for folder in there if not self.is_whole(tree, folder)), "")


def judge_atomic(answer: Answer, judge: Judge) -> None:
    """Try atomic_save; raise the Finding that explains best what is wrong."""
    judge.take(answer, disk.__name__)
    seed = fresh_seed()
    LOOKS.at(answer, _trials(answer, judge, seed))


def _trials(answer: Answer, judge: Judge, seed: int) -> Iterator[Trial]:
    """Three ranks save; then the job starts again on two, after a save that was killed just before
    the rename, with all that it had written; then few older ones are there."""
    before = {f"{name}/rank-{r}": disk.data_of(name, r, seed) for name in OLDER for r in range(2)}
    before[LATEST] = OLDER[-1]
    first = _tried(answer, judge, THREE, before, 2, seed, "")
    yield first
    ends = (i for i, op in enumerate(first.ops) if op.kind == disk.RENAME and op.other == NAME)
    left = _done(first, first.ops[: next(ends, 0)]).files
    yield _tried(answer, judge, TWO, left, 1, seed + 1, ", after a save that was killed")
    yield _tried(answer, judge, TWO, before, len(OLDER) + 2, seed, ", with few older ones")


def _tried(
    answer: Answer, judge: Judge, members: list[int], before: dict, keep: int, seed: int, then: str
) -> Trial:
    arguments, when = (NAME, OLDER, keep, seed), on(members) + then
    try:
        reports = judge.trial(answer, disk.run, *arguments, members=members, when=when)
    except Finding as finding:
        SAYS.refuse({"across file systems": disk.ACROSS in finding.text}, when=when)
        raise
    ops = [Op(*note) for report in reports for note in report["notes"]]
    pieces = {f"rank-{r}": disk.data_of(NAME, r, seed) for r in range(len(members))}
    ops.sort(key=lambda op: (op.border, op.rank))
    return Trial(reports, ops, pieces, before, keep, when)


def _look_at_inputs(one: Trial) -> None:
    """All ranks have met equally often, and each has written its own piece."""
    made = [op for op in one.ops if op.kind == disk.CREATE]
    wrote = {op.rank for op in made if op.path.endswith(f"rank-{op.rank}")}
    borders = [report["borders"] for report in one.reports]
    looks = {
        "input changed": any(report["changed"] for report in one.reports),
        "not called by all": len(set(borders)) > 1,
    }
    SAYS.refuse(looks, borders=borders, when=one.when)
    for rank in range(len(one.reports)):
        SAYS.refuse({"own piece not written": rank not in wrote}, rank=rank, when=one.when)


def _look_at_end(one: Trial) -> None:
    """Nothing goes wrong, whichever rank is the quicker: none comes too early, the new one is
    there, and as many older ones as are to stay."""
    renamed = [op for op in one.ops if op.kind == disk.RENAME and op.other == NAME]
    many = len({op.rank for op in renamed}) > 1
    SAYS.refuse({"every rank renames": many}, renamed=len(renamed), name=NAME, when=one.when)
    for op, move in product(one.ops, renamed):
        late = op.kind == disk.CREATE and inside(op.path, move.path) and op.border >= move.border
        looks = {"renamed before all have written": late and op.rank != move.rank}
        about = {"rank": move.rank, "rank_2": op.rank, "path": op.path}
        SAYS.refuse(looks, name=NAME, when=one.when, **about)
    _refuse_end(one, _done(one, one.ops))
    for done in one.cuts():
        _done(one, done)
    for slow in range(len(one.reports)):
        order = sorted(one.ops, key=lambda op: (op.border, op.rank == slow))
        _refuse_end(one, _done(one, order))


def _done(one: Trial, ops: Iterable[Op]) -> Tree:
    """The disk after all of these, or the Finding of a rank that comes too early."""
    tree = Tree(one.before)
    for op in ops:
        try:
            tree.apply(op)
        except FileNotFoundError as error:
            lost, about = str(error), {"rank": op.rank, "kind": op.kind, "path": op.path}
            others = [o for o in one.ops if lost in o.touches and o.rank != op.rank]
            maker = others[0] if others else op
            about |= {"rank_2": maker.rank, "kind_2": maker.kind, "path_2": maker.path}
            looks = {"ranks not waited for": others, "not there": True}
            SAYS.refuse(looks, lost=lost, when=one.when, **about)
    return tree


def _refuse_end(one: Trial, tree: Tree) -> None:
    """A Finding where a save that nothing disturbs has not left what it should."""
    held, latest, names = tree.there(NAME), tree.held.get(LATEST), [*OLDER, NAME]
    other = next((file for file in one.pieces if held.get(file) != one.pieces[file]), "")
    stay, wanted = [name for name in names if name in tree.held], names[-one.keep :]
    old = {*OLDER} - {*wanted}
    too_old = {data: path for path, data in one.before.items() if parent(path) in old}
    hidden = [(path, too_old[data]) for path, data in tree.files.items() if data in too_old]
    path, was = hidden[0] if hidden else ("", "")
    looks = {
        "latest not moved": latest != NAME,
        "leftovers of a killed save": set(held) - set(one.pieces),
        "not saved #1": set(held) != set(one.pieces),
        "not saved #2": other,
        "older ones stay": len(stay) > one.keep,
        "too few stay": stay != wanted,
        "an old one under another name": hidden,
    }
    about = {"latest": latest, "name": NAME, "names": sorted(held), "pieces": len(one.pieces)}
    about |= {"file": other, "held": held.get(other), "data": one.pieces.get(other)}
    about |= {"stay": f"{agreement.listed(stay)} {agreement.verb('is', len(stay))}"}
    SAYS.refuse(looks, path=path, was=was, keep=one.keep, when=one.when, **about)


def _look_at_crashes(one: Trial) -> None:
    """Whenever it ends, there is a whole checkpoint to go on from; by a kill first."""
    states = [(crash, done) for done in one.cuts() for crash in disk.crashes(one.before, done)]
    for crash, done in sorted(states, key=lambda state: state[0].power):
        _refuse_crash(one, crash, done)


def _refuse_crash(one: Trial, crash: Crash, done: Sequence[Op]) -> None:
    """A Finding where a job could not go on from what this crash has left."""
    tree, lost = crash.tree, crash.lost
    latest, torn = tree.held.get(LATEST), one.torn(tree)
    named = latest in (NAME, *OLDER)
    if named and one.is_whole(tree, latest) and not torn:
        return
    after = f"after rank {done[-1].rank}'s {done[-1].said}" if done else "before the first step"
    comes = "The power fails" if crash.power else "A kill comes"
    how = f"{comes} {after}, {one.when}. {crash.how}"
    made = [op for op in done if op.kind in (disk.MAKE, disk.CREATE)]
    removed = any(op.kind == disk.REMOVE and op.path in OLDER for op in done)
    contents = lost is not None and lost.kind == disk.CONTENT
    looks = {
        "written in place": torn == NAME and any(inside(op.path, torn) for op in made),
        "latest written in place": not named and any(op.path == LATEST for op in made),
        "an old one removed in pieces": torn in OLDER,
        "the old one removed first": not crash.power and latest in OLDER,
        "latest removed first": not crash.power and latest is None,
        "latest moved first": not crash.power,
        "removed before it was replaced": removed and latest in {*OLDER} - tree.held.keys(),
        "file not synced": contents and lost.path.rpartition("/")[2].startswith("rank-"),
        "latest not synced": contents,
        "folder not synced": torn == NAME,
        "latest before the folder": True,
    }
    about = {"left": len(tree.there(torn)), "count": len(Tree(one.before).there(torn))}
    SAYS.refuse(looks, how=how, name=NAME, latest=latest, torn=torn, **about)


def _look_at_return(one: Trial) -> None:
    """A rank that has returned may say that the checkpoint is safe."""
    for rank in range(len(one.reports)):
        done = [op for op in one.ops if op.border < one.borders or op.rank == rank]
        for crash in disk.crashes(one.before, done):
            late = {"returned too early": crash.tree.held.get(LATEST) != NAME}
            SAYS.refuse(late, rank=rank, when=one.when)


LOOKS = Looks(
    returned=_look_at_inputs,
    value=_look_at_end,
    traffic=_look_at_crashes,
    memory=_look_at_return,
)
ATOMIC_SAVE = Exercise(judge=judge_atomic, **SAYS.about)
