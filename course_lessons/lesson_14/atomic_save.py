"""`atomic_save` of lesson 14: a save interrupted at every point, by a kill and by a power cut.

The ranks' operations are combined in the orders that their barriers allow. Every possible remaining
state is read as by a restarting job: first `latest`, then the folder that it names. Every folder
with a checkpoint's name must be complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from posixpath import basename

from course_classroom.judge import words
from course_classroom.judge.judge import on
from course_classroom.judge.looking import THREE, TWO
from course_classroom.ranks import agreement
from course_lessons.lesson_14 import disk
from course_lessons.lesson_14.disk import CONTENT, CREATE, MAKE, REMOVE, RENAME, Crash, Op, Tree
from course_lessons.lesson_14.trial import Trial, exercise

SAYS = words.Page(__file__, "atomic_save")
NAME, OLDER, LATEST = "step-000009", ["step-000003", "step-000006"], "latest"


class Save:
    """A save: the ranks' operations, the disk before it, and the number of checkpoints to keep."""

    def __init__(self, trial: Trial, before: dict[str, str], keep: int, seed: int):
        self.reports, self.when, _ = trial
        self.before, self.keep, self.ranks = before, keep, range(len(trial.reports))
        notes = [Op(*note) for report in self.reports for note in report["notes"]]
        # As if the ranks run in their order between two collectives.
        self.ops = sorted(notes, key=lambda op: (op.border, op.rank))
        self.borders = self.reports[0]["borders"]
        pieces = {f"rank-{r}": disk.data_of(NAME, r, seed) for r in self.ranks}
        self.whole = {NAME: pieces} | {name: Tree(before).there(name) for name in OLDER}

    def cuts(self) -> Iterator[list[Op]]:
        """Yield the operations done at an interruption: at any point of one rank, when each other
        rank has reached the same collective and done nothing or everything after it."""
        for border, rank in product(range(self.borders + 1), self.ranks):
            past = [op for op in self.ops if op.border < border]
            here = [op for op in self.ops if op.border == border]
            own = [op for op in here if op.rank == rank]
            others = [op for op in here if op.rank != rank]
            for k, rest in product(range(len(own) + 1), ([], others) if others else ([],)):
                yield [*past, *rest, *own[:k]]


def trials(tried: Callable, seed: int) -> Iterator[Save]:
    """Yield a save on three ranks, then a save on two ranks after a restart with files of a save
    killed just before its rename, then a save with few older checkpoints."""

    def saved(members: list[int], before: dict[str, str], keep: int, more: str = "") -> Save:
        return Save(tried(members, on(members) + more, NAME, OLDER, keep, seed), before, keep, seed)

    before = {f"{name}/rank-{r}": disk.data_of(name, r, seed) for name in OLDER for r in range(2)}
    before[LATEST] = OLDER[-1]
    first = saved(THREE, before, 2)
    yield first
    ends = (i for i, op in enumerate(first.ops) if (op.kind, op.other) == (RENAME, NAME))
    left = _done(first, first.ops[: next(ends, 0)]).files
    yield saved(TWO, left, 1, ", after a save that was killed")
    yield saved(TWO, before, len(OLDER) + 2, ", with few older ones")


def at_end(one: Save) -> None:
    """Check that all ranks make equally many collectives, each writes its piece, no rank is too
    early in any order, and the new checkpoint and the right number of older checkpoints remain."""
    borders = [report["borders"] for report in one.reports]
    looks = {
        "input changed": lambda r: r["changed"],
        "not called by all": lambda r: len({*borders}) > 1,
        "own file not written": lambda r: not r["own"],
    }
    SAYS.refuse_each(one.reports, looks, borders=borders, when=one.when)
    about = {"when": one.when, "name": NAME}
    moves = [op for op in one.ops if (op.kind, op.other) == (RENAME, NAME)]
    many = len({op.rank for op in moves}) > 1
    SAYS.refuse({"every rank renames": many}, renamed=len(moves), **about)
    for op, move in product(one.ops, moves):
        late = op.kind == CREATE and disk.inside(op.path, move.path) and op.border >= move.border
        looks = {"renamed before all have written": late and op.rank != move.rank}
        SAYS.refuse(looks, rank=move.rank, rank_2=op.rank, path=op.path, **about)
    for slow in reversed(one.ranks):
        order = sorted(one.ops, key=lambda op: (op.border, op.rank == slow))
        _refuse_end(one, _done(one, order))
    for done in one.cuts():
        _done(one, done)


