"""`from_old_ranks` of lesson 14: shards of m ranks, read by n ranks, with the same next loss.

An answer's shards are compared with the logical tensors, its reads with a rank's needs, and the
losses of three more steps with a run without a save.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random

import torch
from torch import Tensor

from course_classroom.judge import bench, looking, words
from course_classroom.judge.judge import on
from course_classroom.judge.looking import ITEM, THREE, TWO, alike, ideas, near, refuse_idea
from course_lessons.lesson_14.trial import Trial, exercise, keyed
from course_lib.collectives.call import Group

SAYS = words.Page(__file__, "from_old_ranks")
KEYS = ("master", "exp_avg", "exp_avg_sq", "step", "next")
KINDS, (STEP, NEXT), MASTER = KEYS[:3], KEYS[3:], KEYS[0]
# The old world, the new ranks, and whether the last of them holds no bias.
CASES = ((4, THREE, False), (3, TWO, False), (2, THREE, False), (2, THREE, True))
BATCH, STEPS = 12, 3  # samples of a step, over all ranks; steps after the load
RATE, BETAS, EPS, DECAY = 0.05, (0.9, 0.99), 1e-8, 0.1
PADDING = -777.0  # marks padding
BEFORE = 2.0  # factor on each state in the run that is read first
Layout = list[list[tuple[str, int]]]  # for each group, (name, elements) in order


def totals(layout: Layout) -> list[int]:
    """Return the number of elements of each group."""
    return [sum(size for _, size in group) for group in layout]


def places(layout: Layout, ranks: int, floor: bool = False, base: bool = False) -> tuple:
    """Return each element's rank, and its place in that rank's shard; with `floor`, pieces are
    rounded down, and with `base`, the start of the second group ignores padding."""
    found, begin = [], 0
    for total in totals(layout):
        down, up = total // ranks, math.ceil(total / ranks)
        piece, k = down if floor else up, torch.arange(total)
        found.append((k // piece, begin + k % piece))
        begin += down if base else piece
    return tuple(torch.cat(each) for each in zip(*found, strict=True))


def shards(elements: Tensor, layout: Layout, ranks: int, fill: float = 0.0) -> Tensor:
    """Return every rank's shard, its pieces of all groups in sequence, in shape (ranks, length)."""
    rank, at = places(layout, ranks)
    made = torch.full((ranks, int(at.max()) + 1), fill, dtype=torch.float64)
    made[rank, at] = elements
    return made


class Run:
    """The files that m ranks have saved and n ranks read, in groups that neither m nor n divides.
    With `few`, there are so few biases that the last of three ranks holds none."""

    def __init__(self, m: int, n: int, few: bool, seed: int):
        r, made = Random(seed), torch.Generator().manual_seed(seed)
        self.m, self.n, self.seed, self.step = m, n, seed, r.randint(3, 9)
        self._lay(r.choice((3, 5, 6)), 2, 2)
        while not few and not self._tells_apart():
            self._lay(r.randint(3, 7), r.randint(5, 15), r.randint(1, 7))
        drawn = torch.randn(3, len(self.order), generator=made, dtype=torch.float64)
        # For each kind all elements, in the old order.
        self.states = dict(zip(KINDS, (*drawn[:2], drawn[2].square()), strict=True))
        self.files = {kind: shards(x, self.old, m, PADDING) for kind, x in self.states.items()}
        self.right = {kind: shards(x[self.order], self.new, n) for kind, x in self.states.items()}
        self.held = places(self.new, n)[0].bincount(minlength=n).tolist()

    def _lay(self, i: int, h: int, o: int) -> None:
        """Set the layouts of two products with biases, i → h → o; the new one reverses groups."""
        self.old = [[("up", h * i), ("down", o * h)], [("up.bias", h), ("down.bias", o)]]
        self.new = [group[::-1] for group in self.old]
        groups = torch.arange(sum(totals(self.old))).split(totals(self.old))
        self.order = torch.cat([k.roll(-g[0][1]) for k, g in zip(groups, self.old, strict=True)])

    def _tells_apart(self) -> bool:
        m, n, (weights, biases) = self.m, self.n, totals(self.old)
        uneven = all(total % k for total in (weights, biases) for k in (m, n))
        # Old files for the elements of one parameter that one new rank holds.
        names = [name for group in self.new for name, size in group for _ in range(size)]
        old, new = places(self.old, m)[0][self.order].tolist(), places(self.new, n)[0].tolist()
        files = Counter((name, rank) for name, rank, _ in {*zip(names, new, old, strict=True)})
        return uneven and biases > m * (m - 1) and max(files.values()) >= min(m, 3)

    def misread(self, kind: str, **how: bool) -> Tensor:
        """Return the new shards if the old files were read with the `places` of a wrong idea."""
        file, (rank, at) = self.files[kind], places(self.old, self.m, **how)
        last, end = (size - 1 for size in file.shape)  # reads beyond the end use the last element
        read = file[rank.clamp(max=last), at.clamp(max=end)]
        return shards(read[self.order], self.new, self.n)

    def losses(self, kinds: Sequence, step: int, starts: Sequence[int]) -> list[float]:
        """Return the next losses of a linear regression on all parameters, from shards of these
        kinds with AdamW; each rank's samples begin at its start."""
        there, found = places(self.new, self.n), []
        master, first, second = (torch.stack([*kind])[there] for kind in kinds)
        decay = RATE * DECAY * (torch.arange(len(master)) < totals(self.new)[0])
        made, count = torch.Generator().manual_seed(self.seed + 1), BATCH * (self.step + STEPS)
        samples = torch.randn(count, len(master), generator=made, dtype=torch.float64)
        for t in range(step + 1, step + 1 + STEPS):
            k, (one, two) = BATCH * (t - step - 1), BETAS
            rows = samples[[k + at + i for at in starts for i in range(BATCH // len(starts))]]
            errors = rows @ master
            found.append(errors.square().mean().item())
            grad = 2 * rows.T @ errors / len(rows)
            first, second = one * first + (1 - one) * grad, two * second + (1 - two) * grad * grad
            update = (first / (1 - one**t)) / ((second / (1 - two**t)).sqrt() + EPS)
            master = master * (1 - decay) - RATE * update
        return found


# ---- code on the judge's ranks
class Old:
    """The old run as given to the answer: its facts, and the method `read`."""

    def __init__(self, run: Run, times: float = 1.0):
        self.world, self.step, self.batch = run.m, run.step, BATCH
        self.layout = [*map(list, run.old)]
        self.samples = run.step * BATCH // run.m
        self._files, self.seen = {kind: times * held for kind, held in run.files.items()}, []

    def read(self, rank: int, kind: str, start: int, stop: int) -> Tensor:
        """Return the elements from `start` to `stop` of an old rank's file."""
        if rank not in range(self.world) or not 0 <= start <= stop <= len(self._files[kind][rank]):
            raise ValueError(f"no file {kind} of rank {rank} has elements {start} to {stop}")
        self.seen += [(kind, rank, k) for k in range(start, stop)]
        return self._files[kind][rank][start:stop].clone()


def run(function: Callable, group: Group, m: int, few: bool, seed: int, when: str) -> dict:
    """Read two runs of the same sizes, one after the other; both results stay alive."""
    saved, rank = Run(m, group.size(), few, seed), group.rank()
    earlier, old = Old(saved, BEFORE), Old(saved)
    its, given = ([*map(list, saved.new)] for _ in range(2))
    first, _ = bench.watched(lambda: function(earlier, its, group))
    before = [(x, x.detach().clone()) for x in _shards(first)]
    out, facts = bench.watched(lambda: function(old, given, group))
    cells = [x.data_ptr() + ITEM * x.stride(0) * k for x in _shards(out) for k in range(len(x))]
    read, distinct, need = len(old.seen), len({*old.seen}), len(KINDS) * saved.held[rank]
    more = f", but needs only {need * ITEM}" if read > need else ""
    return {
        **keyed(out, KEYS, _plain),
        "changed": (given, old.layout) != (saved.new, saved.old),
        "shared": len({*cells}) < len(cells),
        "kept": all(alike(x.detach(), was) for x, was in before),
        "head": f"The shards are correct. Rank {rank} reads {read * ITEM} bytes{more} ({when}). ",
        "sent": facts["bytes"],
        "reads": {
            "everything is read": distinct == sum(held.numel() for held in saved.files.values()),
            "too much is read": distinct > need,
            "read twice": read > need,
            "sent between ranks": facts["bytes"],
        },
    }


def _shards(out: object) -> list[Tensor]:
    """Return the values in a result that are valid shards, in the order of KINDS."""
    held = [out.get(kind) for kind in KINDS] if isinstance(out, Mapping) else []
    return [x for x in held if bench.plain(x) and x.dim() == 1 and x.dtype == torch.float64]


def _plain(key: str, value: object) -> Tensor | float | str:
    """Return a shard or a number, depending on the key, or a description of any other value."""
    if key in KINDS and _shards({key: value}):
        return value.detach().clone()
    plain = None if key in KINDS else bench.number(value)
    if plain is None:
        return looking.came_back(bench.described(value))
    whole = plain.is_integer() and hasattr(value, "__index__")  # of any integer type
    return int(plain) if whole else plain


# ---- verdicts
def trials(tried: Callable, seed: int) -> Iterator[Trial]:
    for k, (m, members, few) in enumerate(CASES, seed):
        n = len(members)
        when = f"from {m} ranks to {n}, {on(members)}{', with few biases' if few else ''}"
        yield tried(members, when, m, few, k, when, right=Run(m, n, few, k))


def at_form(one: Trial) -> None:
    one.refuse(SAYS, "form")
    run, sizes = one.right, totals(one.right.new)
    length, floor = run.right[MASTER].shape[1], sum(size // run.n for size in sizes)
    for kind in KINDS:
        seen = one.seen(kind)
        for rank, x in enumerate(seen):
            looks = {
                "not a shard": not isinstance(x, Tensor),
                "not sharded": len(x) >= sum(sizes),
                "own padding forgotten": len(x) == run.held[rank] != length,
                "rounded down": all(len(other) == floor for other in seen),
                "wrong length": len(x) != length,
            }
            text = f"`{kind}` on rank {rank} has {len(x)} elements instead of {length}"
            text += f" ({one.when}). "
            SAYS.refuse(looks, kind=kind, rank=rank, seen=x, text=text, when=one.when)
    looking.refuse_changed(one, "a layout")
    looks = {"one buffer #1": lambda r: r["shared"], "one buffer #2": lambda r: not r["kept"]}
    SAYS.refuse_each(one.reports, looks, when=one.when)


def at_values(one: Trial) -> None:
    run, n, m = one.right, one.right.n, one.right.m
    for kind, right in run.right.items():
        if not looking.all_near(one.seen(kind), [*right]):
            _refuse_shards(run, kind, one.seen(kind), one.when)
    for key in (STEP, NEXT):
        for rank, value in enumerate(one.seen(key)):
            other = {"not a whole number": type(value) is not int}
            SAYS.refuse(other, key=key, rank=rank, value=value, when=one.when)
    steps, seen = one.seen(STEP), one.seen(NEXT)
    every, part = run.step * BATCH, BATCH // n  # samples that all old ranks have read
    begins = {  # starts of the new ranks' samples, and their distances
        "data from the start": (0, part),
        "one old rank's count": (every // m, part),
        "counted with the new ranks": (every // m * n, part),
        "the same for all ranks": (every, 0),
        "the old ranks' part": (every, BATCH // m),
        "a batch for each rank": (every, BATCH),
        "parts of one sample": (every, 1),
    }
    looks = {"step forgotten": not any(steps), "wrong step": steps != [run.step] * n}
    for entry, (at, apart) in begins.items():
        looks[entry] = seen == [at + r * apart for r in range(n)]
    looks["wrong sample"] = seen != [every + r * part for r in range(n)]
    SAYS.refuse(looks, step=steps, next=seen, when=one.when)


def _refuse_shards(run: Run, kind: str, seen: list[Tensor], when: str) -> None:
    wanted, about = [*run.right[kind]], {"kind": kind, "when": when}
    for other in (other for other in KINDS if other != kind):
        mixed = {"kinds mixed up": run.right[other]}
        refuse_idea(seen, ideas(SAYS, mixed, other=other, **about), when)
    gives = {
        "nothing read" if kind == MASTER else "moments forgotten": [0 * x for x in wanted],
        "values of an earlier call": [BEFORE * x for x in wanted],
        "every rank has the first one's": [wanted[0]] * run.n,
        "the old order": shards(run.states[kind], run.old, run.n),
        "old pieces rounded down": run.misread(kind, floor=True),
        "padding between the groups": run.misread(kind, base=True),
    }
    refuse_idea(seen, ideas(SAYS, gives, **about), when)
    pairs = list(zip(seen, wanted, strict=True))
    looks = {
        "padding leaks in": any((x == PADDING).any() for x in seen),
        "padding not zero": all(near(x[w != 0], w[w != 0]) for x, w in pairs),
        "some left zero": all(near(x, torch.where(x == 0, 0.0, w)) for x, w in pairs),
        "wrong order": all(torch.isin(x, w).all() for x, w in pairs),
        "wrong elements": True,
    }
    SAYS.refuse(looks, **about)


def at_losses(one: Trial) -> None:
    """Compare the losses of training from the shards with the losses of the saved run."""
    run, (step, *_) = one.right, one.seen(STEP)
    seen = run.losses(map(one.seen, KINDS), step, one.seen(NEXT))
    wanted = run.losses(run.right.values(), run.step, [run.step * BATCH])
    for k, (loss, right) in enumerate(zip(seen, wanted, strict=True), 1):
        other = {"wrong loss": not near(loss, right)}
        SAYS.refuse(other, k=k, seen=loss, when=one.when, loss=right)


LOOKS = {"shape": at_form, "value": at_values, "traffic": "reads", "later_steps": at_losses}
FROM_OLD_RANKS = exercise(SAYS, run, "a dictionary with its shards", trials, LOOKS, {})