def _done(one: Save, ops: Iterable[Op]) -> Tree:
    """Return the disk after these operations, or raise a Finding for a rank that is too early."""
    tree = Tree(one.before)
    for op in ops:
        try:
            tree.apply(op)
        except FileNotFoundError as error:
            lost = str(error)
            makers = [o for o in one.ops if lost in o.touches and o.rank != op.rank]
            pair = [o._replace(kind=disk.CALLS.get(o.kind, o.kind)) for o in (op, [*makers, op][0])]
            second = {f"{k}_2": value for k, value in pair[1]._asdict().items()}
            looks = {"ranks not waited for": makers, "not there": True}
            SAYS.refuse(looks, lost=lost, when=one.when, **pair[0]._asdict(), **second)
    return tree


def _refuse_end(one: Save, tree: Tree) -> None:
    """Raise a Finding if an undisturbed save leaves a wrong result."""
    held, new, latest = tree.there(NAME), one.whole[NAME], tree.held.get(LATEST)
    other = next((file for file in new if held.get(file) != new[file]), "")
    names = [*OLDER, NAME]
    stay, old = [name for name in names if name in tree.held], names[: -one.keep]
    too_old = {data: path for path, data in one.before.items() if disk.parent(path) in old}
    hidden = [(path, too_old[data]) for path, data in tree.files.items() if data in too_old]
    looks = {
        "latest not moved": latest != NAME,
        "leftovers of a killed save": held.keys() - new.keys(),
        "not saved #1": held.keys() != new.keys(),
        "not saved #2": other,
        "older ones stay": len(stay) > one.keep,
        "too few stay": stay != names[-one.keep :],
        "old checkpoint renamed, not removed": hidden,
    }
    about = {"latest": latest, "name": NAME, "names": sorted(held), "pieces": len(new)}
    about |= {"file": other, "held": held.get(other), "data": new.get(other), "keep": one.keep}
    about |= {"stay": f"{agreement.listed(stay or ['none'])} {agreement.verb('is', len(stay))}"}
    path, was = [*hidden, ("", "")][0]
    SAYS.refuse(looks, path=path, was=was, when=one.when, **about)


def at_crashes(one: Save) -> None:
    """Check that every interruption, first kills, then power cuts, leaves a complete checkpoint."""
    states = [(crash, done) for done in one.cuts() for crash in disk.crashes(one.before, done)]
    for crash, done in sorted(states, key=lambda state: state[0].power):
        _refuse_crash(one, crash, done)


def _refuse_crash(one: Save, crash: Crash, done: Sequence[Op]) -> None:
    """Raise a Finding if a job could not continue from the state after this crash."""
    tree, kill, latest = crash.tree, not crash.power, crash.tree.held.get(LATEST)
    there = [name for name in one.whole if name in tree.held]
    torn = next((name for name in there if tree.there(name) != one.whole[name]), "")
    if latest in there and not torn:
        return
    after = f"after rank {done[-1].rank}'s {done[-1].said}" if done else "before the first step"
    how = f"{'A kill happens' if kill else 'The power fails'} {after} ({one.when}). {crash.how}"
    made = [op.path for op in done if op.kind in (MAKE, CREATE)]
    removed = any(op.kind == REMOVE and op.path in OLDER for op in done)
    lost = crash.lost.path if crash.lost and crash.lost.kind == CONTENT else ""
    looks = {
        "written in place": torn == NAME and any(disk.inside(path, NAME) for path in made),
        "latest written in place": latest not in one.whole and LATEST in made,
        "an old one removed in pieces": torn in OLDER,
        "the old one removed first": kill and latest in OLDER,
        "latest removed first": kill and latest is None,
        "latest moved first": kill,
        "removed before it was replaced": removed and latest in OLDER and latest not in there,
        "file not synced": basename(lost).startswith("rank-"),
        "latest not synced": lost,
        "folder not synced": torn == NAME,
        "latest before the folder": True,
    }
    about = {"left": len(tree.there(torn)), "count": len(one.whole.get(torn, ()))}
    SAYS.refuse(looks, how=how, name=NAME, latest=latest, torn=torn, **about)


def at_return(one: Save) -> None:
    """Check that a rank may report the checkpoint as safe once it has returned."""
    for rank in one.ranks:
        done = [op for op in one.ops if op.border < one.borders or op.rank == rank]
        for crash in disk.crashes(one.before, done):
            late = {"returned too early": crash.tree.held.get(LATEST) != NAME}
            SAYS.refuse(late, rank=rank, when=one.when)


LOOKS = {"value": at_end, "traffic": at_crashes, "memory": at_return}
STOPS = {"across file systems": lambda finding: disk.ACROSS in finding.text}
ATOMIC_SAVE = exercise(SAYS, disk.run, "", trials, LOOKS, STOPS)
